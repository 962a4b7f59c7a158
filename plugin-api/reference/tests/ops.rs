//! Single ops through the public door: a graph is built, checked and run.
#![allow(clippy::unwrap_used, clippy::panic)]

use metrale_graph::dim::Symbol;
use metrale_graph::{Attrs, Builder, Graph, Source, ValueId};
use metrale_reference::{Batch, Ints, Keep, Sequence, Tensor, Value, Weights, run};

/// A graph under construction with its weights.
#[derive(Default)]
struct Trace {
    builder: Builder,
    weights: Weights,
}

impl Trace {
    fn op(&mut self, op: &str, inputs: &[ValueId], attrs: Attrs) -> ValueId {
        self.builder.emit(op, inputs, attrs, 1, Source::default()).unwrap()[0]
    }

    fn ints(&mut self, name: &str) -> ValueId {
        self.op("input/1", &[], Attrs::new().with("name", name))
    }

    fn floats(&mut self, name: &str, width: usize) -> ValueId {
        self.op("input/1", &[], Attrs::new().with("name", name).with("width", width))
    }

    fn weight(&mut self, shape: &[usize], data: &[f32]) -> ValueId {
        let names = vec!["w".to_owned()];
        let id = self.op("weight/1", &[], Attrs::new().with("names", names).with("shape", shape));
        self.weights = std::mem::take(&mut self.weights).with(id, Tensor::new(shape, data.to_vec()).unwrap());
        id
    }

    fn state(&mut self, kind: &str, attrs: Attrs) -> ValueId {
        self.op("state/1", &[], attrs.with("name", kind).with("kind", kind))
    }

    fn run(&self, batch: &Batch, sequence: &mut Sequence, value: ValueId) -> Value {
        let graph: &Graph = self.builder.graph();
        let mut outputs = run(graph, &self.weights, batch, &mut [sequence], Keep::Everything).unwrap();
        outputs.values.remove(&value).unwrap()
    }
}

fn tensor(shape: &[usize], data: &[f32]) -> Tensor {
    Tensor::new(shape, data.to_vec()).unwrap()
}

fn floats(value: &Value) -> &[f32] {
    let Value::Float(tensor) = value else { panic!("not an activation: {value:?}") };
    tensor.data()
}

fn ints(value: &Value) -> &[i64] {
    let Value::Int(ints) = value else { panic!("not integers: {value:?}") };
    ints.data()
}

fn hidden(rows: usize, width: usize, data: &[f32]) -> Batch {
    Batch::new().segments(Symbol::T, &[rows]).floats("hidden", tensor(&[rows, width], data))
}

#[test]
fn ngram_contexts_stop_at_the_reset_token_and_continue_over_chunks() {
    const RESET: i64 = 7;
    let mut trace = Trace::default();
    let ids = trace.ints("token_ids");
    let state = trace.state("tokens", Attrs::new().with("shape", &[2_usize][..]));
    let attrs = Attrs::new()
        .with("orders", vec![2_i64, 3])
        .with("multipliers", vec![3_i64, 5, 11])
        .with("moduli", vec![101_i64, 103])
        .with("offsets", vec![0_i64, 101])
        .with("reset", RESET);
    let rows = trace.op("ngram_hash/1", &[ids, state], attrs);
    let step = |tokens: &[i64], sequence: &mut Sequence| {
        let batch = Batch::new().segments(Symbol::T, &[tokens.len()]).ids("token_ids", tokens.to_vec());
        ints(&trace.run(&batch, sequence, rows)).to_vec()
    };

    let tokens = [4, 9, RESET, 2, 8];
    let expected: Vec<i64> = (0..tokens.len())
        .flat_map(|t| {
            let before = |back: usize| {
                let blocked = (1..=back).any(|b| b > t || tokens[t - b] == RESET);
                if blocked { RESET } else { tokens[t - back] }
            };
            let two = (tokens[t] * 3) ^ (before(1) * 5);
            [two % 101, (two ^ (before(2) * 11)) % 103 + 101]
        })
        .collect();
    assert_eq!(step(&tokens, &mut Sequence::new()), expected);

    let mut sequence = Sequence::new();
    let chunked = [step(&tokens[..2], &mut sequence), step(&tokens[2..], &mut sequence)].concat();
    assert_eq!(chunked, expected);
}

