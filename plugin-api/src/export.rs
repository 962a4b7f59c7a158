//! `export_plugin!`: the one symbol of a plugin, and the guards around the author's code.
//!
//! Every call catches panics: unwinding across the boundary would abort the host.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use abi_stable::prefix_type::WithMetadata;
use abi_stable::std_types::{RSlice, RStr};

use crate::abi::{
    ABI_MAJOR, Attr, BuildInfo, Extension, GraphRef, HostRef, ModelHandle, PluginModule, PluginModule_Ref,
    Status,
};
use crate::attr::Attrs;
use crate::config::Config;
use crate::error::PluginError;
use crate::graph::{Graph, fail, fail_text};
use crate::loader::{ModelLoader, trace};

/// Exports a [`ModelLoader`] as the plugin of this library, with the crate's `plugin.toml` embedded.
///
/// ```ignore
/// metrale_plugin_api::export_plugin!(Llama);
/// ```
#[macro_export]
macro_rules! export_plugin {
    ($loader:ty) => {
        #[cfg(panic = "abort")]
        compile_error!("plugins must unwind so that the core can report panics: remove `panic = \"abort\"`");

        /// The plugin's functions.
        pub fn plugin_module() -> $crate::abi::PluginModule_Ref {
            struct This;
            impl $crate::export::Plugin for This {
                type Loader = $loader;
                const MANIFEST: &'static str =
                    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/plugin.toml"));
                const CRATE_NAME: &'static str = env!("CARGO_PKG_NAME");
                const CRATE_VERSION: &'static str = env!("CARGO_PKG_VERSION");
            }
            $crate::export::module::<This>()
        }

        const _: () = {
            extern "C" fn constructor() -> $crate::export::RootModuleResult {
                $crate::abi::module_result(plugin_module)
            }

            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals)]
            static metrale_plugin_1: $crate::export::LibHeader = $crate::abi::library_header(constructor);
        };
    };
}

pub use abi_stable::library::{LibHeader, RootModuleResult};

/// What `export_plugin!` knows about a plugin crate.
pub trait Plugin: 'static {
    /// The author's model.
    type Loader: ModelLoader;
    /// Text of plugin.toml.
    const MANIFEST: &'static str;
    /// `CARGO_PKG_NAME`
    const CRATE_NAME: &'static str;
    /// `CARGO_PKG_VERSION`
    const CRATE_VERSION: &'static str;
}

struct Vtable<P>(std::marker::PhantomData<P>);

impl<P: Plugin> Vtable<P> {
    const MODULE: &'static WithMetadata<PluginModule> = &WithMetadata::new(PluginModule {
        build: BuildInfo {
            abi_major: ABI_MAJOR,
            api_version: RStr::from_str(env!("CARGO_PKG_VERSION")),
            crate_name: RStr::from_str(P::CRATE_NAME),
            crate_version: RStr::from_str(P::CRATE_VERSION),
            target: RStr::from_str(TARGET),
        },
        manifest: manifest::<P>,
        open: open::<P>,
        trace: trace_entry::<P>,
        close: close::<P>,
        extension,
    });
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const TARGET: &str = "x86_64-linux";
#[cfg(all(target_arch = "aarch64", target_os = "linux"))]
const TARGET: &str = "aarch64-linux";
#[cfg(not(target_os = "linux"))]
const TARGET: &str = std::env::consts::OS;

/// The module behind the entry symbol.
#[must_use]
pub fn module<P: Plugin>() -> PluginModule_Ref {
    PluginModule_Ref(Vtable::<P>::MODULE.static_as_prefix())
}

extern "C" fn manifest<P: Plugin>() -> RStr<'static> {
    RStr::from_str(P::MANIFEST)
}

extern "C" fn extension(_id: RStr<'_>) -> Extension {
    Extension::NULL
}

/// An opened model; dead after a panic.
struct Model<L> {
    loader: L,
    panicked: RefCell<bool>,
}

extern "C" fn open<P: Plugin>(host: HostRef, attrs: RSlice<'_, Attr<'_>>, out: &mut ModelHandle) -> Status {
    guard(host, || {
        let attrs = Attrs::from_abi(attrs.as_slice()).map_err(|e| PluginError::new(e.to_string()))?;
        let loader = P::Loader::open(&Config::from_attrs(&attrs)?)?;
        let model = Box::new(Model { loader, panicked: RefCell::new(false) });
        *out = ModelHandle(Box::into_raw(model) as u64);
        Ok(())
    })
}

extern "C" fn trace_entry<P: Plugin>(
    host: HostRef,
    handle: ModelHandle,
    graph: GraphRef,
    attrs: RSlice<'_, Attr<'_>>,
) -> Status {
    // SAFETY: the host passes a handle that `open` of this library made and `close` has not yet taken; calls on one handle
    // never overlap, so no other reference exists.
    let model = unsafe { &*(handle.0 as *const Model<P::Loader>) };
    if *model.panicked.borrow() {
        fail_text(host, "this model panicked before; open it again", "", "", 0);
        return Status::PANIC;
    }
    let status = guard(host, || {
        let attrs = Attrs::from_abi(attrs.as_slice()).map_err(|e| PluginError::new(e.to_string()))?;
        let entry = attrs.str("entry").ok_or_else(|| PluginError::new("the host named no entry point"))?;
        let index = attrs.size("index").unwrap_or(0);
        trace(&model.loader, &Graph::new(host, graph), entry, index)
    });
    if status == Status::PANIC {
        *model.panicked.borrow_mut() = true;
    }
    status
}

extern "C" fn close<P: Plugin>(handle: ModelHandle) {
    // SAFETY: the host passes each handle of `open` to `close` once and never uses it again.
    let model = unsafe { Box::from_raw(handle.0 as *mut Model<P::Loader>) };
    // A panic in the author's drop must not unwind into the host; there is no one left to tell.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(model)));
}

fn guard(host: HostRef, f: impl FnOnce() -> Result<(), PluginError>) -> Status {
    let (result, place) = with_panic_place(|| catch_unwind(AssertUnwindSafe(f)));
    match result {
        Ok(Ok(())) => Status::OK,
        Ok(Err(error)) => {
            fail(host, &error);
            Status::FAILED
        }
        Err(payload) => {
            let text = payload
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "a payload that is not text".to_owned());
            let (file, line) = place.unwrap_or_default();
            fail_text(host, &format!("panicked: {text}"), "", &file, line);
            Status::PANIC
        }
    }
}

type Place = Option<(String, u32)>;

thread_local! {
    /// Depth of guarded calls on this thread.
    static GUARDED: Cell<usize> = const { Cell::new(0) };
    static PANIC_PLACE: RefCell<Place> = const { RefCell::new(None) };
}

/// Runs `f`, which catches panics, and returns where it panicked.
///
/// The panic hook is installed once and stays. It is this library's own: a cdylib has its own standard library. Where
/// the plugin is linked into a test program instead, panics outside of guarded calls reach the hook that was there before.
fn with_panic_place<R>(f: impl FnOnce() -> R) -> (R, Place) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if GUARDED.get() == 0 {
                return previous(info);
            }
            PANIC_PLACE.set(info.location().map(|l| (l.file().to_owned(), l.line())));
        }));
    });
    GUARDED.set(GUARDED.get() + 1);
    let result = f();
    GUARDED.set(GUARDED.get() - 1);
    (result, PANIC_PLACE.take())
}
