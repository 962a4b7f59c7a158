//! Request bodies: JSON, or a form as LibreTranslate's own client sends it.

use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use super::error::LibreError;
use crate::server::app::App;
use crate::server::error::ApiError;
use crate::server::extract::{JsonBody, read_whole};
use crate::server::fields::Fields;
use crate::server::middleware::{carries, is_key};

/// Fields whose values are text however they look.
const TEXT_FIELDS: &[&str] =
    &["q", "source", "target", "format", "api_key", "source_lang", "target_lang", "model"];

/// The fields of a JSON object or of a form, from a client that has the API key, if there is one.
pub(in crate::server) struct LibreBody(pub(super) Fields);

impl FromRequest<Arc<App>> for LibreBody {
    type Rejection = LibreError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, LibreError> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_form = kind.is_some_and(|kind| {
            kind.trim().to_ascii_lowercase().starts_with("application/x-www-form-urlencoded")
        });
        let key = app.options.api_key.as_deref();
        let has_key = key.is_none_or(|key| carries(&request, key));
        let mut fields = if is_form {
            form(&read_whole(request, app).await?)?
        } else {
            JsonBody::from_request(request, app).await?.0
        };
        let given = fields.string("api_key")?;
        if has_key || key.zip(given.as_deref()).is_some_and(|(key, given)| is_key(given, key)) {
            return Ok(Self(fields));
        }
        let message =
            "missing or wrong API key; send the field `api_key` or the header `Authorization: Bearer KEY`";
        Err(ApiError::unauthorized(message).into())
    }
}

/// A name that is given several times is a list; numbers and booleans are read as such where text is not meant.
fn form(body: &[u8]) -> Result<Fields, ApiError> {
    let mut map = Map::new();
    for (name, value) in form_urlencoded::parse(body) {
        let text = || Value::String(value.to_string());
        let value = if TEXT_FIELDS.contains(&&*name) {
            text()
        } else {
            serde_json::from_str(&value).unwrap_or_else(|_| text())
        };
        match map.get_mut(&*name) {
            None => {
                map.insert(name.into_owned(), value);
            }
            Some(Value::Array(list)) => list.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    Fields::of("", Value::Object(map))
}
