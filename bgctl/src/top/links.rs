//! The connections of the live view, one for each host. They are established, lost and re-established independently, so
//! that no host delays another.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bgd_shared::client::{ClientError, PolledClient};
use bgd_shared::id::TaskId;
use bgd_shared::pauses::next_pause;
use bgd_shared::time::Timestamp;
use rustix::io::ioctl_fionread;

use super::connector::{Attempt, Connector, First, PAUSES};
use super::environment::Environment;
use super::model::Silence;
use super::pane::Pane;
use super::search::State;
use super::task_call::TaskCall;
use super::task_key::HostNo;
use super::ui::Ui;
use super::view::{Frame, Panes};
use super::wire::Wire;
use crate::failure::Failure;
use crate::link::{REFUSED, end_children, reason};
use crate::terminal::{LinkReady, LinkWants};

/// How long leaving may take for what a host has sent.
const CATCHES_UP: Duration = Duration::from_secs(1);

/// A connection, or the attempts to establish it.
enum Connection {
    Live(Box<Wire>),
    Lost(Connector),
}

impl Connection {
    fn panes(&self) -> Option<&HashMap<TaskId, Pane>> {
        match self {
            Self::Live(wire) => Some(&wire.panes),
            Self::Lost(_) => None,
        }
    }

    fn wants(&self) -> LinkWants<'_> {
        match self {
            Self::Live(wire) => LinkWants::of(&wire.client),
            Self::Lost(connector) => LinkWants::of_descriptor(connector.descriptor()),
        }
    }
}

/// The connections to all hosts.
pub struct Links<'a> {
    environment: &'a dyn Environment,
    hosts: Vec<Connection>,
    /// The last pause before reconnecting to each host that has not sent its list since. A daemon may accept a
    /// connection and then refuse it, again and again.
    pauses: Vec<Option<Duration>>,
}

impl<'a> Links<'a> {
    /// Starts listing on the connection to the only host, or without one, starts connecting to all hosts.
    ///
    /// # Errors
    /// The connection is broken, or there are no more threads or file descriptors.
    pub fn begin(
        environment: &'a dyn Environment,
        client: Option<PolledClient>,
        ui: &mut Ui,
    ) -> Result<Self, Failure> {
        let pauses = vec![None; ui.model.hosts().count()];
        let mut links = Self { environment, hosts: Vec::new(), pauses };
        if let Some(client) = client {
            let only = HostNo::default();
            links.hosts.push(Connection::Live(Box::new(Wire::begin(only, client, ui)?)));
            links.hear(only, ui)?;
            return Ok(links);
        }
        for host in ui.model.hosts() {
            ui.model.set_silence(host, Some(Silence { since: None, why: "connecting".to_owned() }));
            links.hosts.push(Connection::Lost(Connector::begin(environment.link(host), First::Starts)?));
        }
        Ok(links)
    }

