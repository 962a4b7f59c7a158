//! Where the hub and its cache are, as the standard variables say.

use std::path::{Path, PathBuf};

use super::HubError;

/// A hub and a cache: endpoint, token, directory, and whether the network may be used.
#[derive(Clone)]
pub struct Hub {
    pub(super) endpoint: String,
    pub(super) token: Option<String>,
    pub(super) cache: PathBuf,
    pub(super) offline: bool,
}

impl Hub {
    /// The hub of this process: `HF_ENDPOINT`, `HF_TOKEN` (or the token file), `HF_HUB_CACHE` and `HF_HOME`,
    /// `HF_HUB_OFFLINE`. `download_dir` wins over the cache variables.
    pub fn from_env(download_dir: Option<&Path>) -> Result<Self, HubError> {
        Self::from_variables(|name| std::env::var(name).ok(), download_dir)
    }

    /// As [`Self::from_env`], with variables from elsewhere. Empty ones count as not set.
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
        download_dir: Option<&Path>,
    ) -> Result<Self, HubError> {
        let first = |names: &[&str]| {
            names.iter().find_map(|name| variable(name).filter(|value| !value.trim().is_empty()))
        };
        let home = first(&["HF_HOME"]).map(PathBuf::from).or_else(|| {
            let base = first(&["XDG_CACHE_HOME"]).map(PathBuf::from);
            Some(base.or_else(|| Some(dirs::home_dir()?.join(".cache")))?.join("huggingface"))
        });
        let cache = download_dir
            .map(Path::to_owned)
            .or_else(|| first(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).map(PathBuf::from))
            .or_else(|| Some(home.as_ref()?.join("hub")))
            .ok_or(HubError::NoCache)?;
        // The hub client makes links between absolute paths.
        let cache = std::path::absolute(&cache).map_err(|source| HubError::Io { path: cache, source })?;
        let token_file =
            first(&["HF_TOKEN_PATH"]).map(PathBuf::from).or_else(|| Some(home.as_ref()?.join("token")));
        let token = first(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
            .or_else(|| std::fs::read_to_string(token_file?).ok())
            .map(|token| token.trim().to_owned())
            .filter(|token| !token.is_empty());
        let endpoint = first(&["HF_ENDPOINT"]).unwrap_or_else(|| "https://huggingface.co".to_owned());
        let offline = first(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]);
        Ok(Self {
            endpoint: endpoint.trim().trim_end_matches('/').to_owned(),
            token,
            cache,
            offline: offline.is_some_and(|value| is_true(value.trim())),
        })
    }
}

impl Hub {
    /// Base URL.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Directory of the cache; it need not exist yet.
    #[must_use]
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// Whether requests carry a token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether the network may not be used.
    #[must_use]
    pub fn is_offline(&self) -> bool {
        self.offline
    }
}

/// Never shows the token.
impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { endpoint, token, cache, offline } = self;
        let mut hub = f.debug_struct("Hub");
        hub.field("endpoint", endpoint).field("has_token", &token.is_some());
        hub.field("cache", cache).field("offline", offline).finish()
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|word| value.eq_ignore_ascii_case(word))
}
