//! A model on a device, driven step by step.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use metrale_core::device::cpu::{CpuOptions, Numerics};
use metrale_core::device::cuda::CudaOptions;
use metrale_core::exec::{
    Batch, BatchSeq, BatchSource, BlockId, Logits, ModelRunner, SequenceImages, StateSlot, StepRunner,
};
use metrale_core::factory::{DeviceOptions, MtpHead, RunnerOptions, build_runner, open_attrs};
use metrale_core::lower::Taps;
use metrale_core::lower::plan::ElementType;
use metrale_core::speculative::config::MAX_DRAFTS;
use metrale_core::weights::ModelSource;
use metrale_graph::images::PlacedImage;
use metrale_kernels::cpu::Isa;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_plugin_api::abi::PluginModule_Ref;
use metrale_plugin_api::manifest::Manifest;
use metrale_reference::Tensor;

use crate::golden::Golden;

const BLOCK_SIZE: usize = 16;
/// Sequences of these tests; each has pages of its own.
const MAX_SEQS: usize = 4;

/// A loaded model and the logits of its last step.
#[derive(Debug)]
pub struct DeviceModel {
    /// Runs steps.
    pub runner: ModelRunner,
    /// Decoder layers.
    pub num_layers: usize,
    logits: Logits,
    max_len: usize,
    /// What the first tokens of every sequence stand for, for a model that sees images.
    images: Option<Arc<SequenceImages>>,
}

/// Where a model runs, and what numbers it keeps.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The device.
    pub device: DeviceOptions,
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
}

impl Setup {
    /// The CPU.
    #[must_use]
    pub fn cpu(kv_dtype: KvDtype, activations: Activations) -> Self {
        let numerics = Numerics { activations };
        Self { device: DeviceOptions::Cpu(CpuOptions { threads: 2, isa: Isa::detect(), numerics }), kv_dtype }
    }

    /// The first GPU, with activations and KV cache of one type.
    #[must_use]
    pub fn cuda(activations: ElementType) -> Self {
        let kv_dtype = match activations {
            ElementType::F32 => KvDtype::F32,
            ElementType::BF16 => KvDtype::BF16,
        };
        let options = CudaOptions { ordinal: 0, activations, memory_utilization: 0.9, enforce_eager: false };
        Self { device: DeviceOptions::Cuda(options), kv_dtype }
    }

    /// The same, launching every kernel on its own.
    #[must_use]
    pub fn eager(self) -> Self {
        match self.device {
            DeviceOptions::Cuda(options) => {
                Self { device: DeviceOptions::Cuda(CudaOptions { enforce_eager: true, ..options }), ..self }
            }
            DeviceOptions::Cpu(_) => self,
        }
    }
}

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Which sequence, from 0 to 3.
    pub sequence: usize,
    /// The sequence whose pages it uses: its own, unless it continues another's prefix.
    pub pages_of: usize,
    /// Its tokens that were computed before.
    pub num_computed: usize,
    /// The rows.
    pub token_ids: &'a [i64],
    /// What it translates; empty for a decoder-only model.
    pub source_ids: &'a [i64],
    /// Rows at the end that may be taken back.
    pub num_drafts: usize,
    /// Such rows of its last step that were right.
    pub num_accepted: usize,
}

impl<'a> Chunk<'a> {
    /// Rows of a translation.
    #[must_use]
    pub fn of(self, source_ids: &'a [i64]) -> Self {
        Self { source_ids, ..self }
    }

    /// Rows of a decoder-only model.
    #[must_use]
    pub fn new(sequence: usize, num_computed: usize, token_ids: &'a [i64]) -> Self {
        let (source_ids, num_drafts, num_accepted): (&[i64], _, _) = (&[], 0, 0);
        Self { sequence, pages_of: sequence, num_computed, token_ids, source_ids, num_drafts, num_accepted }
    }

    /// The last `num_drafts` rows may be taken back; of those of the step before, `num_accepted` were right.
    #[must_use]
    pub fn with_drafts(self, num_drafts: usize, num_accepted: usize) -> Self {
        Self { num_drafts, num_accepted, ..self }
    }
}

impl DeviceModel {
    /// Opens a golden model in f32, or with a bf16 KV cache.
    ///
    /// # Errors
    /// The model cannot be built.
    pub fn open(plugin: PluginModule_Ref, golden: &Golden, kv_dtype: KvDtype) -> Result<Self> {
        Self::open_with(plugin, golden, kv_dtype, None)
    }

