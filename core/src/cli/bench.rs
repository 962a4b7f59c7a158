//! `metrale bench`: prefill and decode speed of a model in this process, and its share of the memory's read rate.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use futures_util::StreamExt;
use metrale_kernels::cpu::Cpu;
use metrale_kernels::cpu::bandwidth::read_bandwidth;
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;

use super::bench_step::StepArgs;
use super::{LoadModel, LoadRunner, logging};
use crate::config::{EngineConfig, Setting};
use crate::exec::sample::SamplingParams;
use crate::sched::{Event, GenerateRequest};
use crate::server::{EventStream, ServedModel};

/// What `metrale bench` measures: `metrale bench MODEL` or `metrale bench step MODEL`.
#[derive(Clone, Debug)]
pub(super) enum BenchArgs {
    /// Prefill and decode through the engine.
    Speed(Box<SpeedArgs>),
    /// Decode steps of given sizes.
    Step(Box<StepArgs>),
}

impl Args for BenchArgs {
    fn augment_args(command: Command) -> Command {
        let step = StepArgs::augment_args(Command::new("step")).about(
            "Decode steps of given sizes: time, bytes, operations, and what share of the limit that is",
        );
        SpeedArgs::augment_args(command)
            .subcommand(step)
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for BenchArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(match matches.subcommand() {
            Some((_, matches)) => Self::Step(Box::new(StepArgs::from_arg_matches(matches)?)),
            None => Self::Speed(Box::new(SpeedArgs::from_arg_matches(matches)?)),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Flags of a run through the engine.
#[derive(Clone, Debug, Args)]
pub(super) struct SpeedArgs {
    #[command(flatten)]
    engine: EngineConfig,
    /// Prompt tokens of the prefill measurement.
    #[arg(long, value_name = "N", default_value = "512", help_heading = "Measurement")]
    input_len: usize,
    /// Tokens that each sequence generates in the decode measurement, after a prompt of 16.
    #[arg(long, value_name = "N", default_value = "128", help_heading = "Measurement")]
    output_len: usize,
    /// Sequences that decode together; a list measures each.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1",
        help_heading = "Measurement"
    )]
    num_seqs: Vec<usize>,
    /// Repetitions; the median counts.
    #[arg(long, value_name = "N", default_value = "5", help_heading = "Measurement")]
    runs: usize,
    /// Print one JSON object.
    #[arg(long, help_heading = "Measurement")]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    load_seconds: f64,
    weight_bytes_per_step: usize,
    memory_bytes_per_second: f64,
    input_len: usize,
    prefill_tokens_per_second: f64,
    decode: Vec<Decode>,
}

#[derive(Debug, Serialize)]
struct Decode {
    num_seqs: usize,
    tokens_per_second: f64,
    steps_per_second: f64,
    /// More than 1 with speculative decoding.
    tokens_per_step: f64,
    /// Bytes of weights read per second, those of a drafter aside, of what the memory gives.
    memory_share: f64,
}

const DECODE_PROMPT: usize = 16;

pub(super) fn execute(
    args: &BenchArgs,
    settings: &[Setting],
    (load, load_runner): (LoadModel, LoadRunner),
) -> anyhow::Result<ExitCode> {
    match args {
        BenchArgs::Speed(args) => speed(args, settings, load),
        BenchArgs::Step(args) => super::bench_step::execute(args, load_runner),
    }
}

fn speed(args: &SpeedArgs, settings: &[Setting], load: LoadModel) -> anyhow::Result<ExitCode> {
    logging::init(args.engine.log_format, LevelFilter::WARN)?;
    logging::report(&args.engine, settings);
    let start = Instant::now();
    let model = load(&args.engine)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let longest = args.input_len.max(DECODE_PROMPT + args.output_len) + 1;
    if longest > model.max_model_len || args.output_len < 2 || args.input_len == 0 || args.runs == 0 {
        bail!(
            "--input-len {} and --output-len {}: expected at least 1 and 2, and at most {} tokens in all; --runs at least 1",
            args.input_len,
            args.output_len,
            model.max_model_len
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bench = Bench { model: &model, runtime, prompts: 0.into() };
    let memory = read_bandwidth(&Cpu::new(threads(&args.engine)));
    bench.decode(1, 8)?;
    let prefill = median(args.runs, || bench.prefill(args.input_len))?;
    let mut decode = Vec::new();
    for &num_seqs in &args.num_seqs {
        let before = model.engine.snapshot().drafts;
        let tokens_per_second = 1.0 / median(args.runs, || bench.decode(num_seqs, args.output_len))?;
        let drafts = model.engine.snapshot().drafts.since(&before);
        let tokens_per_step = drafts.mean_acceptance_length();
        let steps_per_second = tokens_per_second / tokens_per_step;
        decode.push(Decode {
            num_seqs,
            tokens_per_second: tokens_per_second * num_seqs as f64,
            steps_per_second,
            tokens_per_step,
            memory_share: steps_per_second * model.weight_bytes_per_step as f64 / memory,
        });
    }
    let report = Report {
        model: model.root.clone(),
        load_seconds,
        weight_bytes_per_step: model.weight_bytes_per_step,
        memory_bytes_per_second: memory,
        input_len: args.input_len,
        prefill_tokens_per_second: args.input_len as f64 / prefill,
        decode,
    };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn threads(config: &EngineConfig) -> usize {
    config.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

fn print(report: &Report) {
    println!("{}", report.model);
    println!("  load        {:8.2} s", report.load_seconds);
    println!("  weights     {:8.1} MB per step", report.weight_bytes_per_step as f64 / 1e6);
    println!("  memory      {:8.1} GB/s read", report.memory_bytes_per_second / 1e9);
    println!("  prefill     {:8.1} tokens/s ({} tokens)", report.prefill_tokens_per_second, report.input_len);
    for decode in &report.decode {
        println!(
            "  decode      {:8.1} tokens/s ({} sequences, {:.0} % of the memory's rate)",
            decode.tokens_per_second,
            decode.num_seqs,
            100.0 * decode.memory_share
        );
        if decode.tokens_per_step > 1.0 {
            println!("              {:8.2} tokens/step, drafts after random prompts", decode.tokens_per_step);
        }
    }
}

/// The median of `runs` measurements.
fn median(runs: usize, measure: impl Fn() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let mut seconds = (0..runs).map(|_| measure()).collect::<anyhow::Result<Vec<_>>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[runs / 2])
}

struct Bench<'a> {
    model: &'a ServedModel,
    runtime: tokio::runtime::Runtime,
    /// Prompts so far; each is different, so that the prefix cache has none of them.
    prompts: std::cell::Cell<usize>,
}

impl Bench<'_> {
    /// Seconds from a prompt to its first token.
    fn prefill(&self, len: usize) -> anyhow::Result<f64> {
        let start = Instant::now();
        let mut stream = self.start(len, 1)?;
        self.runtime.block_on(next_tokens(&mut stream))?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Seconds per token of each of `num_seqs` sequences that generate `len` tokens together, first steps aside.
    fn decode(&self, num_seqs: usize, len: usize) -> anyhow::Result<f64> {
        let streams = (0..num_seqs).map(|_| self.start(DECODE_PROMPT, len));
        let mut streams = streams.collect::<anyhow::Result<Vec<_>>>()?;
        self.runtime.block_on(async {
            for stream in &mut streams {
                next_tokens(stream).await?;
            }
            let start = Instant::now();
            // The last one's end is the end of all.
            let mut tokens = 0;
            for stream in &mut streams {
                let mut own = 0;
                while let Some(count) = next_tokens(stream).await? {
                    own += count;
                }
                tokens = tokens.max(own);
            }
            Ok(start.elapsed().as_secs_f64() / tokens.max(1) as f64)
        })
    }

    fn start(&self, prompt_len: usize, max_tokens: usize) -> anyhow::Result<EventStream> {
        let number = self.prompts.get();
        self.prompts.set(number + 1);
        // Any ids do; a linear congruential sequence avoids repetition.
        let vocab = self.model.vocab_size.max(1);
        let prompt = (0..prompt_len).map(|i| ((number * 7919 + i * 104_729 + 1) % vocab) as u32).collect();
        let sampling =
            SamplingParams { temperature: 0.0, max_tokens, ignore_eos: true, ..SamplingParams::default() };
        Ok(self.model.engine.submit(GenerateRequest::new(prompt, sampling))?)
    }
}

/// Tokens of the next event that has any; `None` at the end.
async fn next_tokens(stream: &mut EventStream) -> anyhow::Result<Option<usize>> {
    while let Some(event) = stream.next().await {
        match event {
            Event::Token { .. } => return Ok(Some(1)),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(None)
}
