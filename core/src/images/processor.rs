//! A picture to patches: decoded, resized to whole blocks, normalised, cut up block by block.

use std::io::Cursor;
use std::sync::Arc;

use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use metrale_graph::images::Grid;
use sha2::{Digest, Sha256};

use super::{ImageError, ImagePolicy, ImageSettings};

/// Longest side of a picture that is decoded.
const MAX_SIDE: u32 = 16_384;
/// Memory that decoding may take.
const MAX_DECODE_BYTES: u64 = 1 << 30;
/// Longest side over shortest side.
const MAX_ASPECT: f64 = 200.0;

/// Makes patches of pictures, as one model wants them.
#[derive(Clone, Debug)]
pub struct ImageProcessor {
    /// What the model wants.
    pub settings: ImageSettings,
    /// What the operator allows.
    pub policy: ImagePolicy,
}

/// A picture as the vision tower reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessedImage {
    /// Its patches.
    pub grid: Grid,
    /// `[patches, channels · frames · rows · columns]`, block by block.
    pub patches: Arc<[f32]>,
    /// SHA-256 of the resized pixels and their size.
    pub digest: [u64; 4],
}

/// Red, green and blue, 8 bits each, row after row.
struct Pixels {
    width: usize,
    height: usize,
    data: Vec<u8>,
}

impl ImageProcessor {
    /// Reads and processes the picture behind a URL.
    ///
    /// # Errors
    /// It is not there, is not allowed, is no picture, or has a size that the model cannot use.
    pub fn load(&self, url: &str) -> Result<ProcessedImage, ImageError> {
        self.process(&self.policy.read(url)?)
    }

    /// Processes the bytes of a PNG or JPEG file.
    ///
    /// # Errors
    /// They are no picture, or it has a size that the model cannot use.
    pub fn process(&self, bytes: &[u8]) -> Result<ProcessedImage, ImageError> {
        let pixels = decode(bytes)?;
        let (height, width) = self.target_size(pixels.height, pixels.width)?;
        let pixels = resize(pixels, height, width)?;
        let grid = Grid {
            frames: 1,
            rows: height / self.settings.patch_size,
            columns: width / self.settings.patch_size,
        };
        let digest = digest(&pixels);
        Ok(ProcessedImage { grid, patches: self.patches(grid, &pixels).into(), digest })
    }

    /// The nearest size in whole blocks whose number of pixels lies within the limits, of about the same aspect.
    fn target_size(&self, height: usize, width: usize) -> Result<(usize, usize), ImageError> {
        let (h, w) = (height as f64, width as f64);
        let aspect = h.max(w) / h.min(w);
        if aspect > MAX_ASPECT {
            return Err(ImageError(format!(
                "the image of {width} x {height} pixels is too elongated: its sides may differ by a factor of {MAX_ASPECT}"
            )));
        }
        let block = self.settings.block() as f64;
        let (min, max) = (self.settings.min_pixels as f64, self.settings.max_pixels as f64);
        let (mut rows, mut columns) = ((h / block).round_ties_even(), (w / block).round_ties_even());
        if rows * columns * block * block > max {
            let scale = (h * w / max).sqrt();
            rows = (h / scale / block).floor().max(1.0);
            columns = (w / scale / block).floor().max(1.0);
        } else if rows * columns * block * block < min {
            let scale = (min / (h * w)).sqrt();
            rows = (h * scale / block).ceil();
            columns = (w * scale / block).ceil();
        }
        let limit = self.settings.max_patches() / (self.settings.merge_size * self.settings.merge_size);
        if rows * columns > limit as f64 {
            return Err(ImageError(format!(
                "the image of {width} x {height} pixels becomes {rows} x {columns} blocks; the model takes {limit}"
            )));
        }
        Ok(((rows * block) as usize, (columns * block) as usize))
    }

