//! What the builder, the verifier and the resolver refuse, and how they say so.
#![allow(clippy::unwrap_used)]

use metrale_graph::checkpoint::{Dtype, Headers, safetensors, write};
use metrale_graph::resolve::resolve;
use metrale_graph::schema::OpError;
use metrale_graph::verify::{unfilled_cross_states, verify};
use metrale_graph::{Attrs, Builder, Graph, Source, ValueId};

fn emit(builder: &mut Builder, op: &str, inputs: &[ValueId], attrs: Attrs) -> Result<ValueId, OpError> {
    builder.emit(op, inputs, attrs, 1, Source { file: "model.rs".into(), line: 7 }).map(|ids| ids[0])
}

fn hidden(builder: &mut Builder, width: usize) -> ValueId {
    emit(builder, "input/1", &[], Attrs::new().with("name", "hidden").with("width", width)).unwrap()
}

fn weight(builder: &mut Builder, name: &str, shape: &[usize]) -> ValueId {
    let attrs = Attrs::new().with("names", vec![name.to_owned()]).with("shape", shape);
    emit(builder, "weight/1", &[], attrs).unwrap()
}

fn kv(builder: &mut Builder, kind: &str) -> ValueId {
    let attrs = Attrs::new().with("name", "layers.0").with("kind", kind);
    let attrs = attrs.with("num_heads", 2_i64).with("k_dim", 4_i64).with("v_dim", 4_i64);
    emit(builder, "state/1", &[], attrs).unwrap()
}

fn finish(mut builder: Builder, output: &str, value: ValueId) -> Graph {
    let attrs = Attrs::new().with("name", output);
    builder.emit("output/1", &[value], attrs, 0, Source::default()).unwrap();
    builder.finish()
}

#[test]
fn a_wrong_width_names_both_shapes() {
    let mut builder = Builder::new("text", 0);
    let (x, w) = (hidden(&mut builder, 8), weight(&mut builder, "w", &[3, 6]));
    let error = emit(&mut builder, "linear/1", &[x, w], Attrs::new()).unwrap_err();
    assert_eq!(error.message, "multiplies [T, 8] with a weight [3, 6]: 6 inputs expected");
}

#[test]
fn an_unknown_op_suggests_a_known_one() {
    let error = emit(&mut Builder::new("text", 0), "rms_norm/9", &[], Attrs::new()).unwrap_err();
    assert_eq!(error.help, "did you mean rms_norm/1?");
}

#[test]
fn an_unknown_attribute_lists_the_known_ones() {
    let mut builder = Builder::new("text", 0);
    let x = hidden(&mut builder, 8);
    let error = emit(&mut builder, "rms_norm/1", &[x], Attrs::new().with("epsilon", 1e-6)).unwrap_err();
    assert_eq!(error.message, "has no attribute `epsilon`; it has eps, zero_centered");
}

#[test]
fn a_missing_attribute_or_input_is_named() {
    let mut builder = Builder::new("text", 0);
    let x = hidden(&mut builder, 8);
    let error = emit(&mut builder, "rms_norm/1", &[x], Attrs::new()).unwrap_err();
    assert_eq!(error.message, "attribute `eps` is missing");
    let error = emit(&mut builder, "linear/1", &[x], Attrs::new()).unwrap_err();
    assert_eq!(error.message, "input `w` is missing");
}

#[test]
fn an_attribute_of_another_kind_is_refused() {
    let mut builder = Builder::new("text", 0);
    let x = hidden(&mut builder, 8);
    let error = emit(&mut builder, "rms_norm/1", &[x], Attrs::new().with("eps", "small")).unwrap_err();
    assert_eq!(error.message, "attribute `eps` must be Float, found string");
}

#[test]
fn a_value_of_another_graph_is_refused() {
    let error = emit(&mut Builder::new("text", 0), "silu/1", &[ValueId(4)], Attrs::new()).unwrap_err();
    assert_eq!(error.message, "reads value 4, which is not of this graph");
}

#[test]
fn queries_must_be_a_multiple_of_kv_heads() {
    let mut builder = Builder::new("text", 0);
    let x = hidden(&mut builder, 12);
    let q = emit(&mut builder, "reshape/1", &[x], Attrs::new().with("dims", &[3_usize, 4][..])).unwrap();
    let state = kv(&mut builder, "kv");
    let error = emit(&mut builder, "attention/1", &[q, state], Attrs::new().with("scale", 1.0)).unwrap_err();
    assert_eq!(error.message, "has queries [T, 3, 4] over 2 KV heads: not a multiple");
}

#[test]
fn an_unknown_word_lists_the_known_ones() {
    let mut builder = Builder::new("text", 0);
    let x = hidden(&mut builder, 8);
    let q = emit(&mut builder, "reshape/1", &[x], Attrs::new().with("dims", &[2_usize, 4][..])).unwrap();
    let state = kv(&mut builder, "kv");
    let attrs = Attrs::new().with("scale", 1.0).with("mask", "triangle");
    let error = emit(&mut builder, "attention/1", &[q, state], attrs).unwrap_err();
    assert_eq!(error.message, "has no mask `triangle`; expected causal, full");
}

