//! Recovery of a link whose connection was lost, or whose daemon was asked to end. Prints only reports of such events.

use std::time::Instant;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::request::{DaemonStatusOf, NoParams};
use bgd_shared::socket::SocketPath;

use super::lost::{self, CONNECTION_LOST, MAYBE_DONE, is_lost};
use super::reach::{is_unreachable, reach};
use super::ssh::{self, Dialling};
use super::{Host, Link, no_connection, successor};
use crate::failure::Failure;
use crate::render::daemon::shutting_down;

impl Link {
    /// Reconnects after a lost connection, and reports on standard error what happened. On a remote machine, waits
    /// until the host can be reached again; its tasks are not affected. On this machine, connects to the daemon that
    /// takes over the tasks of a durable one that was killed or restarted.
    ///
    /// # Errors
    /// The given failure, if it is not a lost connection or the tasks are lost with the daemon; the host can't be
    /// reached again within the timeout; no daemon, or a different one, is running there; the next daemon can't be
    /// started.
    pub fn recover(&mut self, failure: Failure) -> Result<(), Failure> {
        self.recover_until(failure, None)
    }

    /// Like [`Self::recover`], but waits for a host only until the given time.
    ///
    /// # Errors
    /// As for [`Self::recover`].
    pub fn recover_until(&mut self, failure: Failure, until: Option<Instant>) -> Result<(), Failure> {
        let is_refused = self.is_refused_at_the_end(&failure);
        if !is_refused && !is_lost(&failure) {
            return Err(failure);
        }
        let Some(host) = self.host().cloned() else { return self.connect_to_successor(failure, is_refused) };
        self.forget(&host);
        self.report(&format!("the connection to {host} is lost; connecting again"));
        let deadline = Instant::now() + self.options.connect_timeout;
        let deadline = until.map_or(deadline, |until| until.min(deadline));
        let client = reach(deadline, is_unreachable, |within| {
            // The user does not expect a question now.
            self.dial_by(&host, Dialling { asks: false, within, ..self.dialling(false)? }, None)
        })?;
        self.client = Some(client);
        self.report(&format!("connected to {host} again"));
        Ok(())
    }

    /// Reports whether a call with this failure may have been carried out nevertheless, with lasting effects.
    pub(super) fn is_maybe_done(&self, failure: &Failure) -> bool {
        let outlives = |socket: SocketPath| successor::outlives(&socket);
        let is_lost_here = || failure.kind == CONNECTION_LOST && self.socket().is_ok_and(outlives);
        is_lost(failure) && (self.is_remote() || is_lost_here())
    }

    /// Remembers the daemon of this machine whose tasks are waited for from now on, for [`Self::recover`].
    pub fn remember(&mut self) {
        if let Ok(socket) = self.socket() {
            self.successors.remember(&socket);
        }
    }

    /// Reports whether a call that begins something can be made again, to the next daemon of this machine: the current
    /// one refused it because it was asked to end, or has gone with everything that the call may have done.
    pub fn may_begin_again(&self, failure: &Failure) -> bool {
        self.starts()
            && !self.is_remote()
            && (failure.kind == ErrorKind::ShuttingDown.as_str()
                || failure.kind == CONNECTION_LOST
                    && self.socket().is_ok_and(|socket| successor::has_left_nothing(&socket)))
    }

    /// Waits until the daemon has closed the connection, if there is one. The next call goes to the next daemon.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn await_end(&mut self) -> Result<(), Failure> {
        let client = self.client.take();
        client.map_or(Ok(()), |mut client| Ok(self.until_closed(&mut client)?))
    }

    /// Waits until a daemon that is shutting down has closed the connection. First says what it is waiting for: that can
    /// take as long as the grace period of a task.
    pub(super) fn until_closed(&self, client: &mut Client) -> Result<(), ClientError> {
        let status = client.call::<DaemonStatusOf>(&NoParams {});
        if let Some(what) = status.ok().filter(|status| status.active > 0).as_ref().and_then(shutting_down) {
            self.report(&format!("waiting: {what}"));
        }
        client.until_closed()
    }

    /// Makes the call that begins something, and makes it again, once, if the daemon is about to end.
    ///
    /// # Errors
    /// As for `begin`; or the daemon that is about to end does not answer.
    pub fn begin<T>(&mut self, begin: impl Fn(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        match begin(self) {
            Err(failure) if self.may_begin_again(&failure) => {
                self.await_end()?;
                begin(self)
            }
            outcome => outcome,
        }
    }

    /// Reports whether a durable daemon of this machine has refused a call because it was asked to end.
    fn is_refused_at_the_end(&self, failure: &Failure) -> bool {
        let is_durable = || self.socket().is_ok_and(|socket| successor::outlives(&socket));
        failure.kind == ErrorKind::ShuttingDown.as_str() && !self.is_remote() && is_durable()
    }

    /// Connects to the daemon that takes over the tasks of one that was killed or restarted, or that refused a call
    /// before it ended.
    fn connect_to_successor(&mut self, failure: Failure, is_refused: bool) -> Result<(), Failure> {
        // An unresponsive daemon may still answer later.
        if !is_refused && !matches!(failure.kind, CONNECTION_LOST | MAYBE_DONE) {
            return Err(failure);
        }
        if is_refused && let Some(client) = &mut self.client {
            client.until_closed()?;
        }
        let socket = self.socket()?;
        // The user must check a call that may have been carried out before repeating it.
        let only_waited = is_refused || failure.kind == CONNECTION_LOST;
        if only_waited && let Some(path) = successor::missing_journal(&socket) {
            return Err(lost::without_journal(&path));
        }
        let Some(next) = self.successors.next(&socket, self.options.starts) else {
            return Err(if only_waited && successor::was_stopped(&socket) {
                lost::stopped()
            } else {
                failure
            });
        };
        let (client, _) = next?;
        self.client = Some(client);
        self.report("the daemon has ended; the next one takes over its tasks");
        Ok(())
    }

    /// Reports whether a durable daemon has ended on this machine that may have left tasks running.
    pub fn has_left_tasks(&self) -> bool {
        !self.is_remote() && self.socket().is_ok_and(|socket| successor::has_left(&socket))
    }

    /// Reports whether the last daemon of this machine was asked to end, and its tasks outlive it.
    pub fn was_stopped(&self) -> bool {
        !self.is_remote() && self.socket().is_ok_and(|socket| successor::was_stopped(&socket))
    }

    /// Makes one attempt to connect to a host again, replacing a connection that may be dead unnoticed.
    ///
    /// # Errors
    /// The daemon is on this machine, the host can't be reached, or no daemon is running there.
    pub fn connect_again(&mut self) -> Result<(), Failure> {
        let host = self.host().cloned().ok_or_else(no_connection)?;
        self.forget(&host);
        let how = Dialling { asks: false, ..self.dialling(false)? };
        self.client = Some(self.dial_by(&host, how, None)?);
        Ok(())
    }

    /// Drops the connection to a host, including the shared one.
    fn forget(&mut self, host: &Host) {
        self.client = None;
        let socket = SocketPath::from_env().ok();
        ssh::forget_shared(host, socket.as_ref().map(SocketPath::folder));
    }
}
