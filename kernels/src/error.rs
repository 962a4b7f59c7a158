//! The one error type of the kernels: what was asked, what was expected, what was found.

/// Why a launcher refused its arguments, or a device failed. Launchers check everything before they touch memory, so
/// an error about arguments means that nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A slice has the wrong number of elements.
    #[error("{op}: `{argument}` has {found} elements, expected {expected}")]
    Length {
        /// The launcher.
        op: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// Elements that the shapes ask for.
        expected: usize,
        /// Elements that were passed.
        found: usize,
    },
    /// A dimension or count is outside of what the kernel supports.
    #[error("{op}: `{argument}` is {found}, expected {expected}")]
    Value {
        /// The launcher.
        op: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// The condition that the value has to meet.
        expected: String,
        /// The value that was passed.
        found: usize,
    },
    /// An index points outside of the thing that it indexes.
    #[error("{op}: `{argument}`[{position}] is {found}, but there are only {limit}")]
    Index {
        /// The launcher.
        op: &'static str,
        /// The index list's name.
        argument: &'static str,
        /// Position in the index list.
        position: usize,
        /// The index that was passed.
        found: usize,
        /// Number of valid indices.
        limit: usize,
    },
    /// Two things were combined that do not go together.
    #[error("{op}: {reason}")]
    Unsupported {
        /// The launcher.
        op: &'static str,
        /// What does not work, and what would.
        reason: String,
    },
    /// The processor lacks the instruction set that was asked for.
    #[error("this processor does not support the {isa} kernels")]
    Isa {
        /// The instruction set.
        isa: &'static str,
    },
    /// A device is missing or failed.
    #[error("CUDA: {reason}")]
    Device {
        /// What happened, and what to do if that is known.
        reason: String,
    },
}

/// Result of a launcher.
pub type Result<T> = std::result::Result<T, KernelError>;

/// Checks that a slice has the length that the shapes ask for.
pub(crate) fn ensure_len(
    op: &'static str,
    argument: &'static str,
    found: usize,
    expected: usize,
) -> Result<()> {
    if found == expected { Ok(()) } else { Err(KernelError::Length { op, argument, expected, found }) }
}

/// Checks a condition on one number. `expected` is only rendered for the error.
pub(crate) fn ensure_value(
    op: &'static str,
    argument: &'static str,
    found: usize,
    holds: bool,
    expected: impl std::fmt::Display,
) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(KernelError::Value { op, argument, expected: expected.to_string(), found })
    }
}

/// Number of whole rows of `width` elements in a slice of `len` elements.
pub(crate) fn rows_of(op: &'static str, argument: &'static str, len: usize, width: usize) -> Result<usize> {
    ensure_value(op, "width", width, width > 0, "at least 1")?;
    ensure_value(
        op,
        argument,
        len,
        len.is_multiple_of(width),
        format_args!("a multiple of the row width {width}"),
    )?;
    Ok(len / width)
}