#[test]
fn dilated_convolution_reads_every_second_input_over_chunks() {
    let mut trace = Trace::default();
    let x = trace.floats("hidden", 1);
    let w = trace.weight(&[1, 3], &[100.0, 10.0, 1.0]);
    let state = trace.state("conv", Attrs::new().with("shape", &[1_usize, 4][..]));
    let y = trace.op("causal_conv1d/1", &[x, w, state], Attrs::new().with("dilation", 2_i64));
    let mut sequence = Sequence::new();
    let first = trace.run(&hidden(3, 1, &[1.0, 2.0, 3.0]), &mut sequence, y);
    let second = trace.run(&hidden(3, 1, &[4.0, 5.0, 6.0]), &mut sequence, y);
    assert_eq!(floats(&first), [1.0, 2.0, 13.0]);
    assert_eq!(floats(&second), [24.0, 135.0, 246.0]);
}

/// Index keys that equal the positions they are written at, and a query of 1.
fn indexer(attrs: Attrs) -> (Trace, ValueId) {
    let mut trace = Trace::default();
    let key = trace.floats("hidden", 1);
    let query = trace.floats("features", 1);
    let heads = || Attrs::new().with("dims", &[1_usize, 1][..]);
    let (key, query) = (trace.op("reshape/1", &[key], heads()), trace.op("reshape/1", &[query], heads()));
    let layout = Attrs::new().with("num_heads", 1_i64).with("k_dim", 1_i64).with("v_dim", 1_i64);
    let state = trace.state("kv", layout.with("v_is_k_prefix", true));
    let state = trace.op("kv_write/1", &[state, key], Attrs::new());
    let chosen = trace.op("indexer_topk/1", &[query, state], attrs);
    (trace, chosen)
}

fn index(keys: &[f32], attrs: Attrs) -> Vec<i64> {
    let (trace, chosen) = indexer(attrs);
    let queries = tensor(&[keys.len(), 1], &vec![1.0; keys.len()]);
    let batch = hidden(keys.len(), 1, keys).floats("features", queries);
    ints(&trace.run(&batch, &mut Sequence::new(), chosen)).to_vec()
}

#[test]
fn the_best_earlier_positions_are_chosen_and_ties_go_to_the_lowest() {
    let chosen = index(&[2.0, -1.0, -3.0, 2.0, 5.0], Attrs::new().with("top_k", 2_i64));
    // Negative products count as 0, so positions 1 and 2 tie.
    assert_eq!(chosen, [0, -1, 0, 1, 0, 1, 0, 3, 4, 0]);
}

#[test]
fn blocks_by_best_score_keep_the_rows_own() {
    let attrs = Attrs::new().with("top_k", 2_i64).with("block", 2_i64).with("pool", "max_scores");
    let chosen = index(&[9.0, 0.0, 1.0, 3.0, 2.0, 0.0, 0.0], attrs.with("local_blocks", 1_i64));
    assert_eq!(chosen, [0, -1, 0, -1, 1, 0, 1, 0, 2, 0, 2, 0, 3, 0]);
}

#[test]
fn blocks_by_mean_key_compete_when_complete_and_the_tail_is_added() {
    let attrs = Attrs::new().with("top_k", 1_i64).with("block", 2_i64).with("pool", "mean_keys");
    let chosen = index(&[1.0, 1.0, 4.0, 2.0, 9.0], attrs);
    assert_eq!(chosen, [0, -1, 0, -1, 0, 1, 1, -1, 1, 2]);
}

