//! Human-readable counts: `4096`, `32k`, `32K`, `1.5M`, `4GiB`.
//!
//! Lower-case suffixes are decimal (`32k` = 32 000), upper-case ones binary (`32K` = 32 768), as in vLLM.
//! `KB`, `MB`, … are decimal and `KiB`, `MiB`, … binary whatever the case of the number's user.

/// Parses a count of tokens or bytes.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let malformed = || SizeError::Malformed { found: text.to_owned() };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(split);
    let scale = scale(suffix.trim()).ok_or_else(malformed)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(|| SizeError::TooLarge { found: text.to_owned() });
    }
    let fraction: f64 = number.parse().map_err(|_| malformed())?;
    let scaled = fraction * scale as f64;
    if scaled.fract() == 0.0 && scaled < u64::MAX as f64 { Ok(scaled as u64) } else { Err(malformed()) }
}

/// [`parse_size`] for values that index memory.
pub fn parse_count(text: &str) -> Result<usize, SizeError> {
    let size = parse_size(text)?;
    if size == 0 {
        return Err(SizeError::Zero);
    }
    usize::try_from(size).map_err(|_| SizeError::TooLarge { found: text.to_owned() })
}

/// Parses a share, above 0 and at most 1.
pub(super) fn parse_share(text: &str) -> Result<f32, SizeError> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| SizeError::NotAShare { found: text.to_owned() })
}

fn scale(suffix: &str) -> Option<u64> {
    Some(match suffix {
        "" | "B" => 1,
        "k" | "kB" | "KB" => 1_000,
        "m" | "MB" => 1_000_000,
        "g" | "GB" => 1_000_000_000,
        "t" | "TB" => 1_000_000_000_000,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        _ => return None,
    })
}

/// Why a count could not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a known suffix, or not a whole number of units.
    #[error(
        "expected a whole number with an optional suffix (32000, 32k = 32000, 32K = 32768, 4G, 4GiB), found `{found}`"
    )]
    Malformed {
        /// The text as given.
        found: String,
    },
    /// More than 64 bits.
    #[error("`{found}` is larger than this machine can address")]
    TooLarge {
        /// The text as given.
        found: String,
    },
    /// Not a number above 0 and at most 1.
    #[error("expected a number above 0 and at most 1, found `{found}`")]
    NotAShare {
        /// The text as given.
        found: String,
    },
    /// Zero where a positive count is needed.
    #[error("expected a positive number, found 0")]
    Zero,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_case_suffixes_are_decimal_and_upper_case_ones_binary() {
        assert_eq!(parse_size("32k"), Ok(32_000));
        assert_eq!(parse_size("32K"), Ok(32_768));
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size("4GB"), Ok(4_000_000_000));
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert_eq!(parse_size("25.6k"), Ok(25_600));
        assert_eq!(parse_size("4096"), Ok(4096));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "k", "12q", "1.2.3k", "0.0001k", "-4", "1e99G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(parse_count("0"), Err(SizeError::Zero));
        assert_eq!(parse_share("0.9"), Ok(0.9));
        for text in ["0", "1.1", "-1", "NaN", "half"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
        assert!(matches!(parse_size("99999999999T"), Err(SizeError::TooLarge { .. })));
    }
}
