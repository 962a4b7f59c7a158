//! How a model wants its images, as its plugin states it in `info/1`.

use metrale_graph::Attrs;

/// Rows of text that one image becomes at most; larger images are scaled down. It bounds the buffers of the tower.
const MAX_TOKENS: usize = 4096;

/// Sizes of patches and images, and how pixels become numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageSettings {
    /// The token that stands for one block of patches.
    pub token_id: u32,
    /// Pixels along each side of a patch.
    pub patch_size: usize,
    /// Frames of a patch; a picture is repeated.
    pub temporal_patch_size: usize,
    /// Patches along each side of a block.
    pub merge_size: usize,
    /// Images of fewer pixels are scaled up.
    pub min_pixels: usize,
    /// Images of more pixels are scaled down.
    pub max_pixels: usize,
    /// Subtracted from values between 0 and 1, per channel.
    pub mean: [f32; 3],
    /// Divides what is left, per channel.
    pub std: [f32; 3],
}

/// Facts of a model that make no sense together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plugin's `info/1` says of images: `{key}` is {found}; expected {expected}")]
pub struct SettingsError {
    /// Which fact.
    pub key: &'static str,
    /// What it is.
    pub found: String,
    /// What it should be.
    pub expected: &'static str,
}

impl ImageSettings {
    /// Reads the facts `vision.*`; none for a model without a vision tower.
    ///
    /// # Errors
    /// A fact is missing or out of range.
    pub fn of(info: &Attrs) -> Result<Option<Self>, SettingsError> {
        if info.bool("has_vision") != Some(true) {
            return Ok(None);
        }
        let wrong = |key, expected| {
            let found = info.get(key).map_or_else(|| "missing".to_owned(), |value| format!("{value:?}"));
            SettingsError { key, found, expected }
        };
        let size = |key, range: std::ops::RangeInclusive<usize>, expected| {
            info.size(key).filter(|size| range.contains(size)).ok_or_else(|| wrong(key, expected))
        };
        let side = |key| size(key, 1..=1024, "1 to 1024");
        let channels = |key| -> Result<[f32; 3], SettingsError> {
            let values = info.floats(key).and_then(|v| <[f64; 3]>::try_from(v).ok());
            let values = values.filter(|v| v.iter().all(|v| v.is_finite()));
            values.map(|v| v.map(|v| v as f32)).ok_or_else(|| wrong(key, "three numbers"))
        };
        let token_id = size("vision.image_token_id", 0..=u32::MAX as usize, "a token id")? as u32;
        let mut settings = Self {
            token_id,
            patch_size: side("vision.patch_size")?,
            temporal_patch_size: side("vision.temporal_patch_size")?,
            merge_size: side("vision.merge_size")?,
            min_pixels: size("vision.min_pixels", 1..=1 << 30, "1 to 2^30")?,
            max_pixels: size("vision.max_pixels", 1..=1 << 30, "1 to 2^30")?,
            mean: channels("vision.mean")?,
            std: channels("vision.std")?,
        };
        if settings.std.contains(&0.0) {
            return Err(wrong("vision.std", "three numbers other than 0"));
        }
        let block = settings.block();
        settings.max_pixels = settings.max_pixels.clamp(block * block, MAX_TOKENS * block * block);
        if settings.min_pixels > settings.max_pixels {
            return Err(wrong("vision.min_pixels", "no more than vision.max_pixels"));
        }
        Ok(Some(settings))
    }

    /// Pixels along each side of a block: sides of images are multiples of it.
    #[must_use]
    pub fn block(&self) -> usize {
        self.patch_size * self.merge_size
    }

    /// Patches of the largest image.
    #[must_use]
    pub fn max_patches(&self) -> usize {
        // Rounding a side to whole blocks may exceed the limit of pixels where the other side is a single block.
        let blocks = self.max_pixels / (self.block() * self.block());
        (blocks + 1) * self.merge_size * self.merge_size
    }

    /// Values of a patch: three channels.
    #[must_use]
    pub fn patch_width(&self) -> usize {
        3 * self.temporal_patch_size * self.patch_size * self.patch_size
    }
}
