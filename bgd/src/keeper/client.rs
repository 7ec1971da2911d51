//! The daemon's side of the keeper: starts it, finds the keeper of a previous daemon, and sends orders to hold and to
//! close descriptors. If the keeper has no room for an order, a thread sends it, so that a stopped keeper blocks no
//! caller.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::fds;
use bgd_shared::limits::FDS_PER_FRAME;
use bgd_shared::time::Timestamp;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

use super::reach::Reached;
pub use super::reach::{NotFound, dismiss};
use super::socket::Socket;
use super::start::{reap, start};
use super::{Kept, Key, MESSAGE_BYTES, Message, MessageKind, PATIENCE, SOCKET, is_crowded, is_passing};

/// The delay before another attempt to start a keeper, also if one left sooner than this after it was started, and the
/// maximum wait for all orders to be sent.
const AGAIN: Duration = Duration::from_secs(1);

/// The delay before another attempt to send descriptors while too many are in flight.
const CROWDED: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Keeper {
    link: Arc<Link>,
    orders: mpsc::Sender<Order>,
    /// How many orders are still to be sent.
    unsent: Arc<AtomicUsize>,
}

/// The socket to the current keeper.
#[derive(Debug)]
struct Link {
    socket: Mutex<Arc<Socket>>,
    is_new: Condvar,
    /// The last number of the reported events that may not be written down; 0 for none.
    sent_seq: AtomicU64,
}

