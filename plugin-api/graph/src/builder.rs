//! Adds ops to a graph, checking each against its schema.

use metrale_plugin_api::Attrs;
use metrale_plugin_api::abi::ValueId;

use crate::graph::{Graph, KvLayout, Node, Source, StateDecl, StateKind, ValueInfo};
use crate::schema::{Call, OpError, find_op};

/// Ops of one graph. The deepest models have some thousands; an absurd configuration ends here instead of in memory.
const MAX_NODES: usize = 100_000;

/// A graph under construction.
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
    layer: Option<usize>,
}

impl Builder {
    /// An empty graph for an entry point.
    #[must_use]
    pub fn new(entry: &str, index: usize) -> Self {
        Self { graph: Graph { entry: entry.to_owned(), index, ..Graph::default() }, layer: None }
    }

    /// What has been built so far.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The finished graph.
    #[must_use]
    pub fn finish(self) -> Graph {
        self.graph
    }

    /// The layer that ops are being added to.
    #[must_use]
    pub fn layer(&self) -> Option<usize> {
        self.layer
    }

    /// Adds an op and returns its outputs.
    ///
    /// # Errors
    /// The op is unknown, or its rule refuses the inputs or attributes.
    pub fn emit(
        &mut self,
        op: &str,
        inputs: &[ValueId],
        attrs: Attrs,
        num_outputs: usize,
        source: Source,
    ) -> Result<Vec<ValueId>, OpError> {
        if self.graph.nodes.len() >= MAX_NODES {
            return Err(OpError::new(format!("is one op too many: a graph has at most {MAX_NODES}"))
                .help("check the configuration's number of layers"));
        }
        let schema = find_op(op).ok_or_else(|| {
            OpError::new("is not an op that this version knows")
                .help(nearest_op(op).map_or_else(String::new, |n| format!("did you mean {n}?")))
        })?;
        let inputs: Vec<Option<ValueId>> =
            inputs.iter().map(|&id| (id != ValueId::NONE).then_some(id)).collect();
        let attrs = schema.complete(attrs)?;
        let outputs = {
            let infos = self.infos(&inputs)?;
            schema.check_inputs(&infos)?;
            let next_state = self.graph.states.len();
            (schema.infer)(&Call { inputs: &infos, attrs: &attrs, num_outputs, next_state })?
        };
        if outputs.len() != num_outputs {
            return Err(OpError::new(format!("has {} outputs, {num_outputs} were asked for", outputs.len())));
        }
        match op {
            "scope/1" => self.layer = attrs.size("layer"),
            "state/1" => self.declare_state(&attrs, &outputs[0])?,
            _ => {}
        }
        let node = self.graph.nodes.len();
        let ids = outputs.into_iter().map(|info| self.add_value(info, node)).collect::<Vec<_>>();
        self.graph.nodes.push(Node {
            op: schema,
            inputs,
            outputs: ids.clone(),
            attrs,
            source,
            layer: self.layer,
        });
        Ok(ids)
    }

    fn infos(&self, inputs: &[Option<ValueId>]) -> Result<Vec<Option<&ValueInfo>>, OpError> {
        let info = |id: &ValueId| {
            self.graph
                .values
                .get(id.0 as usize)
                .ok_or_else(|| OpError::new(format!("reads value {}, which is not of this graph", id.0)))
        };
        inputs.iter().map(|id| id.as_ref().map(info).transpose()).collect()
    }

    fn add_value(&mut self, info: ValueInfo, node: usize) -> ValueId {
        let id = ValueId(self.graph.values.len() as u32);
        self.graph.values.push(info);
        self.graph.producers.push(node);
        id
    }

    fn declare_state(&mut self, attrs: &Attrs, info: &ValueInfo) -> Result<(), OpError> {
        let name = attrs.str("name").unwrap_or("").to_owned();
        if self.graph.states.iter().any(|s| s.name == name) {
            return Err(OpError::new(format!("declares the state `{name}` twice in one entry point")));
        }
        let dims = info.fixed_shape().unwrap_or_default();
        let layout = || KvLayout {
            num_heads: dims[0],
            k_dim: dims[1],
            v_dim: dims[2],
            v_is_k_prefix: attrs.bool("v_is_k_prefix").unwrap_or(false),
            window: attrs.size("window"),
        };
        let kind = match attrs.str("kind") {
            Some("kv") => StateKind::Kv(layout()),
            Some("cross") => StateKind::Cross(layout()),
            Some("conv") => StateKind::Conv { channels: dims[0], columns: dims[1] },
            Some("tokens") => StateKind::Tokens { count: dims[0] },
            _ => StateKind::Recurrent { shape: dims },
        };
        self.graph.states.push(StateDecl { name, kind });
        Ok(())
    }
}

/// A known op with the same name and another version, or one that contains the name.
fn nearest_op(op: &str) -> Option<&'static str> {
    let stem = op.split('/').next().unwrap_or(op);
    let stem_of = |name: &'static str| name.split('/').next().unwrap_or(name);
    crate::schema::all_ops().map(|s| s.name).find(|n| stem_of(n) == stem).or_else(|| {
        crate::schema::all_ops()
            .map(|s| s.name)
            .find(|n| stem_of(n).contains(stem) || stem.contains(stem_of(n)))
    })
}
