//! Runs that outlive a killed daemon (R126): the state of each that goes to the keeper when it starts, and how the next
//! daemon restores it. The format is that of an upgrade in place.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::limits::FDS_PER_FRAME;
use bgd_shared::proc;
use bgd_shared::request::TerminalSize;
use bgd_shared::time::Timestamp;
use rustix::fs::{FileType, fstat};

use super::awaited::Awaited;
use super::carried::{FlowState, InheritedState, JobState, LeftState, ProcessState, TerminalState};
use super::handed::copies::FlowCopy;
use super::input::UnreadState;
use super::messages::Inherited;
use super::processes::mark::{self, Mark};
use super::processes::members::{self, Stat, TASK_MARK};
use super::ready::ProbeState;
use super::supervise::progress::Progress;
use super::terminal::still::{self, FollowedState};
use super::tree::Tree;
use crate::carry::{CarriedFds, Fd, ReceivedFds};
use crate::core::{SpawnFailure, Spec};
use crate::keeper::{self, Kept, Key};
use crate::os::pty::{Pty, size_of};
use crate::os::spawn::Spawned;

/// A run that the keeper holds.
#[derive(Debug)]
pub struct HeldRun {
    pub key: Key,
    pub(super) pid: i32,
    pub(super) process: ProcessState,
    pub(super) drains: Vec<FlowState>,
    pub(super) received: ReceivedFds,
    /// When its process ended, if there was no daemon then.
    pub(super) ended_at: Option<Timestamp>,
}

/// The maximum number of bytes from the end of the output that a terminal's screen is redrawn from.
const SHOWN: u64 = 1 << 20;

/// The position of the standard input among the descriptors, if the daemon has an end of it.
pub(super) const INPUT: u8 = 1;

/// Stands for the pid of the process that announces itself.
const OF_MESSAGE: i32 = 0;

fn is_pipe(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

/// The next daemon's data about a run that it continues.
#[derive(Clone, Debug)]
pub struct Resumed {
    pub spec: Arc<Spec>,
    pub ended: Ended,
    /// Whether it was reported to be ready.
    pub is_ready: bool,
    /// Whether its processes may be stopped: it is paused, or may not have been fully continued yet.
    pub may_be_paused: bool,
}

/// The part of a run that had ended when the next daemon continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Nothing,
    Leader,
    /// All of its processes, but not its output.
    Tree,
}

impl HeldRun {
    /// Decodes what the keeper held for a run.
    ///
    /// # Errors
    /// It was written by another version, and this one can't decode it.
    pub fn read(kept: Kept) -> io::Result<Self> {
        let Kept { key, pid, text, descriptors, ended_at } = kept;
        let LeftState { mut process, drains, names } = serde_json::from_slice(&text)?;
        let job = process.terminal.as_mut().and_then(|terminal| terminal.job.as_mut());
        let pid = match job.filter(|job| job.pid == OF_MESSAGE) {
            Some(job) => {
                job.pid = pid;
                process.leader
            }
            None => pid,
        };
        let received = ReceivedFds::received([Fd::OF_PROCESS].into_iter().chain(names).zip(descriptors));
        Ok(Self { key, pid, process, drains, received, ended_at })
    }

    /// Creates a run of which only the process is known, for a simulation.
    pub fn bare(key: Key, pid: i32) -> Self {
        let process = ProcessState::left(key.task, key.run);
        let received = ReceivedFds::received([]);
        Self { key, pid, process, drains: Vec::new(), received, ended_at: None }
    }

    /// Reports whether its output is drained; drains may continue after the end of its processes.
    pub fn is_drained(&self) -> bool {
        !self.drains.is_empty()
    }

    /// Sets its drains to continue at the ends of their files.
    ///
    /// # Errors
    /// A file can't be examined.
    pub(super) fn refresh_drains(&mut self) -> io::Result<()> {
        for flow in &mut self.drains {
            if let Some(file) = flow.file.and_then(|file| self.received.get(file)) {
                flow.offset = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
            }
        }
        Ok(())
    }

