//! Devices: what executes a plan.

pub mod cpu;
