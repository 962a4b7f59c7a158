//! What a step tells the kernels about its rows: index lists, checked on the host and uploaded together.

use std::sync::Arc;

use metrale_kernels::Result;
use metrale_kernels::cpu::attention::Sequence;
use metrale_kernels::cpu::conv::SlotSequence;
use metrale_kernels::cuda::attention::{Listed, Visible};
use metrale_kernels::cuda::conv::Slots;
use metrale_kernels::cuda::kv_cache::KvShape;
use metrale_kernels::cuda::{Cuda, Indices, Lists, Rows, Weight};

use super::local::Placement;
use crate::device::{LOCAL_PAGE, MaxRows, StateSizes, StepContext};
use crate::lower::Plan;
use crate::lower::plan::Step;

/// Which lists the launches of a plan read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// Token ids, below this.
    ids: Option<usize>,
    positions: bool,
    writes: bool,
    attention: bool,
    sources: bool,
    local: bool,
    recurrent: bool,
}

impl Needs {
    pub(super) fn of(plan: &Plan, matrices: &[Arc<Weight>]) -> Self {
        let mut needs = Self { positions: !plan.tables.is_empty(), ..Self::default() };
        for planned in &plan.steps {
            match &planned.step {
                Step::Embed { matrix, .. } => {
                    let rows = matrices[matrix.0].num_rows();
                    needs.ids = Some(needs.ids.map_or(rows, |known| known.min(rows)));
                }
                Step::Sinusoid { .. } => needs.positions = true,
                Step::KvWrite { .. } | Step::QkvWrite(_) => needs.writes = true,
                Step::Attention { how, .. } if how.causal => needs.attention = true,
                Step::Attention { .. } => needs.sources = true,
                Step::LocalAttention { .. } => needs.local = true,
                Step::Conv { .. } | Step::DeltaRule { .. } => needs.recurrent = true,
                _ => {}
            }
        }
        needs
    }

    /// Indices of a step with so many rows and sequences, tables aside.
    fn list_len(self, rows: usize, sequences: usize) -> usize {
        let of_rows = Rows::list_len(rows, sequences);
        usize::from(self.ids.is_some()) * rows
            + usize::from(self.positions) * rows
            + usize::from(self.writes) * rows
            + usize::from(self.attention) * of_rows
            + usize::from(self.sources) * of_rows
            + usize::from(self.local) * (rows + of_rows)
            + usize::from(self.recurrent) * Slots::list_len(sequences)
    }

    const ALL: Self = Self {
        ids: Some(0),
        positions: true,
        writes: true,
        attention: true,
        sources: true,
        local: true,
        recurrent: true,
    };
}

/// The lists of one step. What the plan does not read is not there.
#[derive(Debug)]
pub(super) struct StepInputs {
    /// Rows, those that pad the step included.
    pub(super) rows: usize,
    pub(super) ids: Option<Indices>,
    pub(super) positions: Option<Indices>,
    pub(super) slots: Option<Indices>,
    pub(super) attention: Option<Rows>,
    pub(super) sources: Option<Rows>,
    pub(super) local: Option<(Indices, Rows)>,
    pub(super) recurrent: Option<Slots>,
    /// Rows whose logits will be asked for.
    pub(super) wanted: Option<Indices>,
}

impl StepInputs {
    /// A step of a plan that reads no lists.
    pub(super) fn of_rows(rows: usize) -> Self {
        Self {
            rows,
            ids: None,
            positions: None,
            slots: None,
            attention: None,
            sources: None,
            local: None,
            recurrent: None,
            wanted: None,
        }
    }
}

/// Makes and uploads the lists of steps.
#[derive(Debug)]
pub(super) struct Uploads {
    lists: Lists,
    sizes: StateSizes,
    model_len: usize,
    /// Room for the rows whose logits are wanted, at the same place in every step.
    wanted: usize,
}

impl Uploads {
    pub(super) fn new(cuda: &Cuda, max: MaxRows, sizes: StateSizes) -> Result<Self> {
        let rows = max.text.max(max.encoder);
        let sequences = max.num_seqs.max(rows.div_ceil(LOCAL_PAGE)) + 1;
        let per_sequence = max.model_len.div_ceil(sizes.block_size) + 1;
        let tables = 2 * max.num_seqs * per_sequence + 2 * rows;
        let capacity = max.lm_head + Needs::ALL.list_len(rows, sequences) + tables;
        let lists = Lists::new(cuda, capacity)?;
        Ok(Self { lists, sizes, model_len: max.model_len, wanted: max.lm_head })
    }

