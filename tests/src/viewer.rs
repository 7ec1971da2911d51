//! A client that views the terminals of jobs, as `bgctl` does, but on the wire: it counts the parts that arrive and
//! feeds them to a terminal emulator, so that a test sees both the bytes and a user's screen.

use std::fmt;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use bgd_shared::client::{ClientError, PolledClient, Protocol, Received};
use bgd_shared::encoding::Encoding;
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    AttachParams, BlockParams, Method, OutputNews, SubmitParams, TaskAttach, TaskBlock, TaskSubmit,
    TaskWrite, TerminalSize, WriteParams,
};
use bgd_shared::task::Task;
use serde_json::value::RawValue;

use crate::daemon::TestDaemon;
use crate::wait::{PATIENCE, readable};

/// The default size of a job's terminal.
const SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// A connection that views the terminal of one task.
pub struct Viewer {
    client: PolledClient,
    emulator: vt100::Parser,
    /// Every byte of the terminal since the last redraw, or since the first byte.
    pub shown: Vec<u8>,
    /// The offset of the next part in the output; known from the first part on.
    pub next: Option<u64>,
    /// The text of each redraw of the whole screen.
    pub redraws: Vec<Vec<u8>>,
    /// The sequence that would restore a usable terminal now.
    pub restore: String,
    /// Number of notifications that the job has stopped.
    pub stops: usize,
    answers: Vec<(u64, Result<Box<RawValue>, RpcError>)>,
}

impl TestDaemon {
    /// Returns the params of a foreground job in a terminal of 24 rows and 80 columns: a shell command.
    pub fn in_terminal(&self, line: &str) -> SubmitParams {
        SubmitParams { shell: Some(line.into()), foreground: true, pty: Some(SIZE), ..self.params() }
    }
}

impl Viewer {
    /// Connects without viewing anything yet.
    #[track_caller]
    pub fn connect(daemon: &TestDaemon) -> Self {
        let side = |length| NonZero::new(length).expect("a terminal has rows and columns");
        Self {
            client: daemon.client().into(),
            emulator: vt100::Parser::new(side(SIZE.rows), side(SIZE.cols), 0),
            shown: Vec::new(),
            next: None,
            redraws: Vec::new(),
            restore: String::new(),
            stops: 0,
            answers: Vec::new(),
        }
    }

    /// Starts a job and views its terminal.
    #[track_caller]
    pub fn run(daemon: &TestDaemon, params: &SubmitParams) -> (Self, Task) {
        Self::run_with(daemon, params, &[])
    }

