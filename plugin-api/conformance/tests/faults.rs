//! Every check fails for a plugin that breaks what it checks, and no other check does.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrale_conformance::{Event, Failure, Level, Outcome, Subject, TestModel, run};
use metrale_graph::Attrs;
use metrale_graph::checkpoint::{Headers, safetensors};
use metrale_plugin_api::export::{Plugin, module};
use metrale_plugin_api::prelude::*;
use metrale_reference::Checkpoint;

const CONFIG: &str = r#"{"model_type": "tiny", "vocab_size": 32, "hidden_size": 8, "num_heads": 2}"#;
const MANIFEST: &str = r#"
[plugin]
name = "tiny"
version = "0.1.0"

[api]
abi = 1
plugin_api = "1.0"

[[model]]
model_type = "tiny"
entry_points = ["text", "lm_head"]
"#;

const NONE: u8 = 0;
const SEES_THE_FUTURE: u8 = 1;
const KEEPS_NO_CACHE: u8 = 2;
const IGNORES_ITS_INPUT: u8 = 3;
const NOT_FINITE: u8 = 4;
const CHANGES_PER_TRACE: u8 = 5;
const TWO_SHAPES: u8 = 6;
const PANICS_ON_ZERO: u8 = 7;
const UNUSED_CACHE: u8 = 8;
const CHANGES_PER_OPEN: u8 = 9;
const ACCEPTS_ANYTHING: u8 = 10;
const UNDECLARED_MTP: u8 = 11;
const OTHER_NAME: u8 = 12;

/// One attention layer with one fault.
struct Tiny<const FAULT: u8> {
    vocab: usize,
    hidden: usize,
    heads: usize,
    serial: usize,
}

static SERIAL: AtomicUsize = AtomicUsize::new(0);

impl<const FAULT: u8> ModelLoader for Tiny<FAULT> {
    fn open(config: &Config) -> Result<Self> {
        let dim = |key: &str| if FAULT == ACCEPTS_ANYTHING { Ok(4) } else { config.dim(key) };
        let heads = match FAULT {
            PANICS_ON_ZERO => config.required("num_heads")?,
            ACCEPTS_ANYTHING => 2,
            _ => config.dim("num_heads")?,
        };
        let hidden = dim("hidden_size")?;
        let _ = hidden / heads;
        Ok(Self { vocab: dim("vocab_size")?, hidden, heads, serial: SERIAL.fetch_add(1, Ordering::Relaxed) })
    }

    fn describe(&self) -> ModelInfo {
        ModelInfo {
            num_layers: 1,
            hidden_size: self.hidden,
            vocab_size: self.vocab,
            context_length: if FAULT == CHANGES_PER_OPEN { 1 + self.serial } else { 64 },
            mtp_layers: usize::from(FAULT == UNDECLARED_MTP),
            ..ModelInfo::default()
        }
    }

