//! `metrale run`: one prompt continued to the end, or a conversation in the terminal.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing_subscriber::filter::LevelFilter;

use super::{LoadModel, logging, report};
use crate::config::{EngineConfig, Setting};
use crate::sched::GenerateRequest;
use crate::server::generation::{Generation, OutputOptions};
use crate::server::{Chat, ServedModel, StreamOptions, Text};
use crate::translation::Translation;

/// Flags of `metrale run`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    engine: EngineConfig,
    /// Text to answer, or to translate; without it a conversation starts.
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// Continue PROMPT as it is, without the chat template.
    #[arg(long, requires = "prompt", help_heading = "Output")]
    raw: bool,
    /// Most tokens per answer; the rest of the context if left out.
    #[arg(long, value_name = "N", help_heading = "Output")]
    max_tokens: Option<usize>,
    /// Randomness of the choice of tokens; 0 takes the most likely one.
    #[arg(long, value_name = "T", help_heading = "Output")]
    temperature: Option<f32>,
    /// System message.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", help_heading = "Output")]
    system: Option<String>,
}

pub(super) fn execute(args: &RunArgs, settings: &[Setting], load: LoadModel) -> anyhow::Result<ExitCode> {
    logging::init(args.engine.log_format, LevelFilter::WARN)?;
    logging::report(&args.engine, settings);
    let model = load(&args.engine)?;
    let Some(text) = model.text.clone() else {
        bail!("this model has no tokenizer: `metrale run` needs text; serve it and send token ids instead");
    };
    let session = Session { args, model, text };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let ending = runtime.block_on(async {
        match &args.prompt {
            Some(prompt) => session.answer(prompt).await,
            None => session.converse().await,
        }
    });
    let drafts = session.model.engine.snapshot().drafts;
    if drafts.num_drafts > 0 {
        eprintln!("speculative decoding: {drafts}");
    }
    // The thread that reads standard input may wait forever.
    runtime.shutdown_background();
    ending.map(|()| ExitCode::SUCCESS)
}

struct Session<'a> {
    args: &'a RunArgs,
    model: ServedModel,
    text: Arc<dyn Text>,
}

