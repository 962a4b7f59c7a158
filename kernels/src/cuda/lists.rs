//! Lists of indices in one stretch of device memory, so that all lists of a step are one upload.
//!
//! Lists of known length come first, at places that follow from their lengths alone; tables, whose lengths change from
//! step to step, follow them. Recorded work can so be replayed over other tables.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::device::Cuda;
use super::memory::{Buffer, View};
use super::staging::Staging;
use crate::error::{KernelError, Result, ensure_value};

const OP: &str = "lists";

/// Room for the lists of one step.
#[derive(Debug)]
pub struct Lists {
    shared: Arc<Shared>,
    staging: Staging<u32>,
    values: Vec<u32>,
    tables: Vec<u32>,
    /// Room for lists of known length.
    fixed: usize,
}

#[derive(Debug)]
struct Shared {
    buffer: Buffer<u32>,
    /// Counts the steps; a list belongs to one.
    step: AtomicU64,
}

/// One list; usable until the next step begins.
#[derive(Debug, Clone)]
pub(super) struct List {
    shared: Arc<Shared>,
    range: Range<usize>,
    step: u64,
}

impl Lists {
    /// Room for `capacity` indices in all.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(cuda: &Cuda, capacity: usize) -> Result<Self> {
        let shared = Shared { buffer: Buffer::zeroed(cuda, capacity)?, step: AtomicU64::new(0) };
        Ok(Self {
            shared: Arc::new(shared),
            staging: Staging::new(cuda, capacity)?,
            values: Vec::with_capacity(capacity),
            tables: Vec::with_capacity(capacity),
            fixed: 0,
        })
    }

    /// Begins a step with lists of `fixed` indices in all, and tables. Lists of earlier steps are refused from now on.
    pub fn begin(&mut self, fixed: usize) {
        self.shared.step.fetch_add(1, Ordering::Relaxed);
        self.values.clear();
        self.tables.clear();
        self.fixed = fixed;
    }

    /// Appends a list.
    pub(super) fn push(&mut self, indices: &[u32]) -> Result<List> {
        let start = self.values.len();
        self.values.extend_from_slice(indices);
        let room = self.fixed;
        let fits = self.values.len() <= room;
        ensure_value(OP, "fixed", self.values.len(), fits, format_args!("at most {room} indices"))?;
        Ok(self.list(start..self.values.len()))
    }

    /// Appends a table, and says where it lies in [`Lists::tables`].
    pub(super) fn push_table(&mut self, table: &[u32]) -> u32 {
        let start = self.tables.len() as u32;
        self.tables.extend_from_slice(table);
        start
    }

    /// All tables of this step, also those to come.
    pub(super) fn tables(&self) -> List {
        self.list(self.fixed..self.shared.buffer.len())
    }

    fn list(&self, range: Range<usize>) -> List {
        List { shared: Arc::clone(&self.shared), range, step: self.shared.step.load(Ordering::Relaxed) }
    }

    /// Puts the lists of this step on their way to the device.
    ///
    /// # Errors
    /// There is not enough room, or the driver fails.
    pub fn upload(&mut self, cuda: &Cuda) -> Result<()> {
        self.values.resize(self.fixed, 0);
        self.values.extend_from_slice(&self.tables);
        let room = self.shared.buffer.len();
        let fits = self.values.len() <= room;
        ensure_value(OP, "indices", self.values.len(), fits, format_args!("at most {room}"))?;
        self.staging.put(cuda, &self.values, self.shared.buffer.view())
    }
}

impl List {
    pub(super) fn view(&self) -> Result<View<'_, u32>> {
        if self.step != self.shared.step.load(Ordering::Relaxed) {
            let reason = "a list of an earlier step".to_owned();
            return Err(KernelError::Unsupported { op: OP, reason });
        }
        self.shared.buffer.view().range(self.range.clone())
    }
}
