//! What an op is: name, inputs, attributes, effect, and the rule for the facts of its outputs.
//!
//! The table of all ops is the contract; `docs/op-set.md` is generated from it.

use metrale_plugin_api::{AttrValue, Attrs};

use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::ops;

/// An input of an op.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// Name in documentation and messages.
    pub name: &'static str,
    /// Whether it may be left out.
    pub optional: bool,
    /// Shape and meaning, for documentation.
    pub doc: &'static str,
}

/// Kind of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    /// Whole number.
    Int,
    /// Real number; a whole number is accepted.
    Float,
    /// Yes or no.
    Bool,
    /// Text.
    Str,
    /// Whole numbers.
    Ints,
    /// Real numbers.
    Floats,
    /// Texts.
    Strs,
}

impl AttrKind {
    fn accepts(self, value: &AttrValue) -> bool {
        matches!(
            (self, value),
            (Self::Int, AttrValue::Int(_))
                | (Self::Float, AttrValue::Float(_) | AttrValue::Int(_))
                | (Self::Bool, AttrValue::Bool(_))
                | (Self::Str, AttrValue::Str(_))
                | (Self::Ints, AttrValue::Ints(_))
                | (Self::Floats, AttrValue::Floats(_))
                | (Self::Strs, AttrValue::Strs(_))
        )
    }
}

/// What a missing attribute means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Default {
    /// It must be given.
    Required,
    /// It stays absent.
    Absent,
    /// This number.
    Int(i64),
    /// This number.
    Float(f64),
    /// This.
    Bool(bool),
    /// This text.
    Str(&'static str),
}

/// An attribute of an op.
#[derive(Clone, Copy, Debug)]
pub struct AttrSpec {
    /// Name.
    pub name: &'static str,
    /// Kind.
    pub kind: AttrKind,
    /// What leaving it out means.
    pub default: Default,
    /// Meaning, for documentation.
    pub doc: &'static str,
}

/// What an op does besides making its outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Pure,
    /// Reads state.
    ReadsState,
    /// Writes state.
    WritesState,
    /// Declares something to the core: an input, output, state, scope or fact.
    Declares,
    /// Computed once, at load, over weights.
    LoadTime,
}

/// The definition of an op.
#[derive(Debug)]
pub struct OpSchema {
    /// Name with version.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// The formula; the reference interpreter is its exact meaning.
    pub formula: &'static str,
    /// Inputs; with `variadic`, the last may repeat.
    pub inputs: &'static [Input],
    /// Whether the last input may repeat.
    pub variadic: bool,
    /// Attributes. An op that takes any attribute has none here and says so in its summary.
    pub attrs: &'static [AttrSpec],
    /// What it does besides.
    pub effect: Effect,
    /// Facts of the outputs; also checks the inputs.
    pub infer: fn(&Call<'_>) -> Result<Vec<ValueInfo>, OpError>,
}

impl OpSchema {
    /// Whether it is computed at load, over weights.
    #[must_use]
    pub fn is_weight_op(&self) -> bool {
        self.effect == Effect::LoadTime
    }

    /// Checks attributes against the schema and fills in defaults.
    ///
    /// # Errors
    /// One that is unknown, missing or of the wrong kind.
    pub fn complete(&self, mut attrs: Attrs) -> Result<Attrs, OpError> {
        if self.name == "info/1" {
            return Ok(attrs);
        }
        for (key, value) in attrs.iter() {
            let Some(spec) = self.attrs.iter().find(|s| s.name == key) else {
                let known: Vec<_> = self.attrs.iter().map(|s| s.name).collect();
                return Err(OpError::new(format!("has no attribute `{key}`; it has {}", known.join(", "))));
            };
            if !spec.kind.accepts(value) {
                return Err(OpError::new(format!(
                    "attribute `{key}` must be {:?}, found {}",
                    spec.kind,
                    value.kind_name()
                )));
            }
        }
        for spec in self.attrs {
            if attrs.get(spec.name).is_some() {
                continue;
            }
            match spec.default {
                Default::Required => {
                    return Err(OpError::new(format!("attribute `{}` is missing", spec.name)));
                }
                Default::Absent => {}
                Default::Int(v) => attrs.insert(spec.name, AttrValue::Int(v)),
                Default::Float(v) => attrs.insert(spec.name, AttrValue::Float(v)),
                Default::Bool(v) => attrs.insert(spec.name, AttrValue::Bool(v)),
                Default::Str(v) => attrs.insert(spec.name, AttrValue::Str(v.to_owned())),
            }
        }
        Ok(attrs)
    }

