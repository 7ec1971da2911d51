//! The daemon's side of the keeper: starts it, finds the keeper of a previous daemon, and sends orders to hold and to
//! close descriptors. If the keeper has no room for an order, a thread sends it, so that a stopped keeper blocks no
//! caller.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::fds;
use bgd_shared::proc::ProcessStat;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socketpair};

pub use super::reach::{NotFound, dismiss};
use super::reach::{Reached, new_socket, set_timeouts, with_address};
use super::{ARGUMENT, BACKLOG, Kept, Key, Message, MessageKind, PATIENCE, SOCKET};
use crate::os::files::remove_if_there;
use crate::os::pidfd::{PidFd, wait_for_all};
use crate::os::spawn::{ChildStack, JobControl, Plan, spawn};
use crate::os::watch;

/// The delay before another attempt to start a keeper, and the maximum wait for all orders to be sent.
const AGAIN: Duration = Duration::from_secs(1);

/// The name of a new keeper's socket until it is moved into place.
const NEW_SOCKET: &str = "keeper.new";

#[derive(Debug)]
pub struct Keeper {
    link: Arc<Link>,
    orders: mpsc::Sender<Order>,
    /// How many orders are still to be sent.
    unsent: Arc<AtomicUsize>,
}

/// The socket to a keeper's process, and its PID.
#[derive(Debug)]
pub struct Socket {
    pub socket: OwnedFd,
    pub pid: i32,
    /// The keeper's process, if it is a child of this process, which must therefore reap it.
    pub child: Option<PidFd>,
}

impl Socket {
    /// The socket to the keeper that the program before this one had. That program's children are this one's.
    pub fn restore(socket: OwnedFd, pid: i32) -> Self {
        let parent = || ProcessStat::of(pid)?.field::<u32>(4);
        let child = if parent() == Some(std::process::id()) { PidFd::open(pid).ok() } else { None };
        Self { socket, pid, child }
    }

