//! A graph as text for people and as JSON for programs.

use std::fmt::Write;

use metrale_plugin_api::AttrValue;
use serde_json::{Value as Json, json};

use crate::dim::show;
use crate::graph::{Graph, Node, ValueKind};

/// One line per op.
#[must_use]
pub fn to_text(graph: &Graph) -> String {
    let mut text = format!("entry {} {}\n", graph.entry, graph.index);
    let mut layer = None;
    for (number, node) in graph.nodes.iter().enumerate() {
        if node.layer != layer {
            layer = node.layer;
            let title = layer.map_or_else(|| "outside the layers".to_owned(), |l| format!("layer {l}"));
            let _ = writeln!(text, "# {title}");
        }
        if node.op.name == "scope/1" {
            continue;
        }
        let _ = writeln!(text, "{number:5}  {}", line(graph, node));
    }
    text
}

fn line(graph: &Graph, node: &Node) -> String {
    let outputs: Vec<_> = node
        .outputs
        .iter()
        .map(|&id| {
            let info = graph.value(id);
            let kind = match info.kind {
                ValueKind::Float => "",
                ValueKind::Int => " int",
                ValueKind::Weight => " weight",
                ValueKind::State(_) => " state",
            };
            format!("%{}{kind} {} {:?}", id.0, show(&info.shape), info.sharding)
        })
        .collect();
    let mut args: Vec<_> =
        node.inputs.iter().map(|i| i.map_or_else(|| "-".to_owned(), |id| format!("%{}", id.0))).collect();
    args.extend(node.attrs.iter().map(|(k, v)| format!("{k}={}", short(v))));
    let arrow = if outputs.is_empty() { String::new() } else { format!("{} = ", outputs.join(", ")) };
    format!("{arrow}{}({})    # {}", node.op.name, args.join(", "), node.source)
}

fn short(value: &AttrValue) -> String {
    match value {
        AttrValue::Int(v) => v.to_string(),
        AttrValue::Float(v) => v.to_string(),
        AttrValue::Bool(v) => v.to_string(),
        AttrValue::Str(v) => format!("{v:?}"),
        AttrValue::Bytes(v) => format!("<{} bytes>", v.len()),
        AttrValue::Ints(v) => format!("{v:?}"),
        AttrValue::Floats(v) if v.len() > 8 => format!("<{} floats>", v.len()),
        AttrValue::Floats(v) => format!("{v:?}"),
        AttrValue::Strs(v) => format!("{v:?}"),
    }
}

/// Everything but the source of the op schema.
#[must_use]
pub fn to_json(graph: &Graph) -> Json {
    let values: Vec<_> = graph
        .values
        .iter()
        .map(|v| {
            let shape: Vec<_> = v.shape.iter().map(ToString::to_string).collect();
            json!({"kind": format!("{:?}", v.kind), "shape": shape, "sharding": format!("{:?}", v.sharding)})
        })
        .collect();
    let nodes: Vec<_> = graph
        .nodes
        .iter()
        .map(|n| {
            let attrs: serde_json::Map<_, _> =
                n.attrs.iter().map(|(k, v)| (k.to_owned(), attr_json(v))).collect();
            json!({
                "op": n.op.name,
                "inputs": n.inputs.iter().map(|i| i.map(|id| id.0)).collect::<Vec<_>>(),
                "outputs": n.outputs.iter().map(|o| o.0).collect::<Vec<_>>(),
                "attrs": attrs,
                "layer": n.layer,
                "source": n.source.to_string(),
            })
        })
        .collect();
    let states: Vec<_> =
        graph.states.iter().map(|s| json!({"name": s.name, "kind": format!("{:?}", s.kind)})).collect();
    json!({"entry": graph.entry, "index": graph.index, "values": values, "nodes": nodes, "states": states})
}

fn attr_json(value: &AttrValue) -> Json {
    match value {
        AttrValue::Int(v) => json!(v),
        AttrValue::Float(v) => json!(v),
        AttrValue::Bool(v) => json!(v),
        AttrValue::Str(v) => json!(v),
        AttrValue::Bytes(v) => json!(v.len()),
        AttrValue::Ints(v) => json!(v),
        AttrValue::Floats(v) => json!(v),
        AttrValue::Strs(v) => json!(v),
    }
}
