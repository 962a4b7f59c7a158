//! A shared library that is no plugin.

/// What it exports instead.
#[unsafe(no_mangle)]
pub extern "C" fn something_else() -> u32 {
    7
}
