//! Between patches of images and rows of text.

use crate::attr::Attrs;
use crate::error::Result;
use crate::graph::{Graph, Value, Weight};

impl Graph {
    /// Patches of all images of the step, `[P, width]`.
    #[track_caller]
    pub fn pixels(&self, width: usize) -> Result<Value> {
        self.input("pixels", Some(width))
    }

    /// Frame, row and column of every patch, `[3, P]`.
    #[track_caller]
    pub fn patch_positions(&self) -> Result<Value> {
        self.input("patch_positions", None)
    }

    /// Frame, row and column of every row of text, `[3, T]`: all three are a text token's position; tokens of an image start
    /// where the text before it ended, and text goes on after the longest side of the image.
    #[track_caller]
    pub fn mrope_positions(&self) -> Result<Value> {
        self.input("mrope_positions", None)
    }

    /// A square table of positions, `[side², width]`, interpolated bilinearly at every patch: `[P, width]`.
    #[track_caller]
    pub fn interpolated_positions(&self, table: Weight, side: usize) -> Result<Value> {
        let input =
            |name: &str| self.op1("input/1", &[], &Attrs::new().with("name", name).with("side", side));
        let taps = self.embedding(input("position_taps")?, table)?; // [P, 4, width]
        let weights = self.reshape(input("position_weights")?, &[4, 1])?;
        self.sum(self.mul(taps, weights)?, 1)
    }

    /// Joins every `count` consecutive rows into one: `[P, D]` gives `[P / count, count · D]`.
    #[track_caller]
    pub fn group_rows(&self, x: Value, count: usize) -> Result<Value> {
        self.op1("group_rows/1", &[x.0], &Attrs::new().with("count", count))
    }

    /// Replaces the embeddings of placeholder tokens, `x: [T, width]`, by the rows that the vision entry made.
    #[track_caller]
    pub fn merge_image_rows(&self, x: Value, width: usize) -> Result<Value> {
        let rows = self.input("image_rows", Some(width))?;
        let index = self.input("image_index", None)?;
        self.op1("merge_rows/1", &[x.0, rows.0, index.0], &Attrs::new())
    }
}