#[test]
fn attention_sees_only_selected_positions() {
    let mut trace = Trace::default();
    let x = trace.floats("hidden", 1);
    let x = trace.op("reshape/1", &[x], Attrs::new().with("dims", &[1_usize, 1][..]));
    let layout = Attrs::new().with("num_heads", 1_i64).with("k_dim", 1_i64).with("v_dim", 1_i64);
    let state = trace.state("kv", layout);
    let state = trace.op("kv_write/1", &[state, x, x], Attrs::new());
    let best = trace.op("indexer_topk/1", &[x, state], Attrs::new().with("top_k", 1_i64));
    let attrs = Attrs::new().with("scale", 1.0);
    let y = trace.op("attention/1", &[x, state, ValueId::NONE, ValueId::NONE, best], attrs);
    let batch = hidden(4, 1, &[1.0, 3.0, 2.0, 5.0]);
    assert_eq!(floats(&trace.run(&batch, &mut Sequence::new(), y)), [1.0, 3.0, 3.0, 5.0]);
}

#[test]
fn sinkhorn_gives_doubly_stochastic_matrices() {
    let mut trace = Trace::default();
    let x = trace.floats("hidden", 9);
    let x = trace.op("reshape/1", &[x], Attrs::new().with("dims", &[3_usize, 3][..]));
    let y = trace.op("sinkhorn/1", &[x], Attrs::new().with("iterations", 20_i64).with("eps", 1e-6));
    let data = [0.5, -1.0, 2.0, 0.0, 1.0, 0.3, -0.7, 0.2, 0.1];
    let m = trace.run(&hidden(1, 9, &data), &mut Sequence::new(), y);
    let m = floats(&m);
    for i in 0..3 {
        let row: f32 = m[3 * i..3 * i + 3].iter().sum();
        let column: f32 = (0..3).map(|r| m[3 * r + i]).sum();
        assert!((row - 1.0).abs() < 1e-3 && (column - 1.0).abs() < 1e-4, "row {row}, column {column}");
    }
}

#[test]
fn every_head_has_a_matrix_of_its_own() {
    let mut trace = Trace::default();
    let x = trace.floats("hidden", 4);
    let x = trace.op("reshape/1", &[x], Attrs::new().with("dims", &[2_usize, 2][..]));
    let w = trace.weight(&[2, 1, 2], &[1.0, 10.0, 100.0, 1000.0]);
    let y = trace.op("head_linear/1", &[x, w], Attrs::new());
    let y = trace.run(&hidden(1, 4, &[1.0, 2.0, 3.0, 4.0]), &mut Sequence::new(), y);
    assert_eq!(floats(&y), [21.0, 4300.0]);
}

fn experts(attrs: Attrs, with_up: bool, biases: [Option<f32>; 3]) -> f32 {
    let mut trace = Trace::default();
    let (x, logits) = (trace.floats("hidden", 1), trace.floats("features", 2));
    let gate = trace.weight(&[2, 1, 1], &[2.0, 4.0]);
    let up = if with_up { trace.weight(&[2, 1, 1], &[3.0, 3.0]) } else { ValueId::NONE };
    let down = trace.weight(&[2, 1, 1], &[1.0, 1.0]);
    let biases = biases.map(|b| b.map_or(ValueId::NONE, |b| trace.weight(&[2, 1], &[b, b])));
    let inputs = [x, logits, gate, up, down, ValueId::NONE, biases[0], biases[1], biases[2]];
    let y = trace.op("moe/1", &inputs, attrs.with("router", "softmax").with("top_k", 1_i64));
    let batch = hidden(1, 1, &[1.0]).floats("features", tensor(&[1, 2], &[0.0, 1.0]));
    floats(&trace.run(&batch, &mut Sequence::new(), y))[0]
}

#[test]
fn experts_of_two_layers_have_biases() {
    // The second expert: 4·1 − 1 through relu, then 1·3 + 0.5, weighted 1, scaled 0.8.
    let attrs = Attrs::new().with("activation", "relu").with("scale", 0.8);
    let y = experts(attrs, false, [Some(-1.0), None, Some(0.5)]);
    assert!((y - 2.8).abs() < 1e-6, "{y}");
}

