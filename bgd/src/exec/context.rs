//! What executors and channels share: where outputs are, who does what blocks, and where they report to.

use std::path::Path;
use std::sync::Arc;

use super::messages::{Facts, Reports};
use super::output::{OutputFolder, OutputWatch};
use super::workers::Workers;

/// What is the same for all of them.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where outputs are.
    pub folder: Arc<OutputFolder>,
    /// Who follows them.
    pub outputs: OutputWatch,
    /// Who does what blocks.
    pub workers: Workers,
    /// Who hears of it.
    pub facts: Facts,
    /// Who owns the processes.
    pub reports: Reports,
    /// The daemon's socket.
    pub socket: Arc<Path>,
}
