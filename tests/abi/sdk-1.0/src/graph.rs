//! The typed graph builder: turns method calls into ops of a graph that the host owns.
//!
//! A [`Graph`] is taken by shared reference everywhere, so that calls nest. Every method records the author's
//! source line; an error points there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::Location;

use abi_stable::std_types::{RSlice, RSliceMut, RStr};

use crate::abi::{Attr, Failure, GraphRef, HostRef, OpCall, Status, ValueId};
use crate::attr::{AttrValue, Attrs};
use crate::error::{PluginError, Result};

/// An activation: shape and dtype are known to the host, `[T, …]` with a symbolic number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(pub(crate) ValueId);

/// A weight, or an expression over weights that is computed once, at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(pub(crate) ValueId);

/// State that the core keeps between steps: a KV cache, a recurrent or convolution state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub(crate) ValueId);

/// Anything that an elementwise op can read: a [`Value`] or a [`Weight`].
pub trait Operand: Copy {
    /// The value's number in the graph.
    fn id(self) -> ValueId;
}

impl Operand for Value {
    fn id(self) -> ValueId {
        self.0
    }
}

impl Operand for Weight {
    fn id(self) -> ValueId {
        self.0
    }
}

pub(crate) fn optional<T: Operand>(value: Option<T>) -> ValueId {
    value.map_or(ValueId::NONE, Operand::id)
}

/// A graph under construction.
#[derive(Debug)]
pub struct Graph {
    host: HostHandle,
    target: GraphRef,
    published: RefCell<BTreeMap<String, Value>>,
}

#[derive(Clone, Copy)]
struct HostHandle(HostRef);

impl std::fmt::Debug for HostHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host {}", self.0.ctx)
    }
}

impl Graph {
    pub(crate) fn new(host: HostRef, graph: GraphRef) -> Self {
        Self { host: HostHandle(host), target: graph, published: RefCell::default() }
    }

    /// Adds an op by name: how ops that this SDK has no method for are reached, custom ones included.
    ///
    /// # Errors
    /// The host does not know the op, or refuses these inputs or attributes.
    #[track_caller]
    pub fn op<const OUTPUTS: usize>(
        &self,
        op: &str,
        inputs: &[ValueId],
        attrs: &Attrs,
    ) -> Result<[Value; OUTPUTS]> {
        let mut out = [ValueId::NONE; OUTPUTS];
        self.emit(op, inputs, attrs, &mut out, Location::caller())?;
        Ok(out.map(Value))
    }

    #[track_caller]
    pub(crate) fn op1(&self, op: &str, inputs: &[ValueId], attrs: &Attrs) -> Result<Value> {
        self.op::<1>(op, inputs, attrs).map(|[v]| v)
    }

    #[track_caller]
    pub(crate) fn op0(&self, op: &str, inputs: &[ValueId], attrs: &Attrs) -> Result<()> {
        self.op::<0>(op, inputs, attrs).map(|_| ())
    }

    fn emit(
        &self,
        op: &str,
        inputs: &[ValueId],
        attrs: &Attrs,
        out: &mut [ValueId],
        location: &'static Location<'static>,
    ) -> Result<()> {
        let status = attrs.lend(|attrs| {
            let call = OpCall {
                op: RStr::from_str(op),
                inputs: RSlice::from_slice(inputs),
                attrs: RSlice::from_slice(attrs),
                file: RStr::from_str(location.file()),
                line: location.line(),
            };
            (self.host.0.table.emit)(self.host.0, self.target, &call, RSliceMut::from_mut_slice(out))
        });
        if status == Status::OK { Ok(()) } else { Err(PluginError::reported(location)) }
    }

    /// Splits into `count` outputs, a number known only at run time.
    #[track_caller]
    pub(crate) fn op_many(
        &self,
        op: &str,
        inputs: &[ValueId],
        attrs: &Attrs,
        count: usize,
    ) -> Result<Vec<Value>> {
        let mut out = vec![ValueId::NONE; count];
        self.emit(op, inputs, attrs, &mut out, Location::caller())?;
        Ok(out.into_iter().map(Value).collect())
    }

    /// The dimensions of a value; `None` where a dimension is symbolic.
    ///
    /// # Errors
    /// The value is not of this graph.
    #[track_caller]
    pub fn shape(&self, value: impl Operand) -> Result<Vec<Option<usize>>> {
        match self.query(u64::from(value.id().0), "shape") {
            Some(AttrValue::Ints(dims)) => Ok(dims.into_iter().map(|d| usize::try_from(d).ok()).collect()),
            _ => Err(PluginError::new(format!("value {} is not of this graph", value.id().0))),
        }
    }

    /// Whether the core knows an op, given with its version: `"gated_delta_rule/1"`.
    #[must_use]
    pub fn supports_op(&self, op: &str) -> bool {
        matches!(self.query(0, &format!("supports_op:{op}")), Some(AttrValue::Bool(true)))
    }

    /// Whether the checkpoint has a tensor. False when there is no checkpoint.
    #[must_use]
    pub fn tensor_exists(&self, name: &str) -> bool {
        matches!(self.query(0, &format!("tensor_exists:{name}")), Some(AttrValue::Bool(true)))
    }

    fn query(&self, subject: u64, key: &str) -> Option<AttrValue> {
        let mut out = Attr::none();
        let status =
            (self.host.0.table.query)(self.host.0, self.target, subject, RStr::from_str(key), &mut out);
        (status == Status::OK).then(|| AttrValue::decode(&out).ok()).flatten()
    }

    /// Makes a value findable by later layers, see [`Graph::latest`].
    pub fn publish(&self, name: &str, value: Value) {
        self.published.borrow_mut().insert(name.to_owned(), value);
    }

    /// The value last published under `name`.
    ///
    /// # Errors
    /// Nothing was published under that name.
    #[track_caller]
    pub fn latest(&self, name: &str) -> Result<Value> {
        self.published
            .borrow()
            .get(name)
            .copied()
            .ok_or_else(|| PluginError::new(format!("no earlier layer published `{name}`")))
    }

    /// The error for an entry point that a model does not have.
    #[track_caller]
    #[must_use]
    pub fn unsupported(&self, entry: &str) -> PluginError {
        PluginError::new(format!("this model has no `{entry}` entry point"))
    }
}

pub(crate) fn fail(host: HostRef, error: &PluginError) {
    if error.is_reported() {
        return;
    }
    fail_text(host, error.message(), error.help(), error.location().file(), error.location().line());
}

pub(crate) fn fail_text(host: HostRef, message: &str, help: &str, file: &str, line: u32) {
    let failure = Failure {
        message: RStr::from_str(message),
        help: RStr::from_str(help),
        file: RStr::from_str(file),
        line,
    };
    (host.table.fail)(host, &failure);
}
