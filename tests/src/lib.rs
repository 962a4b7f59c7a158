//! What the end-to-end tests share: golden models and how to read them.

pub mod golden;
pub mod interpreter;
pub mod npy;