    /// As [`DeviceModel::open`], with this many snapshots of recurrent state.
    ///
    /// # Errors
    /// The model cannot be built.
    pub fn open_with(
        plugin: PluginModule_Ref,
        golden: &Golden,
        kv_dtype: KvDtype,
        num_state_snapshots: Option<usize>,
    ) -> Result<Self> {
        Self::open_on(plugin, golden, Setup::cpu(kv_dtype, Activations::F32), num_state_snapshots)
    }

    /// As [`DeviceModel::open_with`], on any device.
    ///
    /// # Errors
    /// The model cannot be built.
    pub fn open_on(
        plugin: PluginModule_Ref,
        golden: &Golden,
        setup: Setup,
        num_state_snapshots: Option<usize>,
    ) -> Result<Self> {
        let directory = golden.model_directory()?;
        let source = ModelSource::open(directory.path())?;
        // Two sources of an encoder-decoder fit into one pass of the encoder.
        let max_len = if golden.is_seq2seq() { 2 * golden.max_len()? } else { golden.max_len()? };
        let options = RunnerOptions { num_state_snapshots, ..options(max_len, setup) };
        let images = golden.images()?.map(sequence_images).transpose()?;
        Ok(Self { images, ..Self::build_with(plugin, &source, &options)? })
    }

    /// Opens any model on the CPU for sequences of up to `max_len` tokens.
    ///
    /// # Errors
    /// The model cannot be built.
    pub fn build(
        plugin: PluginModule_Ref,
        source: &ModelSource,
        max_len: usize,
        kv_dtype: KvDtype,
        activations: Activations,
    ) -> Result<Self> {
        Self::build_on(plugin, source, max_len, Setup::cpu(kv_dtype, activations))
    }

    /// Opens any model on any device for sequences of up to `max_len` tokens.
    ///
    /// # Errors
    /// The model cannot be built.
    pub fn build_on(
        plugin: PluginModule_Ref,
        source: &ModelSource,
        max_len: usize,
        setup: Setup,
    ) -> Result<Self> {
        Self::build_with(plugin, source, &options(max_len, setup))
    }

    /// Opens any model.
    ///
    /// # Errors
    /// The model cannot be built.
    pub fn build_with(
        plugin: PluginModule_Ref,
        source: &ModelSource,
        options: &RunnerOptions,
    ) -> Result<Self> {
        let models = Manifest::parse(plugin.manifest()().as_str())?.models;
        let ignored_tensors = models.into_iter().flat_map(|m| m.ignored).collect();
        let options = &RunnerOptions { ignored_tensors, ..options.clone() };
        let built = build_runner(plugin, &open_attrs(source, options.max_model_len), Some(source), options)?;
        let max_len = built.runner.limits().max_model_len;
        let num_layers = built.facts.num_layers;
        Ok(Self { runner: built.runner, num_layers, logits: Logits::default(), max_len, images: None })
    }