    /// Forgets the standard input if it was closed, or if it is no longer to be written to because the leader
    /// `has_exited`. Returns whether the keeper still has it open in the latter case.
    pub(super) fn drop_input(&mut self, has_exited: bool) -> bool {
        // If it was closed, another descriptor has its position.
        let is_open = |fd: &Fd| self.received.get(*fd).is_some_and(is_pipe);
        self.process.input = self.process.input.filter(is_open);
        has_exited && self.process.input.take().is_some()
    }

    /// Restores its terminal, if it has one, from the recorded output. Blocks while it reads that.
    ///
    /// # Errors
    /// The terminal or its output can't be examined.
    pub(super) fn refresh_terminal(&mut self) -> io::Result<()> {
        let Some(followed) = self.process.terminal.as_mut().and_then(|terminal| terminal.followed.as_mut())
        else {
            return Ok(());
        };
        let ((master, output), began_at) = (followed.master_and_output(), followed.began_at());
        let missing = || io::Error::other("its terminal was not passed on");
        let (Some(master), Some(output)) = (self.received.get(master), self.received.get(output)) else {
            return Err(missing());
        };
        let size = size_of(&master.try_clone_to_owned()?)?;
        // The descriptor is open for appending only.
        let path = format!("/proc/self/fd/{}", output.as_raw_fd());
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        // What an earlier attempt wrote is not on this terminal.
        file.seek(SeekFrom::Start(length.saturating_sub(SHOWN).max(began_at)))?;
        let mut shown = Vec::new();
        file.take(SHOWN).read_to_end(&mut shown)?;
        followed.restore(size, &shown, length);
        Ok(())
    }

    pub(super) fn mark(&self) -> Option<Mark> {
        self.process.mark
    }

    /// Returns the number of the mark of its processes, if they have one.
    pub fn mark_number(&self) -> Option<u32> {
        self.mark().map(Mark::number)
    }

    /// Returns the path of the socket on which it reports that it is ready.
    pub fn notify_socket(&self) -> Option<&Path> {
        self.process.probe.as_ref()?.notify_socket()
    }
}

/// Returns the keeper's message about the descriptors that a pending task is to start with, and copies of them.
///
/// # Errors
/// No descriptor is left.
pub(super) fn pending_text(inherited: &Inherited) -> io::Result<(Vec<u8>, impl Iterator<Item = OwnedFd>)> {
    let copies = inherited.try_clone()?;
    let text = serde_json::to_vec(&InheritedState::of(&copies, &mut CarriedFds::default()))?;
    Ok((text, copies.into_all()))
}

/// Decodes what the keeper held for a pending task.
///
/// # Errors
/// It was written by another version, and this one can't decode it.
pub fn read_pending(kept: Kept) -> io::Result<Inherited> {
    let Kept { text, descriptors, .. } = kept;
    let state: InheritedState = serde_json::from_slice(&text)?;
    let names: Vec<Fd> = [Fd::OF_PROCESS].into_iter().chain(state.names()).collect();
    state.take(&mut ReceivedFds::received(names.into_iter().zip(descriptors)))
}

/// The descriptors that go to the keeper with a run, and their names.
#[derive(Default)]
pub(super) struct Parcel<'a> {
    named: CarriedFds,
    names: Vec<Fd>,
    descriptors: Vec<BorrowedFd<'a>>,
}

impl<'a> Parcel<'a> {
    pub(super) fn add(&mut self, fd: &'a impl AsFd) -> Fd {
        let name = self.named.add(fd);
        self.names.push(name);
        self.descriptors.push(fd.as_fd());
        name
    }

    /// Returns the message for the keeper, with the descriptors besides that of the process.
    ///
    /// # Errors
    /// The state can't be written.
    pub(super) fn seal(self, process: ProcessState) -> io::Result<(Vec<u8>, Vec<BorrowedFd<'a>>)> {
        let Self { named: _, names, descriptors } = self;
        Ok((text_of(process, Vec::new(), names)?, descriptors))
    }
}

