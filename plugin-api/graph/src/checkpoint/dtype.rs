//! Element types of stored tensors: plain numbers and the block types of GGUF.
//!
//! A block type stores `block_size` consecutive elements of a row in `block_bytes` bytes; plain types are blocks of
//! one. Every type that either format can name is listed, also those that no kernel reads, so that an unsupported
//! tensor is reported by its name and size instead of failing the whole file.

use std::fmt;

/// How a type is laid out and what the two file formats call it.
struct Layout {
    name: &'static str,
    block_size: usize,
    block_bytes: usize,
    in_safetensors: bool,
    ggml_id: Option<u32>,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $size:literal in $bytes:literal, $st:literal, $ggml:expr;)*) => {
        /// Element type of a stored tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Dtype { $($(#[$doc])* $variant,)* }

        impl Dtype {
            /// Every type, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const fn layout(self) -> Layout {
                match self {
                    $(Self::$variant => Layout {
                        name: $name, block_size: $size, block_bytes: $bytes, in_safetensors: $st, ggml_id: $ggml,
                    },)*
                }
            }
        }
    };
}

dtypes! {
    /// One byte, zero or one.
    Bool = "BOOL", 1 in 1, true, None;
    /// Unsigned byte; also the container of packed 4-bit weights.
    U8 = "U8", 1 in 1, true, None;
    /// Signed byte.
    I8 = "I8", 1 in 1, true, Some(24);
    /// Unsigned 16-bit integer.
    U16 = "U16", 1 in 2, true, None;
    /// Signed 16-bit integer.
    I16 = "I16", 1 in 2, true, Some(25);
    /// Unsigned 32-bit integer.
    U32 = "U32", 1 in 4, true, None;
    /// Signed 32-bit integer.
    I32 = "I32", 1 in 4, true, Some(26);
    /// Unsigned 64-bit integer.
    U64 = "U64", 1 in 8, true, None;
    /// Signed 64-bit integer.
    I64 = "I64", 1 in 8, true, Some(27);
    /// IEEE half precision.
    F16 = "F16", 1 in 2, true, Some(1);
    /// bfloat16.
    BF16 = "BF16", 1 in 2, true, Some(30);
    /// IEEE single precision.
    F32 = "F32", 1 in 4, true, Some(0);
    /// IEEE double precision.
    F64 = "F64", 1 in 8, true, Some(28);
    /// Complex number of two f32.
    C64 = "C64", 1 in 8, true, None;
    /// FP8, 4 exponent bits, no infinities, largest value 448.
    F8E4M3 = "F8_E4M3", 1 in 1, true, None;
    /// FP8, 5 exponent bits.
    F8E5M2 = "F8_E5M2", 1 in 1, true, None;
    /// FP8 scale, a power of two.
    F8E8M0 = "F8_E8M0", 1 in 1, true, None;
    /// FP8 E4M3 without negative zero.
    F8E4M3Fnuz = "F8_E4M3FNUZ", 1 in 1, true, None;
    /// FP8 E5M2 without negative zero.
    F8E5M2Fnuz = "F8_E5M2FNUZ", 1 in 1, true, None;
    /// FP6, 2 exponent bits, four in three bytes.
    F6E2M3 = "F6_E2M3", 4 in 3, true, None;
    /// FP6, 3 exponent bits, four in three bytes.
    F6E3M2 = "F6_E3M2", 4 in 3, true, None;
    /// FP4 (E2M1), two in a byte.
    F4 = "F4", 2 in 1, true, None;
    /// 4 bits, one f16 scale per 32.
    Q4_0 = "Q4_0", 32 in 18, false, Some(2);
    /// 4 bits, f16 scale and minimum per 32.
    Q4_1 = "Q4_1", 32 in 20, false, Some(3);
    /// 5 bits, one f16 scale per 32.
    Q5_0 = "Q5_0", 32 in 22, false, Some(6);
    /// 5 bits, f16 scale and minimum per 32.
    Q5_1 = "Q5_1", 32 in 24, false, Some(7);
    /// 8 bits, one f16 scale per 32.
    Q8_0 = "Q8_0", 32 in 34, false, Some(8);
    /// 8 bits with a stored sum; activations only.
    Q8_1 = "Q8_1", 32 in 40, false, Some(9);
    /// 2 bits, 4-bit scales and minima per 16, super-blocks of 256.
    Q2K = "Q2_K", 256 in 84, false, Some(10);
    /// 3 bits, 6-bit scales per 16, super-blocks of 256.
    Q3K = "Q3_K", 256 in 110, false, Some(11);
    /// 4 bits, 6-bit scales and minima per 32, super-blocks of 256.
    Q4K = "Q4_K", 256 in 144, false, Some(12);
    /// 5 bits, 6-bit scales and minima per 32, super-blocks of 256.
    Q5K = "Q5_K", 256 in 176, false, Some(13);
    /// 6 bits, 8-bit scales per 16, super-blocks of 256.
    Q6K = "Q6_K", 256 in 210, false, Some(14);
    /// 8 bits, f32 scale per 256; activations only.
    Q8K = "Q8_K", 256 in 292, false, Some(15);
    /// Codebook, about 2.06 bits.
    IQ2XXS = "IQ2_XXS", 256 in 66, false, Some(16);
    /// Codebook, about 2.3 bits.
    IQ2XS = "IQ2_XS", 256 in 74, false, Some(17);
    /// Codebook, about 3.06 bits.
    IQ3XXS = "IQ3_XXS", 256 in 98, false, Some(18);
    /// Codebook, about 1.56 bits.
    IQ1S = "IQ1_S", 256 in 50, false, Some(19);
    /// 4-bit non-linear table, one f16 scale per 32.
    IQ4NL = "IQ4_NL", 32 in 18, false, Some(20);
    /// Codebook, about 3.4 bits.
    IQ3S = "IQ3_S", 256 in 110, false, Some(21);
    /// Codebook, about 2.5 bits.
    IQ2S = "IQ2_S", 256 in 82, false, Some(22);
    /// 4-bit non-linear table, super-blocks of 256.
    IQ4XS = "IQ4_XS", 256 in 136, false, Some(23);
    /// Codebook, about 1.75 bits.
    IQ1M = "IQ1_M", 256 in 56, false, Some(29);
    /// Ternary, 1.69 bits.
    TQ1_0 = "TQ1_0", 256 in 54, false, Some(34);
    /// Ternary, 2.06 bits.
    TQ2_0 = "TQ2_0", 256 in 66, false, Some(35);
    /// OCP MXFP4: E8M0 scale per 32.
    Mxfp4 = "MXFP4", 32 in 17, false, Some(39);
    /// NVFP4: E4M3 scale per 16, blocks of 64.
    Nvfp4 = "NVFP4", 64 in 36, false, Some(40);
    /// Sign only, one f16 scale per 128.
    Q1_0 = "Q1_0", 128 in 18, false, Some(41);
}

