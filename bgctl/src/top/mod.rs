//! `bgctl top`: a live view of all tasks. The state (`model`, `ui`) is pure: facts and keys go in, lines and wishes
//! come out; `view` draws it into cells; `wire` speaks with the daemon, by events; `executor` is the loop around them.
//! What a verb does already is left to that verb.

mod act;
mod canvas;
mod connector;
mod executor;
mod graph;
pub mod help;
mod keys;
mod meter;
mod model;
mod once;
mod pane;
mod row;
mod search;
mod task_key;
mod ui;
mod view;
mod wire;
mod words;

use bgd_shared::client::PolledClient;

pub use self::executor::Environment;
use self::executor::Executor;
use self::model::Model;
pub use self::once::{Size, once};
pub use self::task_key::{HostNo, TaskKey};
use self::ui::Ui;
use crate::exit::Code;
use crate::failure::Failure;
use crate::state::Looked;

/// Shows the tasks until the user leaves, who has looked at this before.
///
/// # Errors
/// There is no terminal, or it is gone.
pub fn run(
    environment: &dyn Environment,
    client: PolledClient,
    filter: &str,
    looked: Option<Looked>,
) -> Result<Code, Failure> {
    let mut model = Model::new(1, looked);
    model.set_filter(filter);
    Executor::begin(environment, client, Ui::new(model))?.run()
}
