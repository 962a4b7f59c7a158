//! A plugin that panics, or ends the process, where its configuration says.

use metrale_plugin_api::prelude::*;

metrale_plugin_api::export_plugin!(Panics);

/// The model.
pub struct Panics {
    fault: String,
}

fn fail(fault: &str, place: &str) {
    match fault.split_once(':') {
        Some(("panic", p)) if p == place => panic!("out of ideas in {place}"),
        Some(("abort", p)) if p == place => std::process::abort(),
        _ => {}
    }
}

impl ModelLoader for Panics {
    fn open(config: &Config) -> Result<Self> {
        let fault: String = config.required("fault")?;
        fail(&fault, "open");
        Ok(Self { fault })
    }

    fn describe(&self) -> ModelInfo {
        ModelInfo {
            num_layers: 3,
            hidden_size: 8,
            vocab_size: 16,
            context_length: 64,
            ..ModelInfo::default()
        }
    }

    fn embedding(&self, g: &Graph) -> Result<Value> {
        g.embedding(g.token_ids()?, g.weight("table.weight", &[16, 8], Role::Vocab)?)
    }

    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
        if index == 2 {
            fail(&self.fault, "trace");
        }
        g.scale(x, 0.5)
    }

    fn norm(&self, _: &Graph, x: Value) -> Result<Value> {
        Ok(x)
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        g.linear(x, g.weight("table.weight", &[16, 8], Role::Vocab)?)
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        fail(&self.fault, "close");
    }
}