    /// Runs the chunks as one step; gives the logits of every row, `[rows, vocab]`.
    ///
    /// # Errors
    /// The step fails.
    pub fn step(&mut self, chunks: &[Chunk<'_>]) -> Result<Tensor> {
        let mut batch = self.batch(chunks)?;
        batch.seqs.iter_mut().for_each(|seq| seq.images.clone_from(&self.images));
        self.runner.step(&batch, &mut self.logits)?;
        self.take_logits(batch.num_tokens())
    }

    /// What the encoder made of the sources of the last step, `[rows, width]`.
    ///
    /// # Errors
    /// There is no encoder.
    pub fn encoded(&self, rows: usize) -> Result<Tensor> {
        let data = self.runner.encoder_output("encoder_hidden", rows)?.context("no encoder")?;
        Ok(Tensor::new(&[rows, data.len() / rows], data)?)
    }

    /// Runs one MTP depth over slots of one sequence: hidden states `[slots, width]` and, in the chunk, the tokens after
    /// them. Gives what the next depth is fed with, and logits.
    ///
    /// # Errors
    /// There is no such depth.
    pub fn mtp(&mut self, depth: usize, chunk: Chunk<'_>, hidden: &Tensor) -> Result<(Tensor, Tensor)> {
        let batch = self.batch(&[chunk])?;
        let rows = batch.num_tokens();
        self.runner.mtp(depth, &batch, hidden.data(), &mut self.logits)?;
        let recycled = self.runner.mtp_output(depth, "recycle", rows)?.context("no value recycle")?;
        let recycled = Tensor::new(&[rows, recycled.len() / rows], recycled)?;
        Ok((recycled, self.take_logits(rows)?))
    }

    fn take_logits(&self, rows: usize) -> Result<Tensor> {
        Ok(Tensor::new(&[rows, self.logits.vocab_size], self.logits.data.clone())?)
    }

    fn batch(&self, chunks: &[Chunk<'_>]) -> Result<Batch> {
        let token_ids = as_u32(chunks.iter().flat_map(|c| c.token_ids))?;
        let rows = token_ids.len();
        let seqs = chunks.iter().map(|chunk| self.seq(chunk)).collect::<Result<_>>()?;
        Ok(Batch { token_ids, seqs, logits_rows: (0..rows).collect() })
    }

    fn seq(&self, chunk: &Chunk<'_>) -> Result<BatchSeq> {
        let source = BatchSource {
            token_ids: as_u32(chunk.source_ids)?.into(),
            block_table: self.pages(chunk.pages_of, chunk.source_ids.len()),
        };
        Ok(BatchSeq {
            num_tokens: chunk.token_ids.len(),
            num_drafts: chunk.num_drafts,
            num_accepted: chunk.num_accepted,
            num_computed: chunk.num_computed,
            block_table: self.pages(chunk.pages_of, chunk.num_computed + chunk.token_ids.len()),
            state_slot: StateSlot(chunk.sequence as u32),
            images: None,
            source: (!chunk.source_ids.is_empty()).then_some(source),
        })
    }

    /// Pages of a sequence for `len` tokens, in an order of their own, so that a table that is ignored is noticed.
    fn pages(&self, sequence: usize, len: usize) -> Vec<BlockId> {
        let pages = self.max_len.div_ceil(BLOCK_SIZE) as u32;
        let first = 1 + sequence as u32 * pages;
        let page = |i: u32| if pages.is_multiple_of(3) { pages - 1 - i } else { (i * 3 + 1) % pages };
        (0..len.div_ceil(BLOCK_SIZE) as u32).map(|i| BlockId(first + page(i))).collect()
    }

    /// The value `hidden.<layer>` or `final_hidden` of the last step, `[rows, width]`.
    ///
    /// # Errors
    /// There is no such value.
    pub fn value(&self, name: &str, rows: usize) -> Result<Tensor> {
        let data = self.runner.output(name, rows)?.with_context(|| format!("no value {name}"))?;
        Ok(Tensor::new(&[rows, data.len() / rows], data)?)
    }

    /// All tokens of one sequence, in chunks of the given size; logits of every row.
    ///
    /// # Errors
    /// A step fails.
    pub fn in_chunks(&mut self, token_ids: &[i64], sizes: &[usize]) -> Result<Tensor> {
        let (mut data, mut start, mut width) = (Vec::new(), 0, 0);
        for size in sizes {
            let token_ids = &token_ids[start..start + size];
            let logits = self.step(&[Chunk::new(1, start, token_ids)])?;
            data.extend_from_slice(logits.data());
            width = logits.width();
            start += size;
        }
        Ok(Tensor::new(&[start, width], data)?)
    }
}

fn sequence_images((placed, pixels): (Vec<PlacedImage>, Tensor)) -> Result<Arc<SequenceImages>> {
    let mut images = SequenceImages::default();
    let mut rows = 0;
    for image in &placed {
        let count = image.grid.num_patches();
        images.patches.push(pixels.rows(rows..rows + count).data().into());
        rows += count;
    }
    ensure!(rows == pixels.shape()[0], "{rows} patches of images, {} recorded", pixels.shape()[0]);
    Ok(Arc::new(SequenceImages { placed, ..images }))
}

fn as_u32<'a>(ids: impl IntoIterator<Item = &'a i64>) -> Result<Vec<u32>> {
    Ok(ids.into_iter().map(|&id| u32::try_from(id)).collect::<Result<_, _>>()?)
}

/// For a few sequences of up to `max_len` tokens.
#[must_use]
pub fn options(max_len: usize, setup: Setup) -> RunnerOptions {
    RunnerOptions {
        device: setup.device,
        kv_dtype: setup.kv_dtype,
        max_model_len: Some(max_len),
        max_num_seqs: MAX_SEQS,
        max_num_batched_tokens: 2 * max_len,
        block_size: BLOCK_SIZE,
        kv_cache_bytes: None,
        num_state_snapshots: None,
        mtp: MtpHead::Optional,
        // The GPU cannot take rows back from recurrent state.
        max_num_drafts: if matches!(setup.device, DeviceOptions::Cpu(_)) { MAX_DRAFTS } else { 0 },
        strict_weights: true,
        ignored_tensors: Vec::new(),
        taps: Taps::Keep,
    }
}
