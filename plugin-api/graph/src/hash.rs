//! Structural hashes: equal graphs, and equal layers within a graph, have equal hashes.

use std::collections::BTreeMap;
use std::fmt::Write;

use metrale_plugin_api::abi::ValueId;
use sha2::{Digest, Sha256};

use crate::graph::{Graph, Node};

/// 256 bits.
pub type Hash = [u8; 32];

/// Hash of a whole graph, weight names included. Source lines do not count.
#[must_use]
pub fn graph_hash(graph: &Graph) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(format!("{} {}", graph.entry, graph.index));
    let mut numbering = Numbering::default();
    for node in &graph.nodes {
        hasher.update(describe(node, &mut numbering, ToOwned::to_owned));
    }
    hasher.finalize().into()
}

/// Hash of one decoder layer, with its own number taken out of names: layers that compute the same have the same hash.
#[must_use]
pub fn layer_hash(graph: &Graph, layer: usize) -> Hash {
    let mut hasher = Sha256::new();
    let mut numbering = Numbering::default();
    let number = format!(".{layer}.");
    for node in graph
        .nodes
        .iter()
        .filter(|n| n.layer == Some(layer) && n.op.name != "tap/1" && n.op.name != "scope/1")
    {
        hasher.update(describe(node, &mut numbering, |text| text.replace(&number, ".*.")));
    }
    hasher.finalize().into()
}

/// Values numbered by first mention.
#[derive(Default)]
struct Numbering(BTreeMap<ValueId, usize>);

impl Numbering {
    fn of(&mut self, id: ValueId) -> usize {
        let next = self.0.len();
        *self.0.entry(id).or_insert(next)
    }
}

fn describe(node: &Node, numbering: &mut Numbering, name: impl Fn(&str) -> String) -> String {
    let mut text = format!("{}(", node.op.name);
    for input in &node.inputs {
        match input {
            Some(id) => write!(text, "{},", numbering.of(*id)).unwrap_or(()),
            None => text.push_str("-,"),
        }
    }
    for (key, value) in node.attrs.iter() {
        write!(text, "{key}={},", name(&format!("{value:?}"))).unwrap_or(());
    }
    text.push_str(")->");
    for output in &node.outputs {
        write!(text, "{},", numbering.of(*output)).unwrap_or(());
    }
    text.push('\n');
    text
}