    /// Reports whether the keeper is gone. It sends nothing, so only its end makes the socket readable.
    pub fn is_gone(&self) -> bool {
        let socket = PollFd::new(self.socket.as_fd(), PollFlags::POLLIN);
        poll(&mut [socket], PollTimeout::ZERO) == Ok(1)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The socket to the current keeper.
#[derive(Debug)]
struct Link {
    socket: Mutex<Arc<Socket>>,
    is_new: Condvar,
    /// The last number of the reported events that may not be written down; 0 for none.
    told: AtomicU64,
}

impl Link {
    fn new(socket: Socket, told: u64) -> Self {
        Self { socket: Mutex::new(Arc::new(socket)), is_new: Condvar::new(), told: AtomicU64::new(told) }
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
    pub told: u64,
}

enum Order {
    Send {
        message: Vec<u8>,
        descriptors: Vec<OwnedFd>,
    },
    /// Start another keeper in place of the one that is gone, then call this.
    Renew(Tell),
    /// Move every further keeper with this function.
    PlaceNext(Placing),
    /// Report that everything before this was sent.
    Settle(mpsc::Sender<()>),
}

/// Moves the process with this PID to the place for keepers.
type Placing = Box<dyn Fn(i32) -> io::Result<()> + Send>;

/// Called when there is another keeper.
type Tell = Box<dyn FnOnce() + Send>;

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
        let nothing = || Ok((None, Found { runs: Vec::new(), is_complete: true, told: 0 }));
        let Some(reached) = Reached::connect(folder)? else { return nothing() };
        let (mut runs, pid) = match reached.receive_all() {
            // The keeper was just ending, as it held nothing.
            Err(_) if !folder.join(SOCKET).exists() => return nothing(),
            received => received?,
        };
        let number = |kept: &Kept| kept.text.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let told = runs.iter().filter(|kept| kept.key == Key::OF_EVENTS).map(number).max().unwrap_or(0);
        runs.retain(|kept| kept.key != Key::OF_EVENTS);
        let of_all = runs.len();
        runs.retain(|kept| !kept.descriptors.is_empty());
        let is_complete = runs.len() == of_all;
        let link = Link::new(Socket { socket: reached.into_socket(), pid, child: None }, told);
        let folder = folder.to_path_buf();
        let keeper = Self::with(move || Ok((folder, link))).map_err(NotFound::Silent)?;
        Ok((Some(keeper), Found { runs, is_complete, told }))
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
        let (tell, told) = mpsc::channel();
        let unsent = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&unsent);
        let run = move || {
            // Required for starting a process; besides, no signal is meant for this thread.
            let blocked = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None);
            let begun = blocked.map_err(io::Error::from).and_then(|()| connect());
            let (folder, link) = match begun {
                Ok((folder, link)) => (folder, Arc::new(link)),
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            let _ = tell.send(Ok(Arc::clone(&link)));
            Sender { folder, link, unsent: counter, wanted: None, before: None, place: None }.run(&ordered);
        };
        thread::Builder::new().name("keeper".to_owned()).spawn(run)?;
        let link = told.recv().map_err(io::Error::other)??;
        Ok(Self { link, orders, unsent })
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
    pub fn keep(&self, key: Key, pid: i32, text: &[u8], descriptors: Vec<OwnedFd>) {
        self.send(&Message { word: MessageKind::Keep, key, pid, text }, descriptors);
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

    /// Starts another keeper and calls `tell` once it is there, on another thread. The new keeper holds nothing and
    /// counts as incomplete until [`Self::complete`].
    pub fn renew(&self, tell: impl FnOnce() + Send + 'static) {
        self.order(Order::Renew(Box::new(tell)));
    }

    /// Has `place` move every keeper that replaces another one, on a separate thread, before the keeper is used. A
    /// keeper that can't be moved is ended, and another attempt follows.
    pub fn place_next(&self, place: impl Fn(i32) -> io::Result<()> + Send + 'static) {
        // Can't fail: the thread ends only once the sender is dropped.
        let _ = self.orders.send(Order::PlaceNext(Box::new(place)));
    }

    /// Notes that events up to this number were reported but are not written down; 0 for none.
    pub fn note_told(&self, seq: u64) {
        if seq == 0 {
            return;
        }
        self.link.told.fetch_max(seq, Ordering::AcqRel);
        self.send(&Message::of_events(&seq.to_le_bytes()), Vec::new());
    }

    /// Notes that all reported events are written down.
    pub fn forget_told(&self) {
        if self.link.told.swap(0, Ordering::AcqRel) > 0 {
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
        let (tell, told) = mpsc::channel();
        let _ = self.orders.send(Order::Settle(tell));
        let _ = told.recv_timeout(AGAIN);
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
            self.order(Order::Send { message, descriptors });
        }
    }

    fn send_now(&self, message: &[u8], descriptors: &[OwnedFd]) -> bool {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        fds::send_now(&*self.socket(), message, &descriptors).is_ok()
    }

    fn order(&self, order: Order) {
        self.unsent.fetch_add(1, Ordering::AcqRel);
        // Can't fail: the thread ends only once the sender is dropped.
        let _ = self.orders.send(order);
    }
}

struct Sender {
    folder: PathBuf,
    link: Arc<Link>,
    unsent: Arc<AtomicUsize>,
    /// The notification for another keeper, and when to try to start that one.
    wanted: Option<(Tell, Instant)>,
    /// The keeper to be replaced, if it lives: it has left this process for lack of descriptors.
    before: Option<Reached>,
    /// Moves another keeper to its place.
    place: Option<Placing>,
}

impl Sender {
    fn run(mut self, ordered: &mpsc::Receiver<Order>) {
        loop {
            let next = match &self.wanted {
                None => ordered.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
                Some((_, at)) if *at <= Instant::now() => Err(mpsc::RecvTimeoutError::Timeout),
                Some((_, at)) => ordered.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(Order::Send { message, descriptors }) => self.send(&message, &descriptors),
                Ok(Order::Renew(tell)) => {
                    self.wanted = Some((tell, Instant::now()));
                    self.before = self.living();
                    self.renew();
                }
                Ok(Order::PlaceNext(place)) => self.place = Some(place),
                Ok(Order::Settle(tell)) => _ = tell.send(()),
                Err(mpsc::RecvTimeoutError::Timeout) => self.renew(),
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn send(&self, message: &[u8], descriptors: &[OwnedFd]) {
        let socket = Arc::clone(&self.link.lock());
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        if let Err(error) = fds::send(&*socket, message, &descriptors) {
            tracing::warn!(%error, "the keeper of running tasks did not accept an order");
        }
        self.unsent.fetch_sub(1, Ordering::AcqRel);
    }

    /// Connects to the keeper that has left this process. Later, its socket is out of reach.
    fn living(&self) -> Option<Reached> {
        let own = self.link.lock().pid;
        Reached::connect(&self.folder).ok().flatten().filter(|reached| reached.pid() == Some(own))
    }

    /// Starts another keeper. If that fails, tries again later, as no event reports when it would succeed.
    fn renew(&mut self) {
        let Some((tell, _)) = self.wanted.take() else { return };
        let started = start(&self.folder, &self.notes()).and_then(|socket| match self.place(&socket) {
            Ok(()) => Ok(socket),
            Err(error) => {
                // This keeper holds nothing, so it ends without a daemon.
                let Socket { socket, pid: _, child } = socket;
                drop(socket);
                bury(child.as_ref());
                Err(error)
            }
        });
        match started {
            Ok(socket) => {
                let gone = std::mem::replace(&mut *self.link.lock(), Arc::new(socket));
                self.link.is_new.notify_all();
                // It would hold open what this daemon closes, such as the standard input of a task.
                if let Some(before) = self.before.take() {
                    before.end();
                }
                bury(gone.child.as_ref());
                drop(gone);
                self.unsent.fetch_sub(1, Ordering::AcqRel);
                tell();
            }
            Err(error) => {
                tracing::error!(%error, "no keeper: killing the daemon ends its tasks");
                self.wanted = Some((tell, Instant::now() + AGAIN));
            }
        }
    }

    /// Moves a keeper that replaces another one to its place.
    fn place(&self, socket: &Socket) -> io::Result<()> {
        self.place.as_ref().map_or(Ok(()), |place| place(socket.pid))
    }

    /// Returns the first messages to a keeper that replaces another one: it lacks the processes announced to that.
    fn notes(&self) -> Vec<Vec<u8>> {
        let told = self.link.told.load(Ordering::Acquire);
        let told = (told > 0).then(|| Message::of_events(&told.to_le_bytes()).encode());
        [Message::bare(MessageKind::Keep).encode()].into_iter().chain(told).collect()
    }
}

/// Waits for the end of a keeper that is a child of this process, and reaps it.
fn bury(child: Option<&PidFd>) {
    if let Some(child) = child {
        wait_for_all([child], Instant::now() + PATIENCE);
        child.reap();
    }
}

/// Starts a keeper's process. It receives the messages in `first` even if this process dies. All signals must be
/// blocked in this thread.
fn start(folder: &Path, first: &[Vec<u8>]) -> io::Result<Socket> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    set_timeouts(&ours)?;
    for message in first {
        fds::send(&ours, message, &[])?;
    }
    let (listener, number) = listener_in(folder)?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    let text = |text: &[u8]| CString::new(text).map_err(io::Error::other);
    // Shows the keeper's owner in process lists.
    let whose =
        std::env::var_os("HOME").map(|home| text(&[b"HOME=", home.as_bytes()].concat())).transpose()?;
    let plan = Plan {
        // The file that this daemon was started from, even if another file has taken its name since.
        programs: &[text(b"/proc/self/exe")?],
        argv: &[
            text(b"bgd")?,
            text(ARGUMENT.as_bytes())?,
            text(folder.as_os_str().as_bytes())?,
            text(number.to_string().as_bytes())?,
        ],
        env: whose.as_slice(),
        folder: c"/",
        umask: 0o077,
        rlimits: &[],
        reset_signals: &[libc::SIGTERM],
        stdio: [theirs.as_fd(), listener.as_fd(), null.as_fd()],
        cgroup: None,
        control: JobControl::Session,
        announce: None,
    };
    let spawned = spawn(&plan, &mut ChildStack::default()).map_err(|error| io::Error::from(error.errno))?;
    tracing::debug!(pid = spawned.pid, "started the keeper");
    Ok(Socket { socket: ours, pid: spawned.pid, child: Some(spawned.pidfd) })
}

/// Creates the socket that the next daemon will connect to, replacing that of a keeper that was ended. It is moved into
/// place in one step: a folder without a socket means that the keeper held nothing, so if this process were killed in
/// between, the next daemon would restart what has just been started. Also returns the inode number of the socket.
fn listener_in(folder: &Path) -> io::Result<(OwnedFd, u64)> {
    let (listener, new) = (new_socket()?, folder.join(NEW_SOCKET));
    remove_if_there(&new)?;
    with_address(folder, NEW_SOCKET, |address| bind(&listener, address))?;
    listen(&listener, BACKLOG)?;
    let number = std::fs::metadata(&new)?.ino();
    std::fs::rename(new, folder.join(SOCKET))?;
    Ok((listener, number))
}

/// Waits until the keeper at this socket is gone.
///
/// # Errors
/// The runtime can't watch the socket.
pub async fn until_gone(socket: Arc<Socket>) -> io::Result<()> {
    watch::readable(socket.socket.try_clone()?)?.readable().await?.retain_ready();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A keeper does not end by itself while it holds a note: the first write of a daemon may fail.
    #[test]
    fn r126_event_note_is_withdrawn_whatever_its_value() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let keeper = Keeper::restore(Path::new("/"), Socket { socket: ours, pid: 0, child: None }).unwrap();
        for told in 0..3 {
            keeper.note_told(told);
            keeper.forget_told();
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

    /// A folder without a socket means that the keeper held nothing, whenever the daemon is killed.
    #[test]
    fn r126_keeper_socket_is_replaced_without_a_gap() {
        let folder = tempfile::tempdir().unwrap();
        // As left by a daemon that was killed in between.
        std::fs::write(folder.path().join(NEW_SOCKET), "").unwrap();
        drop(listener_in(folder.path()).unwrap());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let looks = scope.spawn(|| {
                for look in 0_u32.. {
                    let is_last = is_over.load(Ordering::Relaxed);
                    let reached = Reached::connect(folder.path());
                    assert!(!matches!(reached, Ok(None)), "no socket is there at look {look}");
                    if is_last {
                        return;
                    }
                }
            });
            (0..2000).for_each(|_| drop(listener_in(folder.path()).unwrap()));
            is_over.store(true, Ordering::Relaxed);
            looks.join().unwrap();
        });
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), [SOCKET]);
    }
}
