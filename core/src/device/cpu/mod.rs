//! The CPU device: executes launch plans with the kernels of `metrale-kernels`.

mod execute;
mod load;
mod plan;
mod registers;
mod states;
mod workspace;

use metrale_graph::StateDecl;
use metrale_kernels::cpu::bandwidth::read_bandwidth;
use metrale_kernels::cpu::linear::Activations;
use metrale_kernels::cpu::logits::argmax;
use metrale_kernels::cpu::{Cpu, Isa};

use super::load::Checkpoint;
use super::{
    Device, Entry, LaunchError, LoadError, MaxRows, Plans, StateSizes, StepContext, Work, no_such, wrong_len,
};
use load::WeightLoader;
use plan::CpuPlan;
use states::States;

/// How numbers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// Products with quantised weights.
    pub activations: Activations,
}

/// What a user decides about the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// How numbers are computed.
    pub numerics: Numerics,
}

/// One model on the processor.
#[derive(Debug)]
pub struct CpuDevice {
    cpu: Cpu,
    options: CpuOptions,
    plans: Plans<CpuPlan>,
    states: States,
    /// Rows on their way from one plan to another, or to itself.
    fed: Vec<f32>,
}

impl CpuDevice {
    /// Loads a model.
    ///
    /// # Errors
    /// A weight cannot be loaded, or a state not be kept.
    pub fn load(
        options: CpuOptions,
        plans: Plans,
        checkpoint: &Checkpoint<'_>,
        max: MaxRows,
        states: (&[StateDecl], StateSizes),
    ) -> Result<Self, LoadError> {
        let cpu = Cpu::with_isa(options.threads, options.isa)?;
        let mut loader = WeightLoader::new(cpu.pool(), checkpoint);
        let plans = plans.try_map(max, |plan, rows| CpuPlan::new(plan, &mut loader, rows))?;
        drop(loader);
        let (sizes, mut states) = (states.1, States::new(states.0, states.1)?);
        for (state, width) in plans.text.plan.recurrent_inputs() {
            states.reserve_drafts(state, width, sizes);
        }
        Ok(Self { cpu, options, plans, states, fed: Vec::new() })
    }
}

impl Device for CpuDevice {
    fn describe(&self) -> String {
        let CpuOptions { threads, numerics, .. } = self.options;
        format!("cpu: {}, {threads} threads, products in {:?}", self.cpu.isa().name(), numerics.activations)
    }

    fn run(&mut self, entry: Entry, context: &StepContext<'_>) -> Result<(), LaunchError> {
        let plan = self.plans.get_mut(entry).ok_or_else(|| no_such("entry point", &format!("{entry:?}")))?;
        plan.run(&self.cpu, &mut self.states, self.options.numerics, context)
    }

    /// In as many passes as the head's buffers ask for.
    fn logits(
        &mut self,
        (entry, output): (Entry, &str),
        wanted: &[usize],
        out: &mut [f32],
    ) -> Result<(), LaunchError> {
        let Some(&last) = wanted.iter().max() else { return Ok(()) };
        let (from, head) = self.plans.with_head(entry).ok_or_else(|| no_such("output", output))?;
        let hidden = from.output(output, last + 1).ok_or_else(|| no_such("output", output))?;
        let (width, rows, vocab_size) =
            (hidden.len() / (last + 1), head.max_rows(), out.len() / wanted.len());
        for (wanted, out) in wanted.chunks(rows).zip(out.chunks_mut(rows * vocab_size)) {
            let input = head.input_mut("hidden", wanted.len()).unwrap_or(&mut []);
            for (&row, input) in wanted.iter().zip(input.chunks_exact_mut(width)) {
                input.copy_from_slice(&hidden[row * width..(row + 1) * width]);
            }
            let context = StepContext { rows: wanted.len(), ..StepContext::default() };
            head.run(&self.cpu, &mut self.states, self.options.numerics, &context)?;
            out.copy_from_slice(head.output("logits", wanted.len()).unwrap_or(&[]));
        }
        Ok(())
    }

    fn greedy(
        &mut self,
        output: (Entry, &str),
        wanted: &[usize],
        tokens: &mut Vec<u32>,
    ) -> Result<(), LaunchError> {
        let vocab_size = self.plans.lm_head.output_width("logits").unwrap_or(0);
        let mut logits = vec![0.0; wanted.len() * vocab_size];
        self.logits(output, wanted, &mut logits)?;
        tokens.clear();
        tokens.resize(wanted.len(), 0);
        Ok(argmax(&self.cpu, &logits, vocab_size, tokens)?)
    }

    fn write_input(
        &mut self,
        (entry, name): (Entry, &str),
        rows: usize,
        values: &[f32],
    ) -> Result<(), LaunchError> {
        let input = self.plans.get_mut(entry).and_then(|plan| plan.input_mut(name, rows));
        let input = input.ok_or_else(|| no_such("input", name))?;
        if input.len() != values.len() {
            return Err(wrong_len(name, rows, (input.len(), values.len())));
        }
        input.copy_from_slice(values);
        Ok(())
    }

    fn feed(
        &mut self,
        (entry, output, num_rows): (Entry, &str, usize),
        rows: &[usize],
        (to, name): (Entry, &str),
    ) -> Result<(), LaunchError> {
        let values = self.plans.get(entry).and_then(|plan| plan.output(output, num_rows));
        let values = values.ok_or_else(|| no_such("output", output))?;
        let width = values.len() / num_rows.max(1);
        self.fed.clear();
        for row in rows {
            self.fed.extend_from_slice(&values[row * width..(row + 1) * width]);
        }
        let fed = std::mem::take(&mut self.fed);
        let result = self.write_input((to, name), rows.len(), &fed);
        self.fed = fed;
        result
    }

    fn read_output(&self, entry: Entry, name: &str, rows: usize) -> Result<Option<Vec<f32>>, LaunchError> {
        Ok(self.plans.get(entry).and_then(|plan| plan.output(name, rows)).map(<[f32]>::to_vec))
    }

    fn clear_slot(&mut self, slot: usize) -> Result<(), LaunchError> {
        self.states.clear_slot(slot);
        Ok(())
    }

    fn copy_slot(&mut self, from: usize, to: usize) -> Result<(), LaunchError> {
        self.states.copy_slot(from, to);
        Ok(())
    }

    fn copy_page(&mut self, from: usize, to: usize) -> Result<(), LaunchError> {
        Ok(self.states.copy_page(from, to)?)
    }

    fn num_mtp_layers(&self) -> usize {
        self.plans.mtp.len()
    }

    fn weight_bytes_per_step(&self) -> usize {
        self.plans.text.weight_bytes_per_step() + self.plans.lm_head.weight_bytes_per_step()
    }

    fn activation_bytes(&self) -> usize {
        self.plans.iter().map(CpuPlan::buffer_bytes).sum()
    }

    fn work(&self, num_seqs: usize, context: usize) -> Work {
        let mut work = Work::default();
        for plan in [&self.plans.text, &self.plans.lm_head] {
            work += plan.work(&self.states, num_seqs, context);
        }
        work
    }

    fn memory_rate(&self) -> Result<f64, LaunchError> {
        Ok(read_bandwidth(&self.cpu))
    }
}
