//! Devices: what executes plans.
//!
//! A [`Device`] holds one model: the plans of its entry points with their weights and buffers, and the states of all
//! sequences.

pub mod cpu;
pub mod cuda;
mod load;
mod sizes;
mod work;

use metrale_graph::Source;
use metrale_kernels::KernelError;
use metrale_kernels::cpu::attention::Sequence;
use metrale_kernels::cpu::conv::{DraftRows, SlotSequence};

use crate::lower::Plan;

pub use load::{Checkpoint, LoadError};
pub use sizes::{StateSizes, kv_bytes_per_token, recurrent_bytes_per_slot, source_bytes_per_token};

/// Rows per page of keys and values of rows that attend among themselves: a device counts the rows of such an entry
/// point in whole pages.
pub const LOCAL_PAGE: usize = 16;

/// The plans of a model.
#[derive(Debug)]
pub struct Plans<P = Plan> {
    /// Tokens to hidden states.
    pub text: P,
    /// Hidden states to logits.
    pub lm_head: P,
    /// Sources to states of cross-attention.
    pub encoder: Option<P>,
    /// Multi-token prediction, by depth.
    pub mtp: Vec<P>,
    /// Patches of images to rows of text.
    pub vision: Option<P>,
    /// The heads of these, where they have their own: one for each, or none.
    pub mtp_heads: Vec<P>,
}

/// The largest steps of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxRows {
    /// Of text and multi-token prediction.
    pub text: usize,
    /// Rows that the head takes at once.
    pub lm_head: usize,
    /// Of the encoder.
    pub encoder: usize,
    /// Patches of the vision tower.
    pub vision: usize,
    /// Sequences.
    pub num_seqs: usize,
    /// Tokens of the longest sequence.
    pub model_len: usize,
}

/// Names a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// [`Plans::text`]
    Text,
    /// [`Plans::encoder`]
    Encoder,
    /// [`Plans::mtp`] at this depth.
    Mtp(usize),
    /// [`Plans::vision`]
    Vision,
}

impl<P> Plans<P> {
    /// A plan, if the model has it.
    #[must_use]
    pub fn get(&self, entry: Entry) -> Option<&P> {
        match entry {
            Entry::Text => Some(&self.text),
            Entry::Encoder => self.encoder.as_ref(),
            Entry::Mtp(depth) => self.mtp.get(depth),
            Entry::Vision => self.vision.as_ref(),
        }
    }

    /// As [`Plans::get`].
    pub fn get_mut(&mut self, entry: Entry) -> Option<&mut P> {
        match entry {
            Entry::Text => Some(&mut self.text),
            Entry::Encoder => self.encoder.as_mut(),
            Entry::Mtp(depth) => self.mtp.get_mut(depth),
            Entry::Vision => self.vision.as_mut(),
        }
    }

    /// All plans.
    pub fn iter(&self) -> impl Iterator<Item = &P> {
        let heads = [&self.text, &self.lm_head].into_iter().chain(&self.mtp_heads);
        heads.chain(&self.encoder).chain(&self.mtp).chain(&self.vision)
    }

    /// The head that turns outputs of a plan into logits.
    #[must_use]
    pub fn head(&self, entry: Entry) -> &P {
        let own = if let Entry::Mtp(depth) = entry { self.mtp_heads.get(depth) } else { None };
        own.unwrap_or(&self.lm_head)
    }

    /// A plan, if the model has it, with the head that turns its outputs into logits.
    pub fn with_head(&mut self, entry: Entry) -> Option<(&P, &mut P)> {
        let Self { text, lm_head, encoder, mtp, mtp_heads, vision } = self;
        Some(match entry {
            Entry::Text => (text, lm_head),
            Entry::Encoder => (encoder.as_ref()?, lm_head),
            Entry::Vision => (vision.as_ref()?, lm_head),
            Entry::Mtp(depth) => (mtp.get(depth)?, mtp_heads.get_mut(depth).unwrap_or(lm_head)),
        })
    }

