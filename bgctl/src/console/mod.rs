//! The console: a prompt whose lines run in the foreground, with a key that moves them to the background.
//!
//! One thread has all the state and sleeps in `poll`; others read lines, print above the prompt and receive
//! notifications, and send messages to it. While a job has the terminal, nothing else touches it: messages wait for the
//! next prompt. All jobs belong to one connection, so they end with the console (R71).

mod agent;
mod child;
mod editor;
mod folder;
mod jobs;
mod line;
mod lines;
mod news;
mod prompt;
mod remote;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::client::{Client, PolledClient, Protocol};
use bgd_shared::error::ErrorKind;
use bgd_shared::foreground::Key;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    AttachParams, DetachParams, Method, ResizeParams, SubmitParams, TaskAttach, TaskDetach, TaskList,
    TaskResize, TaskSubmit, TerminalSize,
};
use bgd_shared::show::count;
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;
use nix::sys::signal::Signal;

use self::editor::Editor;
use self::folder::Folder;
use self::jobs::{Job, Jobs, Visit};
use self::line::{Builtin, JobSelector, Line};
use self::news::News;
use self::prompt::{Asking, Moving, Prompt, Typed};
use crate::cli::JobArgs;
use crate::exit::Code;
use crate::failure::Failure;
use crate::job::{self, Machine, Work};
use crate::link::DaemonAddress;
use crate::render::table;
use crate::render::wall::Clock;
use crate::terminal::{self, AttachmentEnd, Role, Screen, ScreenView, Signals, Subject};

/// The signals that the prompt handles, and those that no other thread may receive while a job has the terminal.
const SIGNALS: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

const FG_HINT: &str = "`jobs` lists them";

const HELP: &str = "\
LINE            run in the foreground; the key moves it to the background
LINE &          run next to the prompt, still in the foreground
!LINE           run directly: the job gets the key itself
@AGENT PROMPT   send a prompt to an agent; @ PROMPT uses the default agent
jobs            list jobs here and in the background
fg %1, fg ID    give the terminal to a job
cd [DIR]        change the folder for later lines
exit [CODE]     exit; so does Ctrl-D
Each line runs in a shell of its own, so variables and `cd` in the middle of a line do not last.
";

/// The parameters of the console.
#[derive(Debug)]
pub struct Setup {
    /// The connection that owns the console's jobs.
    pub link: PolledClient,
    /// The connection for notifications.
    pub news: Client,
    /// The key in effect.
    pub key: Key,
    /// The key of the parent session of the console's tasks.
    pub session: String,
    /// The daemon's socket, if given on the command line.
    pub socket: Option<String>,
    /// How to open further connections.
    pub address: DaemonAddress,
    /// The daemon's instance.
    pub instance: String,
    /// How long to try to reconnect to another machine.
    pub connect_timeout: Duration,
}

pub struct Console {
    link: PolledClient,
    news: News,
    jobs: Jobs,
    editor: Editor,
    signals: Signals,
    key: Key,
    session: String,
    socket: Option<String>,
    address: Arc<DaemonAddress>,
    instance: String,
    connect_timeout: Duration,
    shell: Vec<OsString>,
    folder: Folder,
    /// The terminal size last reported to the daemon.
    size: TerminalSize,
    /// The exit code, if a signal has asked to leave while something else was in progress.
    ends_with: Option<Code>,
}

/// Prints text while no job has the terminal.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}

/// Returns the user's shell.
fn shell() -> OsString {
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    shell.unwrap_or_else(|| "/bin/sh".into())
}

/// The command that runs the user's shell on another machine, where `SHELL` is known.
const SHELL_THERE: [&str; 3] = ["/bin/sh", "-c", "exec \"${SHELL:-/bin/sh}\" -c \"$0\""];

/// Reports whether a failure with this code is the user's own: a typing error, or Ctrl-C.
fn is_users(code: Code) -> bool {
    matches!(code, Code::USAGE | Code::INTERRUPTED)
}

/// Reports whether this exit code, as of a shell, means a signal that ends the console too. Signals from keys are only
/// for the task.
fn ends_console(code: u8) -> bool {
    [Signal::SIGHUP, Signal::SIGTERM].iter().any(|signal| i32::from(code) == 128 + *signal as i32)
}

