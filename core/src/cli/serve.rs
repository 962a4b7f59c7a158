//! `metrale serve`: listens first, loads the model, then serves until a signal.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::filter::LevelFilter;

use super::{LoadModel, logging};
use crate::config::{EngineConfig, ServerConfig, Setting};
use crate::server::{self, App, Ending, Listener, ServedModel, ServerOptions};
use crate::speculative::DraftStats;

const STATS_INTERVAL: Duration = Duration::from_secs(10);
const METRICS_UPKEEP: Duration = Duration::from_secs(5);
/// Exit status after a second signal, as shells report SIGINT.
const INTERRUPTED: i32 = 130;

/// Flags of `metrale serve`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    server: ServerConfig,
    #[command(flatten)]
    engine: EngineConfig,
}

pub(super) fn execute(args: &ServeArgs, settings: &[Setting], load: LoadModel) -> anyhow::Result<ExitCode> {
    logging::init(args.engine.log_format, LevelFilter::INFO)?;
    logging::report(&args.engine, settings);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ending = runtime.block_on(serve(args, load));
    // A load that was interrupted still runs on its thread; nothing waits for it.
    runtime.shutdown_background();
    Ok(match ending? {
        Ending::Drained => ExitCode::SUCCESS,
        Ending::TimedOut { unfinished } => {
            tracing::warn!(unfinished, "the shutdown timeout is over; unfinished requests were cut off");
            ExitCode::FAILURE
        }
    })
}

async fn serve(args: &ServeArgs, load: LoadModel) -> anyhow::Result<Ending> {
    let options = options(args);
    let name = options.model_names.first().cloned().unwrap_or_default();
    let metrics = server::install_metrics(&name).context("the metrics recorder could not be installed")?;
    let listener = listen(&args.server).await?;
    let address = listener.address()?;
    let app = App::new(options, metrics.clone());
    let mut signals = Signals::new()?;
    let (shutdown, shutdown_asked) = oneshot::channel();
    let serving = tokio::spawn(server::serve(
        Arc::clone(&app),
        listener,
        // A dropped sender ends the server too.
        async move { shutdown_asked.await.unwrap_or_default() },
        args.server.shutdown_timeout,
    ));
    tracing::info!("listening on {address}, loading {}", args.engine.model);
    let model = tokio::select! {
        model = loaded(args.engine.clone(), load) => model?,
        () = signals.next() => return Ok(Ending::Drained),
    };
    if model.text.is_none() {
        tracing::warn!("no tokenizer: only token-id prompts are served");
    }
    tracing::info!(max_model_len = model.max_model_len, defaults = ?model.defaults, "ready: `{name}` on {address}/v1");
    app.set_model(model);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(METRICS_UPKEEP).await;
            metrics.run_upkeep();
        }
    });
    if !args.server.disable_log_stats {
        tokio::spawn(log_stats(Arc::clone(&app)));
    }
    signals.next().await;
    let timeout = args.server.shutdown_timeout;
    tracing::info!(
        "shutting down: running requests have {} s to finish; a second signal exits at once",
        timeout.as_secs_f64()
    );
    // The receiver is gone only when the server has already ended.
    let _ = shutdown.send(());
    tokio::select! {
        ending = serving => Ok(ending??),
        () = signals.next() => std::process::exit(INTERRUPTED),
    }
}

async fn listen(config: &ServerConfig) -> anyhow::Result<Listener> {
    Ok(match &config.uds {
        Some(path) => Listener::unix(path).await?,
        None => Listener::tcp(&config.host, config.port).await?,
    })
}

fn options(args: &ServeArgs) -> ServerOptions {
    let ServeArgs { server, engine } = args;
    let mut model_names = server.served_model_name.clone();
    if model_names.is_empty() {
        model_names.push(engine.model.clone());
    }
    ServerOptions {
        model_names,
        api_key: server.api_key.clone(),
        max_logprobs: server.max_logprobs,
        max_body_bytes: server.max_body_bytes,
        chat_template_kwargs: engine.default_chat_template_kwargs.0.clone(),
        log_requests: server.enable_log_requests,
    }
}

/// Loads on a thread of its own, so that health checks and signals are answered meanwhile.
async fn loaded(config: EngineConfig, load: LoadModel) -> anyhow::Result<ServedModel> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new().name("metrale-load".to_owned()).spawn(move || {
        // Nobody listens when the server was stopped meanwhile.
        let _ = sender.send(load(&config));
    })?;
    receiver.await.context("the thread that loads the model ended early")?
}

/// Logs the load while there is some.
async fn log_stats(app: Arc<App>) {
    let (mut was_idle, mut drafts) = (true, DraftStats::default());
    loop {
        tokio::time::sleep(STATS_INTERVAL).await;
        let Some(snapshot) = app.snapshot() else { continue };
        let is_idle = snapshot.running + snapshot.waiting == 0;
        if !(is_idle && was_idle) {
            tracing::info!(
                running = snapshot.running,
                waiting = snapshot.waiting,
                kv_cache_usage = %format_args!("{:.1}%", snapshot.kv_usage * 100.0),
                "load"
            );
        }
        let new_drafts = snapshot.drafts.since(&drafts);
        if new_drafts.num_drafts > 0 {
            tracing::info!("speculative decoding: {new_drafts}");
        }
        drafts = snapshot.drafts;
        was_idle = is_idle;
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