    /// Like [`Self::run`], with descriptors for the job's standard streams.
    #[track_caller]
    pub fn run_with(daemon: &TestDaemon, params: &SubmitParams, given: &[BorrowedFd<'_>]) -> (Self, Task) {
        let mut client = daemon.client();
        let call = client.send::<TaskSubmit>(params, given).expect("the daemon reads");
        let mut viewer = Self { client: client.into(), ..Self::connect(daemon) };
        let answer = viewer.answer(call).expect("task.submit");
        let result = Protocol::result::<TaskSubmit>(Ok(answer)).expect("the result of task.submit");
        (viewer, result.task)
    }

    /// Attaches another connection to a task's terminal, and returns once the screen has been redrawn.
    #[track_caller]
    pub fn attach(daemon: &TestDaemon, id: TaskId, size: Option<(u16, u16)>) -> Self {
        let mut viewer = Self::connect(daemon);
        viewer.try_attach(id, size).expect("task.attach");
        viewer.until("a drawn screen", |viewer| !viewer.redraws.is_empty());
        viewer
    }

    /// Attaches this connection.
    #[track_caller]
    pub fn try_attach(&mut self, id: TaskId, size: Option<(u16, u16)>) -> Result<Task, RpcError> {
        let (rows, cols) = size.unzip();
        self.try_call::<TaskAttach>(&AttachParams { id: id.into(), rows, cols }).map(|result| result.task)
    }

    /// Sends a call and returns its number for [`Self::answer`].
    #[track_caller]
    pub fn send<M: Method>(&mut self, params: &M::Params) -> u64 {
        self.client.call::<M>(params).expect("the daemon reads")
    }

    /// Makes a call, and processes output that arrives meanwhile.
    #[track_caller]
    pub fn try_call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, RpcError> {
        let call = self.send::<M>(params);
        let answer = self.answer(call)?;
        Ok(Protocol::result::<M>(Ok(answer)).unwrap_or_else(|error| panic!("{}: {error}", M::NAME)))
    }

    /// Like [`Self::try_call`], for a call that must succeed.
    #[track_caller]
    pub fn call<M: Method>(&mut self, params: &M::Params) -> M::Result {
        self.try_call::<M>(params).unwrap_or_else(|error| panic!("{}: {error}", M::NAME))
    }

    /// Waits for the answer to a call, and processes output that arrives before it.
    #[track_caller]
    pub fn answer(&mut self, call: u64) -> Result<Box<RawValue>, RpcError> {
        loop {
            if let Some(place) = self.answers.iter().position(|(answered, _)| *answered == call) {
                return self.answers.remove(place).1;
            }
            assert!(self.take(), "the daemon has closed the connection; {self:?}");
        }
    }

    /// Returns the number of refused calls whose answers were not fetched.
    pub fn refusals(&self) -> usize {
        self.answers.iter().filter(|(_, outcome)| outcome.is_err()).count()
    }

    /// Waits until `is_so` holds.
    #[track_caller]
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            assert!(self.take(), "the daemon has closed the connection before {what}; {self:?}");
        }
    }

    /// Waits until this text has arrived since the last redraw.
    #[track_caller]
    pub fn until_shown(&mut self, text: &str) {
        let has = |viewer: &Self| viewer.shown.windows(text.len()).any(|part| part == text.as_bytes());
        self.until(&format!("{text:?}"), has);
    }

    /// Waits until this text is on the screen.
    #[track_caller]
    pub fn until_seen(&mut self, text: &str) {
        self.until(&format!("{text:?} on the screen"), |viewer| viewer.screen().contains(text));
    }

    /// Writes to the terminal, and waits until the daemon has accepted it.
    #[track_caller]
    pub fn type_keys(&mut self, id: TaskId, keys: &str) {
        let params =
            WriteParams { id: id.into(), data: keys.to_owned(), encoding: Encoding::Utf8, eof: false };
        assert_eq!(self.call::<TaskWrite>(&params).written, keys.len() as u64);
    }

    /// Waits for the end of a task, and processes all output that arrives before the answer.
    #[track_caller]
    pub fn ended(&mut self, id: TaskId) -> Task {
        self.call::<TaskBlock>(&BlockParams::until_ended(id)).tasks.remove(0)
    }

    /// Returns the emulator's text, without trailing blanks.
    pub fn screen(&self) -> String {
        self.emulator.screen().contents().trim_end().to_owned()
    }

    pub fn emulated(&self) -> &vt100::Screen {
        self.emulator.screen()
    }

    /// Waits for data and processes it. Returns false if the daemon has closed the connection.
    #[track_caller]
    fn take(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut any = false;
            while let Some(received) = self.client.next_received().expect("what the daemon says is readable")
            {
                self.receive(received);
                any = true;
            }
            if any {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(readable(self.client.as_fd(), left), "nothing more comes; {self:?}");
            match self.client.read() {
                Ok(()) => {}
                Err(ClientError::Closed) => return false,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn receive(&mut self, received: Received) {
        match received {
            Received::Answer { call, outcome } => self.answers.push((call, outcome)),
            Received::Output(news) => self.show(*news),
            Received::Stopped(_) => self.stops += 1,
            Received::News(_) => {}
        }
    }

    fn show(&mut self, news: OutputNews) {
        let bytes = news.encoding.decode(news.data).expect("base64");
        self.emulator.process(&bytes);
        if let Some(restore) = news.restore {
            self.restore = restore;
        }
        if news.redraw {
            self.next = Some(news.offset);
            self.shown.clear();
            self.redraws.push(bytes);
            return;
        }
        assert_eq!(self.next.unwrap_or(0), news.offset, "a part is missing, or came twice");
        self.next = Some(news.offset + bytes.len() as u64);
        self.shown.extend(bytes);
    }
}

impl fmt::Debug for Viewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} stops, {} times drawn, up to {:?}:\n{}",
            self.stops,
            self.redraws.len(),
            self.next,
            self.screen()
        )
    }
}
