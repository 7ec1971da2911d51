//! The daemon's messages about the core's decisions, which make the core's tests easier to read. The core itself has
//! none.

#![allow(dead_code, reason = "the daemon uses all of it")]

#[path = "../../../src/wire/failures.rs"]
pub mod failures;
#[path = "../../../src/wire/refusals.rs"]
pub mod refusals;
