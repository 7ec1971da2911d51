//! The daemon's last steps, once its dispatcher has ended: it leaves its address, lets reads finish, ends the processes
//! that are left and removes its files. They share one deadline, after which the process ends without them: the disk of
//! the state folder may hang. The next daemon cleans up then.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use bgd_shared::holder::{Note, Phase};
use bgd_shared::text::OsText;
use tokio::time::timeout;

use super::address::Address;
use super::cgroups;
use super::instance::Instance;
use crate::dispatcher::ending::Ending;
use crate::exec::strays::Strays;
use crate::exec::threads::workers::Workers;
use crate::journal::JournalFile;
use crate::keeper::client::Keeper;

/// How long all steps may take.
const ALL: Duration = Duration::from_secs(8);

/// Like [`ALL`], after a second signal.
const URGENT_ALL: Duration = Duration::from_millis(1500);

/// How long the look whether the journal is there may take.
const LOOK: Duration = Duration::from_secs(1);

/// The parts of the daemon that its last steps concern.
pub(super) struct Last {
    pub(super) address: Address,
    pub(super) instance: Arc<Instance>,
    pub(super) cgroup: Option<PathBuf>,
    pub(super) strays: Arc<Strays>,
    pub(super) keeper: Option<Arc<Keeper>>,
}

impl Last {
    /// Takes the last steps. `note` identifies the daemon; `journal` is the file of a durable one.
    pub(super) async fn take(
        self,
        ending: Ending,
        note: Note,
        journal: Option<JournalFile>,
        workers: &Workers,
    ) {
        let (begin, all) = (Instant::now(), if ending.is_urgent() { URGENT_ALL } else { ALL });
        let missing_journal = missing_path(journal, workers, LOOK.min(all / 4)).await;
        let note = Note { phase: Phase::Ending, left: ending.leaves_any(), missing_journal, ..note };
        let (reads, are_done) = mpsc::channel::<()>();
        // The rest is for what comes when nothing is waited for any more.
        let deadline = begin + all * 3 / 4;
        let steps = workers.last_steps(move || self.end(note, &ending, &are_done, deadline));
        let drain = async move {
            // Responses being read from output files are still sent.
            if timeout(all / 4, workers.drain()).await.is_err() {
                tracing::warn!("a disk does not answer: pending reads and removals are skipped");
            }
            drop(reads);
        };
        let both = async { tokio::join!(steps, drain).0 };
        match timeout(all.saturating_sub(begin.elapsed()), both).await {
            Ok(Some(())) => {}
            Ok(None) => tracing::error!("the last steps have failed: the next daemon cleans up"),
            Err(_) => tracing::error!(
                "the last steps take too long, as a disk or a process does not answer: the next daemon cleans up"
            ),
        }
    }

    /// Leaves the address; once `reads` are done, ends everything else. The end of the last connection is a signal that
    /// the next daemon may be started: the address is free by then.
    fn end(mut self, note: Note, ending: &Ending, reads: &Receiver<()>, deadline: Instant) {
        // Clients find one or the other, and must not mistake this daemon for one that has lost its socket.
        self.instance.write_note(note.clone());
        self.address.write_note(note);
        self.address.leave();
        // Returns once the sender is dropped.
        let _ = reads.recv();
        self.end_all(ending, deadline);
        if let Some(cgroup) = self.cgroup.as_ref().filter(|_| ending.left().is_empty()) {
            cgroups::leave(cgroup, deadline);
        }
    }

    /// Kills the remaining processes of tasks. If that succeeds, removes the instance, so that the next daemon has
    /// nothing to clean up. The keeper ends by itself once it holds nothing.
    fn end_all(&mut self, ending: &Ending, deadline: Instant) {
        let keeper = self.keeper.as_ref().map(|keeper| keeper.socket().pid);
        if self.strays.end(deadline, (ending.left(), keeper), &self.instance.output()) {
            self.instance.end();
            let Note { instance, durable, left, missing_journal, .. } = self.address.note();
            // By its ID, clients recognize that the next daemon continues its tasks.
            let instance = if durable { instance } else { String::new() };
            let phase = Phase::Ending;
            let note = Note { phase, instance, durable, left, missing_journal, ..Note::default() };
            self.address.write_note(note);
        } else {
            tracing::warn!("some processes do not end; the next daemon will try again");
        }
    }
}

/// Returns the path of the journal's file if it is not there. `None` if its disk does not respond in time.
async fn missing_path(journal: Option<JournalFile>, workers: &Workers, time: Duration) -> Option<OsText> {
    let journal = journal?;
    let look = workers.look(move || journal.missing_path().map(|path| OsText::from(path.as_os_str())));
    timeout(time, look).await.ok()??
}