impl Console {
    /// Takes over signals and the terminal.
    ///
    /// # Errors
    /// The terminal is unsuitable, or the daemon is gone.
    pub fn begin(setup: Setup) -> Result<Self, Failure> {
        let Setup { link, news, key, session, socket, address, instance, connect_timeout } = setup;
        let signals = Signals::take(SIGNALS)?;
        let size = Screen::open()?.size();
        let (editor, trouble) = Editor::start(key, editor::history_path())?;
        let news = News::begin(news, &session, editor.speaker())?;
        if let Some(trouble) = trouble {
            say(&format!("bgctl: {trouble}\n"))?;
        }
        let jobs = Jobs::new(key);
        let (folder, shell) = match address.host() {
            Some(host) => (Folder::there(host.to_string()), SHELL_THERE.map(OsString::from).into()),
            None => (Folder::here()?, vec![shell(), "-c".into()]),
        };
        Ok(Self {
            link,
            news,
            jobs,
            editor,
            signals,
            key,
            session,
            socket,
            address: Arc::new(address),
            instance,
            connect_timeout,
            shell,
            folder,
            size,
            ends_with: None,
        })
    }

    /// Runs lines until the user leaves.
    ///
    /// # Errors
    /// The daemon is gone, or reading lines has failed.
    pub fn run(mut self) -> Result<Code, Failure> {
        let code = loop {
            let typed = match self.type_line() {
                Ok(typed) => typed,
                Err(failure) => {
                    self.recover(failure)?;
                    continue;
                }
            };
            match typed {
                Typed::Line(text) => {
                    let code = self.settle(|console| console.line(&text))?.flatten();
                    self.ends_with = self.jobs.take_asked_to_end().or(self.ends_with);
                    if let Some(code) = code {
                        break code;
                    }
                }
                Typed::End => break Code::OK,
                // A message would have no reader.
                Typed::Signal(code) => return Ok(code),
                Typed::NewsLost => _ = self.settle(Self::follow_again)?,
            }
        };
        match self.report_remaining_tasks() {
            Err(failure) if failure.code != Code::INTERRUPTED => Err(failure),
            Ok(()) | Err(_) => Ok(code),
        }
    }

    /// Reports the user's errors and the daemon's refusals without ending the console, so that the next line can be
    /// typed.
    fn settle<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<Option<T>, Failure> {
        match act(self) {
            Ok(outcome) => Ok(Some(outcome)),
            Err(failure) if failure.rpc_code.is_some() || is_users(failure.code) => {
                failure.print(false);
                Ok(None)
            }
            Err(failure) => self.recover(failure).map(|()| None),
        }
    }

    // At the prompt.

    fn type_line(&mut self) -> Result<Typed, Failure> {
        // After a lost connection, the user may still be typing.
        if !self.editor.is_open() {
            // Messages that arrived while a job had the terminal come before the prompt.
            let said = self.editor.take_pending() + &self.jobs.take_output();
            say(&said)?;
            // The thread that reads lines might take over the terminal only after it was restored.
            if let Some(code) = self.ends_with {
                return Ok(Typed::Signal(code));
            }
            self.editor.open(self.folder.prompt());
        }
        let Self { link, jobs, editor, signals, ends_with, .. } = self;
        terminal::run(&mut Prompt { link, jobs, editor, signals, ends_with })
    }

    // Lines.

    /// Executes a line. Returns the exit code if the line ends the console.
    fn line(&mut self, text: &str) -> Result<Option<Code>, Failure> {
        let line = line::read(text).map_err(Failure::usage)?;
        self.tell_size()?;
        match line {
            Line::Nothing => {}
            Line::Builtin(Builtin::Exit(code)) => return Ok(Some(Code(code))),
            Line::Builtin(Builtin::Help) => say(HELP)?,
            Line::Builtin(Builtin::Cd(words)) => self.change_folder(&words)?,
            Line::Builtin(Builtin::Jobs) => self.list()?,
            Line::Builtin(Builtin::Fg(which)) => return self.fg(&which),
            Line::Job { text, direct, beside } => return self.job(text, direct, beside),
            Line::Prompt { agent, text } => return self.prompt(agent, text),
        }
        Ok(None)
    }

    fn job(&mut self, text: String, direct: bool, beside: bool) -> Result<Option<Code>, Failure> {
        let mut argv = self.shell.clone();
        argv.push(text.clone().into());
        let params = self.params(&text, Work::Argv(argv))?;
        let params = SubmitParams { foreground: true, direct, pty: Some(self.size), ..params };
        let task = self.call::<TaskSubmit>(&params)?.task;
        let job = self.jobs.new_job(task.id, text, direct);
        if beside {
            self.jobs.put(&mut self.link, job)?;
            return Ok(None);
        }
        self.show(job)
    }

    fn params(&self, description: &str, work: Work) -> Result<SubmitParams, Failure> {
        let mut env = self.folder.variables();
        env.push(("BGD_SESSION".to_owned(), self.session.clone()));
        let args = JobArgs {
            description: Some(description.to_owned()),
            session: Some(self.session.clone()),
            cwd: self.folder.path().map(Into::into),
            env,
            ..JobArgs::default()
        };
        let is_there = self.address.host().is_some();
        job::params(args, work, if is_there { Machine::Another } else { Machine::This(self.socket.clone()) })
    }

