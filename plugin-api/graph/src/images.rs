//! Images as a graph sees them: the order of patches, and the inputs that follow from the size of an image
//! (`patch_positions`, `position_taps`, `position_weights`, `mrope_positions`, `image_index` in op-set.md).
//!
//! Patches come block by block: a block is a square of `merge` by `merge` patches that becomes one row of text.

use std::ops::Range;

/// Patches of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Frames; 1 for a picture.
    pub frames: usize,
    /// Rows of patches, a multiple of the block's side.
    pub rows: usize,
    /// Columns of patches, a multiple of the block's side.
    pub columns: usize,
}

/// An image in a sequence of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlacedImage {
    /// Index of its first token.
    pub start: usize,
    /// Its patches.
    pub grid: Grid,
}

impl Grid {
    /// Patches of all frames.
    #[must_use]
    pub fn num_patches(&self) -> usize {
        self.frames * self.rows * self.columns
    }

    /// Rows of text that stand for it: one per block.
    #[must_use]
    pub fn num_tokens(&self, merge: usize) -> usize {
        self.frames * (self.rows / merge) * (self.columns / merge)
    }

    /// Frame, row and column of every patch, block by block.
    pub fn patches(&self, merge: usize) -> impl Iterator<Item = [usize; 3]> + use<> {
        let Self { frames, rows, columns } = *self;
        let blocks =
            (0..frames * (rows / merge)).flat_map(move |i| (0..columns / merge).map(move |j| (i, j)));
        blocks.flat_map(move |(i, j)| {
            let (frame, row) = (i / (rows / merge), i % (rows / merge));
            (0..merge * merge).map(move |k| [frame, row * merge + k / merge, j * merge + k % merge])
        })
    }

    /// The longest side in blocks: by how much positions of text go on after the image.
    fn extent(&self, merge: usize) -> usize {
        self.rows.max(self.columns) / merge
    }
}

/// The input `patch_positions` `[3, P]` of several images.
#[must_use]
pub fn patch_positions(grids: &[Grid], merge: usize) -> Vec<i64> {
    let patches = || grids.iter().flat_map(|grid| grid.patches(merge));
    (0..3).flat_map(|stream| patches().map(move |patch| patch[stream] as i64)).collect()
}

/// The inputs `position_taps` and `position_weights`, `[P, 4]` each: the entries of a square table of `side` rows that a
/// patch lies between when the corners of image and table coincide, and their bilinear weights.
#[must_use]
pub fn position_taps(grids: &[Grid], merge: usize, side: usize) -> (Vec<i64>, Vec<f32>) {
    let (mut taps, mut weights) = (Vec::new(), Vec::new());
    for grid in grids {
        for [_, row, column] in grid.patches(merge) {
            let rows = neighbours(row, grid.rows, side);
            let columns = neighbours(column, grid.columns, side);
            for (row, row_weight) in rows {
                for (column, column_weight) in columns {
                    taps.push((row * side + column) as i64);
                    weights.push(row_weight * column_weight);
                }
            }
        }
    }
    (taps, weights)
}

/// The two entries of a line of `side` that `index` of `size` lies between, and their weights.
fn neighbours(index: usize, size: usize, side: usize) -> [(usize, f32); 2] {
    let at = index as f32 * (side - 1) as f32 / (size - 1).max(1) as f32;
    let low = (at as usize).min(side - 1);
    let weight = at - low as f32;
    [(low, 1.0 - weight), ((low + 1).min(side - 1), weight)]
}

/// The input `mrope_positions` `[3, T]` of tokens `range` of a sequence with images in order of their start.
#[must_use]
pub fn token_positions(images: &[PlacedImage], merge: usize, range: Range<usize>) -> [Vec<i64>; 3] {
    let mut streams = [const { Vec::new() }; 3];
    for token in range {
        let position = token_position(images, merge, token);
        streams.iter_mut().zip(position).for_each(|(stream, position)| stream.push(position));
    }
    streams
}

/// Frame, row and column of one token, as in [`token_positions`].
#[must_use]
pub fn token_position(images: &[PlacedImage], merge: usize, token: usize) -> [i64; 3] {
    let mut shift = 0;
    for image in images.iter().take_while(|image| image.start <= token) {
        let (tokens, columns) = (image.grid.num_tokens(merge), image.grid.columns / merge);
        let inside = token - image.start;
        if inside < tokens {
            let (start, per_frame) = (image.start as i64 + shift, image.grid.rows / merge * columns);
            let offsets = [inside / per_frame, inside % per_frame / columns, inside % columns];
            return offsets.map(|offset| start + offset as i64);
        }
        shift += image.grid.extent(merge) as i64 - tokens as i64;
    }
    [token as i64 + shift; 3]
}

/// The input `image_index` `[T]` of tokens `range` of a sequence whose images' rows follow one another: the row that stands
/// for a token, −1 for text.
#[must_use]
pub fn image_index(images: &[PlacedImage], merge: usize, range: Range<usize>) -> Vec<i64> {
    let mut index = vec![-1; range.len()];
    let mut first_row = 0;
    for image in images {
        let tokens = image.grid.num_tokens(merge);
        let seen = image.start.max(range.start)..(image.start + tokens).min(range.end);
        for token in seen {
            index[token - range.start] = (first_row + token - image.start) as i64;
        }
        first_row += tokens;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Grid = Grid { frames: 1, rows: 4, columns: 6 };

    #[test]
    fn patches_of_a_block_follow_one_another() {
        let patches: Vec<_> = GRID.patches(2).collect();
        assert_eq!(patches.len(), GRID.num_patches());
        assert_eq!(patches[..5], [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [0, 0, 2]]);
        assert_eq!(patches[12], [0, 2, 0]);
    }

    #[test]
    fn text_goes_on_after_the_longest_side() {
        let images = [PlacedImage { start: 2, grid: GRID }];
        let [frames, rows, columns] = token_positions(&images, 2, 0..10);
        assert_eq!(frames, [0, 1, 2, 2, 2, 2, 2, 2, 5, 6]);
        assert_eq!(rows, [0, 1, 2, 2, 2, 3, 3, 3, 5, 6]);
        assert_eq!(columns, [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]);
        assert_eq!(token_positions(&images, 2, 7..9).map(|s| s[1]), [5; 3]);
        assert_eq!(image_index(&images, 2, 1..9), [-1, 0, 1, 2, 3, 4, 5, -1]);
    }

    #[test]
    fn corners_of_image_and_table_coincide() {
        let (taps, weights) = position_taps(&[GRID], 2, 6);
        let at = |patch: usize| -> Vec<(i64, f32)> {
            (0..4).map(|i| (taps[4 * patch + i], weights[4 * patch + i])).filter(|(_, w)| *w > 0.0).collect()
        };
        assert_eq!(at(0), [(0, 1.0)]);
        assert_eq!(at(GRID.num_patches() - 1), [(35, 1.0)]);
        for sum in weights.chunks(4).map(|w| w.iter().sum::<f32>()) {
            assert!((sum - 1.0).abs() < 1e-6);
        }
    }
}
