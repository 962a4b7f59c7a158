//! What a plugin's `open` gets to read.

use metrale_graph::Attrs;

use super::ModelSource;

/// The configuration files or GGUF metadata of a model, and the engine's longest sequence.
#[must_use]
pub fn open_attrs(source: &ModelSource, max_model_len: Option<usize>) -> Attrs {
    let attrs = Attrs::new().with_some("engine.max_model_len", max_model_len);
    if let Some(files) = source.config() {
        return attrs
            .with("config.json", files.config.as_str())
            .with_some("generation_config.json", files.generation_config.as_deref())
            .with_some("preprocessor_config.json", files.preprocessor_config.as_deref())
            .with("checkpoint.format", "safetensors");
    }
    let metadata = source.headers().gguf().map(|m| serde_json::Value::Object(m.to_json()).to_string());
    attrs.with_some("gguf.metadata", metadata).with("checkpoint.format", "gguf")
}
