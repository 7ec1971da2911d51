//! The viewers of a terminal. The owner of a foreground job receives every byte, and the terminal is not read while too
//! much is queued for it; a viewer that came later falls behind if it reads too slowly, and is sent the whole screen
//! when it has caught up. This module may not inspect the shown content.

use std::sync::Arc;

use bgd_shared::mutex::Mutex;
use bgd_shared::request::TerminalSize;
use futures_util::future::select_all;
use serde::{Deserialize, Serialize};

use super::modes::Modes;
use crate::client::Client;

/// A gate that the dispatcher closes: from that moment on, nothing more is sent to the viewer behind it.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Mutex<bool>>);

impl Gate {
    pub fn open() -> Self {
        Self(Arc::new(Mutex::new(true)))
    }

    pub fn close(&self) {
        *self.0.lock() = false;
    }

    fn tell(&self, client: &Client, line: &[u8]) {
        let is_open = self.0.lock();
        if *is_open {
            client.tell(line);
        }
    }
}

/// A client that is shown a terminal.
#[derive(Debug)]
pub struct Viewer {
    pub client: Arc<Client>,
    /// Closed when the client leaves.
    pub gate: Gate,
    /// The size of the client's own terminal, if it sent one.
    pub size: Option<TerminalSize>,
    /// Whether the client receives every byte, however slowly it reads.
    pub is_owner: bool,
}

#[derive(Debug)]
struct Shown {
    viewer: Viewer,
    /// The modes of its terminal, according to the data sent to it.
    modes: Modes,
    /// Whether it has fallen behind, or has not been drawn the screen yet.
    is_behind: bool,
    /// Whether it was drawn only the alternate screen, so that the main one must be drawn as soon as it is shown.
    lacks_main: bool,
    /// Whether it must be notified that the job has stopped.
    stop_pending: bool,
    rest: Rest,
}

/// Whether a viewer has stopped together with the job, as `bgctl` does on Ctrl-Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rest {
    /// It has not, as far as is known.
    #[default]
    No,
    /// It was notified that the job has stopped, after this many of its requests.
    Notified(u64),
    /// Then the job was continued, although the viewer had sent no further request.
    LeftBehind(u64),
}

impl Shown {
    /// Reports whether it is sent every byte, so that the terminal waits for it. Its owner is not while it has stopped
    /// with the job and somebody else continued the job: nothing would ever make it read.
    fn gets_all(&self) -> bool {
        self.viewer.is_owner && self.rest != Rest::LeftBehind(self.viewer.client.requests())
    }

    /// Reports whether it can be sent the screen that it lacks. It then gets every byte if it is an owner, which must
    /// miss nothing until then.
    fn is_due(&self) -> bool {
        let client = &self.viewer.client;
        self.is_behind && if self.gets_all() { !client.is_slow() } else { client.has_caught_up() }
    }

    /// Notes that the job continues, after the viewer's own request or without it.
    fn note_continued(&mut self) {
        self.rest = match self.rest {
            Rest::Notified(requests) if requests == self.viewer.client.requests() => {
                Rest::LeftBehind(requests)
            }
            Rest::LeftBehind(requests) if requests == self.viewer.client.requests() => self.rest,
            _ => Rest::No,
        };
    }

    /// Reports whether it can be notified now that the job has stopped: it is not behind, and has room.
    fn can_notify_stop(&self) -> bool {
        self.stop_pending && !self.is_behind && !self.viewer.client.is_slow()
    }
}

/// The state of a viewer for the program that takes over.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is about another thing")]
pub struct ViewerState {
    pub client: u64,
    /// The size of the client's own terminal, if it sent one.
    pub size: Option<TerminalSize>,
    /// Whether the client receives every byte.
    pub is_owner: bool,
    modes: Modes,
    is_behind: bool,
    lacks_main: bool,
    stop_pending: bool,
    /// Whether it was notified of a stop of the job, and has sent no request since.
    #[serde(default)]
    is_stop_notified: bool,
    /// Whether the job was continued since then.
    #[serde(default)]
    is_left_behind: bool,
}

