//! The CUDA device: executes launch plans with the CUDA kernels of `metrale-kernels`.
//!
//! The host checks and uploads what a step indexes with ([`inputs`]), then launches the plan ([`execute`]) or what was
//! recorded of it ([`graphs`]). Nothing is allocated in steady use.

mod execute;
mod graphs;
mod inputs;
mod load;
mod local;
mod plan;
mod registers;
mod states;

use metrale_graph::StateDecl;
use metrale_kernels::Result;
use metrale_kernels::cuda::logits::argmax;
use metrale_kernels::cuda::{Buffer, Cuda, Indices, Timer};

use super::{
    Checkpoint, Device, Entry, LaunchError, LoadError, MaxRows, PartTime, Plans, StateSizes, StepContext,
    Work, no_such, wrong_len,
};
use crate::lower::plan::ElementType;
use graphs::{Graphs, Part, bucket};
use inputs::{StepInputs, Uploads};
use load::WeightLoader;
pub use load::weight_bytes;
use plan::CudaPlan;
use states::States;

/// What a user decides about the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CudaOptions {
    /// Number of the device.
    pub ordinal: usize,
    /// Element type of activations.
    pub activations: ElementType,
    /// Share of the device's memory that weights, states and activations may take.
    pub memory_utilization: f32,
    /// Launch kernel by kernel instead of replaying recorded steps.
    pub enforce_eager: bool,
}

/// One model on a GPU.
#[derive(Debug)]
pub struct CudaDevice {
    // Before the buffers that it uses.
    graphs: Graphs,
    plans: Plans<CudaPlan>,
    states: States,
    uploads: Uploads,
    /// The last step.
    inputs: StepInputs,
    /// Wanted rows, where they are more than the head takes at once.
    wanted: Indices,
    /// The most likely tokens of the wanted rows.
    chosen: Indices,
    options: CudaOptions,
    cuda: Cuda,
}

impl CudaDevice {
    /// Loads a model.
    ///
    /// # Errors
    /// A weight cannot be loaded, or a state not be kept.
    pub fn load(
        (cuda, options): (Cuda, CudaOptions),
        plans: Plans,
        checkpoint: &Checkpoint<'_>,
        max: MaxRows,
        (states, sizes): (&[StateDecl], StateSizes),
    ) -> std::result::Result<Self, LoadError> {
        let max = MaxRows {
            text: max.text.max(bucket(max.num_seqs)),
            lm_head: max.lm_head.max(bucket(max.num_seqs)),
            ..max
        };
        let mut loader = WeightLoader::new(&cuda, checkpoint, options.activations);
        let plans = plans.try_map(max, |plan, rows| CudaPlan::new(&cuda, plan, &mut loader, rows))?;
        drop(loader);
        let mut states = States::new(&cuda, states, sizes)?;
        if checkpoint.is_dummy() {
            states.fill_dummy(&cuda)?;
        }
        Ok(Self {
            graphs: Graphs::new(!options.enforce_eager),
            plans,
            states,
            uploads: Uploads::new(&cuda, max, sizes)?,
            inputs: StepInputs::of_rows(0),
            wanted: Indices::new(&cuda, max.lm_head)?,
            chosen: Indices::new(&cuda, max.lm_head)?,
            options,
            cuda,
        })
    }

