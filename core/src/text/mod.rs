//! Text in, text out: tokenizers, chat templates, detokenisation.