#[derive(Debug, Default)]
pub struct Viewers(Vec<Shown>);

impl Viewers {
    pub fn state(&self) -> Vec<ViewerState> {
        let states = self.0.iter().map(|shown| {
            let Shown { viewer, modes, is_behind, lacks_main, stop_pending, rest } = shown;
            let Viewer { client, gate: _, size, is_owner } = viewer;
            let requests = client.requests();
            ViewerState {
                client: client.id,
                size: *size,
                is_owner: *is_owner,
                modes: modes.clone(),
                is_behind: *is_behind,
                lacks_main: *lacks_main,
                stop_pending: *stop_pending,
                is_stop_notified: *rest == Rest::Notified(requests),
                is_left_behind: *rest == Rest::LeftBehind(requests),
            }
        });
        states.collect()
    }

    /// Adds a viewer with its state from another program.
    pub fn add_restored(&mut self, viewer: Viewer, state: ViewerState) {
        let ViewerState {
            client: _,
            size: _,
            is_owner: _,
            modes,
            is_behind,
            lacks_main,
            stop_pending,
            is_stop_notified,
            is_left_behind,
        } = state;
        let requests = viewer.client.requests();
        let rest = match (is_stop_notified, is_left_behind) {
            (_, true) => Rest::LeftBehind(requests),
            (true, false) => Rest::Notified(requests),
            (false, false) => Rest::No,
        };
        self.0.push(Shown { viewer, modes, is_behind, lacks_main, stop_pending, rest });
    }

    /// Adds a viewer, replacing one of the same client. It receives nothing before it was drawn the screen, unless it
    /// is present `from_the_first` byte.
    pub fn add(&mut self, viewer: Viewer, from_the_first: bool) {
        let before = self.0.iter().position(|shown| shown.viewer.client.id == viewer.client.id);
        let modes = before.map(|place| self.0.remove(place).modes).unwrap_or_default();
        let is_behind = !from_the_first;
        let (lacks_main, stop_pending, rest) = (false, false, Rest::No);
        self.0.push(Shown { viewer, modes, is_behind, lacks_main, stop_pending, rest });
    }

    /// Has the screen drawn again for a current viewer.
    pub fn draw_again(&mut self, client: u64) {
        if let Some(shown) = self.get(client) {
            shown.is_behind = true;
        }
    }

    pub fn remove(&mut self, client: u64) {
        self.0.retain(|shown| shown.viewer.client.id != client);
    }

    /// Notes the size of a viewer's own terminal.
    pub fn resize(&mut self, client: u64, size: TerminalSize) {
        if let Some(shown) = self.get(client) {
            shown.viewer.size = Some(size);
        }
    }