fn text_of(process: ProcessState, drains: Vec<FlowState>, names: Vec<Fd>) -> io::Result<Vec<u8>> {
    // Without its state, the keeper would hold a process that no daemon can continue.
    Ok(serde_json::to_vec(&LeftState { process, drains, names })?)
}

/// Copies of descriptors that go to the keeper with a run, and their names.
#[derive(Debug, Default)]
pub(super) struct Copies {
    named: CarriedFds,
    names: Vec<Fd>,
    all: Vec<OwnedFd>,
}

impl Copies {
    pub(super) fn add(&mut self, copy: OwnedFd) -> Fd {
        let name = self.named.add(&copy);
        self.names.push(name);
        self.all.push(copy);
        name
    }

    pub(super) fn add_flow(&mut self, flow: FlowCopy) -> FlowState {
        let FlowCopy { source, is_pipe, file, via } = flow;
        FlowState {
            source: self.add(source),
            is_pipe,
            file: file.map(|file| self.add(file)),
            offset: 0,
            is_losing: false,
            via: via.map(|via| (self.add(via.out), self.add(via.into))),
            via_out: None,
        }
    }

    /// Adds the descriptors of a terminal, whose screen is redrawn from the recorded output.
    ///
    /// # Errors
    /// The terminal's size can't be read.
    pub(super) fn add_terminal(&mut self, terminal: still::Copies) -> io::Result<FollowedState> {
        let still::Copies { master, slave, leader_news, output, began_at } = terminal;
        let size = size_of(&master)?;
        let master = self.add(master);
        let sides = [slave, leader_news].map(|side| side.map(|copy| self.add(copy)));
        Ok(FollowedState::of_new(size, began_at, master, sides, self.add(output)))
    }

    /// Returns the message for the keeper, with the descriptors besides that of the process.
    ///
    /// # Errors
    /// The state can't be written.
    pub(super) fn seal(
        mut self,
        process: ProcessState,
        mut drains: Vec<FlowState>,
    ) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.fit(&mut drains);
        let Self { named: _, names, all } = self;
        Ok((text_of(process, drains, names)?, all))
    }

    /// Leaves out write ends of pipes that sockets are drained through, as long as there are too many descriptors for one
    /// message: the next daemon can open those ends again.
    fn fit(&mut self, drains: &mut [FlowState]) {
        for flow in drains {
            // One place is for the descriptor of the process.
            if self.names.len() < FDS_PER_FRAME {
                return;
            }
            let Some((out, into)) = flow.via.take() else { continue };
            flow.via_out = Some(out);
            if let Some(place) = self.names.iter().position(|name| *name == into) {
                self.names.remove(place);
                self.all.remove(place);
            }
        }
    }
}

/// The part of a process's start that the next daemon needs.
pub(super) struct Starting<'a> {
    pub(super) task: TaskId,
    pub(super) run: u32,
    pub(super) mark: Mark,
    pub(super) cgroup: Option<PathBuf>,
    pub(super) split: bool,
    pub(super) input: Option<&'a OwnedFd>,
    pub(super) awaited: Option<&'a Awaited>,
}

/// The terminal that a process is started in, with its leader.
#[derive(Clone, Copy)]
pub(super) struct StartingIn<'a> {
    pub(super) leader: &'a Spawned,
    pub(super) leader_news: &'a OwnedFd,
    pub(super) pty: &'a Pty,
    pub(super) size: TerminalSize,
    pub(super) output: &'a OwnedFd,
}