    /// Each plan with the rows of its largest step, made into something else.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map<Q, E>(
        self,
        max: MaxRows,
        mut f: impl FnMut(P, usize) -> Result<Q, E>,
    ) -> Result<Plans<Q>, E> {
        Ok(Plans {
            text: f(self.text, max.text)?,
            lm_head: f(self.lm_head, max.lm_head)?,
            encoder: self.encoder.map(|plan| f(plan, max.encoder)).transpose()?,
            mtp: self.mtp.into_iter().map(|plan| f(plan, max.text)).collect::<Result<_, _>>()?,
            vision: self.vision.map(|plan| f(plan, max.vision)).transpose()?,
            mtp_heads: self
                .mtp_heads
                .into_iter()
                .map(|plan| f(plan, max.lm_head))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// What a step needs besides activations. What an entry point does not use may be empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepContext<'a> {
    /// Rows.
    pub rows: usize,
    /// `[rows]` ids to look up: the rows' tokens, the tokens after them (mtp), or source tokens (encoder).
    pub token_ids: &'a [u32],
    /// `[rows]`
    pub positions: &'a [u32],
    /// `[rows]` slot of each row in the caches that this entry point writes: page · block size + offset.
    pub slots: &'a [u32],
    /// The sequences that own the rows.
    pub sequences: &'a [Sequence<'a>],
    /// The same sequences over the pages of their sources.
    pub sources: &'a [Sequence<'a>],
    /// The same sequences with the slots of their recurrent state.
    pub state_slots: &'a [SlotSequence],
    /// Their rows that may be taken back, and those of the step before that were right; empty if there are none.
    pub draft_rows: &'a [DraftRows],
    /// Rows whose logits will be asked for.
    pub logits_rows: &'a [usize],
    /// What a model that sees images needs besides.
    pub images: ImageContext<'a>,
}

/// What an entry point between images and text needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImageContext<'a> {
    /// `[3, rows]` frame, row and column of every row: a token of a text with images, or a patch.
    pub streams: &'a [u32],
    /// `[image rows, width]` what the tower made of the images of the step.
    pub rows: &'a [f32],
    /// `[rows]` the image row that stands for a row of text.
    pub index: &'a [Option<u32>],
    /// `[patches, 4]` entries of a square table of positions that a patch lies between.
    pub taps: &'a [u32],
}

/// Bytes that must be read, each once, and operations, of which a product and a sum are two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Bytes.
    pub bytes: f64,
    /// Operations.
    pub flops: f64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.flops += other.flops;
    }
}

/// Time of one kind of launch in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PartTime {
    /// What is launched, with the shape of its weight.
    pub name: String,
    /// How often.
    pub count: usize,
    /// Seconds of all.
    pub seconds: f64,
    /// Work of all.
    pub work: Work,
}

/// A launch that failed, with the author's source line.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}\n  --> {source_line}")]
pub struct LaunchError {
    /// What the kernel said.
    pub message: String,
    /// Where the op was described.
    pub source_line: Source,
}

impl LaunchError {
    fn new(source: &Source, error: &KernelError) -> Self {
        Self { message: error.to_string(), source_line: source.clone() }
    }
}

/// What is outside of any op.
impl From<KernelError> for LaunchError {
    fn from(error: KernelError) -> Self {
        Self::new(&Source::default(), &error)
    }
}

/// One model on one device.
pub trait Device: std::fmt::Debug + Send {
    /// What it runs on and how, for people.
    fn describe(&self) -> String;