impl Link {
    fn new(socket: Socket, sent_seq: u64) -> Self {
        Self {
            socket: Mutex::new(Arc::new(socket)),
            is_new: Condvar::new(),
            sent_seq: AtomicU64::new(sent_seq),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Socket>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The content of a keeper.
#[derive(Debug)]
pub struct Found {
    pub runs: Vec<Kept>,
    /// Whether `runs` includes every started process whose end was not written down: the keeper has not replaced
    /// another one.
    pub is_complete: bool,
    /// The last number of the reported events that may not be written down; 0 for none.
    pub sent_seq: u64,
}

enum Order {
    Send {
        message: Vec<u8>,
        descriptors: Vec<OwnedFd>,
        unsent: Unsent,
    },
    /// Start another keeper in place of the one that is gone, then call this.
    Renew(RenewedCallback, Unsent),
    /// Move every further keeper with this function.
    PlaceNext(Placing),
    /// Report that everything before this was sent.
    Settle(mpsc::Sender<()>),
}

/// Counts an order as not sent yet until it is dropped, even by a panic.
struct Unsent(Arc<AtomicUsize>);

impl Unsent {
    fn new(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(counter))
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Moves the process with this PID to the place for keepers.
type Placing = Box<dyn Fn(i32) -> io::Result<()> + Send>;

/// Called when there is another keeper.
type RenewedCallback = Box<dyn FnOnce() + Send>;

impl Keeper {
    /// Starts a keeper for the instance with this folder. If it `is_doubtful`, it counts as incomplete until
    /// [`Self::complete`].
    ///
    /// # Errors
    /// The keeper's socket can't be created, or its process can't be started.
    pub fn start(folder: &Path, is_doubtful: bool) -> io::Result<Self> {
        let folder = folder.to_path_buf();
        Self::with(move || {
            let doubt = Message::bare(MessageKind::Keep).encode();
            let first: &[Vec<u8>] = if is_doubtful { &[doubt] } else { &[] };
            start(&folder, first).map(|socket| (folder, Link::new(socket, 0)))
        })
    }

    /// Finds the keeper of the daemon that had this folder before, with everything that it holds.
    ///
    /// # Errors
    /// The keeper is gone although it did not end by itself, or it may be alive but does not send what it holds.
    pub fn find(folder: &Path) -> Result<(Option<Self>, Found), NotFound> {
        let nothing = || Ok((None, Found { runs: Vec::new(), is_complete: true, sent_seq: 0 }));
        let Some(reached) = Reached::connect(folder)? else { return nothing() };
        let (mut runs, pid) = match reached.receive_all() {
            // The keeper was just ending, as it held nothing.
            Err(_) if !folder.join(SOCKET).exists() => return nothing(),
            received => received?,
        };
        let number = |kept: &Kept| kept.text.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let sent_seq = runs.iter().filter(|kept| kept.key == Key::OF_EVENTS).map(number).max().unwrap_or(0);
        let time = |kept: &Kept| Some(Timestamp::from_unix_ms(i64::from_le_bytes(*kept.text.first_chunk()?)));
        let ended = |kept: &Kept| Some((kept.key.ended_run()?, time(kept)?));
        let ends: HashMap<Key, Timestamp> = runs.iter().filter_map(ended).collect();
        runs.retain(|kept| kept.key != Key::OF_EVENTS && kept.key.ended_run().is_none());
        for kept in &mut runs {
            kept.ended_at = ends.get(&kept.key).copied();
        }
        let of_all = runs.len();
        runs.retain(|kept| !kept.descriptors.is_empty());
        let is_complete = runs.len() == of_all;
        let link = Link::new(Socket { socket: reached.into_socket(), pid, child: None }, sent_seq);
        let folder = folder.to_path_buf();
        let keeper = Self::with(move || Ok((folder, link))).map_err(NotFound::Silent)?;
        Ok((Some(keeper), Found { runs, is_complete, sent_seq }))
    }

    /// Takes over the keeper of the program before this one, which had written everything down.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn restore(folder: &Path, socket: Socket) -> io::Result<Self> {
        let folder = folder.to_path_buf();
        Self::with(move || Ok((folder, Link::new(socket, 0))))
    }

    /// Starts the thread, which becomes the parent of the keepers that it starts.
    fn with(connect: impl FnOnce() -> io::Result<(PathBuf, Link)> + Send + 'static) -> io::Result<Self> {
        let (orders, ordered) = mpsc::channel();
        let (done, result) = mpsc::channel();
        let run = move || {
            // Required for starting a process; besides, no signal is meant for this thread.
            let blocked = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None);
            let begun = blocked.map_err(io::Error::from).and_then(|()| connect());
            let (folder, link) = match begun {
                Ok((folder, link)) => (folder, Arc::new(link)),
                Err(error) => {
                    let _ = done.send(Err(error));
                    return;
                }
            };
            let _ = done.send(Ok(Arc::clone(&link)));
            let mut sender = Sender { folder, link, wanted: None, before: None, renewed: None, place: None };
            // A panic ends one order. Without the thread, all later ones would be lost, and nothing would show it.
            while catch_unwind(AssertUnwindSafe(|| sender.run(&ordered))).is_err() {
                tracing::error!("an order to the keeper of running tasks panicked");
            }
        };
        thread::Builder::new().name("keeper".to_owned()).spawn(run)?;
        let link = result.recv().map_err(io::Error::other)??;
        Ok(Self { link, orders, unsent: Arc::default() })
    }

    /// Returns the socket to the keeper, for processes that announce themselves.
    pub fn socket(&self) -> Arc<Socket> {
        Arc::clone(&self.link.lock())
    }

    /// Waits for the keeper that follows the one of this socket. `None` if there is none within [`PATIENCE`].
    pub fn after(&self, gone: &Arc<Socket>) -> Option<Arc<Socket>> {
        let is_same = |now: &mut Arc<Socket>| Arc::ptr_eq(now, gone);
        let waited = self.link.is_new.wait_timeout_while(self.link.lock(), PATIENCE, is_same);
        let (now, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        (!waited.timed_out()).then(|| Arc::clone(&now))
    }

    /// Makes the keeper hold these descriptors, replacing those held for the same run. The pidfd comes first.
    ///
    /// # Errors
    /// They do not fit into a message, or the text does not: no keeper can hold them.
    pub fn keep(&self, key: Key, pid: i32, text: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<()> {
        if descriptors.len() > FDS_PER_FRAME || text.len() > MESSAGE_BYTES {
            let (count, bytes) = (descriptors.len(), text.len());
            let why = format!("the keeper can't hold {count} descriptors and {bytes} bytes for one process");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.send(&Message { word: MessageKind::Keep, key, pid, text }, descriptors);
        Ok(())
    }

    /// Makes the keeper close the descriptors of a run. Call it once the run's end is written down.
    pub fn close(&self, key: Key) {
        self.send(&Message { word: MessageKind::Drop, key, pid: 0, text: &[] }, Vec::new());
    }

    /// Makes the keeper close the descriptor of a run that was sent at this position. Position 0 is the pidfd, which
    /// stays open.
    pub fn close_part(&self, key: Key, place: u8) {
        self.send(&Message { word: MessageKind::Part, key, pid: 0, text: &[place] }, Vec::new());
    }

    /// Starts another keeper and calls `callback` once it is there, on another thread. The new keeper holds nothing and
    /// counts as incomplete until [`Self::complete`].
    pub fn renew(&self, callback: impl FnOnce() + Send + 'static) {
        self.order(Order::Renew(Box::new(callback), Unsent::new(&self.unsent)));
    }

    /// Has `place` move every keeper that replaces another one, on a separate thread, before the keeper is used. A
    /// keeper that can't be moved is ended, and another attempt follows.
    pub fn place_next(&self, place: impl Fn(i32) -> io::Result<()> + Send + 'static) {
        self.order(Order::PlaceNext(Box::new(place)));
    }

    /// Notes that events up to this number were reported but are not written down; 0 for none.
    pub fn note_sent(&self, seq: u64) {
        if seq == 0 {
            return;
        }
        self.link.sent_seq.fetch_max(seq, Ordering::AcqRel);
        self.send(&Message::of_events(&seq.to_le_bytes()), Vec::new());
    }

    /// Notes that all reported events are written down.
    pub fn forget_sent(&self) {
        if self.link.sent_seq.swap(0, Ordering::AcqRel) > 0 {
            self.close(Key::OF_EVENTS);
        }
    }

    /// Notes that this keeper may be incomplete, until [`Self::complete`].
    pub fn doubt(&self) {
        self.send(&Message::bare(MessageKind::Keep), Vec::new());
    }

    /// Notes that a keeper that replaced another one, or was in doubt, now holds all running processes.
    pub fn complete(&self) {
        self.send(&Message::bare(MessageKind::Drop), Vec::new());
    }

    /// Waits until everything is sent, for a second at most.
    pub fn settle(&self) {
        let (done, settled) = mpsc::channel();
        self.order(Order::Settle(done));
        let _ = settled.recv_timeout(AGAIN);
    }

    /// Reports whether everything was sent.
    pub fn is_idle(&self) -> bool {
        self.unsent.load(Ordering::Acquire) == 0
    }

    /// Sends a message at once, so that the keeper gets it even if this process dies. If there is no room now, the
    /// thread sends it.
    fn send(&self, message: &Message<'_>, descriptors: Vec<OwnedFd>) {
        let message = message.encode();
        if !self.is_idle() || !self.send_now(&message, &descriptors) {
            self.order(Order::Send { message, descriptors, unsent: Unsent::new(&self.unsent) });
        }
    }

    fn send_now(&self, message: &[u8], descriptors: &[OwnedFd]) -> bool {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        fds::send_now(&*self.socket(), message, &descriptors).is_ok()
    }

    fn order(&self, order: Order) {
        // Can't fail: the thread ends only once the sender is dropped, even if an order panics.
        let _ = self.orders.send(order);
    }
}

struct Sender {
    folder: PathBuf,
    link: Arc<Link>,
    /// The other keeper to be started, if any.
    wanted: Option<Wanted>,
    /// The keeper to be replaced, if it lives: it has left this process for lack of descriptors.
    before: Option<Reached>,
    /// When the current keeper has replaced another one, if it has.
    renewed: Option<Instant>,
    /// Moves another keeper to its place.
    place: Option<Placing>,
}

/// Another keeper that is to be started.
struct Wanted {
    callback: RenewedCallback,
    /// When to try.
    at: Instant,
    unsent: Unsent,
}

impl Sender {
    fn run(&mut self, ordered: &mpsc::Receiver<Order>) {
        loop {
            let next = match &self.wanted {
                None => ordered.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
                Some(Wanted { at, .. }) if *at <= Instant::now() => Err(mpsc::RecvTimeoutError::Timeout),
                Some(Wanted { at, .. }) => ordered.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(Order::Send { message, descriptors, unsent: _unsent }) => {
                    self.send(&message, &descriptors);
                }
                Ok(Order::Renew(callback, unsent)) => {
                    let now = Instant::now();
                    let at = renewal_at(self.renewed, now);
                    self.wanted = Some(Wanted { callback, at, unsent });
                    self.before = self.living();
                    if at <= now {
                        self.renew();
                    } else {
                        tracing::warn!("the keeper of running tasks did not last: another one follows soon");
                    }
                }
                Ok(Order::PlaceNext(place)) => self.place = Some(place),
                Ok(Order::Settle(done)) => _ = done.send(()),
                Err(mpsc::RecvTimeoutError::Timeout) => self.renew(),
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Sends a message, as soon as there is room. If the keeper is gone, the next one receives everything anew.
    fn send(&self, message: &[u8], descriptors: &[OwnedFd]) {
        let socket = Arc::clone(&self.link.lock());
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut is_logged = false;
        loop {
            match fds::send(&*socket, message, &descriptors) {
                Err(error) if is_passing(&error) => {
                    socket.wake();
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::warn!(
                            pid = socket.pid,
                            "the keeper of running tasks is slow: waiting for it"
                        );
                    }
                }
                // No event reports when fewer descriptors are in flight.
                Err(error) if is_crowded(&error) => thread::sleep(CROWDED),
                Err(error) => {
                    tracing::warn!(%error, "the keeper of running tasks did not accept an order");
                    break;
                }
                Ok(_) => break,
            }
        }
    }

    /// Connects to the keeper that has left this process. Later, its socket is out of reach.
    fn living(&self) -> Option<Reached> {
        let own = self.link.lock().pid;
        Reached::connect(&self.folder).ok().flatten().filter(|reached| reached.pid() == Some(own))
    }

    /// Starts another keeper. If that fails, tries again later, as no event reports when it would succeed.
    fn renew(&mut self) {
        if self.wanted.is_none() {
            return;
        }
        // In case that this attempt panics.
        self.try_again_later();
        let started = start(&self.folder, &self.notes()).and_then(|socket| match self.place(&socket) {
            Ok(()) => Ok(socket),
            Err(error) => {
                // This keeper holds nothing, so it ends without a daemon.
                let Socket { socket, pid: _, child } = socket;
                drop(socket);
                reap(child.as_ref());
                Err(error)
            }
        });
        match started {
            Ok(socket) => {
                let gone = std::mem::replace(&mut *self.link.lock(), Arc::new(socket));
                self.renewed = Some(Instant::now());
                self.link.is_new.notify_all();
                // It may live, out of the next daemon's reach. It would hold open what this daemon closes, such as the
                // standard input of a task.
                let _ = fds::send_now(&*gone, &Message::bare(MessageKind::End).encode(), &[]);
                if let Some(before) = self.before.take() {
                    before.end();
                }
                reap(gone.child.as_ref());
                drop(gone);
                if let Some(Wanted { callback, at: _, unsent }) = self.wanted.take() {
                    drop(unsent);
                    callback();
                }
            }
            Err(error) => {
                tracing::error!(%error, "no keeper: killing the daemon ends its tasks");
                self.try_again_later();
            }
        }
    }

    fn try_again_later(&mut self) {
        if let Some(wanted) = &mut self.wanted {
            wanted.at = Instant::now() + AGAIN;
        }
    }

    /// Moves a keeper that replaces another one to its place.
    fn place(&self, socket: &Socket) -> io::Result<()> {
        self.place.as_ref().map_or(Ok(()), |place| place(socket.pid))
    }

    /// Returns the first messages to a keeper that replaces another one: it lacks the processes announced to that.
    fn notes(&self) -> Vec<Vec<u8>> {
        let sent_seq = self.link.sent_seq.load(Ordering::Acquire);
        let note = (sent_seq > 0).then(|| Message::of_events(&sent_seq.to_le_bytes()).encode());
        [Message::bare(MessageKind::Keep).encode()].into_iter().chain(note).collect()
    }
}

/// Returns when to replace a keeper that is gone, which had replaced another one at `renewed`. One that leaves at once
/// may do so because of what it is sent, like the next one: without a delay, that would go on at full speed.
fn renewal_at(renewed: Option<Instant>, now: Instant) -> Instant {
    let has_left_at_once = renewed.is_some_and(|at| now.saturating_duration_since(at) < AGAIN);
    if has_left_at_once { now + AGAIN } else { now }
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use nix::unistd::Pid;
    use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::os::pidfd::{PidFd, wait_for_all};

    /// A keeper does not end by itself while it holds a note: the first write of a daemon may fail.
    #[test]
    fn r126_event_note_is_withdrawn_whatever_its_value() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let keeper = Keeper::restore(Path::new("/"), Socket { socket: ours, pid: 0, child: None }).unwrap();
        for seq in 0..3 {
            keeper.note_sent(seq);
            keeper.forget_sent();
        }
        drop(keeper);
        let mut heard = Vec::new();
        let mut bytes = [0; 64];
        while let (count @ 1.., _) = fds::receive(&theirs, &mut bytes).unwrap() {
            let Message { word, key, .. } = Message::decode(&bytes[..count]).unwrap();
            assert_eq!(key, Key::OF_EVENTS);
            heard.push(word);
        }
        assert_eq!(
            heard,
            [MessageKind::Keep, MessageKind::Drop, MessageKind::Keep, MessageKind::Drop],
            "nothing of what was none"
        );
    }

    /// More notes than there is room for.
    const NOTES: u64 = 200;

    /// Returns a keeper that has hardly any room for orders, and the end that they arrive at.
    fn without_room() -> (Keeper, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        // The least that the system allows.
        set_socket_send_buffer_size(&ours, 0).unwrap();
        set_socket_timeout(&ours, Timeout::Send, Some(Duration::from_millis(1))).unwrap();
        let keeper = Keeper::restore(Path::new("/"), Socket { socket: ours, pid: 0, child: None }).unwrap();
        (keeper, theirs)
    }

    /// Returns how many orders have arrived by the end.
    fn heard(theirs: &OwnedFd) -> u64 {
        let all = std::iter::repeat_with(|| fds::receive(theirs, &mut [0; 64]).unwrap().0);
        all.take_while(|count| *count > 0).count() as u64
    }

    #[test]
    fn r126_keeper_that_leaves_at_once_is_replaced_after_a_delay() {
        let now = Instant::now();
        assert_eq!(renewal_at(None, now), now, "the first one");
        assert_eq!(renewal_at(Some(now), now + AGAIN), now + AGAIN, "it lasted");
        assert_eq!(renewal_at(Some(now), now), now + AGAIN);
    }

    /// A lost order to close a standard input would leave a task waiting for its end.
    #[test]
    fn r126_orders_to_a_stopped_keeper_reach_it_once_it_continues() {
        let (keeper, theirs) = without_room();
        (1..=NOTES).for_each(|seq| keeper.note_sent(seq));
        assert!(!keeper.is_idle(), "there is room for all");
        keeper.settle();
        drop(keeper);
        assert_eq!(heard(&theirs), NOTES);
    }

    /// Without the thread, later orders would be lost.
    #[test]
    fn r126_orders_after_one_that_panicked_reach_the_keeper() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("a test");
            }
        }
        let (keeper, theirs) = without_room();
        let panics = Panics;
        keeper.place_next(move |_| {
            let _ = &panics;
            Ok(())
        });
        // Drops the first function on the thread.
        keeper.place_next(|_| Ok(()));
        (1..=NOTES).for_each(|seq| keeper.note_sent(seq));
        drop(keeper);
        assert_eq!(heard(&theirs), NOTES);
    }

    /// An upgrade waits until all orders are sent.
    #[test]
    fn r126_stopped_keeper_without_room_is_continued() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        set_socket_send_buffer_size(&ours, 0).unwrap();
        set_socket_timeout(&ours, Timeout::Send, Some(Duration::from_millis(1))).unwrap();
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "kill -STOP $$; cat >/dev/null; exit 7"]).stdin(theirs);
        let mut process = command.spawn().unwrap();
        let pid = process.id().cast_signed();
        drop(command);
        waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WUNTRACED)).unwrap();
        let socket = Socket { socket: ours, pid, child: None };
        let keeper = Keeper::restore(Path::new("/"), socket).unwrap();
        (1..=200).for_each(|seq| keeper.note_sent(seq));
        drop(keeper);
        let handle = PidFd::open(pid).unwrap();
        wait_for_all([&handle], Instant::now() + Duration::from_mins(1));
        // Ends only a process that would wait forever.
        let _ = process.kill();
        assert_eq!(process.wait().unwrap().code(), Some(7));
    }
}