    fn embedding(&self, g: &Graph) -> Result<Value> {
        let table = g.weight("embed.weight", &[self.vocab, self.hidden], Role::Vocab)?;
        let ids = g.token_ids()?;
        if FAULT == IGNORES_ITS_INPUT {
            let scaled = g.scale(g.embedding(ids, table)?, 0.0)?;
            return Ok(scaled);
        }
        g.embedding(ids, table)
    }

    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
        let w = Weights::root(&[""]).index("layers", index);
        let dim = self.hidden / self.heads;
        let heads = |name: &str| -> Result<Value> {
            let weight = g.weight(w.name(name), &[self.hidden, self.hidden], Role::Column)?;
            g.heads(g.linear(x, weight)?, self.heads, dim)
        };
        let (q, k, v) = (heads("q.weight")?, heads("k.weight")?, heads("v.weight")?);
        let scale =
            if FAULT == CHANGES_PER_TRACE { SERIAL.fetch_add(1, Ordering::Relaxed) as f64 } else { 0.5 };
        let y = if FAULT == KEEPS_NO_CACHE {
            g.attention_local(q, k, v, &Attention::causal(scale))?
        } else {
            let cache = g.kv_cache("layers.0.self", &KvSpec::new(self.heads, dim))?;
            let cache = g.kv_write(cache, k, Some(v))?;
            match FAULT {
                UNUSED_CACHE => v,
                SEES_THE_FUTURE => g.attention(q, cache, &Attention::full(scale))?,
                _ => g.attention(q, cache, &Attention::causal(scale))?,
            }
        };
        let out = if FAULT == OTHER_NAME { "out_proj.weight" } else { "o.weight" };
        let out = g.weight(w.name(out), &[self.hidden, self.hidden], Role::Row)?;
        g.add(x, g.linear(g.flatten(y)?, out)?)
    }

    fn norm(&self, g: &Graph, x: Value) -> Result<Value> {
        if FAULT == NOT_FINITE { g.div(x, g.constant(&vec![0.0; self.hidden])?) } else { Ok(x) }
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        if FAULT == TWO_SHAPES {
            let head = g.weight("embed.weight", &[self.vocab + 1, self.hidden], Role::Vocab)?;
            return g.linear(x, head);
        }
        g.linear(x, g.weight("embed.weight", &[self.vocab, self.hidden], Role::Vocab)?)
    }
}

struct Library<const FAULT: u8>;

impl<const FAULT: u8> Plugin for Library<FAULT> {
    type Loader = Tiny<FAULT>;
    const MANIFEST: &'static str = MANIFEST;
    const CRATE_NAME: &'static str = "tiny";
    const CRATE_VERSION: &'static str = "0.1.0";
}

/// Checks that fail, with their texts.
fn failures<const FAULT: u8>(tensors: Option<&str>) -> (BTreeSet<&'static str>, String) {
    let folder = tempfile::tempdir().unwrap();
    let configs = folder.path().join(metrale_conformance::CONFIGS);
    std::fs::create_dir(&configs).unwrap();
    std::fs::write(configs.join("tiny.json"), CONFIG).unwrap();
    if let Some(tensors) = tensors {
        std::fs::write(configs.join("tiny.tensors.json"), tensors).unwrap();
    }
    let subject = Subject::read(module::<Library<FAULT>>(), folder.path()).unwrap();
    let (mut ids, mut texts, mut finished) = (BTreeSet::new(), String::new(), 0);
    run(&subject, Level::Numbers, &mut |event| {
        if let Event::Finished(check) = event {
            finished += 1;
            if let Outcome::Failed(failure) = &check.outcome {
                ids.insert(check.id);
                texts += &failure.to_string();
            }
        }
    });
    assert!(finished > 7, "only {finished} checks ran");
    (ids, texts)
}

macro_rules! faults {
    ($($test:ident: $fault:ident fails $ids:expr, says $text:expr;)*) => {$(
        #[test]
        fn $test() {
            let (ids, text) = failures::<$fault>(None);
            assert_eq!(ids, BTreeSet::from($ids), "{text}");
            assert!(text.contains($text), "{text}");
        }
    )*};
}

