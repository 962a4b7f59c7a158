//! Parts that many model families share, made of ops: products by tensor name, SwiGLU and its experts, short
//! convolutions, grouped norms, hashed n-gram tables, a vision tower.

mod convolution;
mod feed_forward;
mod ngram;
mod norm;
mod projection;
mod vision;

pub use ngram::NgramTables;
pub use vision::VisionTower;