    /// Checks the number of inputs and that those required are given.
    ///
    /// # Errors
    /// Too many, or one missing.
    pub fn check_inputs(&self, inputs: &[Option<&ValueInfo>]) -> Result<(), OpError> {
        if inputs.len() > self.inputs.len() && !self.variadic {
            return Err(OpError::new(format!("takes {} inputs, found {}", self.inputs.len(), inputs.len())));
        }
        for (i, spec) in self.inputs.iter().enumerate() {
            if !spec.optional && inputs.get(i).copied().flatten().is_none() {
                return Err(OpError::new(format!("input `{}` is missing", spec.name)));
            }
        }
        Ok(())
    }
}

/// What an inference rule sees.
#[derive(Debug)]
pub struct Call<'a> {
    /// Facts of the inputs.
    pub inputs: &'a [Option<&'a ValueInfo>],
    /// Attributes, complete.
    pub attrs: &'a Attrs,
    /// How many outputs the author asked for.
    pub num_outputs: usize,
    /// The number that the next declared state gets.
    pub next_state: usize,
}

impl<'a> Call<'a> {
    /// A required input.
    pub(crate) fn input(&self, index: usize) -> Result<&'a ValueInfo, OpError> {
        self.optional(index).ok_or_else(|| OpError::new(format!("input {index} is missing")))
    }

    /// An input that may be missing.
    pub(crate) fn optional(&self, index: usize) -> Option<&'a ValueInfo> {
        self.inputs.get(index).copied().flatten()
    }

    /// A required input of one kind.
    pub(crate) fn typed(&self, index: usize, name: &str, kind: ValueKind) -> Result<&'a ValueInfo, OpError> {
        let found = self.input(index)?;
        if found.kind == kind {
            Ok(found)
        } else {
            Err(OpError::new(format!("`{name}` must be {kind:?}, found {:?}", found.kind)))
        }
    }

    /// A required attribute that counts something.
    pub(crate) fn size(&self, key: &str) -> Result<usize, OpError> {
        self.attrs.size(key).ok_or_else(|| OpError::new(format!("attribute `{key}` must be a number from 0")))
    }

    /// A text attribute that is one of a few words.
    pub(crate) fn choice(&self, key: &str, known: &[&str]) -> Result<&'a str, OpError> {
        let found = self.attrs.str(key).unwrap_or("");
        if known.contains(&found) {
            Ok(found)
        } else {
            Err(OpError::new(format!("has no {key} `{found}`; expected {}", known.join(", "))))
        }
    }

    /// A required list attribute that counts things.
    pub(crate) fn sizes(&self, key: &str) -> Result<Vec<usize>, OpError> {
        let list = self.attrs.ints(key).unwrap_or(&[]);
        list.iter()
            .map(|&v| usize::try_from(v).map_err(|_| OpError::new(format!("attribute `{key}` holds {v}"))))
            .collect()
    }
}

/// Why an op was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OpError {
    /// What is wrong: continues "`rms_norm/1` …".
    pub message: String,
    /// What to do.
    pub help: String,
}

impl OpError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: String::new() }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }
}

/// Facts of an activation.
pub(crate) fn float(shape: crate::dim::Shape, sharding: Sharding) -> Vec<ValueInfo> {
    vec![ValueInfo { kind: ValueKind::Float, shape, sharding }]
}

/// Every op that this version knows, by family.
pub fn all_ops() -> impl Iterator<Item = &'static OpSchema> {
    ops::FAMILIES.iter().flat_map(|(_, ops)| ops.iter())
}

/// Looks an op up by name with version.
#[must_use]
pub fn find_op(name: &str) -> Option<&'static OpSchema> {
    all_ops().find(|op| op.name == name)
}