impl Dtype {
    /// The name that the file format uses (`BF16`, `F8_E4M3`, `Q4_K`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.layout().name
    }

    /// Consecutive elements of a row that are stored together; 1 for plain types.
    #[must_use]
    pub const fn block_size(self) -> usize {
        self.layout().block_size
    }

    /// Bytes of one block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.layout().block_bytes
    }

    /// True for the GGUF types whose blocks carry their own scales.
    #[must_use]
    pub const fn is_block_quantised(self) -> bool {
        let layout = self.layout();
        layout.block_size > 1 && !layout.in_safetensors
    }

    /// Bytes of `cols` elements of one row. `None` when they are not a whole number of blocks, or on overflow.
    #[must_use]
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        let layout = self.layout();
        if !cols.is_multiple_of(layout.block_size) {
            return None;
        }
        (cols / layout.block_size).checked_mul(layout.block_bytes)
    }

    /// Bytes of a dense tensor of this shape, `[.., cols]`. `None` when a row (for GGUF types) or the whole (for
    /// packed safetensors types) is not a whole number of blocks, or on overflow.
    #[must_use]
    pub fn num_bytes(self, shape: &[usize]) -> Option<u64> {
        if self.is_block_quantised() {
            self.row_bytes(shape.last().copied().unwrap_or(1))?;
        }
        let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64))?;
        let block = self.block_size() as u64;
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes() as u64)
    }

    /// The type that a safetensors header calls `name`.
    #[must_use]
    pub fn from_safetensors(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|d| d.layout().in_safetensors && d.name() == name)
    }

    /// The type with this number in a GGUF tensor table.
    #[must_use]
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|d| d.ggml_id() == Some(id))
    }

    /// Number of the type in a GGUF tensor table; `None` for types that GGUF does not have.
    #[must_use]
    pub const fn ggml_id(self) -> Option<u32> {
        self.layout().ggml_id
    }

    /// True if a safetensors file can hold the type.
    #[must_use]
    pub const fn in_safetensors(self) -> bool {
        self.layout().in_safetensors
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
