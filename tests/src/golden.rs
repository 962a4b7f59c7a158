//! Golden models: tiny checkpoints with what the transformers library computes for them.
//!
//! The archives in `tests/golden/` hold one seed of every configuration. More of them, of other seeds or dimensions, are
//! found in every directory with a `golden.json` below the one that the environment variable `METRALE_GOLDENS` names.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use metrale_graph::images::{Grid, PlacedImage};
use metrale_plugin_api::abi::PluginModule_Ref;
use metrale_plugin_api::manifest::Manifest;
use metrale_reference::{Checkpoint, Tensor};
use serde_json::Value as Json;

const PICTURES: &str = "golden";
const MORE: &str = "METRALE_GOLDENS";

/// One golden model.
#[derive(Debug)]
pub struct Golden {
    /// Its directory and the one above.
    pub name: String,
    directory: PathBuf,
    facts: Json,
}

/// Golden models of one plugin. The unpacked archives live as long as this.
#[derive(Debug)]
pub struct Goldens {
    /// All models, at least one.
    pub models: Vec<Golden>,
    _unpacked: tempfile::TempDir,
}

impl Goldens {
    /// Unpacks the models that a plugin describes.
    ///
    /// # Errors
    /// There are none, or a file cannot be read.
    pub fn of(plugin: PluginModule_Ref) -> Result<Self> {
        let manifest = Manifest::parse(plugin.manifest()().as_str())?;
        let unpacked = tempfile::tempdir()?;
        let seed0 = unpacked.path().join("seed0");
        std::fs::create_dir(&seed0)?;
        for archive in archives()? {
            let status = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&seed0).status()?;
            ensure!(status.success(), "tar could not unpack {}", archive.display());
        }
        let mut directories = Vec::new();
        find(&seed0, &mut directories)?;
        if let Some(more) = std::env::var_os(MORE) {
            find(Path::new(&more), &mut directories)?;
        }
        let mut models = Vec::new();
        for directory in directories {
            let config: Json = json(&directory.join("config.json"))?;
            if manifest.models.iter().any(|m| config["model_type"] == *m.model_type) {
                let name = two_last(&directory);
                models.push(Golden { name, facts: json(&directory.join("golden.json"))?, directory });
            }
        }
        ensure!(!models.is_empty(), "no golden model of the plugin {}", manifest.plugin.name);
        Ok(Self { models, _unpacked: unpacked })
    }
}

fn archives() -> Result<Vec<PathBuf>> {
    let directory = crate::data_directory().join("golden");
    let entries =
        std::fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|p| p.extension().is_some_and(|e| e == "gz")).collect())
}

/// Directories with a golden.json, in order of their names.
fn find(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    if directory.join("golden.json").exists() {
        found.push(directory.to_owned());
        return Ok(());
    }
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    paths.iter().filter(|p| p.is_dir()).try_for_each(|p| find(p, found))
}

/// `seed1/llama` of `…/seed1/llama`.
fn two_last(directory: &Path) -> String {
    let skip = directory.components().count().saturating_sub(2);
    directory.components().skip(skip).collect::<PathBuf>().display().to_string()
}

fn json(path: &Path) -> Result<Json> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

fn ids(list: &Json) -> Result<Vec<i64>> {
    Ok(serde_json::from_value(list.clone())?)
}