    /// The lists of a step, filled up to `padded` rows of one-row sequences that change nothing anybody reads. The rows
    /// whose logits are wanted are filled up to `padded_wanted`.
    pub(super) fn step(
        &mut self,
        cuda: &Cuda,
        needs: Needs,
        context: &StepContext<'_>,
        padded: usize,
        padded_wanted: usize,
    ) -> Result<StepInputs> {
        let padding = padded - context.rows;
        let step = Padding(padding);
        self.lists.begin(self.wanted + needs.list_len(padded, context.sequences.len() + padding));
        let wanted = self.wanted(context, padded_wanted)?;
        let lists = &mut self.lists;
        let StateSizes { block_size, num_blocks, num_source_blocks, num_slots, .. } = self.sizes;
        let shape = |num_blocks, block_size| KvShape {
            num_blocks,
            block_size,
            num_kv_heads: 1,
            head_dim: 8,
            value_dim: 8,
        };
        let mut inputs = StepInputs { wanted, ..StepInputs::of_rows(padded) };
        if let Some(limit) = needs.ids {
            inputs.ids = Some(Indices::listed(lists, &step.fill(context.token_ids, |_| 0), limit)?);
        }
        if needs.positions {
            inputs.positions =
                Some(Indices::listed(lists, &step.fill(context.positions, |_| 0), usize::MAX)?);
        }
        if needs.writes {
            // Page 0 belongs to nobody.
            let slots = step.fill(context.slots, |i| (i % block_size) as u32);
            inputs.slots =
                Some(Indices::listed(lists, &slots, num_blocks.min(num_source_blocks) * block_size)?);
        }
        // Padded steps are recorded, so their work must suit any context.
        let longest = (padding > 0 || context.is_decode()).then_some(self.model_len);
        if needs.attention {
            let sequences = &step.sequences(context.sequences);
            let shape = shape(num_blocks, block_size);
            let listed = Listed { shape, visible: Visible::Causal, sequences, longest };
            inputs.attention = Some(Rows::listed(lists, listed)?);
        }
        if needs.sources {
            let sequences = &step.sequences(context.sources);
            let shape = shape(num_source_blocks, block_size);
            let listed = Listed { shape, visible: Visible::All, sequences, longest };
            inputs.sources = Some(Rows::listed(lists, listed)?);
        }
        if needs.local {
            let placed = Placement::of(context.sequences);
            let slots = Indices::listed(lists, &placed.slots, placed.num_blocks() * LOCAL_PAGE)?;
            let sequences = &placed.sequences(context.sequences);
            let shape = shape(placed.num_blocks(), LOCAL_PAGE);
            let listed = Listed { shape, visible: Visible::All, sequences, longest: None };
            inputs.local = Some((slots, Rows::listed(lists, listed)?));
        }
        if needs.recurrent {
            let mut sequences = context.state_slots.to_vec();
            sequences.extend((0..padding).map(|_| SlotSequence { num_tokens: 0, slot: 0 }));
            inputs.recurrent = Some(Slots::listed(lists, &sequences, num_slots)?);
        }
        self.lists.upload(cuda)?;
        Ok(inputs)
    }

    /// The list of wanted rows, if they fit the head.
    fn wanted(&mut self, context: &StepContext<'_>, padded: usize) -> Result<Option<Indices>> {
        let fits = padded <= self.wanted;
        let mut rows: Vec<u32> =
            if fits { context.logits_rows.iter().map(|&row| row as u32).collect() } else { Vec::new() };
        let len = if fits { padded } else { 0 };
        rows.resize(len, 0);
        let wanted = Indices::listed(&mut self.lists, &rows, context.rows.max(1))?;
        // The lists that follow lie at the same places in every step.
        Indices::listed(&mut self.lists, &vec![0; self.wanted - len], 1)?;
        Ok((fits && len > 0).then_some(wanted))
    }
}

/// Rows that fill up a step.
struct Padding(usize);

impl Padding {
    fn fill(&self, values: &[u32], pad: impl Fn(usize) -> u32) -> Vec<u32> {
        values.iter().copied().chain((0..self.0).map(pad)).collect()
    }

    fn sequences<'s>(&self, sequences: &[Sequence<'s>]) -> Vec<Sequence<'s>> {
        let empty = Sequence { num_tokens: 1, context_len: 1, block_table: &[0] };
        sequences.iter().copied().chain(std::iter::repeat_n(empty, self.0)).collect()
    }
}

impl StepContext<'_> {
    /// Whether every sequence has one row.
    pub(super) fn is_decode(&self) -> bool {
        self.rows > 0 && self.sequences.len() == self.rows && self.sequences.iter().all(|s| s.num_tokens == 1)
    }
}
