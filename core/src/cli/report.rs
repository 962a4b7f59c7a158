//! An error and its causes as one line for people.

/// The error's text followed by its causes, `: ` between them. A cause that the text before it tells already is left
/// out.
pub(super) fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("model.gguf: {source}")]
    struct Outer {
        source: std::io::Error,
    }

    #[test]
    fn each_cause_is_told_once() {
        let error = anyhow::Error::from(Outer { source: std::io::Error::other("cut off") });
        assert_eq!(one_line(&error), "model.gguf: cut off");
        assert_eq!(one_line(&error.context("cannot serve")), "cannot serve: model.gguf: cut off");
    }
}
