//! The `tokenizer.*` keys of GGUF metadata (GGUF v3, "Tokenizer").

use metrale_graph::checkpoint::CheckpointError;
use metrale_graph::checkpoint::gguf::Metadata;

use super::GgufVocab;

impl GgufVocab {
    /// Reads the vocabulary. An error if `tokenizer.ggml.model` is missing or a key has another type than it should.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, CheckpointError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| metadata.optional::<u32>(&key(name));
        let flag = |name: &str| metadata.optional::<bool>(&key(name));
        let strings = |name: &str| -> Result<Vec<String>, CheckpointError> {
            Ok(metadata.optional::<&[String]>(&key(name))?.unwrap_or_default().to_vec())
        };
        Ok(Self {
            model: metadata.required::<&str>(&key("model"))?.to_owned(),
            pre: metadata.optional::<&str>(&key("pre"))?.map(str::to_owned),
            tokens: strings("tokens")?,
            token_types: metadata
                .optional::<Vec<i64>>(&key("token_type"))?
                .unwrap_or_default()
                .into_iter()
                .map(|kind| kind as i32)
                .collect(),
            scores: metadata.optional::<Vec<f32>>(&key("scores"))?.unwrap_or_default(),
            merges: strings("merges")?,
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            eot: id("eot_token_id")?,
            eom: id("eom_token_id")?,
            unknown: id("unknown_token_id")?,
            padding: id("padding_token_id")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            chat_template: metadata.optional::<&str>("tokenizer.chat_template")?.map(str::to_owned),
        })
    }
}
