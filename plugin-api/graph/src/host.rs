//! The host's side of the plugin boundary: the functions behind `HostModule`, and models opened through them.
//!
//! Every opened model has a session of its own, found by the context number that each call carries, so that several
//! engines and plugins in one process are told apart.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi_stable::std_types::{RSlice, RSliceMut, RStr};
use metrale_plugin_api::abi::{
    Attr, Extension, Failure, GraphRef, HostModule, HostRef, ModelHandle, OpCall, PluginModule_Ref, Status,
    ValueId, attr_kind,
};
use metrale_plugin_api::{AttrValue, Attrs};
use parking_lot::Mutex;

use crate::builder::Builder;
use crate::graph::{Graph, Source};
use crate::schema::find_op;

/// Answers whether the checkpoint has a tensor.
pub type TensorExists = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Why a plugin's call failed, in the author's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginFailure {
    /// What happened.
    pub message: String,
    /// What to do; may be empty.
    pub help: String,
    /// The author's source line.
    pub source: Source,
    /// Number of the op that was refused, with its name, if one was.
    pub op: Option<(usize, String)>,
    /// The layer that was being described.
    pub layer: Option<usize>,
    /// Whether the plugin panicked.
    pub panicked: bool,
}

impl std::fmt::Display for PluginFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.message)?;
        if self.source.line > 0 {
            write!(f, "\n  --> {}", self.source)?;
        }
        match (&self.op, self.layer) {
            (Some((n, op)), Some(layer)) => write!(f, "   (layer {layer}, op {n} {op})")?,
            (Some((n, op)), None) => write!(f, "   (op {n} {op})")?,
            (None, Some(layer)) => write!(f, "   (layer {layer})")?,
            (None, None) => {}
        }
        if !self.help.is_empty() {
            write!(f, "\n   help: {}", self.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for PluginFailure {}

#[derive(Default)]
struct Session {
    builder: Option<Builder>,
    failure: Option<PluginFailure>,
    tensor_exists: Option<TensorExists>,
}

static SESSIONS: Mutex<BTreeMap<u64, Arc<Mutex<Session>>>> = Mutex::new(BTreeMap::new());
static NEXT_CONTEXT: AtomicU64 = AtomicU64::new(1);
/// Times that any plugin code was entered, for proving that a step enters none.
static PLUGIN_CALLS: AtomicU64 = AtomicU64::new(0);

/// How often plugin code has been entered since the process started.
#[must_use]
pub fn num_plugin_calls() -> u64 {
    PLUGIN_CALLS.load(Ordering::Relaxed)
}

static HOST: HostModule = HostModule { emit, query, fail, log, extension };

fn session(host: HostRef) -> Option<Arc<Mutex<Session>>> {
    SESSIONS.lock().get(&host.ctx).cloned()
}

/// A panic must not unwind into the plugin.
fn guard(f: impl FnOnce() -> Status) -> Status {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(Status::FAILED)
}

extern "C" fn emit(
    host: HostRef,
    _graph: GraphRef,
    call: &OpCall<'_>,
    mut out: RSliceMut<'_, ValueId>,
) -> Status {
    guard(|| {
        let Some(session) = session(host) else { return Status::FAILED };
        let mut session = session.lock();
        let source = Source { file: call.file.as_str().to_owned(), line: call.line };
        let name = call.op.as_str();
        let Some(builder) = session.builder.as_mut() else { return Status::FAILED };
        let number = builder.graph().nodes.len();
        let layer = builder.layer();
        let result = Attrs::from_abi(call.attrs.as_slice())
            .map_err(|e| crate::schema::OpError::new(e.to_string()))
            .and_then(|attrs| builder.emit(name, call.inputs.as_slice(), attrs, out.len(), source.clone()));
        match result {
            Ok(ids) => {
                out.as_mut_slice().copy_from_slice(&ids);
                Status::OK
            }
            Err(error) => {
                let known = find_op(name).is_some();
                session.failure = Some(PluginFailure {
                    message: format!("{name} {}", error.message),
                    help: error.help,
                    source,
                    op: Some((number, name.to_owned())),
                    layer,
                    panicked: false,
                });
                if known { Status::FAILED } else { Status::UNKNOWN_OP }
            }
        }
    })
}

extern "C" fn query(
    host: HostRef,
    _graph: GraphRef,
    subject: u64,
    key: RStr<'_>,
    out: &mut Attr<'static>,
) -> Status {
    guard(|| {
        let Some(session) = session(host) else { return Status::FAILED };
        let session = session.lock();
        match key.as_str().split_once(':').unwrap_or((key.as_str(), "")) {
            ("shape", _) => {
                let value = session.builder.as_ref().and_then(|b| b.graph().values.get(subject as usize));
                let Some(value) = value else { return Status::ABSENT };
                let dims = value
                    .shape
                    .iter()
                    .flat_map(|d| d.size().map_or(-1i64, |n| n as i64).to_le_bytes())
                    .collect();
                *out = Attr::new("shape", attr_kind::INTS, interned(dims));
                Status::OK
            }
            ("supports_op", op) => {
                *out = Attr::new(
                    "supports_op",
                    attr_kind::BOOL,
                    if find_op(op).is_some() { &[1] } else { &[0] },
                );
                Status::OK
            }
            ("tensor_exists", name) => {
                let Some(exists) = &session.tensor_exists else { return Status::ABSENT };
                *out = Attr::new("tensor_exists", attr_kind::BOOL, if exists(name) { &[1] } else { &[0] });
                Status::OK
            }
            _ => Status::UNKNOWN_KEY,
        }
    })
}

/// Bytes that live for ever. Equal answers share one copy, so the set stays as small as the set of distinct shapes.
fn interned(bytes: Vec<u8>) -> &'static [u8] {
    static ANSWERS: Mutex<BTreeSet<&'static [u8]>> = Mutex::new(BTreeSet::new());
    let mut answers = ANSWERS.lock();
    if let Some(known) = answers.get(bytes.as_slice()) {
        return known;
    }
    let kept: &'static [u8] = Box::leak(bytes.into_boxed_slice());
    answers.insert(kept);
    kept
}

extern "C" fn fail(host: HostRef, failure: &Failure<'_>) {
    guard(|| {
        let Some(session) = session(host) else { return Status::FAILED };
        let mut session = session.lock();
        let layer = session.builder.as_ref().and_then(Builder::layer);
        session.failure = Some(PluginFailure {
            message: failure.message.as_str().to_owned(),
            help: failure.help.as_str().to_owned(),
            source: Source { file: failure.file.as_str().to_owned(), line: failure.line },
            op: None,
            layer,
            panicked: false,
        });
        Status::OK
    });
}

extern "C" fn log(_host: HostRef, level: u32, target: RStr<'_>, text: RStr<'_>) {
    guard(|| {
        let (plugin, text) = (target.as_str(), text.as_str());
        match level {
            1 => tracing::error!(plugin, "{text}"),
            2 => tracing::warn!(plugin, "{text}"),
            3 => tracing::info!(plugin, "{text}"),
            4 => tracing::debug!(plugin, "{text}"),
            _ => tracing::trace!(plugin, "{text}"),
        }
        Status::OK
    });
}

extern "C" fn extension(_host: HostRef, _id: RStr<'_>) -> Extension {
    Extension::NULL
}

/// A model that a plugin has opened.
pub struct OpenModel {
    module: PluginModule_Ref,
    handle: ModelHandle,
    host: HostRef,
    session: Arc<Mutex<Session>>,
}

impl std::fmt::Debug for OpenModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenModel({}, context {})", self.module.build().crate_name, self.host.ctx)
    }
}