    /// Gives a job of this console the terminal until it ends or is left.
    fn show(&mut self, mut job: Job) -> Result<Option<Code>, Failure> {
        let role = if job.direct { Role::Direct } else { Role::Foreground };
        let mut screen = Screen::open()?;
        screen.show(b"", Some(std::mem::take(&mut job.restore)))?;
        screen.set_modes_again()?;
        let subject =
            Subject { link: &mut self.link, host: &mut self.jobs, task: job.id, role, key: self.key };
        let left = ScreenView::begin(subject, screen, self.size).and_then(ScreenView::run);
        self.settle_left(job, left)
    }

    /// Reports how a job of this console has left the terminal, and keeps a stopped one. Returns the exit code if the
    /// console ends with it.
    fn settle_left(
        &mut self,
        mut job: Job,
        left: Result<AttachmentEnd, Failure>,
    ) -> Result<Option<Code>, Failure> {
        let left = match left {
            // The daemon refuses to show it, or to report how it ends. It is still a job of this console.
            Err(failure) if failure.rpc_code.is_some() => {
                self.jobs.put(&mut self.link, job)?;
                return Err(failure);
            }
            left => left?,
        };
        match left {
            AttachmentEnd::Ended(task) | AttachmentEnd::Interrupted(task, _) => {
                self.jobs.ended(job.id);
                if task.status != Status::Completed {
                    say(&format!("[{}]\n", jobs::how(&task)))?;
                }
            }
            // Only a job without a terminal ends like this.
            AttachmentEnd::Cancelled(task, code) => {
                self.jobs.ended(job.id);
                say(&format!("[{}]\n", jobs::how(&task)))?;
                return Ok(ends_console(code).then_some(Code(code)));
            }
            AttachmentEnd::Backgrounded(result) => say(&format!("{}\n", result.message))?,
            AttachmentEnd::Stopped(restore) => {
                job.stopped = true;
                job.restore = restore;
                self.jobs.put(&mut self.link, job)?;
            }
            AttachmentEnd::Signalled(code) if job.is_agent => {
                self.jobs.ended(job.id);
                return Ok(ends_console(code).then_some(Code(code)));
            }
            AttachmentEnd::Signalled(code) => return Ok(Some(Code(code))),
            // Only attachments end like this.
            AttachmentEnd::Detached => {}
        }
        Ok(None)
    }

    /// Gives the terminal to a job from next to the prompt, or attaches to any other task.
    fn fg(&mut self, which: &JobSelector) -> Result<Option<Code>, Failure> {
        self.await_hand_over()?;
        let job = self.jobs.take(which);
        say(&self.jobs.take_output())?;
        let task = match (&job, which) {
            (Some(job), _) => job.id.into(),
            (None, JobSelector::Task(task)) => task.clone(),
            (None, JobSelector::Latest) => {
                return Err(Failure::usage("no jobs next to the prompt").hint(FG_HINT));
            }
            (None, JobSelector::Number(number)) => {
                return Err(Failure::usage(format!("no job %{number}")).hint(FG_HINT));
            }
        };
        let TerminalSize { rows, cols } = self.size;
        let params = AttachParams { id: task, rows: Some(rows), cols: Some(cols) };
        let Some(mut job) = job else {
            return match self.call::<TaskAttach>(&params) {
                Ok(attached) => self.visit(&attached.task),
                // It has no terminal, such as an agent.
                Err(failure) if failure.kind == ErrorKind::Unsupported.as_str() => self.visit_text(params.id),
                Err(failure) => Err(failure),
            };
        };
        if job.is_agent {
            return self.show_text(job, None);
        }
        // The output of a job that has only printed lines, or left its screen before it stopped, is on the screen
        // already.
        let needs_redraw: fn(&str) -> bool =
            if job.stopped { terminal::is_alternate } else { terminal::is_changed };
        if needs_redraw(&job.restore) {
            self.link.call::<TaskAttach>(&params)?;
        } else {
            // While it was shown, it was sent sizes that the console does not know of.
            self.link.call::<TaskResize>(&ResizeParams { id: job.id.into(), rows, cols })?;
        }
        if std::mem::take(&mut job.stopped) {
            jobs::continue_stopped(&mut self.link, job.id)?;
        }
        self.show(job)
    }

    /// Waits for the answer to a hand-over in flight, which decides whether the job is still here.
    fn await_hand_over(&mut self) -> Result<(), Failure> {
        let Self { link, jobs, signals, ends_with, .. } = self;
        terminal::run(&mut Moving { link, jobs, signals, ends_with })
    }

