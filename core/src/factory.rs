//! The model factory: a model directory or file becomes a runner.