#[test]
fn one_name_is_one_state() {
    let mut builder = Builder::new("text", 0);
    kv(&mut builder, "kv");
    let attrs = Attrs::new().with("name", "layers.0").with("kind", "recurrent").with("shape", &[2_usize][..]);
    let error = emit(&mut builder, "state/1", &[], attrs).unwrap_err();
    assert_eq!(error.message, "declares the state `layers.0` twice in one entry point");
}

#[test]
fn an_entry_without_its_output_does_not_verify() {
    let mut builder = Builder::new("text", 0);
    let x = hidden(&mut builder, 8);
    let problems = verify(&finish(builder, "logits", x));
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].to_string(), "entry `text`: has no output `final_hidden`");
}

#[test]
fn a_cache_that_is_never_written_does_not_verify() {
    let mut builder = Builder::new("text", 0);
    let x = hidden(&mut builder, 8);
    let q = emit(&mut builder, "reshape/1", &[x], Attrs::new().with("dims", &[2_usize, 4][..])).unwrap();
    let state = kv(&mut builder, "kv");
    let y = emit(&mut builder, "attention/1", &[q, state], Attrs::new().with("scale", 1.0)).unwrap();
    let problems = verify(&finish(builder, "final_hidden", y));
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].message, "the KV state `layers.0` is never written");
}

#[test]
fn cross_states_need_an_encoder_that_fills_them() {
    let mut text = Builder::new("text", 0);
    kv(&mut text, "cross");
    let mut encoder = Builder::new("encoder", 0);
    assert_eq!(unfilled_cross_states(text.graph(), Some(encoder.graph())), ["layers.0"]);
    kv(&mut encoder, "cross");
    assert!(unfilled_cross_states(text.graph(), Some(encoder.graph())).is_empty());
}

fn headers(tensors: &[(&str, &[usize])]) -> Headers {
    let zeros = vec![0; 1024];
    let tensors: Vec<_> = tensors
        .iter()
        .map(|&(name, shape)| {
            let bytes = &zeros[..4 * shape.iter().product::<usize>()];
            write::Tensor { name, dtype: Dtype::F32, shape, bytes }
        })
        .collect();
    let file = write::safetensors(&tensors, &[]).unwrap();
    Headers::from_safetensors(vec![("model.safetensors".into(), safetensors::parse(&file).unwrap())]).unwrap()
}

#[test]
fn one_mistake_in_many_layers_is_one_problem_with_the_nearest_names() {
    let mut builder = Builder::new("text", 0);
    let mut x = hidden(&mut builder, 4);
    for layer in 0..3 {
        let w = weight(&mut builder, &format!("layers.{layer}.q_proj.weight"), &[4, 4]);
        x = emit(&mut builder, "linear/1", &[x, w], Attrs::new()).unwrap();
    }
    let graph = finish(builder, "final_hidden", x);
    let (resolution, report) = resolve(&graph, Some(&headers(&[("layers.0.q_prj.weight", &[4, 4])])));
    assert!(resolution.weights.is_empty());
    assert_eq!((report.problems.len(), report.num_missing, report.problems[0].more), (1, 3, 2));
    let text = report.to_string();
    assert!(text.contains("wanted   layers.0.q_proj.weight   [4, 4]"), "{text}");
    assert!(text.contains("nearest  layers.0.q_prj.weight   [4, 4] F32"), "{text}");
    assert!(text.contains("model.rs:7"), "{text}");
}

#[test]
fn a_tensor_of_another_shape_is_reported_with_both() {
    let mut builder = Builder::new("text", 0);
    let (x, w) = (hidden(&mut builder, 4), weight(&mut builder, "w", &[2, 4]));
    let y = emit(&mut builder, "linear/1", &[x, w], Attrs::new()).unwrap();
    let graph = finish(builder, "final_hidden", y);
    let (_, report) = resolve(&graph, Some(&headers(&[("w", &[4, 2])])));
    let text = report.to_string();
    assert!(text.contains("wanted   [2, 4]") && text.contains("found    [4, 2]"), "{text}");
}

#[test]
fn of_alternatives_the_first_whose_tensors_all_exist_is_taken() {
    let mut builder = Builder::new("text", 0);
    let x = hidden(&mut builder, 4);
    let halves = [weight(&mut builder, "a", &[1, 4]), weight(&mut builder, "b", &[1, 4])];
    let stacked = emit(&mut builder, "weight.stack/1", &halves, Attrs::new()).unwrap();
    let whole = weight(&mut builder, "ab", &[2, 4]);
    let either = emit(&mut builder, "weight.first_of/1", &[stacked, whole], Attrs::new()).unwrap();
    let y = emit(&mut builder, "linear/1", &[x, either], Attrs::new()).unwrap();
    let graph = finish(builder, "final_hidden", y);
    let claimed = |tensors: &[(&str, &[usize])]| {
        let (resolution, report) = resolve(&graph, Some(&headers(tensors)));
        assert!(report.is_empty(), "{report}");
        resolution.claimed.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(claimed(&[("a", &[1, 4]), ("b", &[1, 4])]), ["a", "b"]);
    assert_eq!(claimed(&[("a", &[1, 4]), ("ab", &[2, 4])]), ["ab"]);
}

#[test]
fn a_graph_without_end_is_cut_off() {
    let mut builder = Builder::new("text", 0);
    let mut value = hidden(&mut builder, 8);
    let error = loop {
        match emit(&mut builder, "silu/1", &[value], Attrs::new()) {
            Ok(next) => value = next,
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("at most 100000"), "{error}");
}