impl<'a> Starting<'a> {
    /// Returns the announcement of the process, and the descriptors besides its own. The run is that of its leader if
    /// it is started in a terminal.
    ///
    /// # Errors
    /// Its state can't be written.
    pub(super) fn announcement(
        &self,
        terminal: Option<StartingIn<'a>>,
    ) -> Result<(Vec<u8>, Vec<BorrowedFd<'a>>), SpawnFailure> {
        let Self { task, run, mark, cgroup, split, input, awaited } = self;
        let mut parcel = Parcel::default();
        // First, at the position `INPUT`.
        let input = input.map(|input| parcel.add(input));
        let probe = awaited.map(|awaited| ProbeState::of_new(awaited, |socket| parcel.add(socket)));
        let (cgroup, mark, split) = (cgroup.clone(), Some(*mark), *split);
        let mut process =
            ProcessState { cgroup, mark, split, input, probe, ..ProcessState::left(*task, *run) };
        if let Some(StartingIn { leader, leader_news, pty, size, output }) = terminal {
            let sides = [&pty.slave, leader_news].map(|side| Some(parcel.add(side)));
            let began_at = fstat(output).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
            let master = parcel.add(&pty.master);
            let output = parcel.add(output);
            let followed = FollowedState::of_new(size, began_at.unwrap_or(0), master, sides, output);
            let job = JobState { pid: OF_MESSAGE, handle: Fd::OF_PROCESS, name: pty.name.clone() };
            (process.leader, process.handle) = (leader.pid, Some(parcel.add(&leader.pidfd)));
            let (owed, typists) = (Vec::new(), Vec::new());
            process.terminal =
                Some(TerminalState { job: Some(job), followed: Some(followed), owed, typists });
        }
        let sealed = parcel.seal(process);
        let (text, descriptors) =
            sealed.map_err(|error| format!("it can't be announced to the keeper of tasks: {error}"))?;
        Ok((keeper::announcement(Key { task: *task, run: *run }, &text), descriptors))
    }
}

impl ProcessState {
    /// Creates the initial state of a process for the keeper.
    pub(super) fn left(task: TaskId, run: u32) -> Self {
        Self {
            task,
            run,
            leader: OF_MESSAGE,
            cgroup: None,
            mark: None,
            split: false,
            input: None,
            unread: UnreadState::default(),
            probe: None,
            progress: Progress::default(),
            terminal: None,
            handed: None,
            handle: Some(Fd::OF_PROCESS),
            is_inherited: true,
        }
    }
}

/// Distinguishes the processes of continued runs from others that a killed daemon has left.
#[derive(Debug, Default)]
pub struct SparedProcesses {
    marks: HashSet<Mark>,
    leaders: HashSet<i32>,
    tasks: HashSet<String>,
    pub cgroups: BTreeSet<PathBuf>,
}

