//! `metrale bench step`: decode steps of given sizes, beside what the device's memory and arithmetic allow.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;

use super::{LoadRunner, logging};
use crate::config::EngineConfig;
use crate::exec::{Batch, BatchSeq, BlockId, ModelRunner, PartTime, StateSlot, StepRunner, Work};

/// Flags of `metrale bench step`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StepArgs {
    #[command(flatten)]
    engine: EngineConfig,
    /// Sequences of a step; a list measures each.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1",
        help_heading = "Measurement"
    )]
    batch: Vec<usize>,
    /// Tokens of each sequence's context, those of the step included; a list measures each.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1216",
        help_heading = "Measurement"
    )]
    context: Vec<usize>,
    /// Steps of a measurement; the median counts.
    #[arg(long, value_name = "N", default_value = "30", help_heading = "Measurement")]
    steps: usize,
    /// Leave out the time of each part.
    #[arg(long, help_heading = "Measurement")]
    no_parts: bool,
    /// Print one JSON object.
    #[arg(long, help_heading = "Measurement")]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    load_seconds: f64,
    memory_bytes_per_second: f64,
    steps: Vec<Step>,
}

#[derive(Debug, Serialize)]
struct Step {
    num_seqs: usize,
    context: usize,
    /// From the batch on the host to the tokens on the host.
    seconds: f64,
    fastest_seconds: f64,
    slowest_seconds: f64,
    bytes: f64,
    flops: f64,
    /// Bytes over the memory's rate, in seconds.
    limit_seconds: f64,
    parts: Vec<Part>,
}

#[derive(Debug, Serialize)]
struct Part {
    name: String,
    count: usize,
    seconds: f64,
    bytes: f64,
    flops: f64,
}

pub(super) fn execute(args: &StepArgs, load: LoadRunner) -> anyhow::Result<ExitCode> {
    logging::init(args.engine.log_format, LevelFilter::WARN)?;
    if args.engine.config.is_some() {
        bail!("--config is read by `metrale bench MODEL`, not by `metrale bench step`; give the flags");
    }
    let (Some(&most), Some(&longest)) = (args.batch.iter().max(), args.context.iter().max()) else {
        bail!("--batch and --context need at least one number each");
    };
    if args.batch.contains(&0) || args.context.contains(&0) || args.steps == 0 {
        bail!("--batch, --context and --steps: expected positive numbers");
    }
    let engine = EngineConfig { max_num_seqs: most, max_model_len: Some(longest), ..args.engine.clone() };
    let start = Instant::now();
    let mut runner = load(&engine)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let memory_bytes_per_second = runner.memory_rate()?;
    let mut report = Report {
        model: engine.model.clone(),
        device: runner.device_description(),
        load_seconds,
        memory_bytes_per_second,
        steps: Vec::new(),
    };
    for &context in &args.context {
        for &num_seqs in &args.batch {
            report.steps.push(measure(&mut runner, args, (num_seqs, context), memory_bytes_per_second)?);
        }
    }
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(
    runner: &mut ModelRunner,
    args: &StepArgs,
    (num_seqs, context): (usize, usize),
    rate: f64,
) -> anyhow::Result<Step> {
    const WARM_UP: usize = 5;
    let batch = batch(runner, num_seqs, context)?;
    let mut tokens = Vec::new();
    let mut seconds = Vec::new();
    for i in 0..WARM_UP + args.steps {
        let start = Instant::now();
        runner.step_greedy(&batch, &mut tokens)?;
        if i >= WARM_UP {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    let Work { bytes, flops } = runner.decode_work(num_seqs, context);
    let parts = if args.no_parts { Vec::new() } else { runner.time_parts(context)? };
    Ok(Step {
        num_seqs,
        context,
        seconds: seconds[seconds.len() / 2],
        fastest_seconds: seconds[0],
        slowest_seconds: seconds[seconds.len() - 1],
        bytes,
        flops,
        limit_seconds: bytes / rate,
        parts: parts.into_iter().map(part).collect(),
    })
}

fn part(PartTime { name, count, seconds, work }: PartTime) -> Part {
    Part { name, count, seconds, bytes: work.bytes, flops: work.flops }
}

/// One row of each sequence, at the end of its context; every sequence has pages of its own.
fn batch(runner: &ModelRunner, num_seqs: usize, context: usize) -> anyhow::Result<Batch> {
    let limits = runner.limits();
    let pages = context.div_ceil(limits.block_size);
    if num_seqs * pages >= limits.num_blocks {
        bail!(
            "{num_seqs} sequences of {context} tokens need {} pages of KV cache, and there are {}: raise --kv-cache-memory-bytes or --gpu-memory-utilization",
            num_seqs * pages,
            limits.num_blocks - 1
        );
    }
    if limits.source.is_some() {
        bail!("steps of a model with an encoder are not measured");
    }
    let seq = |i: usize| BatchSeq {
        num_tokens: 1,
        num_drafts: 0,
        num_accepted: 0,
        num_computed: context - 1,
        block_table: (0..pages).map(|page| BlockId((1 + i * pages + page) as u32)).collect(),
        state_slot: StateSlot(i as u32),
        source: None,
        images: None,
    };
    Ok(Batch {
        token_ids: (0..num_seqs).map(|i| (i * 7919 % limits.vocab_size.max(1)) as u32).collect(),
        seqs: (0..num_seqs).map(seq).collect(),
        logits_rows: (0..num_seqs).collect(),
    })
}

fn print(report: &Report) {
    let rate = report.memory_bytes_per_second;
    println!("{}, {}", report.model, report.device);
    println!("loaded in {:.1} s; a copy of the memory runs at {:.0} GB/s", report.load_seconds, rate / 1e9);
    println!(
        "{:>9} {:>8} {:>10} {:>19} {:>10} {:>10} {:>10} {:>7}",
        "sequences", "context", "step", "fastest .. slowest", "bytes", "FLOPs", "limit", "share"
    );
    for step in &report.steps {
        println!(
            "{:>9} {:>8} {:>7.3} ms {:>6.3} .. {:>6.3} ms {:>7.2} GB {:>6.2} TF {:>7.3} ms {:>5.0} %",
            step.num_seqs,
            step.context,
            step.seconds * 1e3,
            step.fastest_seconds * 1e3,
            step.slowest_seconds * 1e3,
            step.bytes / 1e9,
            step.flops / 1e12,
            step.limit_seconds * 1e3,
            100.0 * step.limit_seconds / step.seconds
        );
    }
    for step in report.steps.iter().filter(|step| !step.parts.is_empty()) {
        println!("\n{} sequences, context {}: each part alone, over all layers", step.num_seqs, step.context);
        println!("{:<40} {:>5} {:>10} {:>9} {:>10} {:>6}", "part", "count", "time", "each", "rate", "share");
        for part in &step.parts {
            let (each, gb_per_second) = (part.seconds / part.count as f64, part.bytes / part.seconds);
            println!(
                "{:<40} {:>5} {:>7.3} ms {:>6.1} us {:>6.0} GB/s {:>4.0} %",
                part.name,
                part.count,
                part.seconds * 1e3,
                each * 1e6,
                gb_per_second / 1e9,
                100.0 * gb_per_second / rate
            );
        }
        let sum: f64 = step.parts.iter().map(|part| part.seconds).sum();
        println!("{:<40} {:>5} {:>7.3} ms", "sum", "", sum * 1e3);
    }
}
