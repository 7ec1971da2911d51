//! Runs work beside its owner, on threads or on the runtime, and holds it for an upgrade in place. Nothing here may
//! know what the work does, or use any other part of the executors.

pub mod hold;
pub mod job;
pub mod thread_pool;
pub mod workers;
