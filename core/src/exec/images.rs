//! Images: the vision tower turns patches into rows that take the place of placeholder tokens.
//!
//! Nothing is kept between steps. An image is run through the tower by every step that computes rows of it; that is one step
//! unless a chunk of the prompt ends inside the image.

use std::sync::Arc;

use metrale_graph::images::{Grid, PlacedImage, patch_positions, position_taps, token_position};

use super::runner::device_error;
use super::{Batch, BatchSeq, Rows};
use crate::device::{Device, Entry, ImageContext, LOCAL_PAGE, StepContext};
use crate::error::EngineError;
use crate::kv::Media;

/// The images of one sequence, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceImages {
    /// Where they are.
    pub placed: Vec<PlacedImage>,
    /// Patches of each, `[patches, width]`, block by block.
    pub patches: Vec<Arc<[f32]>>,
    /// The tokens of each and what they stand for.
    pub media: Vec<Media>,
}

/// What the vision tower and the rows of text need to know about images.
#[derive(Debug)]
pub(crate) struct Vision {
    /// Patches of a block along each side; a block is a row of text.
    merge: usize,
    /// Rows of the table of positions that the tower interpolates, if it does.
    position_table: Option<usize>,
    /// Patches that the tower takes at once.
    max_patches: usize,
    /// `[3, rows]`
    streams: Vec<u32>,
    /// `[rows]`
    index: Vec<Option<u32>>,
    /// `[image rows, width]`
    rows: Vec<f32>,
    patches: PatchInputs,
}

/// What the tower is fed with besides pixels.
#[derive(Debug, Default)]
struct PatchInputs {
    streams: Vec<u32>,
    taps: Vec<u32>,
    frames: Rows,
}

impl Vision {
    pub(crate) fn new(merge: usize, position_table: Option<usize>, max_patches: usize) -> Self {
        Self {
            merge,
            position_table,
            max_patches,
            streams: Vec::new(),
            index: Vec::new(),
            rows: Vec::new(),
            patches: PatchInputs::default(),
        }
    }

    /// What the text plan reads about the step that was prepared last.
    pub(super) fn context(&self) -> ImageContext<'_> {
        ImageContext { streams: &self.streams, rows: &self.rows, index: &self.index, taps: &[] }
    }

    /// Positions of the rows of a step.
    pub(super) fn place(&mut self, seqs: &[BatchSeq]) {
        self.streams.clear();
        for stream in 0..3 {
            for seq in seqs {
                let (placed, merge) = (seq.placed_images(), self.merge);
                let positions = seq.rows().map(|token| token_position(placed, merge, token)[stream]);
                self.streams.extend(positions.map(|position| position as u32));
            }
        }
    }

    /// Positions of single rows: (sequence, token) each.
    pub(super) fn place_tokens(&mut self, seqs: &[BatchSeq], rows: &[(usize, usize)]) {
        self.streams.clear();
        for stream in 0..3 {
            self.streams.extend(rows.iter().map(|&(seq, token)| {
                token_position(seqs[seq].placed_images(), self.merge, token)[stream] as u32
            }));
        }
    }

    /// Runs the images that rows of the step belong to through the tower.
    pub(super) fn see(&mut self, device: &mut dyn Device, batch: &Batch) -> Result<(), EngineError> {
        self.place(&batch.seqs);
        self.index.clear();
        self.rows.clear();
        let mut seen: Vec<(Grid, &Arc<[f32]>)> = Vec::new();
        let mut num_rows = 0;
        for seq in &batch.seqs {
            let first = self.index.len();
            self.index.resize(first + seq.num_tokens, None);
            let Some(images) = &seq.images else { continue };
            for (image, patches) in images.placed.iter().zip(&images.patches) {
                let tokens = image.grid.num_tokens(self.merge);
                let rows = seq.rows();
                let inside = image.start.max(rows.start)..(image.start + tokens).min(rows.end);
                if inside.is_empty() {
                    continue;
                }
                for token in inside {
                    self.index[first + token - rows.start] = Some((num_rows + token - image.start) as u32);
                }
                num_rows += tokens;
                seen.push((image.grid, patches));
            }
        }
        self.run_tower(device, &seen)
    }

    /// As many images side by side as the tower's buffers hold.
    fn run_tower(
        &mut self,
        device: &mut dyn Device,
        images: &[(Grid, &Arc<[f32]>)],
    ) -> Result<(), EngineError> {
        let mut group = images;
        while !group.is_empty() {
            let (mut count, mut patches) = (0, 0);
            while let Some((grid, _)) = group.get(count)
                && (count == 0 || patches + padded(grid) <= self.max_patches)
            {
                patches += padded(grid);
                count += 1;
            }
            let (now, later) = group.split_at(count);
            self.run_group(device, now)?;
            group = later;
        }
        Ok(())
    }

    fn run_group(
        &mut self,
        device: &mut dyn Device,
        images: &[(Grid, &Arc<[f32]>)],
    ) -> Result<(), EngineError> {
        let grids: Vec<Grid> = images.iter().map(|(grid, _)| *grid).collect();
        let count: usize = grids.iter().map(Grid::num_patches).sum();
        if grids.iter().map(padded).sum::<usize>() > self.max_patches {
            let limit = self.max_patches;
            return Err(EngineError::Internal(format!(
                "images of {count} patches; there is room for {limit}"
            )));
        }
        let pixels: Vec<f32> = images.iter().flat_map(|(_, patches)| patches.iter().copied()).collect();
        device.write_input((Entry::Vision, "pixels"), count, &pixels).map_err(device_error)?;
        self.patches.fill(&grids, self.merge);
        if let Some(side) = self.position_table {
            let (taps, weights) = position_taps(&grids, self.merge, side);
            self.patches.taps.extend(taps.into_iter().map(|tap| tap as u32));
            let input = (Entry::Vision, "position_weights");
            device.write_input(input, count, &weights).map_err(device_error)?;
        }
        let context = StepContext {
            rows: count,
            sequences: &self.patches.frames.sequences(),
            images: ImageContext {
                streams: &self.patches.streams,
                taps: &self.patches.taps,
                ..ImageContext::default()
            },
            ..StepContext::default()
        };
        device.run(Entry::Vision, &context).map_err(device_error)?;
        let rows = device.read_output(Entry::Vision, "rows", count).map_err(device_error)?;
        self.rows.extend(rows.unwrap_or_default());
        Ok(())
    }
}

impl PatchInputs {
    /// The patches of a frame are one segment.
    fn fill(&mut self, grids: &[Grid], merge: usize) {
        self.streams.clear();
        self.streams.extend(patch_positions(grids, merge).into_iter().map(|position| position as u32));
        self.taps.clear();
        self.frames.clear();
        for grid in grids {
            for _ in 0..grid.frames {
                self.frames.push_segment(grid.rows * grid.columns);
            }
        }
    }
}

/// Rows that the patches of an image take in pages of rows that attend among themselves: every frame begins a page.
fn padded(grid: &Grid) -> usize {
    grid.frames * (grid.rows * grid.columns).next_multiple_of(LOCAL_PAGE)
}
