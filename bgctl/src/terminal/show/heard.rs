//! What the daemon says of a job that is shown.

use bgd_shared::client::{ClientError, Protocol, Received};
use bgd_shared::foreground::Outcome;
use bgd_shared::request::{DetachResult, OutputNews, TaskBlock, TaskDetach, TaskWrite};

use super::{Left, Show};
use crate::failure::Failure;
use crate::terminal::answers;

impl Show<'_> {
    pub(super) fn read_link(&mut self) {
        let read = self.link.read();
        // What it said before it went comes first.
        self.hear();
        if let Err(error) = read {
            self.lose_daemon(error);
        }
    }

    /// Deals with all that has come from the daemon.
    pub(super) fn hear(&mut self) {
        while self.left.is_none() {
            match self.link.next_received() {
                Ok(Some(received)) => self.received(received),
                Ok(None) => return,
                Err(error) => self.leave(Err(error.into())),
            }
        }
    }

    fn received(&mut self, received: Received) {
        match received {
            Received::Output(news) if news.id == self.task => self.show_part(*news),
            Received::Stopped(news) if news.id == self.task => self.stopped(),
            Received::Answer { call, outcome } if call == self.calls.block => {
                let ended = answers::ended(Protocol::result::<TaskBlock>(outcome));
                self.leave(ended.map(|task| Left::Ended(Box::new(task))));
            }
            Received::Answer { call, outcome } if self.calls.detach == Some(call) => {
                self.calls.detach = None;
                self.detached(Protocol::result::<TaskDetach>(outcome));
            }
            Received::Answer { call, outcome } if self.calls.write == Some(call) => {
                self.calls.write = None;
                match Protocol::result::<TaskWrite>(outcome) {
                    Ok(result) if result.written > 0 => {
                        self.input.taken(usize::try_from(result.written).unwrap_or(usize::MAX));
                    }
                    // The job ends, or has closed its terminal.
                    Ok(_) | Err(_) => self.input.drop_all(),
                }
            }
            Received::Answer { call, .. } if self.calls.go_on == Some(call) => self.calls.go_on = None,
            Received::Answer { call, .. } if self.calls.resize == Some(call) => {
                self.calls.resize = None;
                self.tell_size();
            }
            other => {
                if let Err(error) = self.around.received(other) {
                    self.leave(Err(error.into()));
                }
            }
        }
    }

    pub(super) fn stopped(&mut self) {
        if self.around.leaves_stopped() {
            let restore = self.screen.restore().to_owned();
            return self.leave(Ok(Left::Stopped(restore)));
        }
        self.stops = true;
        if let Err(error) = self.screen.leave() {
            self.lose_terminal(&error);
        }
    }

    fn show_part(&mut self, news: OutputNews) {
        if self.is_behind() {
            self.come_back();
        }
        match news.encoding.decode(news.data) {
            Ok(bytes) => {
                if let Err(error) = self.screen.show(&bytes, news.restore) {
                    self.lose_terminal(&error);
                }
            }
            Err(error) => self.leave(Err(Failure::unreadable_output(error))),
        }
    }

    fn detached(&mut self, outcome: Result<DetachResult, ClientError>) {
        let answer = answers::of_press(&outcome);
        match (self.around.jobs().answered(&self.task, answer), outcome) {
            (Some(Outcome::Backgrounded(..)), Ok(result)) => {
                return self.leave(Ok(Left::Backgrounded(Box::new(result))));
            }
            (Some(Outcome::Stays(_, message)), _) => self.note(&message),
            // It finished first, and its real end comes by the other call (R66).
            _ => {}
        }
        self.input.stay();
        if std::mem::take(&mut self.drops_presses)
            && let Some(keyboard) = &self.keyboard
        {
            keyboard.take_presses();
        }
    }
}
