//! Bytes of images: data URLs, and files below a directory that the operator allows. Nothing is fetched from elsewhere.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use super::ImageError;

/// Largest file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Where images may come from, and how many.
#[derive(Clone, Debug)]
pub struct ImagePolicy {
    /// Files below this directory may be read.
    pub allowed_directory: Option<PathBuf>,
    /// Most images of one request.
    pub max_per_prompt: usize,
}

impl ImagePolicy {
    /// The bytes behind a URL.
    ///
    /// # Errors
    /// A scheme that is not taken, a broken URL, or a file that is not allowed or cannot be read.
    pub fn read(&self, url: &str) -> Result<Vec<u8>, ImageError> {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
        match scheme.as_deref() {
            Some("data") => data(url),
            Some("file") => self.file(url),
            Some(scheme @ ("http" | "https")) => Err(ImageError(format!(
                "{scheme} URLs are not fetched; send the image as a data URL: data:image/png;base64,…"
            ))),
            _ => Err(ImageError(format!(
                "expected a data URL (data:image/png;base64,…) or a file URL, found `{}`",
                shortened(url)
            ))),
        }
    }

    fn file(&self, url: &str) -> Result<Vec<u8>, ImageError> {
        let Some(allowed) = &self.allowed_directory else {
            return Err(ImageError(
                "file URLs are not read: the server was started without --allowed-local-media-path".into(),
            ));
        };
        // One answer for what is outside and what is missing, so that nothing is told of other files.
        let refused = || {
            ImageError(format!(
                "`{}` is not a readable file below the directory of --allowed-local-media-path",
                shortened(url)
            ))
        };
        let path = Url::parse(url).ok().and_then(|url| url.to_file_path().ok()).ok_or_else(refused)?;
        let path = inside(allowed, &path).ok_or_else(refused)?;
        let size = std::fs::metadata(&path).map_err(|_| refused())?;
        if !size.is_file() {
            return Err(refused());
        }
        if size.len() > MAX_FILE_BYTES {
            let megabytes = MAX_FILE_BYTES >> 20;
            return Err(ImageError(format!("`{}` has more than {megabytes} MiB", shortened(url))));
        }
        std::fs::read(path).map_err(|_| refused())
    }
}

/// The file that a path leads to, links followed, if it lies below a directory.
fn inside(directory: &Path, path: &Path) -> Option<PathBuf> {
    let (directory, path) = (directory.canonicalize().ok()?, path.canonicalize().ok()?);
    path.starts_with(&directory).then_some(path)
}

/// `data:[type][;base64],…`
fn data(url: &str) -> Result<Vec<u8>, ImageError> {
    let (header, payload) = url
        .split_once(',')
        .ok_or_else(|| ImageError("the data URL has no comma; expected data:image/png;base64,…".into()))?;
    if !header.to_ascii_lowercase().ends_with(";base64") {
        return Err(ImageError(format!(
            "expected a data URL in base64 (data:image/png;base64,…), found `{}`",
            shortened(header)
        )));
    }
    STANDARD
        .decode(payload.trim())
        .map_err(|error| ImageError(format!("the data URL is not base64: {error}")))
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= 60 {
        text.to_owned()
    } else {
        text.chars().take(57).collect::<String>() + "…"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(policy: &ImagePolicy, url: &str) -> String {
        policy.read(url).unwrap_err().0
    }

    #[test]
    fn data_urls_are_decoded_and_others_refused() {
        let policy = ImagePolicy { allowed_directory: None, max_per_prompt: 1 };
        assert_eq!(policy.read("data:image/png;base64,aGk=").unwrap(), b"hi");
        assert!(refusal(&policy, "data:image/png;base64,?").contains("not base64"));
        assert!(refusal(&policy, "data:image/png,hi").contains("in base64"));
        assert!(refusal(&policy, "data:image/png").contains("no comma"));
        assert!(refusal(&policy, "https://example.org/a.png").contains("not fetched"));
        assert!(refusal(&policy, "a.png").contains("found `a.png`"));
        assert!(refusal(&policy, "file:///etc/passwd").contains("--allowed-local-media-path"));
    }

    #[test]
    fn files_are_read_below_the_allowed_directory_only() {
        let root = tempfile::tempdir().unwrap();
        let allowed = root.path().join("allowed");
        std::fs::create_dir(&allowed).unwrap();
        std::fs::write(allowed.join("a b.png"), b"in").unwrap();
        std::fs::write(root.path().join("secret"), b"out").unwrap();
        std::os::unix::fs::symlink(root.path().join("secret"), allowed.join("link")).unwrap();
        let policy = ImagePolicy { allowed_directory: Some(allowed.clone()), max_per_prompt: 1 };
        let url = |name: &str| format!("file://{}/{name}", allowed.display());
        assert_eq!(policy.read(&url("a%20b.png")).unwrap(), b"in");
        for name in ["../secret", "link", "missing", "", "%2e%2e/secret"] {
            assert!(refusal(&policy, &url(name)).contains("not a readable file"), "{name}");
        }
    }
}