impl SparedProcesses {
    /// Spares the processes of these runs.
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a HeldRun>) -> Self {
        let mut spared = Self::default();
        for run in runs {
            spared.spare(run.key.task, run.pid, run.mark(), run.process.cgroup.as_ref());
        }
        spared
    }

    /// Spares the processes of a tree.
    pub(super) fn add(&mut self, tree: &Tree) {
        self.spare(tree.task, tree.leader, tree.mark, tree.cgroup.as_ref());
    }

    fn spare(&mut self, task: TaskId, leader: i32, mark: Option<Mark>, cgroup: Option<&PathBuf>) {
        self.marks.extend(mark);
        self.leaders.insert(leader);
        self.tasks.insert(task.to_string());
        self.cgroups.extend(cgroup.cloned());
    }

    /// Spares a process and its descendants.
    pub fn add_process(&mut self, pid: i32) {
        self.leaders.insert(pid);
    }

    /// Reports whether nothing is spared.
    pub fn is_empty(&self) -> bool {
        self.leaders.is_empty()
    }

    /// Reports whether a process belongs to one of the runs. Blocks for a moment, as it reads `/proc`.
    pub fn owns(&self, pid: i32, output: &Path) -> bool {
        if self.is_empty() {
            return false;
        }
        let is_led = || members::ancestors_of(pid).iter().any(|pid| self.leaders.contains(pid));
        let is_in_session =
            || members::session_of(pid).is_some_and(|session| self.leaders.contains(&session));
        let is_named = || members::mark_of(pid, TASK_MARK).is_some_and(|task| self.tasks.contains(&task));
        let writes = |path: &Path| {
            let name = path.strip_prefix(output).ok().and_then(Path::to_str);
            name.and_then(|name| name.get(..36)).is_some_and(|task| self.tasks.contains(task))
        };
        mark::of(pid).is_some_and(|mark| self.marks.contains(&mark))
            || is_in_session()
            || is_led()
            || is_named()
            || proc::open_files(pid).any(|(_, path)| writes(&path))
    }

    /// Returns the processes that have adopted orphans of the runs, as far as visible. Blocks like [`Self::owns`].
    pub fn subreapers(&self) -> BTreeSet<i32> {
        if self.tasks.is_empty() {
            return BTreeSet::new();
        }
        let is_theirs = |pid: i32| {
            self.leaders.contains(&pid) || mark::of(pid).is_some_and(|mark| self.marks.contains(&mark))
        };
        let theirs = members::processes_of_user().into_iter().filter(|pid| is_theirs(*pid));
        let parents = theirs.filter_map(Stat::of).map(|stat| stat.parent);
        // The process that collects orphans may itself end; pid 1 is next.
        parents.filter(|parent| *parent > 0 && !is_theirs(*parent)).chain([1]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a run whose keeper has this descriptor at the position of its standard input.
    fn left(input: OwnedFd) -> HeldRun {
        let key = Key { task: TaskId::random(), run: 1 };
        let mut copies = Copies::default();
        let input = Some(copies.add(input));
        let process = ProcessState { input, ..ProcessState::left(key.task, key.run) };
        let (text, rest) = copies.seal(process, Vec::new()).unwrap();
        let process = File::open("/dev/null").unwrap().into();
        let descriptors = [process].into_iter().chain(rest).collect();
        HeldRun::read(Kept { key, pid: 1, text, descriptors, ended_at: None }).unwrap()
    }

    #[test]
    fn r127_descriptors_of_a_pending_task_return_from_the_keeper_in_their_places() {
        let file = |path: &str| Some(OwnedFd::from(File::open(path).unwrap()));
        let is = |fd: &Option<OwnedFd>, path: &str| {
            let (of, wanted) = (fstat(fd.as_ref().unwrap()).unwrap(), rustix::fs::stat(path).unwrap());
            assert_eq!(of.st_rdev, wanted.st_rdev, "{path}");
        };
        let key = Key::of_pending(TaskId::random());
        assert!(key.is_of_pending());
        let sent = Inherited { stdin: file("/dev/zero"), outputs: [None, file("/dev/full")] };
        let (text, rest) = pending_text(&sent).unwrap();
        let descriptors: Vec<OwnedFd> = file("/dev/null").into_iter().chain(rest).collect();
        let kept = Kept { key, pid: 0, text: text.clone(), descriptors, ended_at: None };
        let came = read_pending(kept).unwrap();
        is(&came.stdin, "/dev/zero");
        assert!(came.outputs[0].is_none());
        is(&came.outputs[1], "/dev/full");
        let lacks = Kept { key, pid: 0, text, descriptors: Vec::new(), ended_at: None };
        assert!(read_pending(lacks).is_err(), "the descriptors have not arrived");
    }

    #[test]
    fn r126_stdin_of_an_exited_leader_is_closed() {
        let pipe = || OwnedFd::from(std::io::pipe().unwrap().1);
        let closed = || OwnedFd::from(File::open("/dev/null").unwrap());
        for (input, has_exited, closes, is_open) in [
            (pipe(), false, false, true),
            (pipe(), true, true, false),
            (closed(), false, false, false),
            (closed(), true, false, false),
        ] {
            let mut left = left(input);
            assert_eq!(left.drop_input(has_exited), closes);
            assert_eq!(left.process.input.is_some(), is_open);
        }
    }
}