impl OpenModel {
    /// Lets a plugin read a configuration. `attrs`: `config.json`, `generation_config.json`, `preprocessor_config.json`,
    /// `gguf.metadata`, `checkpoint.format`, `engine.max_model_len`; what is absent is not passed.
    ///
    /// # Errors
    /// The plugin refused the configuration, or panicked.
    pub fn open(
        module: PluginModule_Ref,
        attrs: &Attrs,
        tensor_exists: Option<TensorExists>,
    ) -> Result<Self, PluginFailure> {
        let ctx = NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Mutex::new(Session { tensor_exists, ..Session::default() }));
        SESSIONS.lock().insert(ctx, session.clone());
        let host = HostRef { ctx, table: &HOST };
        let mut handle = ModelHandle(0);
        PLUGIN_CALLS.fetch_add(1, Ordering::Relaxed);
        let status = attrs.lend(|attrs| module.open()(host, RSlice::from_slice(attrs), &mut handle));
        if status != Status::OK {
            SESSIONS.lock().remove(&ctx);
            let failure = session.lock().failure.take();
            return Err(explain(failure, status));
        }
        Ok(Self { module, handle, host, session })
    }

    /// Lets the plugin describe one entry point.
    ///
    /// # Errors
    /// The plugin does not have it, an op was refused, or the plugin panicked.
    pub fn trace(&self, entry: &str, index: usize) -> Result<Graph, PluginFailure> {
        {
            let mut session = self.session.lock();
            session.builder = Some(Builder::new(entry, index));
            session.failure = None;
        }
        let attrs = Attrs::new().with("entry", AttrValue::from(entry)).with("index", index);
        PLUGIN_CALLS.fetch_add(1, Ordering::Relaxed);
        let status = attrs.lend(|attrs| {
            self.module.trace()(self.host, self.handle, GraphRef(0), RSlice::from_slice(attrs))
        });
        let mut session = self.session.lock();
        let graph = session.builder.take().map(Builder::finish).unwrap_or_default();
        if status == Status::OK { Ok(graph) } else { Err(explain(session.failure.take(), status)) }
    }

    /// The facts that the plugin states in its `info` entry.
    ///
    /// # Errors
    /// As [`OpenModel::trace`].
    pub fn info(&self) -> Result<Attrs, PluginFailure> {
        let graph = self.trace("info", 0)?;
        Ok(graph.nodes.into_iter().find(|n| n.op.name == "info/1").map(|n| n.attrs).unwrap_or_default())
    }
}

impl Drop for OpenModel {
    fn drop(&mut self) {
        PLUGIN_CALLS.fetch_add(1, Ordering::Relaxed);
        self.module.close()(self.handle);
        SESSIONS.lock().remove(&self.host.ctx);
    }
}

fn explain(failure: Option<PluginFailure>, status: Status) -> PluginFailure {
    let mut failure = failure.unwrap_or_else(|| PluginFailure {
        message: format!("the plugin returned status {} without a reason", status.0),
        help: String::new(),
        source: Source::default(),
        op: None,
        layer: None,
        panicked: false,
    });
    failure.panicked = status == Status::PANIC;
    failure
}