#[test]
fn clamped_experts_clamp_gate_and_up() {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let silu = experts(Attrs::new().with("limit", 2.5), true, [None; 3]);
    assert!((silu - 2.5 * 2.5 * sigmoid(2.5)).abs() < 1e-6);
    let oai = experts(Attrs::new().with("activation", "swigluoai").with("limit", 2.5), true, [None; 3]);
    assert!((oai - 3.5 * 2.5 * sigmoid(1.702 * 2.5)).abs() < 1e-6);
}

#[test]
fn image_rows_replace_placeholders() {
    let mut trace = Trace::default();
    let (x, rows) = (trace.floats("hidden", 2), trace.floats("image_rows", 2));
    let index = trace.ints("image_index");
    let y = trace.op("merge_rows/1", &[x, rows, index], Attrs::new());
    let batch = hidden(3, 2, &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
        .segments(Symbol::P, &[2])
        .floats("image_rows", tensor(&[2, 2], &[7.0, 7.0, 8.0, 8.0]))
        .ids("image_index", vec![-1, 1, 0]);
    assert_eq!(floats(&trace.run(&batch, &mut Sequence::new(), y)), [1.0, 1.0, 8.0, 8.0, 7.0, 7.0]);
}

#[test]
fn patches_attend_within_their_segment_and_join_in_groups() {
    let mut trace = Trace::default();
    let x = trace.floats("pixels", 1);
    let heads = trace.op("reshape/1", &[x], Attrs::new().with("dims", &[1_usize, 1][..]));
    let none = ValueId::NONE;
    let attrs = Attrs::new().with("scale", 0.0).with("mask", "full");
    let y = trace.op("attention/1", &[heads, none, heads, heads], attrs);
    let y = trace.op("flatten/1", &[y], Attrs::new());
    let y = trace.op("group_rows/1", &[y], Attrs::new().with("count", 2_i64));
    let batch =
        Batch::new().segments(Symbol::P, &[2, 2]).floats("pixels", tensor(&[4, 1], &[1.0, 3.0, 10.0, 20.0]));
    let Value::Float(y) = trace.run(&batch, &mut Sequence::new(), y) else { panic!("not an activation") };
    assert_eq!((y.shape(), y.data()), (&[2, 2][..], &[2.0, 2.0, 15.0, 15.0][..]));
}

#[test]
fn sections_take_their_angle_from_their_own_position_stream() {
    let rotated = |layout: &str, sections: Vec<i64>| {
        let mut trace = Trace::default();
        let x = trace.floats("hidden", 6);
        let x = trace.op("reshape/1", &[x], Attrs::new().with("dims", &[1_usize, 6][..]));
        let positions = trace.ints("mrope_positions");
        let inv_freq = trace.op("const/1", &[], Attrs::new().with("values", vec![1.0, 1.0, 1.0]));
        let attrs = Attrs::new().with("sections", sections).with("section_layout", layout);
        let y = trace.op("rope/1", &[x, positions, inv_freq], attrs);
        let batch = hidden(1, 6, &[1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
            .ints("mrope_positions", Ints::new(&[3, 1], vec![0, 1, 2]).unwrap());
        let y = trace.run(&batch, &mut Sequence::new(), y);
        // A unit pair rotated by its angle: the cosine tells the stream.
        floats(&y)[..3].iter().map(|cos| cos.acos().round() as i64).collect::<Vec<_>>()
    };
    assert_eq!(rotated("interleaved", vec![1, 1, 1]), [0, 1, 2]);
    assert_eq!(rotated("blocked", vec![0, 2, 1]), [1, 1, 2]);
}

#[test]
fn an_input_of_the_wrong_shape_is_named() {
    let mut trace = Trace::default();
    trace.floats("hidden", 3);
    let graph = trace.builder.graph();
    let error = run(graph, &trace.weights, &hidden(2, 2, &[0.0; 4]), &mut [], Keep::Outputs).unwrap_err();
    assert!(error.to_string().contains("`hidden` must be floats [2, 3], found floats [2, 2]"), "{error}");
}
