//! Feeds graphs that see images.

use std::ops::Range;

use metrale_graph::Graph;
use metrale_graph::dim::Symbol;
use metrale_graph::images::{
    Grid, PlacedImage, image_index, patch_positions, position_taps, token_positions,
};

use crate::batch::Batch;
use crate::error::{Fault, ModelError};
use crate::tensor::{Ints, Tensor};

/// The images of one sequence, all of them, and what the tower made of them.
#[derive(Clone, Debug)]
pub struct ImageRows {
    /// Where they are, in order.
    pub placed: Vec<PlacedImage>,
    /// Their rows one after another, `[rows, hidden_size]`.
    pub rows: Tensor,
}

/// Position streams that are all equal: text alone. `[3, count]`
pub(crate) fn equal_streams(first: usize, count: usize) -> Result<Ints, Fault> {
    streams(&token_positions(&[], 1, first..first + count))
}

fn streams(streams: &[Vec<i64>; 3]) -> Result<Ints, Fault> {
    Ints::new(&[3, streams[0].len()], streams.concat())
}

/// Adds to a step of several sequences what a decoder that sees images reads: `mrope_positions`, `image_rows` and
/// `image_index`. `width` is that of the decoder.
pub(crate) fn feed(
    batch: Batch,
    sequences: &[(Option<&ImageRows>, Range<usize>)],
    merge: usize,
    width: usize,
) -> Result<Batch, ModelError> {
    let mut positions = [const { Vec::new() }; 3];
    let (mut rows, mut index, mut num_rows) = (Vec::new(), Vec::new(), 0);
    for (images, span) in sequences {
        let placed = images.map_or(&[][..], |images| &images.placed);
        let own = token_positions(placed, merge, span.clone());
        positions.iter_mut().zip(own).for_each(|(all, own)| all.extend(own));
        let shifted = |i: i64| if i < 0 { i } else { i + num_rows };
        index.extend(image_index(placed, merge, span.clone()).into_iter().map(shifted));
        if let Some(images) = images {
            rows.extend_from_slice(images.rows.data());
            num_rows += images.rows.shape()[0] as i64;
        }
    }
    Ok(batch
        .segments(Symbol::P, &[num_rows as usize])
        .ints("mrope_positions", streams(&positions)?)
        .floats("image_rows", Tensor::new(&[num_rows as usize, width], rows)?)
        .ids("image_index", index))
}

/// What a tower reads besides `pixels`: every frame is a segment.
pub(crate) fn patches(
    graph: &Graph,
    pixels: &Tensor,
    grids: &[Grid],
    merge: usize,
) -> Result<Batch, ModelError> {
    let count: usize = grids.iter().map(Grid::num_patches).sum();
    let frames: Vec<usize> =
        grids.iter().flat_map(|grid| std::iter::repeat_n(grid.rows * grid.columns, grid.frames)).collect();
    let side = graph.nodes.iter().find_map(|node| node.attrs.size("side")).unwrap_or(2);
    let (taps, weights) = position_taps(grids, merge, side);
    Ok(Batch::new()
        .segments(Symbol::P, &frames)
        .floats("pixels", pixels.clone())
        .ints("patch_positions", Ints::new(&[3, count], patch_positions(grids, merge))?)
        .ints("position_taps", Ints::new(&[count, 4], taps)?)
        .floats("position_weights", Tensor::new(&[count, 4], weights)?))
}
