//! Reads the inputs and attributes of a node, and refuses what nobody read.
//!
//! A device that ignored an attribute would compute something else than the reference. So the builder never looks at a
//! node directly: whatever the schema knows and the lowering of an op does not ask for is an error.

use std::cell::RefCell;

use metrale_graph::{AttrValue, Node, ValueId};

use crate::lower::LowerError;

type Result<T> = std::result::Result<T, LowerError>;

/// A node being lowered.
pub(super) struct Reader<'a> {
    node: &'a Node,
    inputs: RefCell<Vec<usize>>,
    attrs: RefCell<Vec<String>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(node: &'a Node) -> Self {
        Self { node, inputs: RefCell::default(), attrs: RefCell::default() }
    }

    /// Refuses inputs and attributes that were not read.
    pub(super) fn finish(&self) -> Result<()> {
        let (inputs, attrs) = (self.inputs.borrow(), self.attrs.borrow());
        for (index, _) in self.node.inputs.iter().enumerate().filter(|(_, input)| input.is_some()) {
            if !inputs.contains(&index) {
                let name = self.node.op.inputs.get(index).map_or("?", |input| input.name);
                return Err(self.unsupported(&format!("the input `{name}` has no kernel")));
            }
        }
        match self.node.attrs.iter().find(|(key, _)| !attrs.iter().any(|read| read == key)) {
            Some((key, value)) => {
                Err(self.unsupported(&format!("the attribute `{key}` ({value:?}) has no kernel")))
            }
            None => Ok(()),
        }
    }

    pub(super) fn unsupported(&self, detail: &str) -> LowerError {
        LowerError::new(self.node.op.name, detail, &self.node.source)
    }

    /// A required input.
    pub(super) fn input(&self, index: usize) -> ValueId {
        self.inputs.borrow_mut().push(index);
        self.node.input(index)
    }

    /// An input that may be missing.
    pub(super) fn optional_input(&self, index: usize) -> Option<ValueId> {
        self.inputs.borrow_mut().push(index);
        self.node.optional_input(index)
    }

    fn get(&self, key: &str) -> Option<&'a AttrValue> {
        self.attrs.borrow_mut().push(key.to_owned());
        self.node.attrs.get(key)
    }

    fn misread(&self, key: &str, expected: &str) -> LowerError {
        self.unsupported(&format!(
            "the attribute `{key}` is {:?}, expected {expected}",
            self.node.attrs.get(key)
        ))
    }

    /// A number that may be missing.
    pub(super) fn optional_float(&self, key: &str) -> Result<Option<f32>> {
        let float = |_| self.node.attrs.float(key).ok_or_else(|| self.misread(key, "a number"));
        Ok(self.get(key).map(float).transpose()?.map(|value| value as f32))
    }

    /// A number.
    pub(super) fn float(&self, key: &str) -> Result<f32> {
        self.optional_float(key)?.ok_or_else(|| self.misread(key, "a number"))
    }

    /// A count that may be missing.
    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        self.get(key)
            .map(|_| self.node.attrs.size(key).ok_or_else(|| self.misread(key, "0 or more")))
            .transpose()
    }

    /// A count.
    pub(super) fn size(&self, key: &str) -> Result<usize> {
        self.optional_size(key)?.ok_or_else(|| self.misread(key, "0 or more"))
    }

    /// Counts.
    pub(super) fn sizes(&self, key: &str) -> Result<Vec<usize>> {
        self.get(key);
        let list = self.node.attrs.ints(key).ok_or_else(|| self.misread(key, "a list of numbers"))?;
        list.iter().map(|&v| usize::try_from(v).map_err(|_| self.misread(key, "numbers from 0"))).collect()
    }

    /// Constants.
    pub(super) fn floats(&self, key: &str) -> Result<Vec<f32>> {
        self.get(key);
        let list = self.node.attrs.floats(key).ok_or_else(|| self.misread(key, "a list of numbers"))?;
        Ok(list.iter().map(|&v| v as f32).collect())
    }

    /// Yes or no.
    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        self.get(key);
        self.node.attrs.bool(key).ok_or_else(|| self.misread(key, "true or false"))
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<&'a str> {
        self.get(key);
        self.node.attrs.str(key).ok_or_else(|| self.misread(key, "a text"))
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, key: &str, known: &[(&str, T)]) -> Result<T> {
        let found = self.text(key)?;
        known.iter().find(|(word, _)| *word == found).map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
            self.misread(key, &words.join(" or "))
        })
    }

    /// An attribute of which one value has a kernel.
    pub(super) fn only_size(&self, key: &str, value: usize) -> Result<()> {
        if self.size(key)? == value { Ok(()) } else { Err(self.misread(key, &value.to_string())) }
    }

    /// An attribute that changes nothing here.
    pub(super) fn without_effect(&self, key: &str) {
        self.get(key);
    }
}
