//! Dimensions: fixed numbers, or multiples of a count that is only known per step.

use std::fmt;

/// A count that is only known per step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Symbol {
    /// Rows of the step: tokens of all its sequences.
    T,
    /// Source rows: tokens of all encoder inputs of the step.
    S,
    /// Image patches of the step.
    P,
    /// Sequences of the step.
    N,
}

/// `symbol · mul / div + add`, or the number `add` without a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The count, if the dimension is not fixed.
    pub symbol: Option<Symbol>,
    /// Multiplier of the symbol.
    pub mul: usize,
    /// Divisor of the symbol.
    pub div: usize,
    /// Constant part.
    pub add: usize,
}

impl Dim {
    /// A number.
    #[must_use]
    pub fn fixed(size: usize) -> Self {
        Self { symbol: None, mul: 1, div: 1, add: size }
    }

    /// A count.
    #[must_use]
    pub fn of(symbol: Symbol) -> Self {
        Self { symbol: Some(symbol), mul: 1, div: 1, add: 0 }
    }

    /// The number, if it is one.
    #[must_use]
    pub fn size(self) -> Option<usize> {
        self.symbol.is_none().then_some(self.add)
    }

    /// The number, given the value of each symbol.
    #[must_use]
    pub fn eval(self, value_of: impl Fn(Symbol) -> usize) -> usize {
        self.symbol.map_or(0, |s| value_of(s) * self.mul / self.div) + self.add
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(symbol) = self.symbol else { return write!(f, "{}", self.add) };
        write!(f, "{symbol:?}")?;
        if self.mul != 1 {
            write!(f, "*{}", self.mul)?;
        }
        if self.div != 1 {
            write!(f, "/{}", self.div)?;
        }
        if self.add != 0 {
            write!(f, "+{}", self.add)?;
        }
        Ok(())
    }
}

/// Dimensions of a value, outermost first.
pub type Shape = Vec<Dim>;

/// A shape as people write it: `[T, 4, 64]`.
#[must_use]
pub fn show(shape: &[Dim]) -> String {
    let dims: Vec<_> = shape.iter().map(Dim::to_string).collect();
    format!("[{}]", dims.join(", "))
}