    /// Returns the previews read so far.
    pub fn panes(&self) -> Panes<'_> {
        Panes(self.hosts.iter().map(Connection::panes).collect())
    }

    /// Returns the events to wait for, in the order of the hosts.
    pub fn wants(&self) -> Vec<LinkWants<'_>> {
        self.hosts.iter().map(Connection::wants).collect()
    }

    /// Handles the events of all connections. Returns whether anything may have changed.
    ///
    /// # Errors
    /// There are no more threads or file descriptors.
    pub fn ready(&mut self, ready: &[LinkReady], ui: &mut Ui) -> Result<bool, Failure> {
        let mut is_changed = false;
        for (host, ready) in ui.model.hosts().zip(ready) {
            is_changed |= match &mut self.hosts[host.index()] {
                // The attempt may have ended after the wait, so its result must be used: it is not reported again.
                Connection::Lost(connector) => match connector.latest() {
                    Some(Attempt::Made(client)) => self.made(host, *client, ui)?,
                    Some(Attempt::Failed(failure)) => failed(host, &failure, ui),
                    None => false,
                },
                Connection::Live(wire) => {
                    let tended = ready.tend(&mut wire.client);
                    let read = if ready.reads { wire.client.read() } else { Ok(()) };
                    // Messages that the daemon sent before it went away come first.
                    let heard = ready.reads && self.hear(host, ui)?;
                    match tended.and(read) {
                        Ok(()) => heard,
                        Err(error) => self.lost(host, error, ui)?,
                    }
                }
            };
        }
        Ok(is_changed)
    }

    /// Handles everything that a host has sent so far, without waiting. Returns whether its tasks are known then: not if
    /// the host sends faster than this reads, as it does for the preview of a busy terminal.
    ///
    /// # Errors
    /// There are no more threads or file descriptors.
    pub fn catch_up(&mut self, host: HostNo, ui: &mut Ui) -> Result<bool, Failure> {
        let until = Instant::now() + CATCHES_UP;
        while let Connection::Live(wire) = &mut self.hosts[host.index()]
            && ioctl_fionread(&wire.client).is_ok_and(|bytes| bytes > 0)
        {
            if Instant::now() >= until {
                return Ok(false);
            }
            let read = wire.client.read();
            self.hear(host, ui)?;
            if read.is_err() {
                return Ok(false);
            }
        }
        Ok(matches!(&self.hosts[host.index()], Connection::Live(wire) if wire.is_listed()))
    }

    /// Handles everything that has been read from a host. Returns whether there was anything.
    fn hear(&mut self, host: HostNo, ui: &mut Ui) -> Result<bool, Failure> {
        let mut is_changed = false;
        while let Connection::Live(wire) = &mut self.hosts[host.index()] {
            let outcome = match wire.client.next_received() {
                Ok(None) => break,
                Ok(Some(received)) => wire.received(received, ui),
                Err(error) => Err(error),
            };
            is_changed = true;
            match outcome {
                Err(error) => _ = self.lost(host, error, ui)?,
                Ok(()) if wire.is_listed() => self.listed(host, ui),
                Ok(()) => {}
            }
        }
        Ok(is_changed)
    }

    /// Records that a host has sent its list.
    fn listed(&mut self, host: HostNo, ui: &mut Ui) {
        if self.pauses[host.index()].take().is_some() {
            ui.model.set_silence(host, None);
        }
    }

    /// Starts using a new connection. If the last connection was refused, the reason stays visible until the host
    /// answers.
    fn made(&mut self, host: HostNo, client: PolledClient, ui: &mut Ui) -> Result<bool, Failure> {
        if self.pauses[host.index()].is_none() {
            ui.model.set_silence(host, None);
        }
        match Wire::begin(host, client, ui) {
            Ok(wire) => {
                self.hosts[host.index()] = Connection::Live(Box::new(wire));
                Ok(true)
            }
            Err(error) => self.connect_again(host, error, false, ui),
        }
    }

    /// Reconnects to a host, unless that is in progress already. Keeps the host's tasks.
    fn lost(&mut self, host: HostNo, error: ClientError, ui: &mut Ui) -> Result<bool, Failure> {
        match &self.hosts[host.index()] {
            Connection::Lost(_) => Ok(false),
            Connection::Live(wire) => {
                let was_listed = wire.is_listed();
                self.connect_again(host, error, was_listed, ui)
            }
        }
    }

    fn connect_again(
        &mut self,
        host: HostNo,
        error: ClientError,
        was_listed: bool,
        ui: &mut Ui,
    ) -> Result<bool, Failure> {
        let link = self.environment.link(host);
        let pause = &mut self.pauses[host.index()];
        *pause = (!was_listed).then(|| next_pause(pause.unwrap_or_default(), PAUSES));
        let first = pause.map_or(First::AtOnce, First::After);
        let why = match error {
            ClientError::Closed | ClientError::Io(_) if link.is_remote() => {
                "the connection is lost; connecting again".to_owned()
            }
            ClientError::Closed | ClientError::Io(_) => "the daemon is gone; waiting for it".to_owned(),
            error => format!("{}; connecting again", Failure::from(error).message),
        };
        let since = ui.model.silence(host).and_then(|silence| silence.since);
        let since = since.or_else(|| Some(Timestamp::now()));
        ui.model.set_silence(host, Some(Silence { since, why }));
        if !ui.model.is_several() {
            ui.search = None;
            ui.model.set_found(None);
        }
        self.hosts[host.index()] = Connection::Lost(Connector::begin(link, first)?);
        Ok(true)
    }

    /// Immediately tries to connect to a host that does not answer.
    pub fn retry(&self, host: HostNo, ui: &mut Ui) {
        let Connection::Lost(connector) = &self.hosts[host.index()] else { return };
        connector.nudge();
        let since = ui.model.silence(host).and_then(|silence| silence.since);
        ui.model.set_silence(host, Some(Silence { since, why: "connecting".to_owned() }));
    }

    /// Requests the data that the last frame lacked. Returns whether anything may have changed.
    ///
    /// # Errors
    /// There are no more threads or file descriptors.
    pub fn tend(&mut self, ui: &mut Ui, frame: &Frame) -> Result<bool, Failure> {
        ui.model.keep_live(&frame.tasks);
        let mut is_changed = false;
        for host in ui.model.hosts() {
            let Connection::Live(wire) = &mut self.hosts[host.index()] else { continue };
            if let Some(text) = late_search(wire, ui) {
                let own = ui.model.all().into_iter().filter(|key| key.host == host);
                wire.search(&text, own.map(|key| key.id).collect());
            }
            if let Err(error) = wire.tend(ui, frame) {
                is_changed |= self.lost(host, error, ui)?;
            }
        }
        Ok(self.add_up_search(ui) || is_changed)
    }

    /// Has the previews read once more after another program had the terminal.
    pub fn read_again(&mut self) {
        for connection in &mut self.hosts {
            if let Connection::Live(wire) = connection {
                wire.read_again();
            }
        }
    }

    /// Sums the progress of the search on all connected hosts. Returns whether it has changed.
    fn add_up_search(&self, ui: &mut Ui) -> bool {
        let Some(known) = &mut ui.search else { return false };
        let mut sum = State { text: std::mem::take(&mut known.text), ..State::default() };
        for connection in &self.hosts {
            if let Connection::Live(wire) = connection
                && let Some(State { text: _, done, all, cut }) = wire.search_state()
            {
                sum.done += done;
                sum.all += all;
                sum.cut += cut;
            }
        }
        let is_new = (sum.done, sum.all, sum.cut) != (known.done, known.all, known.cut);
        *known = sum;
        is_new
    }

    /// Starts a search in the outputs of all tasks, replacing the previous one; an empty text ends the search. A host
    /// that does not answer or has not listed its tasks yet is searched as soon as it has.
    pub fn search(&mut self, text: &str, ui: &mut Ui) {
        let is_live = |connection: &Connection| matches!(connection, Connection::Live(_));
        if !text.is_empty() && !self.hosts.iter().any(is_live) {
            ui.note = Some("there is no daemon to ask".to_owned());
            return;
        }
        ui.model.set_found(None);
        ui.search = None;
        let mut tasks: Vec<VecDeque<TaskId>> = vec![VecDeque::new(); self.hosts.len()];
        for key in ui.model.all() {
            tasks[key.host.index()].push_back(key.id);
        }
        let mut fits = true;
        for (connection, tasks) in self.hosts.iter_mut().zip(tasks) {
            if let Connection::Live(wire) = connection {
                let text = if wire.is_listed() { text } else { "" };
                fits &= wire.search(text, tasks);
            }
        }
        if !fits {
            ui.note = Some("this text is too long to search for".to_owned());
        } else if !text.is_empty() {
            ui.search = Some(State { text: text.to_owned(), ..State::default() });
            ui.model.set_found(Some(BTreeSet::new()));
            self.add_up_search(ui);
        }
    }

    /// Performs the action of a key on each of the hosts concerned.
    ///
    /// # Errors
    /// There are no more threads or file descriptors.
    pub fn act(&mut self, act: TaskCall, ui: &mut Ui) -> Result<(), Failure> {
        for (host, part) in act.by_host() {
            match &mut self.hosts[host.index()] {
                Connection::Live(wire) => {
                    if let Err(error) = wire.act(&part, ui) {
                        self.lost(host, error, ui)?;
                    }
                }
                Connection::Lost(_) => ui.show_outcome(host, Err("there is no daemon to ask".to_owned())),
            }
        }
        Ok(())
    }
}

impl Drop for Links<'_> {
    fn drop(&mut self) {
        if self.hosts.iter().any(|connection| matches!(connection, Connection::Lost(_))) {
            end_children();
        }
    }
}

/// Returns the text of a search that a host has yet to start, as it was not connected or not listed when the search
/// began.
fn late_search(wire: &Wire, ui: &Ui) -> Option<String> {
    let search = ui.search.as_ref().filter(|_| wire.is_listed() && wire.search_state().is_none())?;
    Some(search.text.clone())
}

/// Records a failed attempt to connect to a host. Returns whether the message has changed.
fn failed(host: HostNo, failure: &Failure, ui: &mut Ui) -> bool {
    // With a single host, the title always shows that it is being reconnected to.
    if !ui.model.is_several() {
        return false;
    }
    let known = ui.model.silence(host);
    let next = if failure.kind == REFUSED { "Enter tries again" } else { "trying again" };
    let why = format!("{}; {next}", reason(ui.model.host_name(host), failure));
    if known.is_some_and(|known| known.since.is_some() && known.why == why) {
        return false;
    }
    let since = known.and_then(|known| known.since).or_else(|| Some(Timestamp::now()));
    ui.model.set_silence(host, Some(Silence { since, why }));
    true
}