impl Session<'_> {
    /// Prints the translation or the continuation of one prompt.
    async fn answer(&self, prompt: &str) -> anyhow::Result<()> {
        if let Some(translation) = &self.model.translation {
            return self.translate(translation, prompt).await;
        }
        let tokens = if self.args.raw || !self.text.has_chat_template() {
            self.text.encode(prompt, true)?
        } else {
            let mut messages = self.opening();
            messages.push(json!({ "role": "user", "content": prompt }));
            self.render(&messages)?
        };
        self.generate(tokens, None).await?;
        Ok(())
    }

    /// Reads lines and answers each until the input ends.
    async fn converse(&self) -> anyhow::Result<()> {
        if self.model.translation.is_none() && !self.text.has_chat_template() {
            bail!(
                "this model has no chat template: give a PROMPT to continue, or a template with --chat-template"
            );
        }
        eprintln!("Type a message; Ctrl-C stops an answer, Ctrl-D ends the conversation.");
        let mut messages = self.opening();
        let mut lines = input_lines()?;
        loop {
            show("> ")?;
            let line = tokio::select! {
                line = lines.recv() => line,
                interrupt = tokio::signal::ctrl_c() => {
                    interrupt?;
                    eprintln!("\n(Ctrl-D ends the conversation)");
                    continue;
                }
            };
            let Some(line) = line else {
                println!();
                return Ok(());
            };
            if line.trim().is_empty() {
                continue;
            }
            if let Some(translation) = &self.model.translation {
                if let Err(error) = self.translate(translation, &line).await {
                    eprintln!("error: {}", report::one_line(&error));
                }
                continue;
            }
            messages.push(json!({ "role": "user", "content": line }));
            let answer = match self.render(&messages) {
                Ok(tokens) => self.generate(tokens, None).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(answer) => messages.push(json!({ "role": "assistant", "content": answer })),
                Err(error) => {
                    eprintln!("error: {}", report::one_line(&error));
                    messages.pop();
                }
            }
        }
    }

    fn opening(&self) -> Vec<Value> {
        self.args.system.iter().map(|system| json!({ "role": "system", "content": system })).collect()
    }

    fn render(&self, messages: &[Value]) -> anyhow::Result<Vec<u32>> {
        let prompt = self.text.render_chat(&Chat {
            messages: messages.to_vec(),
            tools: Vec::new(),
            documents: Vec::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: self.args.engine.default_chat_template_kwargs.0.clone(),
        })?;
        Ok(self.text.encode(&prompt, false)?)
    }

    /// Prints the translation of a text between the languages of the flags.
    async fn translate(&self, translation: &Translation, text: &str) -> anyhow::Result<()> {
        let Some(target) = &translation.default_target else {
            bail!("a language to translate to is needed: name it with --tgt-lang");
        };
        let detected = || {
            let found = translation.detector.detect(text).map(|found| found.language);
            found.context("the language of the text could not be found out: name it with --src-lang")
        };
        let source = translation.default_source.as_ref().map_or_else(detected, Ok)?;
        let tokens = self.text.encode(text, false)?;
        let source = translation.source(&tokens, source);
        self.generate(translation.target_start(target), Some(source)).await?;
        Ok(())
    }

    /// Prints an answer as it comes, until it ends or Ctrl-C; returns what was printed. `source` is what an encoder reads.
    async fn generate(&self, prompt: Vec<u32>, source: Option<Vec<u32>>) -> anyhow::Result<String> {
        let mut generation = self.start(prompt, source)?;
        let mut answer = String::new();
        loop {
            let delta = tokio::select! {
                delta = generation.next() => delta,
                interrupt = tokio::signal::ctrl_c() => {
                    interrupt?;
                    break;
                }
            };
            let Some(delta) = delta else { break };
            let delta = delta?;
            show(&delta.text)?;
            answer.push_str(&delta.text);
        }
        println!();
        Ok(answer)
    }

    fn start(&self, prompt: Vec<u32>, source: Option<Vec<u32>>) -> anyhow::Result<Generation> {
        let model = &self.model;
        let room = model.max_model_len.saturating_sub(prompt.len());
        if prompt.is_empty() || room == 0 {
            bail!(
                "the prompt has {} tokens; expected from 1 to {} (context length {})",
                prompt.len(),
                model.max_model_len.saturating_sub(1),
                model.max_model_len
            );
        }
        let mut sampling = model.defaults.params();
        sampling.max_tokens =
            self.args.max_tokens.or(model.defaults.max_new_tokens).unwrap_or(room).min(room);
        sampling.temperature = self.args.temperature.unwrap_or(sampling.temperature);
        let output = StreamOptions {
            skip_special_tokens: true,
            stop: Vec::new(),
            include_stop_str_in_output: false,
            min_tokens: 0,
        };
        let options = OutputOptions {
            terminators: model.eos_token_ids.as_slice().into(),
            include_terminator: false,
            text: Some(self.text.stream(&prompt, &output)),
        };
        let request = GenerateRequest { source, ..GenerateRequest::new(prompt, sampling) };
        Ok(Generation::start(model.engine.as_ref(), request, options, Instant::now())?)
    }
}

fn show(text: &str) -> std::io::Result<()> {
    print!("{text}");
    std::io::stdout().flush()
}

/// Lines of standard input, read on a thread of their own; ends with the input.
fn input_lines() -> anyhow::Result<mpsc::Receiver<String>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::Builder::new()
        .name("metrale-stdin".to_owned())
        .spawn(move || {
            for line in std::io::stdin().lock().lines() {
                match line {
                    Ok(line) => {
                        if sender.blocking_send(line).is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "standard input could not be read");
                        return;
                    }
                }
            }
        })
        .context("the thread that reads standard input could not be started")?;
    Ok(receiver)
}
