//! Saves the state of a connection for an upgrade in place, and restores the connection from it.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;

use bgd_shared::mutex::Mutex;
use tokio::net::unix::pipe;

use super::Acp;
use super::routes::Routes;
use super::setup::Setup;
use super::state::AcpState;
use super::wire::Wire;
use crate::exec::agent::connection::Updates;

impl Acp {
    /// Restores a connection after an upgrade. `updates` returns the update channel of a session.
    pub fn restore(
        state: AcpState,
        stdin: pipe::Sender,
        stdout: pipe::Receiver,
        updates: impl FnMut(&Arc<str>) -> Option<Updates>,
    ) -> Self {
        let AcpState { wire, routes, hello } = state;
        let mut last = Arc::<Setup>::default();
        let routes = Arc::new(Routes::restore(routes, &mut last, updates));
        let prompts = wire.calls.prompts.clone();
        let wire = Wire::start(stdin, stdout, Arc::clone(&routes), wire);
        let mut prompted = HashMap::new();
        for (id, session) in prompts {
            let answered = wire.prompted(id, &session, routes.lock_prompts(&session));
            // The answer to an abandoned prompt has no receiver.
            if routes.is_in_turn(&session) {
                prompted.insert(session, answered);
            }
        }
        Self { wire, routes, hello, last: Mutex::new(last), prompted: Mutex::new(prompted) }
    }

    /// Holds back reading, or resumes it.
    pub fn hold(&self, holds: bool) {
        self.wire.hold(holds);
    }

    /// Returns the state, and the numbers of the pipes to and from the agent; `None` while something that the state
    /// does not include is in progress.
    pub fn state(&self) -> Option<(AcpState, [RawFd; 2])> {
        // `last` is the setup of a route, and each answer in `prompted` belongs to a prompt in flight.
        let Self { wire, routes: all, hello, last: _, prompted: _ } = self;
        let (wire, pipes) = wire.state()?;
        let routes = all.state()?;
        // Between the answer to a prompt and the end of its turn, no request is in flight.
        let is_prompted = |session: &Arc<str>| wire.calls.prompts.iter().any(|(_, of)| of == session);
        let are_settled =
            routes.iter().all(|route| is_prompted(&route.session) || !all.is_in_turn(&route.session));
        are_settled.then(|| (AcpState { wire, routes, hello: hello.clone() }, pipes))
    }

    /// Returns the agent's names for the open questions of a session.
    pub fn asking(&self, session: &str) -> Vec<String> {
        self.wire.questions.of(session)
    }
}