    /// Reports how a visited task ended, if nothing else does.
    fn tell_visited_end(&self, task: &Task) -> Result<(), Failure> {
        // A notification reports the end of a task of this session.
        if task.session.as_ref() != Some(&self.session) && task.status != Status::Completed {
            say(&format!("[{}]\n", jobs::how(task)))?;
        }
        Ok(())
    }

    /// Shows a background task. The key detaches from it, regardless of other foreground jobs.
    fn visit(&mut self, task: &Task) -> Result<Option<Code>, Failure> {
        let id = task.id;
        let news = task.attempt.map(|_| self.address.client()).transpose()?;
        let mut visit = Visit::of(&mut self.jobs, id, self.key);
        let screen = Screen::open()?;
        let subject =
            Subject { link: &mut self.link, host: &mut visit, task: id, role: Role::Attached, key: self.key };
        match ScreenView::attached(subject, task, news, screen, self.size)?.run()? {
            AttachmentEnd::Ended(task)
            | AttachmentEnd::Interrupted(task, _)
            | AttachmentEnd::Cancelled(task, _) => self.tell_visited_end(&task).map(|()| None),
            AttachmentEnd::Signalled(code) => Ok(Some(Code(code))),
            AttachmentEnd::Detached | AttachmentEnd::Backgrounded(_) | AttachmentEnd::Stopped(_) => {
                let params = DetachParams { id: id.into(), background: false };
                match self.call::<TaskDetach>(&params) {
                    // Between two attempts of a task, there is no terminal to leave.
                    Err(failure) if failure.kind == ErrorKind::InvalidParams.as_str() => Ok(None),
                    Err(failure) if failure.kind == ErrorKind::NotRunning.as_str() => Ok(None),
                    left => left.map(|_| None),
                }
            }
        }
    }

    fn list(&mut self) -> Result<(), Failure> {
        let mut text = String::new();
        for job in self.jobs.beside() {
            let state = if job.stopped { "stopped" } else { "foreground" };
            let shown = jobs::shown(&job.text);
            let number = format!("[{}]", job.number);
            let _ = writeln!(text, "{number:4} {}  {state:11} {shown}", job.id.short());
        }
        let clock = Clock::system(Timestamp::now());
        for task in self.background()? {
            let shown = jobs::shown(&task.description);
            let _ = writeln!(text, "     {}  {:11} {shown}", task.id.short(), table::status(&task, &clock));
        }
        say(&text)
    }

    /// Returns the active background tasks of this session.
    fn background(&mut self) -> Result<Vec<Task>, Failure> {
        let session = self.session.clone();
        let mut tasks = news::active(&session, |page| self.call::<TaskList>(page))?;
        tasks.retain(|task| !task.foreground);
        Ok(tasks)
    }

    /// Makes a call and waits for its answer. Meanwhile Ctrl-C ends the wait.
    fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        self.call_about::<M>(params, None, Jobs::give_up::<M>)
    }

    /// Makes a call and waits for its answer. Meanwhile Ctrl-C cancels the task, and a second Ctrl-C ends the wait; then
    /// `give_up` gets the number of the call.
    fn call_about<M: Method>(
        &mut self,
        params: &M::Params,
        task: Option<TaskId>,
        give_up: impl FnOnce(&mut Jobs, u64),
    ) -> Result<M::Result, Failure> {
        let call = self.link.call::<M>(params)?;
        let Self { link, jobs, signals, ends_with, .. } = self;
        let (is_cancelled, until, outcome) = (false, None, None);
        let mut asking = Asking { link, jobs, signals, ends_with, call, task, is_cancelled, until, outcome };
        let outcome = terminal::run(&mut asking);
        if outcome.is_err() {
            give_up(&mut self.jobs, call);
        }
        Ok(Protocol::result::<M>(outcome?)?)
    }

    /// Sends a changed terminal size to the jobs.
    fn tell_size(&mut self) -> Result<(), Failure> {
        let size = Screen::open()?.size();
        if size != self.size {
            self.size = size;
            self.jobs.resize(&mut self.link, size)?;
        }
        Ok(())
    }

    /// Reports which jobs end with the console, and which tasks keep running.
    fn report_remaining_tasks(&mut self) -> Result<(), Failure> {
        let ending = self.jobs.beside().len();
        if ending > 0 {
            say(&format!(
                "{} in the foreground end{} now\n",
                count(ending, "job"),
                if ending == 1 { "s" } else { "" }
            ))?;
        }
        let staying = self.background()?.len();
        if staying > 0 {
            let verb = if staying == 1 { "keeps" } else { "keep" };
            let which = &self.session;
            say(&format!(
                "{} {verb} running in the background: bgctl list --session {which}\n",
                count(staying, "task")
            ))?;
        }
        Ok(())
    }
}