    fn get(&mut self, client: u64) -> Option<&mut Shown> {
        self.0.iter_mut().find(|shown| shown.viewer.client.id == client)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the size that all viewers see completely: the fewest rows and the fewest columns that any of them sent.
    pub fn size(&self) -> Option<TerminalSize> {
        let sizes = self.0.iter().filter_map(|shown| shown.viewer.size);
        sizes.reduce(|one, other| TerminalSize {
            rows: one.rows.min(other.rows),
            cols: one.cols.min(other.cols),
        })
    }

    /// Reports whether an owner reads too slowly to be sent more.
    pub fn hold_back(&self) -> bool {
        self.0.iter().any(|shown| shown.gets_all() && shown.viewer.client.is_slow())
    }

    /// Sends a line to every viewer that is not behind. `line` creates it; its argument states whether the viewers'
    /// terminals are in other modes than these. A viewer that reads too slowly falls behind, unless it gets all.
    ///
    /// `is_main_blank`: the main screen that a viewer lacks is blank, so its terminal may show its previous content.
    pub fn tell(&mut self, modes: &Modes, is_main_blank: bool, line: impl Fn(bool) -> Vec<u8>) {
        let mut lines = [None, None];
        for shown in self.0.iter_mut().filter(|shown| !shown.is_behind) {
            if !shown.gets_all() && shown.viewer.client.is_slow() {
                shown.is_behind = true;
                continue;
            }
            let has_changed = shown.modes != *modes;
            let line = lines[usize::from(has_changed)].get_or_insert_with(|| line(has_changed));
            shown.viewer.gate.tell(&shown.viewer.client, line);
            if has_changed {
                shown.modes.clone_from(modes);
            }
            if shown.lacks_main && !modes.is_alternate() {
                (shown.lacks_main, shown.is_behind) = (false, !is_main_blank);
            }
        }
    }

    /// Notes that the job has stopped, of which every viewer is notified once; or that it continues, so that no viewer
    /// needs to be notified any more.
    pub fn note_stop(&mut self, has_stopped: bool) {
        for shown in &mut self.0 {
            shown.stop_pending = has_stopped;
            if !has_stopped {
                shown.note_continued();
            }
        }
    }

    /// Reports whether a viewer can be notified now that the job has stopped. None can while an owner holds the
    /// terminal back, as earlier output has not been sent yet.
    pub fn is_stop_due(&self) -> bool {
        !self.hold_back() && self.0.iter().any(Shown::can_notify_stop)
    }

    /// Notifies every viewer that has room, and was not notified yet, that the job has stopped. The others are notified
    /// when they have room.
    pub fn notify_stop(&mut self, line: &[u8]) {
        for shown in self.0.iter_mut().filter(|shown| shown.can_notify_stop()) {
            shown.viewer.gate.tell(&shown.viewer.client, line);
            (shown.stop_pending, shown.rest) = (false, Rest::Notified(shown.viewer.client.requests()));
        }
    }

    /// Reports whether a viewer waits to be drawn the screen, and can be.
    pub fn is_any_due(&self) -> bool {
        self.0.iter().any(Shown::is_due)
    }

    /// Reports whether a viewer lacks the screen.
    pub fn is_any_behind(&self) -> bool {
        self.0.iter().any(|shown| shown.is_behind)
    }

    /// Draws the screen for every viewer that is behind: `line` draws it for a terminal in these modes with this many
    /// rows, if known. Unless it `is_last`, a viewer must have read everything sent before.
    pub fn catch_up(
        &mut self,
        modes: &Modes,
        is_last: bool,
        mut line: impl FnMut(&Modes, Option<u16>) -> Vec<u8>,
    ) {
        for shown in self.0.iter_mut().filter(|shown| shown.is_due() || (is_last && shown.is_behind)) {
            let line = line(&shown.modes, shown.viewer.size.map(|size| size.rows));
            shown.viewer.gate.tell(&shown.viewer.client, &line);
            shown.modes.clone_from(modes);
            (shown.is_behind, shown.lacks_main) = (false, modes.is_alternate());
        }
    }

    /// Returns the clients that read too slowly to be sent more.
    fn slow(&self) -> impl Iterator<Item = u64> {
        let clients = self.0.iter().map(|shown| &shown.viewer.client);
        clients.filter(|client| client.is_slow()).map(|client| client.id)
    }

    /// Waits until an owner can be sent more if one has held the terminal back, a viewer that fell behind has read
    /// everything, or a viewer can be notified that the job has stopped.
    pub async fn have_room(&self, has_held_back: bool) {
        // Asked once: viewers read meanwhile, and one that is no longer slow would be waited for in vain.
        let slow: Vec<u64> = self.slow().collect();
        let is_slow = |shown: &Shown| slow.contains(&shown.viewer.client.id);
        let holds_back = self.0.iter().any(|shown| shown.gets_all() && is_slow(shown));
        let can_notify = |shown: &Shown| shown.stop_pending && !shown.is_behind && !is_slow(shown);
        if !holds_back && (has_held_back || self.0.iter().any(can_notify)) {
            return;
        }
        let lacks_room = |shown: &Shown| is_slow(shown) && (shown.gets_all() || shown.stop_pending);
        let waits = self.0.iter().filter(|shown| shown.is_behind || lacks_room(shown));
        let mut waits = waits
            .map(|shown| {
                let to_the_end = shown.is_behind && !shown.gets_all();
                Box::pin(shown.viewer.client.wait_until_read(to_the_end))
            })
            .peekable();
        if waits.peek().is_none() {
            return std::future::pending().await;
        }
        select_all(waits).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::client::ClientLimits;

    fn viewer(id: u64) -> (Viewer, Arc<Client>) {
        let client = Arc::new(Client::new(id, ClientLimits { requests: 1, write_queue_bytes: 1000 }));
        let viewer = Viewer { client: Arc::clone(&client), gate: Gate::open(), size: None, is_owner: true };
        (viewer, client)
    }

    /// Reads everything that is queued.
    async fn read(client: &Client) -> Vec<u8> {
        let bytes = client.next_bytes(|| true).await.unwrap_or_default();
        let _ = client.wrote();
        bytes
    }

    #[tokio::test]
    async fn r61_terminal_is_read_again_if_its_owner_reads_just_before_it_is_waited_for() {
        let mut viewers = Viewers::default();
        let (owner, client) = viewer(1);
        viewers.add(owner, true);
        client.tell(&[b'x'; 600]);
        let has_held_back = viewers.hold_back();
        assert!(has_held_back && viewers.have_room(true).now_or_never().is_none());
        assert_eq!(read(&client).await.len(), 600);
        assert!(viewers.have_room(has_held_back).now_or_never().is_some());
        assert!(viewers.have_room(false).now_or_never().is_none(), "there is nothing to wait for");
    }

    #[tokio::test]
    async fn slow_viewer_gets_one_stop_notification() {
        let mut viewers = Viewers::default();
        let ((owner, slow), (other, quick)) = (viewer(1), viewer(2));
        viewers.add(owner, true);
        viewers.add(other, true);
        slow.tell(&[b'x'; 600]);
        for _ in 0..100 {
            viewers.note_stop(true);
            assert!(!viewers.is_stop_due(), "the owner holds the terminal back");
            viewers.note_stop(false);
        }
        viewers.note_stop(true);
        assert_eq!(read(&slow).await.len(), 600);
        assert!(viewers.is_stop_due());
        viewers.notify_stop(b"stopped");
        viewers.notify_stop(b"stopped");
        assert!(!viewers.is_stop_due());
        assert_eq!(read(&slow).await, b"stopped");
        assert_eq!(read(&quick).await, b"stopped");
    }

    #[tokio::test]
    async fn owner_is_drawn_the_screen_before_it_misses_anything() {
        let mut viewers = Viewers::default();
        let (owner, client) = viewer(1);
        viewers.add(owner, true);
        client.tell(&[b'x'; 400]);
        viewers.draw_again(1);
        assert!(viewers.is_any_due(), "it has not read everything, but has room");
        client.tell(&[b'x'; 200]);
        assert!(!viewers.is_any_due() && viewers.hold_back());
        assert_eq!(read(&client).await.len(), 600);
        assert!(viewers.have_room(true).now_or_never().is_some() && viewers.is_any_due());
    }

    #[tokio::test]
    async fn owner_that_stopped_with_its_job_is_waited_for_until_others_continue_the_job() {
        let mut viewers = Viewers::default();
        let (owner, client) = viewer(1);
        viewers.add(owner, true);
        viewers.note_stop(true);
        viewers.notify_stop(b"stopped");
        client.tell(&[b'x'; 600]);
        assert!(viewers.hold_back());
        viewers.note_stop(false);
        assert!(!viewers.hold_back(), "somebody else has continued the job");
        assert!(client.begin_request(0));
        assert!(viewers.hold_back(), "it is back");
    }
}
