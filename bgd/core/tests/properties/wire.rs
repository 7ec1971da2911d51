//! The daemon's sentences for what the core decides: tests of the core read better with them. The core itself has none.

#![allow(dead_code, reason = "the daemon uses all of it")]

#[path = "../../../src/wire/failures.rs"]
pub mod failures;
#[path = "../../../src/wire/refusals.rs"]
pub mod refusals;
