//! The frozen C types that cross the plugin boundary. ABI major 1.
//!
//! Nothing in this file changes within a major: new ops are new op names, everything else that is new is an
//! [`Extension`]. No owned memory crosses: borrowed slices go in, integers come out, errors are created in the
//! memory of the host. Calls marked `[load-thread]` come from one thread at a time per handle; `[any-thread]`
//! may come from any.
#![allow(unsafe_code)]
// Names that abi_stable's derive generates.
#![allow(non_camel_case_types, non_local_definitions, missing_docs, unreachable_pub, clippy::pedantic)]

use abi_stable::library::{CheckTypeLayout, LibHeader, RootModule, RootModuleResult};
use abi_stable::package_version_strings;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RSlice, RSliceMut, RStr};
use abi_stable::type_layout::TypeLayout;
use abi_stable::{StableAbi, declare_root_module_statics};

/// The ABI major that this SDK speaks; part of the entry symbol's name.
pub const ABI_MAJOR: u32 = 1;

/// The symbol that every plugin exports, and the only one.
pub const ENTRY_SYMBOL: &str = "metrale_plugin_1";

/// Outcome of a call. On anything but `OK` the text went to [`HostModule::fail`].
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u32);

impl Status {
    /// Done.
    pub const OK: Status = Status(0);
    /// Refused; `fail` has the reason.
    pub const FAILED: Status = Status(1);
    /// The plugin panicked; `fail` has message and place. Its handle is dead.
    pub const PANIC: Status = Status(2);
    /// The host does not know this op or version.
    pub const UNKNOWN_OP: Status = Status(3);
    /// `query`: the host does not know this key or subject.
    pub const UNKNOWN_KEY: Status = Status(4);
    /// `query`: known, but there is nothing there (no such tensor, no checkpoint).
    pub const ABSENT: Status = Status(5);
}

/// A model that a plugin opened. Only the plugin looks inside.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelHandle(pub u64);

/// A graph under construction. Only the host looks inside.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphRef(pub u64);

/// A value of a graph, numbered from 0 in order of creation.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ValueId(pub u32);

impl ValueId {
    /// Stands for an optional input that is not given.
    pub const NONE: ValueId = ValueId(u32::MAX);
}

/// Kinds of attribute values. Integers, not an enum, so that a new kind changes no layout.
pub mod attr_kind {
    /// No value.
    pub const NONE: u32 = 0;
    /// One little-endian i64.
    pub const INT: u32 = 1;
    /// One little-endian f64.
    pub const FLOAT: u32 = 2;
    /// One byte, 0 or 1.
    pub const BOOL: u32 = 3;
    /// UTF-8 text.
    pub const STRING: u32 = 4;
    /// Raw bytes.
    pub const BYTES: u32 = 5;
    /// Little-endian i64 values.
    pub const INTS: u32 = 6;
    /// Little-endian f64 values.
    pub const FLOATS: u32 = 7;
    /// Each string as a little-endian u32 length and its UTF-8 bytes.
    pub const STRINGS: u32 = 8;
}

/// A named, typed, borrowed value. See [`crate::attr`] for the owned form.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Attr<'a> {
    /// Name.
    pub key: RStr<'a>,
    /// One of [`attr_kind`].
    pub kind: u32,
    data: RSlice<'a, u8>,
}

impl<'a> Attr<'a> {
    /// Wraps already encoded bytes.
    pub fn new(key: &'a str, kind: u32, data: &'a [u8]) -> Self {
        Self { key: RStr::from_str(key), kind, data: RSlice::from_slice(data) }
    }

    /// No value; what `query` results start as.
    pub fn none() -> Self {
        Self::new("", attr_kind::NONE, &[])
    }

    /// The encoded bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data.as_slice()
    }
}

/// One op that a plugin adds to a graph.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct OpCall<'a> {
    /// Name with version, for example `rms_norm/1`.
    pub op: RStr<'a>,
    /// Inputs in schema order; `ValueId::NONE` for an optional one that is not given.
    pub inputs: RSlice<'a, ValueId>,
    /// Attributes; those with a default may be left out.
    pub attrs: RSlice<'a, Attr<'a>>,
    /// The author's source file.
    pub file: RStr<'a>,
    /// The author's source line.
    pub line: u32,
}

/// Why a call failed, in the author's terms.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Failure<'a> {
    /// What happened.
    pub message: RStr<'a>,
    /// What to do about it; may be empty.
    pub help: RStr<'a>,
    /// The author's source file; may be empty.
    pub file: RStr<'a>,
    /// The author's source line; 0 if unknown.
    pub line: u32,
}

/// An optional, separately versioned table of functions. Null when the id is unknown.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Extension {
    layout: Option<&'static TypeLayout>,
    table: *const (),
}

// SAFETY: an extension table is a `&'static` to plain function pointers and integers.
unsafe impl Send for Extension {}
// SAFETY: as above; nothing in it is ever written.
unsafe impl Sync for Extension {}

impl Extension {
    /// The answer for an unknown id.
    pub const NULL: Extension = Extension { layout: None, table: std::ptr::null() };

