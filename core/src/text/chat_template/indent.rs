//! The `indent` filter as Jinja defines it: unlike the library's own it keeps the newline at the end of a text.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};

/// `text|indent(width=4, first=false, blank=false)`: indents all lines but the first, or with `first` all; empty
/// lines only with `blank`. `width` is a number of spaces or the text to put in front.
pub(super) fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let indention = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(width.clone()).map_err(|_| {
            let message = format!("indent wants a number of spaces or a text, found {width}");
            Error::new(ErrorKind::InvalidOperation, message)
        })?),
    };
    let indented = text.split('\n').enumerate().map(|(index, line)| {
        let indent = if index == 0 { first } else { blank || !line.is_empty() };
        if indent { format!("{indention}{line}") } else { line.to_owned() }
    });
    Ok(indented.collect::<Vec<_>>().join("\n"))
}
