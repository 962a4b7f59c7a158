//! A server with a scripted engine and a byte tokenizer, and a small HTTP client to talk to it.

pub(crate) mod client;
pub(crate) mod engine;
pub(crate) mod text;

use std::sync::Arc;
use std::time::Duration;

use metrale_core::server::{
    self, App, Ending, Listener, SamplingDefaults, ServedModel, ServerOptions, install_metrics,
};
use metrale_core::text::Tokenizer;
use metrale_core::translation::Translation;
use metrale_graph::Attrs;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use client::Client;
use engine::FakeEngine;
use text::{ByteText, EOS, VOCAB_SIZE};

pub(crate) const MODEL: &str = "fake/model";
pub(crate) const MAX_MODEL_LEN: usize = 256;

/// A model over `engine`.
pub(crate) fn model(engine: &Arc<FakeEngine>) -> ServedModel {
    ServedModel {
        engine: engine.clone(),
        text: Some(Arc::new(ByteText)),
        images: None,
        translation: None,
        root: "/models/fake".to_owned(),
        max_model_len: MAX_MODEL_LEN,
        weight_bytes_per_step: 0,
        vocab_size: VOCAB_SIZE,
        eos_token_ids: vec![EOS],
        defaults: SamplingDefaults::default(),
    }
}

/// A model that translates between English and Spanish.
pub(crate) fn translating(engine: &Arc<FakeEngine>) -> ServedModel {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/tiny-nllb-eng-spa");
    let tokenizer = Tokenizer::from_dir(std::path::Path::new(directory)).unwrap();
    let facts = Attrs::new()
        .with("decoder_start_token_id", 2)
        .with("translation.source_format", "{source_language}{text}</s>")
        .with("translation.forced_first_token", "{target_language}");
    let translation = Translation::new(&facts, &tokenizer).unwrap().unwrap();
    ServedModel { translation: Some(Arc::new(translation)), ..model(engine) }
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions {
        model_names: vec![MODEL.to_owned(), "alias".to_owned()],
        api_key: None,
        max_logprobs: 5,
        max_body_bytes: 1 << 16,
        chat_template_kwargs: serde_json::Map::new(),
        log_requests: false,
    }
}

/// A running server on a free loopback port.
pub(crate) struct TestServer {
    pub(crate) client: Client,
    pub(crate) app: Arc<App>,
    shutdown: Option<oneshot::Sender<()>>,
    serving: JoinHandle<std::io::Result<Ending>>,
}

impl TestServer {
    /// A server whose model answers with `reply`.
    pub(crate) async fn replying(reply: &str) -> Self {
        Self::with(options(), Some(model(&FakeEngine::replying(reply)))).await
    }

    pub(crate) async fn over(engine: &Arc<FakeEngine>) -> Self {
        Self::with(options(), Some(model(engine))).await
    }

    /// A server that is still loading if there is no model.
    pub(crate) async fn with(options: ServerOptions, model: Option<ServedModel>) -> Self {
        Self::draining_for(Duration::from_secs(30), options, model).await
    }

    /// A server that gives running requests `drain_timeout` to finish.
    pub(crate) async fn draining_for(
        drain_timeout: Duration,
        options: ServerOptions,
        model: Option<ServedModel>,
    ) -> Self {
        let metrics = install_metrics(MODEL).unwrap();
        let app = App::new(options, metrics);
        if let Some(model) = model {
            app.set_model(model);
        }
        let listener = Listener::tcp("127.0.0.1", 0).await.unwrap();
        let address = listener.address().unwrap().trim_start_matches("http://").to_owned();
        let (shutdown, asked) = oneshot::channel();
        let asked = async move { asked.await.unwrap_or_default() };
        let serving = tokio::spawn(server::serve(app.clone(), listener, asked, drain_timeout));
        Self { client: Client { address }, app, shutdown: Some(shutdown), serving }
    }

    /// Asks the server to drain.
    pub(crate) fn shut_down(&mut self) {
        self.shutdown.take().unwrap().send(()).unwrap();
    }

    /// How the server ended.
    pub(crate) async fn ending(self) -> Ending {
        self.serving.await.unwrap().unwrap()
    }
}