    /// Offers `table`. The type's name carries its version and the type never changes after release.
    pub fn of<T: StableAbi + Sync>(table: &'static T) -> Extension {
        Extension { layout: Some(T::LAYOUT), table: std::ptr::from_ref(table).cast() }
    }

    /// Whether the id was unknown.
    pub fn is_null(&self) -> bool {
        self.table.is_null()
    }

    /// The table, after comparing its layout with `T`'s.
    ///
    /// # Errors
    /// One line that names what differs.
    pub fn get<T: StableAbi>(&self) -> Result<Option<&'static T>, String> {
        let Some(layout) = self.layout.filter(|_| !self.table.is_null()) else { return Ok(None) };
        abi_stable::abi_stability::abi_checking::check_layout_compatibility(T::LAYOUT, layout)
            .map_err(|e| first_line(&e.to_string()))?;
        // SAFETY: `of` stored a `&'static` of a type whose layout was just found compatible with `T`.
        Ok(Some(unsafe { &*self.table.cast::<T>() }))
    }
}

fn first_line(text: &str) -> String {
    text.lines().map(str::trim).find(|l| !l.is_empty()).unwrap_or("layouts differ").to_owned()
}

/// How a plugin reaches its host; passed to every call that may need it.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct HostRef {
    /// Tells engines of one process apart.
    pub ctx: u64,
    /// The host's functions.
    pub table: &'static HostModule,
}

/// Everything that a plugin may call. Frozen.
#[repr(C)]
#[derive(StableAbi)]
pub struct HostModule {
    /// Adds an op; writes as many value ids as the op has outputs. `[load-thread]`
    pub emit: extern "C" fn(HostRef, GraphRef, &OpCall<'_>, RSliceMut<'_, ValueId>) -> Status,
    /// Asks about the graph or the host (`shape`, `supports_op`, `tensor_exists`, …). What is returned lives until
    /// the enclosing `open` or `trace` returns. `[load-thread]`
    pub query: extern "C" fn(HostRef, GraphRef, u64, RStr<'_>, &mut Attr<'static>) -> Status,
    /// Reports why the running call fails; at most once per call; copies. `[any-thread]`
    pub fail: extern "C" fn(HostRef, &Failure<'_>),
    /// Logs a line: level 1 error … 5 trace. `[any-thread]`
    pub log: extern "C" fn(HostRef, u32, RStr<'_>, RStr<'_>),
    /// A host extension by id. `[any-thread]`
    pub extension: extern "C" fn(HostRef, RStr<'_>) -> Extension,
}

/// Filled in by `export_plugin!`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct BuildInfo {
    /// [`ABI_MAJOR`] of the SDK.
    pub abi_major: u32,
    /// Version of `metrale-plugin-api`.
    pub api_version: RStr<'static>,
    /// Crate name of the plugin.
    pub crate_name: RStr<'static>,
    /// Crate version of the plugin.
    pub crate_version: RStr<'static>,
    /// Target triple, as far as the compiler tells: `arch-os`.
    pub target: RStr<'static>,
}

/// Everything that the core reads from a plugin file. Frozen.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModule_Ref)))]
pub struct PluginModule {
    /// Who built this, with what.
    pub build: BuildInfo,
    /// The author's part of plugin.toml, embedded at build time. `[any-thread]`
    pub manifest: extern "C" fn() -> RStr<'static>,
    /// Reads the configuration and makes a model. No devices, no files. `[load-thread]`
    pub open: extern "C" fn(HostRef, RSlice<'_, Attr<'_>>, &mut ModelHandle) -> Status,
    /// Emits the ops of one entry point (attributes `entry` and `index`). `[load-thread]`
    pub trace: extern "C" fn(HostRef, ModelHandle, GraphRef, RSlice<'_, Attr<'_>>) -> Status,
    /// Drops a model. `[load-thread]`
    pub close: extern "C" fn(ModelHandle),
    /// A plugin extension by id. `[any-thread]`
    #[sabi(last_prefix_field)]
    pub extension: extern "C" fn(RStr<'_>) -> Extension,
}

impl RootModule for PluginModule_Ref {
    declare_root_module_statics! {PluginModule_Ref}
    const BASE_NAME: &'static str = "metrale_plugin";
    const NAME: &'static str = "metrale_plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// The header that `export_plugin!` puts behind [`ENTRY_SYMBOL`].
///
/// `constructor` must return a [`PluginModule_Ref`] erased by [`module_result`].
pub const fn library_header(constructor: extern "C" fn() -> RootModuleResult) -> LibHeader {
    // SAFETY: the only constructor ever passed is the one that `export_plugin!` writes, which returns `module_result`.
    unsafe { LibHeader::from_constructor::<PluginModule_Ref>(constructor, CheckTypeLayout::Yes) }
}

/// Erases the module for [`library_header`].
pub fn module_result(make: fn() -> PluginModule_Ref) -> RootModuleResult {
    abi_stable::library::__call_root_module_loader(make)
}
