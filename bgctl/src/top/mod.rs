//! `bgctl top`: a live view of all tasks. The state (`model`, `ui`) is pure: facts and keys go in, lines and requests
//! come out; `view` draws it into cells; `wire` talks to one host's daemon, `links` manages the connections to all
//! hosts, and `executor` is the loop that drives them. Actions for which a verb exists already are left to that verb.

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
mod task_call;
mod task_key;
mod ui;
mod view;
mod wire;
mod words;

use bgd_shared::client::PolledClient;

pub use self::environment::Environment;
use self::executor::Executor;
use self::model::Model;
pub use self::model::filter::unknown_status;
pub use self::once::{Measurements, Size, Still, each_page};
pub use self::task_key::{HostNo, TaskKey};
use self::ui::Ui;
use crate::exit::Code;
use crate::failure::Failure;
use crate::state::Seen;

/// The daemons to show.
pub enum Hosts {
    /// The daemon at the other end of this connection.
    One(Box<PolledClient>),
    /// The daemons of the machines with these names, to which the view connects itself.
    Several(Vec<String>),
}

/// Shows the tasks until the user leaves. `last_seen`: the tasks that the user has looked at before.
///
/// # Errors
/// There is no terminal, or it is gone.
pub fn run(
    environment: &dyn Environment,
    hosts: Hosts,
    filter: &str,
    last_seen: Option<Seen>,
) -> Result<Code, Failure> {
    let (client, names) = match hosts {
        Hosts::One(client) => (Some(*client), Vec::new()),
        Hosts::Several(names) => (None, names),
    };
    let mut model = Model::new(names.len().max(1), last_seen);
    model.name_hosts(&names);
    model.set_filter(filter);
    Executor::begin(environment, client, Ui::new(model))?.run()
}
