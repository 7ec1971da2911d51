//! Tests the dispatcher with its core from outside of their crate: with an executor that nobody knows, and for simulated
//! years.

mod executors;
mod simulator;
