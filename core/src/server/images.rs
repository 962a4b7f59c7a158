//! Images of chat requests: loaded, and put where the template left a placeholder for each.

use std::sync::Arc;

use metrale_graph::images::PlacedImage;
use serde_json::Value;

use super::backend::ServedModel;
use super::error::ApiError;
use super::fields::{Fields, mismatch, string};
use crate::images::ProcessedImage;
use crate::sched::{Media, SequenceImages};

/// An image part of a message.
#[derive(Debug)]
pub(super) struct ImagePart {
    /// Where the request names it.
    pub(super) path: String,
    /// Data or file URL.
    pub(super) url: String,
}

/// Token ids of a prompt, with what placeholders among them stand for.
pub(super) type TokensAndImages = (Vec<u32>, Option<Arc<SequenceImages>>);

/// Reads a part of type `image_url`: `{"image_url": {"url": …}}`, or the URL itself.
pub(super) fn read_part(part: &mut Fields) -> Result<ImagePart, ApiError> {
    let path = part.path("image_url");
    match part.take("image_url") {
        Some(Value::String(url)) => Ok(ImagePart { path, url }),
        Some(Value::Object(image)) => {
            let mut image = Fields::of(&path, Value::Object(image))?;
            let path = image.path("url");
            let url = image
                .take("url")
                .ok_or_else(|| ApiError::invalid(&path, format!("`{path}` is missing; send a data URL")))?;
            Ok(ImagePart { url: string(&path, url)?, path })
        }
        Some(other) => Err(mismatch(&path, "an object with `url`, or a URL", &other)),
        None => Err(ApiError::invalid(&path, format!("`{path}` is missing; send {{\"url\": …}}"))),
    }
}

/// Loads the images of a request and gives each placeholder in `tokens` as many tokens as its image becomes.
pub(super) fn place(
    tokens: Vec<u32>,
    parts: &[ImagePart],
    model: &ServedModel,
) -> Result<TokensAndImages, ApiError> {
    let Some(processor) = &model.images else {
        return match parts.first() {
            None => Ok((tokens, None)),
            Some(part) => {
                let message =
                    "this model takes text only: it has no vision tower, or its checkpoint lacks it";
                Err(ApiError::invalid(&part.path, message))
            }
        };
    };
    let limit = processor.policy.max_per_prompt;
    if let Some(part) = parts.get(limit) {
        let found = parts.len();
        let message = format!("{found} images; at most {limit} are taken (--limit-images-per-prompt)");
        return Err(ApiError::invalid(&part.path, message));
    }
    let placeholder = processor.settings.token_id;
    let placeholders = tokens.iter().filter(|&&token| token == placeholder).count();
    if placeholders != parts.len() {
        let message = format!(
            "the chat template made {placeholders} image placeholders of {} images: text must not contain the placeholder, \
             and the template must show every image",
            parts.len()
        );
        return Err(ApiError::invalid("messages", message));
    }
    if parts.is_empty() {
        return Ok((tokens, None));
    }
    let load = |part: &ImagePart| {
        processor
            .load(&part.url)
            .map_err(|error| ApiError::invalid(&part.path, format!("`{}`: {error}", part.path)))
    };
    let loaded = parts.iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let (tokens, images) = expand(&tokens, placeholder, loaded, processor.settings.merge_size);
    Ok((tokens, Some(Arc::new(images))))
}

/// Each placeholder becomes the tokens of its image.
fn expand(
    tokens: &[u32],
    placeholder: u32,
    loaded: Vec<ProcessedImage>,
    merge: usize,
) -> (Vec<u32>, SequenceImages) {
    let mut expanded = Vec::with_capacity(tokens.len());
    let mut images = SequenceImages::default();
    let mut loaded = loaded.into_iter();
    for &token in tokens {
        let image = if token == placeholder { loaded.next() } else { None };
        let Some(image) = image else {
            expanded.push(token);
            continue;
        };
        let start = expanded.len();
        expanded.resize(start + image.grid.num_tokens(merge), placeholder);
        images.placed.push(PlacedImage { start, grid: image.grid });
        images.media.push(Media { tokens: start..expanded.len(), digest: image.digest });
        images.patches.push(image.patches);
    }
    (expanded, images)
}