faults! {
    a_sound_plugin_passes: NONE fails [], says "";
    a_bidirectional_decoder_is_found: SEES_THE_FUTURE
        fails ["numbers.chunks", "numbers.decode-is-prefill", "numbers.rows-independent"] ,
        says "one token at a time, from token 0";
    a_missing_cache_is_found: KEEPS_NO_CACHE
        fails ["numbers.chunks", "numbers.decode-is-prefill", "numbers.rows-independent", "numbers.restored"],
        says "must come from a cache";
    a_model_that_ignores_its_input_is_found: IGNORES_ITS_INPUT fails ["numbers.reads-input"], says "two different prompts";
    an_infinity_is_found: NOT_FINITE
        fails ["numbers.finite", "numbers.chunks", "numbers.decode-is-prefill", "numbers.rows-independent", "numbers.restored"],
        says "the final norm gives a number that is not finite";
    a_trace_that_changes_is_found: CHANGES_PER_TRACE fails ["trace.repeatable"], says "faults.rs:";
    two_shapes_of_one_tensor_are_found: TWO_SHAPES
        fails ["trace.weights"], says "tensor `embed.weight` is asked for with two shapes";
    a_panic_is_found: PANICS_ON_ZERO
        fails ["boundary.hostile-config"], says "(when `num_heads` is 0)";
    an_unused_cache_is_found: UNUSED_CACHE fails ["trace.rules"], says "written and never read";
    a_model_that_changes_is_found: CHANGES_PER_OPEN fails ["boundary.open-close"], says "keep nothing in statics";
    a_model_of_nothing_is_found: ACCEPTS_ANYTHING fails ["boundary.broken-config"], says "accepts a config.json";
    an_undeclared_entry_point_is_found: UNDECLARED_MTP fails ["trace.entries"], says "add \"mtp\" to `entry_points`";
}

const TENSORS: &str = r#"{"embed.weight": [32, 8], "layers.0.q.weight": [8, 8], "layers.0.k.weight": [8, 8],
    "layers.0.v.weight": [8, 8], "layers.0.o.weight": [8, 8]}"#;

#[test]
fn a_listing_that_fits_passes() {
    assert_eq!(failures::<NONE>(Some(TENSORS)).0, BTreeSet::new());
}

#[test]
fn a_missing_tensor_is_found_with_its_nearest_name() {
    let (ids, text) = failures::<OTHER_NAME>(Some(TENSORS));
    assert_eq!(ids, BTreeSet::from(["trace.tensors"]));
    assert!(text.contains("wanted   layers.0.out_proj.weight"), "{text}");
    assert!(text.contains("nearest  layers.0.o.weight"), "{text}");
    assert!(text.contains("faults.rs:"), "{text}");
}

#[test]
fn a_tensor_that_nobody_wants_is_found() {
    let more = TENSORS.replace('}', r#", "vision.weight": [2, 2]}"#);
    let (ids, text) = failures::<NONE>(Some(&more));
    assert_eq!(ids, BTreeSet::from(["trace.tensors"]));
    assert!(text.contains("vision.weight"), "{text}");
}

#[test]
fn a_model_type_without_a_configuration_is_found() {
    let subject = Subject::new(module::<Library<NONE>>()).unwrap();
    let mut failed = Vec::new();
    run(&subject, Level::Trace, &mut |event| {
        if let Event::Finished(check) = event
            && let Outcome::Failed(Failure::Broken(finding)) = &check.outcome
        {
            failed.push((check.id, finding.help.clone()));
        }
    });
    let help = "put a small config.json of it beside plugin.toml: configs/tiny.json".to_owned();
    assert_eq!(failed, [("trace.configs", help)]);
}

#[test]
fn a_model_too_large_for_the_interpreter_is_not_read() {
    let header = r#"{"embed.weight":{"dtype":"F32","shape":[0,8],"data_offsets":[0,0]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let parsed = safetensors::parse(&file).unwrap();
    let headers = |rows: usize| {
        let mut file = parsed.clone();
        file.tensors[0].shape = vec![rows, 8];
        Headers::from_safetensors(vec![("model".to_owned(), file)]).unwrap()
    };
    let attrs = Attrs::new().with("config.json", CONFIG);
    let read = |path: &Path| Checkpoint::read(path);
    let large =
        TestModel::of_checkpoint("/no/model".as_ref(), attrs.clone(), headers(1 << 26), read).unwrap();
    assert!(large.checkpoint.is_none());
    let error = TestModel::of_checkpoint("/no/model".as_ref(), attrs, headers(16), read).unwrap_err();
    assert!(error.to_string().contains("/no/model/config.json"), "{error}");
}