impl Golden {
    /// The configuration and the weights.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        Ok(Checkpoint::read_parts(&self.directory, &self.directory.join("bf16"))?)
    }

    /// The configuration and the weights as one model directory, which lives as long as the result.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn model_directory(&self) -> Result<tempfile::TempDir> {
        let model = tempfile::tempdir()?;
        for (from, to) in [("config.json", "config.json"), ("bf16/model.safetensors", "model.safetensors")] {
            std::fs::copy(self.directory.join(from), model.path().join(to))?;
        }
        let preprocessor = self.directory.join("preprocessor_config.json");
        if preprocessor.exists() {
            std::fs::copy(preprocessor, model.path().join("preprocessor_config.json"))?;
        }
        Ok(model)
    }

    /// Largest difference between bf16 and f32 logits that was recorded.
    #[must_use]
    pub fn bf16_bound(&self) -> Option<f32> {
        self.facts["max_abs_bf16_vs_f32"].as_f64().map(|d| d as f32)
    }

    /// An array by file name, where this model has it.
    ///
    /// # Errors
    /// The file is broken.
    pub fn array(&self, file: &str) -> Result<Option<Tensor>> {
        let path = self.directory.join(file);
        path.exists().then(|| crate::npy::read(&path)).transpose()
    }

    /// An array that every model of its kind has.
    ///
    /// # Errors
    /// The file is missing or broken.
    pub fn required_array(&self, file: &str) -> Result<Tensor> {
        self.array(file)?.with_context(|| format!("{}: no {file}", self.name))
    }

    /// The images of the prompt: where they are, and their patches `[P, width]`; none for text alone.
    ///
    /// # Errors
    /// A file is broken, or golden.json does not say where they are.
    pub fn images(&self) -> Result<Option<(Vec<PlacedImage>, Tensor)>> {
        let Some(pixels) = self.array("pixel_values.npy")? else { return Ok(None) };
        let grids: Vec<[usize; 3]> = serde_json::from_value(self.facts["image_grid_thw"].clone())?;
        let config: Json = json(&self.directory.join("config.json"))?;
        let merge = config["vision_config"]["spatial_merge_size"].as_u64().context("no merge size")? as usize;
        let placeholder = &config["image_token_id"];
        let tokens = self.token_ids()?;
        let mut next = tokens.iter().position(|id| *placeholder == *id).context("no image token")?;
        let place = |[frames, rows, columns]: [usize; 3]| {
            let grid = Grid { frames, rows, columns };
            let start = next + tokens[next..].iter().position(|id| *placeholder == *id).unwrap_or(0);
            next = start + grid.num_tokens(merge);
            PlacedImage { start, grid }
        };
        Ok(Some((grids.into_iter().map(place).collect(), pixels)))
    }

    /// The picture that the patches were made of, if they were made of one.
    ///
    /// # Errors
    /// A file is missing or broken.
    pub fn picture(&self) -> Result<Option<Vec<u8>>> {
        let config: Json = json(&self.directory.join("config.json"))?;
        let Some(file) = config["picture"]["file"].as_str() else { return Ok(None) };
        let path = crate::data_directory().join(PICTURES).join(file);
        Ok(Some(std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?))
    }

    /// Whether this is an encoder-decoder.
    #[must_use]
    pub fn is_seq2seq(&self) -> bool {
        !self.facts["decoder_ids"].is_null()
    }

    /// Tokens of a decoder-only model that there are logits for: the prompt, then what was generated.
    ///
    /// # Errors
    /// golden.json does not have them.
    pub fn token_ids(&self) -> Result<Vec<i64>> {
        let mut tokens = ids(&self.facts["input_ids"])?;
        tokens.extend(ids(&self.facts["generated"])?);
        tokens.truncate(self.num_positions()?);
        Ok(tokens)
    }

    /// Tokens of the longest sequence that was recorded.
    ///
    /// # Errors
    /// golden.json does not have them.
    pub fn max_len(&self) -> Result<usize> {
        if !self.is_seq2seq() {
            return Ok(self.token_ids()?.len());
        }
        let longest =
            self.translations()?.iter().map(|(source, target)| source.len().max(target.len())).max();
        longest.context("no translations")
    }

    /// A fact that golden.json names.
    #[must_use]
    pub fn fact(&self, name: &str) -> &Json {
        &self.facts[name]
    }

    fn num_positions(&self) -> Result<usize> {
        self.facts["num_positions"].as_u64().map(|n| n as usize).context("golden.json has no num_positions")
    }

    /// Tokens of the prompt.
    ///
    /// # Errors
    /// golden.json does not have them.
    pub fn prompt_len(&self) -> Result<usize> {
        Ok(ids(&self.facts["input_ids"])?.len())
    }

    /// Whether cached and uncached logits are meant to differ (dynamic rope recomputes its base in transformers).
    #[must_use]
    pub fn cached_differs(&self) -> bool {
        self.facts["max_abs_cached_vs_nocache"].as_f64().is_some_and(|d| d > 1e-3)
    }

    /// Source and target tokens of each row of an encoder-decoder batch, without padding.
    ///
    /// # Errors
    /// golden.json does not have them.
    pub fn translations(&self) -> Result<Vec<(Vec<i64>, Vec<i64>)>> {
        let rows =
            |key: &str| self.facts[key].as_array().with_context(|| format!("golden.json has no {key}"));
        let (sources, masks, targets) = (rows("input_ids")?, rows("attention_mask")?, rows("decoder_ids")?);
        let real = |source: &Json, mask: &Json| -> Result<Vec<i64>> {
            Ok(ids(source)?.into_iter().zip(ids(mask)?).filter(|(_, m)| *m == 1).map(|(id, _)| id).collect())
        };
        let pairs = sources.iter().zip(masks).zip(targets);
        pairs.map(|((source, mask), target)| Ok((real(source, mask)?, ids(target)?))).collect()
    }
}