    /// Executes an entry point.
    ///
    /// # Errors
    /// There is no such entry point, or a kernel refused its arguments; the message names the op's source line.
    fn run(&mut self, entry: Entry, context: &StepContext<'_>) -> Result<(), LaunchError>;

    /// Logits of the rows `wanted` of an output of the last run, `[wanted, vocab]`. They are the `logits_rows` of that run.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn logits(&mut self, output: (Entry, &str), wanted: &[usize], out: &mut [f32])
    -> Result<(), LaunchError>;

    /// As [`logits`](Self::logits), but only the most likely token of each row.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn greedy(
        &mut self,
        output: (Entry, &str),
        wanted: &[usize],
        tokens: &mut Vec<u32>,
    ) -> Result<(), LaunchError>;

    /// Fills an input for the next run.
    ///
    /// # Errors
    /// There is no such input, or it has another length.
    fn write_input(&mut self, input: (Entry, &str), rows: usize, values: &[f32]) -> Result<(), LaunchError>;

    /// Fills an input for the next run with rows of an output of the last run of an entry point, which had `num_rows`.
    ///
    /// # Errors
    /// There is no such output or input, or the device failed.
    fn feed(
        &mut self,
        (entry, output, num_rows): (Entry, &str, usize),
        rows: &[usize],
        to: (Entry, &str),
    ) -> Result<(), LaunchError> {
        let values = self.read_output(entry, output, num_rows)?.ok_or_else(|| no_such("output", output))?;
        let width = values.len() / num_rows.max(1);
        let picked: Vec<f32> =
            rows.iter().flat_map(|row| &values[row * width..(row + 1) * width]).copied().collect();
        self.write_input(to, rows.len(), &picked)
    }

    /// The first `rows` rows of an output of the last run; nothing if there is no such output.
    ///
    /// # Errors
    /// The device failed.
    fn read_output(&self, entry: Entry, name: &str, rows: usize) -> Result<Option<Vec<f32>>, LaunchError>;

    /// Zeroes the recurrent states of a slot: a sequence starts.
    ///
    /// # Errors
    /// There is no such slot.
    fn clear_slot(&mut self, slot: usize) -> Result<(), LaunchError>;

    /// Copies the recurrent states of a slot to another.
    ///
    /// # Errors
    /// There is no such slot.
    fn copy_slot(&mut self, from: usize, to: usize) -> Result<(), LaunchError>;

    /// Copies a page of the rows' keys and values, of every layer, to another.
    ///
    /// # Errors
    /// There is no such page.
    fn copy_page(&mut self, from: usize, to: usize) -> Result<(), LaunchError>;

    /// MTP depths.
    fn num_mtp_layers(&self) -> usize;

    /// Parts of steps that were recorded so far, for devices that record.
    fn num_recorded(&self) -> usize {
        0
    }

    /// Bytes of matrices that a step of one row reads, embedding tables aside.
    fn weight_bytes_per_step(&self) -> usize;

    /// Bytes of the activation buffers.
    fn activation_bytes(&self) -> usize;

    /// What a step of so many sequences with one row each, and contexts of so many tokens, must read and compute.
    fn work(&self, num_seqs: usize, context: usize) -> Work;

    /// Times the parts of the last step, each over all layers, for contexts of so many tokens. Activations are undefined
    /// afterwards. Empty for a device that cannot.
    ///
    /// # Errors
    /// The device failed.
    fn time_parts(&mut self, _context: usize) -> Result<Vec<PartTime>, LaunchError> {
        Ok(Vec::new())
    }

    /// Bytes per second that the memory gives, measured now.
    ///
    /// # Errors
    /// The device failed.
    fn memory_rate(&self) -> Result<f64, LaunchError>;
}

/// A name that no plan has.
fn no_such(what: &str, name: &str) -> LaunchError {
    LaunchError { message: format!("the model has no {what} `{name}`"), source_line: Source::default() }
}

/// Another number of values than an input of so many rows has.
fn wrong_len(name: &str, rows: usize, (expected, found): (usize, usize)) -> LaunchError {
    let message = format!("{found} values for {rows} rows of the input `{name}`, which takes {expected}");
    LaunchError { message, source_line: Source::default() }
}