    /// The head over the wanted rows of the last step, or over those that were set apart, and what follows it.
    fn head(
        &mut self,
        (entry, output): (Entry, &str),
        listed: bool,
        greedy: bool,
    ) -> std::result::Result<(), LaunchError> {
        let Self { graphs, plans, states, inputs, wanted, chosen, cuda, .. } = self;
        let wanted = match &inputs.wanted {
            Some(list) if listed => list,
            _ => &*wanted,
        };
        let (from, head) =
            plans.with_head(entry).ok_or_else(|| no_such("entry point", &format!("{entry:?}")))?;
        let size = wanted.len();
        let head_inputs = StepInputs::of_rows(size);
        let mut work = || {
            execute::gather(cuda, (from, output, inputs.rows), wanted, (head, "hidden"))?;
            head.run(cuda, states, &head_inputs)?;
            if greedy {
                let logits = head.plan.output("logits").ok_or_else(|| no_such("output", "logits"))?;
                let width = head.registers.width(logits);
                argmax(cuda, head.registers.read(logits, size)?, width, chosen)?;
            }
            Ok(())
        };
        let part = if greedy { Part::Greedy(entry) } else { Part::Head(entry) };
        if listed { graphs.run(cuda, (part, size), work) } else { work() }
    }

    /// Runs the head over all wanted rows, in as many passes as it asks for, and calls `take` with the rows of each.
    fn head_passes(
        &mut self,
        from: (Entry, &str),
        wanted: &[usize],
        greedy: bool,
        mut take: impl FnMut(&Self, usize) -> Result<()>,
    ) -> std::result::Result<(), LaunchError> {
        if wanted.is_empty() {
            return Ok(());
        }
        if self.inputs.wanted.is_some() {
            self.head(from, true, greedy)?;
            return Ok(take(self, wanted.len())?);
        }
        for wanted in wanted.chunks(self.plans.lm_head.max_rows()) {
            let list: Vec<u32> = wanted.iter().map(|&row| row as u32).collect();
            self.wanted.set(&self.cuda, &list, self.inputs.rows)?;
            self.head(from, false, greedy)?;
            take(self, wanted.len())?;
        }
        Ok(())
    }

    fn download_logits(&self, entry: Entry, rows: usize, out: &mut [f32]) -> Result<()> {
        let head = self.plans.head(entry);
        match head.plan.output("logits") {
            Some(logits) => head.registers.read::<f32>(logits, rows)?.download(&self.cuda, out),
            None => Ok(()),
        }
    }
}

impl Device for CudaDevice {
    fn describe(&self) -> String {
        let info = self.cuda.info();
        let steps = if self.options.enforce_eager { "launch by launch" } else { "recorded" };
        let CudaOptions { ordinal, activations, .. } = self.options;
        format!("cuda:{ordinal}: {}, activations {activations:?}, decode steps {steps}", info.name)
    }

    fn run(&mut self, entry: Entry, context: &StepContext<'_>) -> std::result::Result<(), LaunchError> {
        let Self { graphs, plans, states, uploads, inputs, cuda, .. } = self;
        let plan = plans.get_mut(entry).ok_or_else(|| no_such("entry point", &format!("{entry:?}")))?;
        let size = context.is_decode().then(|| bucket(context.rows)).filter(|&size| size <= plan.max_rows());
        let padded = size.unwrap_or(context.rows);
        let wanted = bucket(context.logits_rows.len().max(1)).max(context.logits_rows.len());
        *inputs = uploads.step(cuda, plan.needs, context, padded, wanted)?;
        match size {
            Some(size) => graphs.run(cuda, (Part::Entry(entry), size), || plan.run(cuda, states, inputs)),
            None => plan.run(cuda, states, inputs),
        }
    }

