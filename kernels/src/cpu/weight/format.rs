//! Storage formats of weights and the size of their blocks.

/// How the elements of a weight are stored in the checkpoint. All formats are little endian; the quantised ones are
/// those of GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Format {
    F32,
    BF16,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::BF16,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// Elements in a block. The number of columns of a weight is a multiple of it.
    #[must_use]
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::BF16 | Self::F16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::BF16 | Self::F16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Bytes of a row of `num_cols` elements; `num_cols` must be a multiple of [`block_len`](Self::block_len).
    #[must_use]
    pub fn row_bytes(self, num_cols: usize) -> usize {
        num_cols / self.block_len() * self.block_bytes()
    }

    /// Whether elements are integers with a shared scale.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }
}
