//! What a sequence carries from step to step, by state name, shared by all entry points of a model.
//!
//! A clone is a snapshot: equal sequences continue equally.

use std::collections::BTreeMap;

use metrale_graph::{KvLayout, StateDecl, StateKind};

use crate::error::Fault;
use crate::tensor::Tensor;

/// The state of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    /// Tokens that the text entry has processed: the position of the next one.
    pub num_tokens: usize,
    states: BTreeMap<String, StateData>,
}

/// One state.
#[derive(Clone, Debug, PartialEq)]
pub enum StateData {
    /// Keys and values.
    Kv(KvRows),
    /// A recurrent or convolution state.
    Dense(Tensor),
    /// The most recent token ids, oldest first; −1 where there was none.
    Tokens(Vec<i64>),
}

/// Keys and values of every token so far.
#[derive(Clone, Debug, PartialEq)]
pub struct KvRows {
    layout: KvLayout,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl KvRows {
    fn new(layout: KvLayout) -> Self {
        Self { layout, k: Vec::new(), v: Vec::new() }
    }

    /// Tokens that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.k.len() / (self.layout.num_heads * self.layout.k_dim)
    }

    /// Whether nothing has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.k.is_empty()
    }

    /// KV heads.
    #[must_use]
    pub fn num_heads(&self) -> usize {
        self.layout.num_heads
    }

    /// Key of one token and head.
    #[must_use]
    pub fn key(&self, token: usize, head: usize) -> &[f32] {
        let KvLayout { num_heads, k_dim, .. } = self.layout;
        &self.k[(token * num_heads + head) * k_dim..][..k_dim]
    }

    /// Value of one token and head.
    #[must_use]
    pub fn value(&self, token: usize, head: usize) -> &[f32] {
        let KvLayout { num_heads, v_dim, v_is_k_prefix, .. } = self.layout;
        if v_is_k_prefix {
            &self.key(token, head)[..v_dim]
        } else {
            &self.v[(token * num_heads + head) * v_dim..][..v_dim]
        }
    }

    pub(crate) fn push(&mut self, k: &[f32], v: Option<&[f32]>) {
        self.k.extend_from_slice(k);
        if let Some(v) = v {
            self.v.extend_from_slice(v);
        }
    }
}

impl Sequence {
    /// A sequence without any token.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A state by name, if anything has been kept under it.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<&StateData> {
        self.states.get(name)
    }

    /// The keys and values that a state holds; empty at first.
    pub(crate) fn kv(&mut self, decl: &StateDecl) -> Result<&mut KvRows, Fault> {
        let mismatch = || Fault::State { name: decl.name.clone() };
        let (StateKind::Kv(layout) | StateKind::Cross(layout)) = &decl.kind else { return Err(mismatch()) };
        let state =
            self.states.entry(decl.name.clone()).or_insert_with(|| StateData::Kv(KvRows::new(*layout)));
        match state {
            StateData::Kv(rows) if same_storage(&rows.layout, layout) => Ok(rows),
            _ => Err(mismatch()),
        }
    }

    /// The tensor that a recurrent or convolution state holds; zero at first.
    pub(crate) fn dense(&mut self, decl: &StateDecl) -> Result<&mut Tensor, Fault> {
        let mismatch = || Fault::State { name: decl.name.clone() };
        let shape = match &decl.kind {
            StateKind::Recurrent { shape } => shape.clone(),
            StateKind::Conv { channels, columns } => vec![*channels, *columns],
            StateKind::Kv(_) | StateKind::Cross(_) | StateKind::Tokens { .. } => return Err(mismatch()),
        };
        let state =
            self.states.entry(decl.name.clone()).or_insert_with(|| StateData::Dense(Tensor::zeros(&shape)));
        match state {
            StateData::Dense(tensor) if tensor.shape == shape => Ok(tensor),
            _ => Err(mismatch()),
        }
    }

    /// The token ids that a state holds.
    pub(crate) fn tokens(&mut self, decl: &StateDecl) -> Result<&mut Vec<i64>, Fault> {
        let mismatch = || Fault::State { name: decl.name.clone() };
        let StateKind::Tokens { count } = decl.kind else { return Err(mismatch()) };
        let state =
            self.states.entry(decl.name.clone()).or_insert_with(|| StateData::Tokens(vec![-1; count]));
        match state {
            StateData::Tokens(tokens) if tokens.len() == count => Ok(tokens),
            _ => Err(mismatch()),
        }
    }
}

/// Entries may declare different windows on one state.
fn same_storage(a: &KvLayout, b: &KvLayout) -> bool {
    KvLayout { window: None, ..*a } == KvLayout { window: None, ..*b }
}