    /// A still picture fills all frames of a patch.
    fn patches(&self, grid: Grid, pixels: &Pixels) -> Vec<f32> {
        let ImageSettings { patch_size, temporal_patch_size, merge_size, mean, std, .. } = &self.settings;
        let normalize = |value: u8, channel: usize| (f32::from(value) / 255.0 - mean[channel]) / std[channel];
        let tables: Vec<[f32; 256]> =
            (0..3).map(|channel| std::array::from_fn(|value| normalize(value as u8, channel))).collect();
        let mut patches = Vec::with_capacity(grid.num_patches() * self.settings.patch_width());
        for [_, row, column] in grid.patches(*merge_size) {
            for (channel, table) in tables.iter().enumerate() {
                let start = patches.len();
                for y in row * patch_size..(row + 1) * patch_size {
                    let line = &pixels.data[(y * pixels.width + column * patch_size) * 3..][..patch_size * 3];
                    patches.extend(line.chunks_exact(3).map(|pixel| table[usize::from(pixel[channel])]));
                }
                let end = patches.len();
                for _ in 1..*temporal_patch_size {
                    patches.extend_from_within(start..end);
                }
            }
        }
        patches
    }
}

/// A PNG or JPEG file, turned as its metadata says; transparency is dropped.
fn decode(bytes: &[u8]) -> Result<Pixels, ImageError> {
    let broken = |error: image::ImageError| ImageError(format!("the image cannot be decoded: {error}"));
    let unknown = || ImageError("the bytes are neither a PNG nor a JPEG image".to_owned());
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|_| unknown())?;
    if !matches!(reader.format(), Some(ImageFormat::Png | ImageFormat::Jpeg)) {
        return Err(unknown());
    }
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODE_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(broken)?;
    let orientation = decoder.orientation().map_err(broken)?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(broken)?;
    picture.apply_orientation(orientation);
    let picture = picture.into_rgb8();
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    Ok(Pixels { width, height, data: picture.into_raw() })
}

/// Bicubic over all source pixels that a target pixel covers: across, then down, rounded to 8 bits in between as Pillow does.
fn resize(pixels: Pixels, height: usize, width: usize) -> Result<Pixels, ImageError> {
    let across = (pixels.height, width);
    let pixels = resize_once(pixels, across)?;
    resize_once(pixels, (height, width))
}

fn resize_once(pixels: Pixels, (height, width): (usize, usize)) -> Result<Pixels, ImageError> {
    if (pixels.height, pixels.width) == (height, width) {
        return Ok(pixels);
    }
    let failed = |error: &dyn std::fmt::Display| ImageError(format!("the image cannot be resized: {error}"));
    let source = Image::from_vec_u8(pixels.width as u32, pixels.height as u32, pixels.data, PixelType::U8x3);
    let source = source.map_err(|error| failed(&error))?;
    let mut target = Image::new(width as u32, height as u32, PixelType::U8x3);
    let options =
        ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom)).use_alpha(false);
    Resizer::new().resize(&source, &mut target, &options).map_err(|error| failed(&error))?;
    Ok(Pixels { width, height, data: target.into_vec() })
}

fn digest(pixels: &Pixels) -> [u64; 4] {
    let mut hasher = Sha256::new();
    hasher.update((pixels.width as u64).to_le_bytes());
    hasher.update(&pixels.data);
    let bytes: [u8; 32] = hasher.finalize().into();
    std::array::from_fn(|i| bytes[8 * i..8 * i + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processor(min_pixels: usize, max_pixels: usize) -> ImageProcessor {
        let settings = ImageSettings {
            token_id: 0,
            patch_size: 4,
            temporal_patch_size: 2,
            merge_size: 2,
            min_pixels,
            max_pixels,
            mean: [0.5; 3],
            std: [0.5; 3],
        };
        ImageProcessor { settings, policy: ImagePolicy { allowed_directory: None, max_per_prompt: 1 } }
    }

    #[test]
    fn sizes_are_whole_blocks_within_the_limits() {
        let p = processor(256, 1024);
        // Exact; halves to even; too large; too small.
        assert_eq!(p.target_size(16, 24).unwrap(), (16, 24));
        assert_eq!(p.target_size(20, 28).unwrap(), (16, 32));
        assert_eq!(p.target_size(43, 61).unwrap(), (24, 32));
        assert_eq!(p.target_size(5, 5).unwrap(), (16, 16));
        assert!(p.target_size(1, 201).unwrap_err().0.contains("too elongated"));
        assert!(p.target_size(1, 200).unwrap_err().0.contains("blocks"));
    }

    #[test]
    fn what_is_no_picture_is_refused() {
        let p = processor(256, 1024);
        assert!(p.process(b"").unwrap_err().0.contains("neither"));
        assert!(p.process(b"GIF89a").unwrap_err().0.contains("neither"));
        assert!(p.process(b"\x89PNG\r\n\x1a\n").unwrap_err().0.contains("cannot be decoded"));
    }
}
