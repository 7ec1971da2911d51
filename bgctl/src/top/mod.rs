//! `bgctl top`: a live view of all tasks. The state (`model`, `ui`) is pure: facts and keys go in, lines and wishes
//! come out; `view` draws it into cells; `wire` speaks with a host's daemon, by events, and `links` has all of them;
//! `executor` is the loop around that.
//! What a verb does already is left to that verb.

mod act;
mod canvas;
mod connector;
mod environment;
mod executor;
mod graph;
pub mod help;
mod keys;
mod links;
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

pub use self::environment::Environment;
use self::executor::Executor;
use self::model::Model;
pub use self::once::{Size, Still, each_page};
pub use self::task_key::{HostNo, TaskKey};
use self::ui::Ui;
use crate::exit::Code;
use crate::failure::Failure;
use crate::state::Looked;

/// Which daemons are looked at.
pub enum Hosts {
    /// The one at the other end of this connection.
    One(Box<PolledClient>),
    /// Those of the machines with these names, which are connected to when the view is there.
    Several(Vec<String>),
}

/// Shows the tasks until the user leaves, who has looked at this before.
///
/// # Errors
/// There is no terminal, or it is gone.
pub fn run(
    environment: &dyn Environment,
    hosts: Hosts,
    filter: &str,
    looked: Option<Looked>,
) -> Result<Code, Failure> {
    let (client, names) = match hosts {
        Hosts::One(client) => (Some(*client), Vec::new()),
        Hosts::Several(names) => (None, names),
    };
    let mut model = Model::new(names.len().max(1), looked);
    model.name_hosts(&names);
    model.set_filter(filter);
    Executor::begin(environment, client, Ui::new(model))?.run()
}