    fn logits(
        &mut self,
        from: (Entry, &str),
        wanted: &[usize],
        out: &mut [f32],
    ) -> std::result::Result<(), LaunchError> {
        let vocab_size = out.len() / wanted.len().max(1);
        let mut rest = out;
        self.head_passes(from, wanted, false, |device, rows| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(rows * vocab_size);
            rest = after;
            device.download_logits(from.0, rows, part)
        })
    }

    fn greedy(
        &mut self,
        from: (Entry, &str),
        wanted: &[usize],
        tokens: &mut Vec<u32>,
    ) -> std::result::Result<(), LaunchError> {
        tokens.clear();
        self.head_passes(from, wanted, true, |device, rows| {
            tokens.extend(device.chosen.to_vec(&device.cuda)?.into_iter().take(rows));
            Ok(())
        })
    }

    fn write_input(
        &mut self,
        (entry, name): (Entry, &str),
        rows: usize,
        values: &[f32],
    ) -> std::result::Result<(), LaunchError> {
        let plan = self.plans.get_mut(entry).ok_or_else(|| no_such("entry point", &format!("{entry:?}")))?;
        let width = plan.input_width(name).ok_or_else(|| no_such("input", name))?;
        if values.len() != rows * width {
            return Err(wrong_len(name, rows, (rows * width, values.len())));
        }
        Ok(plan.write_input(&self.cuda, name, values)?)
    }

    fn read_output(
        &self,
        entry: Entry,
        name: &str,
        rows: usize,
    ) -> std::result::Result<Option<Vec<f32>>, LaunchError> {
        let Some(plan) = self.plans.get(entry) else { return Ok(None) };
        Ok(plan.output(&self.cuda, name, rows)?)
    }

    fn clear_slot(&mut self, slot: usize) -> std::result::Result<(), LaunchError> {
        Ok(self.states.clear_slot(&self.cuda, slot)?)
    }

    fn copy_slot(&mut self, from: usize, to: usize) -> std::result::Result<(), LaunchError> {
        Ok(self.states.copy_slot(&self.cuda, from, to)?)
    }

    fn copy_page(&mut self, from: usize, to: usize) -> std::result::Result<(), LaunchError> {
        Ok(self.states.copy_page(&self.cuda, from, to)?)
    }

    fn num_mtp_layers(&self) -> usize {
        self.plans.mtp.len()
    }

    fn num_recorded(&self) -> usize {
        self.graphs.len()
    }

    fn weight_bytes_per_step(&self) -> usize {
        self.plans.text.weight_bytes_per_step() + self.plans.lm_head.weight_bytes_per_step()
    }

    fn activation_bytes(&self) -> usize {
        self.plans.iter().map(CudaPlan::buffer_bytes).sum()
    }

    fn work(&self, num_seqs: usize, context: usize) -> Work {
        let mut work = Work::default();
        for plan in [&self.plans.text, &self.plans.lm_head] {
            for planned in &plan.plan.steps {
                work += plan.work(&self.states, &planned.step, num_seqs, context);
            }
        }
        work
    }

    fn time_parts(&mut self, context: usize) -> std::result::Result<Vec<PartTime>, LaunchError> {
        const REPETITIONS: usize = 20;
        let Self { plans, states, inputs, cuda, .. } = self;
        let head_inputs = StepInputs::of_rows(inputs.rows);
        let mut times = Vec::new();
        for (plan, inputs) in [(&mut plans.text, &*inputs), (&mut plans.lm_head, &head_inputs)] {
            for (name, steps) in plan.parts() {
                let mut work = Work::default();
                for &i in &steps {
                    work += plan.work(states, &plan.plan.steps[i].step, inputs.rows, context);
                }
                let seconds =
                    graphs::time(cuda, REPETITIONS, || plan.run_steps(cuda, states, inputs, &steps))?;
                times.push(PartTime { name, count: steps.len(), seconds, work });
            }
        }
        Ok(times)
    }

    fn memory_rate(&self) -> std::result::Result<f64, LaunchError> {
        const BYTES: usize = 1 << 30;
        let from = Buffer::<u8>::zeroed(&self.cuda, BYTES)?;
        let mut to = Buffer::<u8>::zeroed(&self.cuda, BYTES)?;
        let mut best = f64::MAX;
        for _ in 0..5 {
            let timer = Timer::start(&self.cuda)?;
            to.view_mut().copy_from(&self.cuda, from.view())?;
            best = best.min(f64::from(timer.stop(&self.cuda)?) / 1e3);
        }
        // Read and written.
        Ok(2.0 * BYTES as f64 / best)
    }
}
