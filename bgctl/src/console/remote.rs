//! The differences if the console's jobs run on another machine: folders are found by a shell there, and a lost
//! connection, which ends the foreground jobs, is re-established.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::client::Client;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockParams, ClearParams, Hello, HelloParams, OutputParams, Stream, SubmitParams, TaskBlock, TaskClear,
    TaskOutput, TaskSubmit,
};
use bgd_shared::show::count;
use bgd_shared::task::{Status, Task};

use super::prompt::interrupted;
use super::{Console, Folder, Jobs, prompt, say};
use crate::exit::Code;
use crate::failure::Failure;
use crate::job::Work;
use crate::link::{DaemonAddress, end_children, is_lost, reach};
use crate::render::clean;
use crate::terminal::{LinkWants, Wants};

/// Maximum number of bytes of a path, or of a shell's message about it.
const PATH_BYTES: u64 = 8192;

/// A task of the console's own that has ended.
struct EndedHelper {
    /// `None` if it was removed meanwhile.
    task: Option<Task>,
    /// The beginning of its output.
    found: Vec<u8>,
    /// The beginning of its errors.
    said: Vec<u8>,
}

impl Console {
    /// Changes the folder for later lines.
    pub(super) fn change_folder(&mut self, words: &str) -> Result<(), Failure> {
        if self.address.host().is_none() {
            return self.folder.change(words, &self.signals, &mut self.ends_with);
        }
        let params = self.params("cd", Work::Argv(self.folder.finding_there(words)))?;
        // Split, as only standard output is the path: a login there may have warnings in every shell's standard error.
        let params = SubmitParams { foreground: true, split: true, cwd: None, ..params };
        let task = self.call_about::<TaskSubmit>(&params, None, Jobs::give_up_helper)?.task;
        let ended = self.ended_helper(task.id).inspect_err(|_| self.jobs.drop_helper(task.id));
        let EndedHelper { task, found, said } = ended?;
        let (status, error) = task.map(|task| (task.status, task.error)).unzip();
        match status {
            Some(Status::Completed) => {
                self.folder.changed(found);
                Ok(())
            }
            Some(Status::Cancelled) => Err(interrupted("cd")),
            // The shell may not have been started at all.
            _ if said.is_empty() => Err(Folder::refused(&error.flatten().unwrap_or_default())),
            _ => Err(Folder::refused(&String::from_utf8_lossy(&said))),
        }
    }

    /// Waits for the end of a task of the console's own, and removes it.
    fn ended_helper(&mut self, task: TaskId) -> Result<EndedHelper, Failure> {
        let until_ended = BlockParams::until_ended(task);
        let ended = self.call_about::<TaskBlock>(&until_ended, Some(task), Jobs::give_up::<TaskBlock>)?;
        let found = self.output_of(task, Stream::Stdout)?;
        let said = self.output_of(task, Stream::Stderr)?;
        // Keep this task out of lists.
        let clear = ClearParams { ids: Some(vec![task.into()]), ..ClearParams::default() };
        self.call::<TaskClear>(&clear)?;
        Ok(EndedHelper { task: ended.tasks.into_iter().next_back(), found, said })
    }

    /// Returns the beginning of one of a task's outputs.
    fn output_of(&mut self, task: TaskId, stream: Stream) -> Result<Vec<u8>, Failure> {
        let limit = Some(PATH_BYTES);
        let params = OutputParams { id: task.into(), offset: None, limit, stream: Some(stream) };
        let output = self.call::<TaskOutput>(&params)?;
        output.encoding.decode(output.data).map_err(Failure::unreadable_output)
    }

    /// Reconnects to the other machine after this failure, and reports that.
    ///
    /// # Errors
    /// The failure itself, if it is not a lost connection or the daemon is on this machine; the machine can't be
    /// reached in time, or refuses; or a signal asks to leave.
    pub(super) fn recover(&mut self, failure: Failure) -> Result<(), Failure> {
        let address = Arc::clone(&self.address);
        let DaemonAddress::Remote(remote) = &*address else { return Err(failure) };
        if !is_lost(&failure) {
            return Err(failure);
        }
        let host = remote.host();
        let ended = self.jobs.beside().len();
        let what = if ended > 0 {
            format!("; {} ended with it", count(ended, "foreground job"))
        } else {
            String::new()
        };
        self.print(&format!("bgctl: the connection to {host} is lost{what}; connecting again\n"))?;
        self.jobs = Jobs::new(self.key);
        remote.forget_shared();
        let Made { link, news, instance } = self.reconnected()?;
        self.link = link.into();
        self.news.follow(news, instance == self.instance)?;
        let lost =
            if instance == self.instance { "" } else { "; its daemon was restarted, and its tasks are lost" };
        self.instance = instance;
        self.print(&format!("bgctl: connected to {host} again{lost}\n"))
    }

    /// Subscribes to notifications again after only their connection was lost.
    ///
    /// # Errors
    /// The daemon is gone.
    pub(super) fn follow_again(&mut self) -> Result<(), Failure> {
        let connection = self.news.connection();
        // If the daemon is gone, this tells, and the notifications follow with the other connection.
        self.call::<Hello>(&HelloParams::default())?;
        if self.news.connection() != connection {
            return Ok(());
        }
        let client = self.address.client().map_err(Failure::from);
        let followed = client.and_then(|client| self.news.follow(client, true));
        followed.or_else(|failure| {
            let why = clean(&failure.message);
            self.print(&format!("bgctl: ends of background tasks are no longer shown here: {why}\n"))
        })
    }

    /// Re-establishes the connections on a separate thread, and handles signals and Ctrl-D meanwhile.
    fn reconnected(&mut self) -> Result<Made, Failure> {
        let cannot = |error: io::Error| Failure::io("can't connect again", &error);
        let deadline = Instant::now() + self.connect_timeout;
        let address = Arc::clone(&self.address);
        let (woken, wakes) = io::pipe().map_err(cannot)?;
        let (sender, made) = mpsc::channel();
        let run = move || {
            // Fails if the console has ended.
            let _ = sender.send(reach(deadline, |_| true, |within| connect(&address, within)));
            drop(wakes);
        };
        thread::Builder::new().name("connect".to_owned()).spawn(run).map_err(cannot)?;
        loop {
            let wants = Wants { changes: Some(woken.as_fd()), ..Wants::new(self.signals.as_fd()) };
            let editor = LinkWants::of_descriptor(self.editor.as_fd());
            let (ready, _) = wants.wait_with(&[editor]).map_err(cannot)?;
            // At the prompt, no key sends a signal. The end of input may also mean that the terminal was closed.
            let mut gives_up = self.editor.asks_to_end();
            if gives_up && !io::stdout().is_terminal() {
                self.ends_with = self.ends_with.or(Some(Code::HUNG_UP));
            }
            while let Some(caught) = self.signals.next_caught() {
                gives_up |= prompt::gives_up(caught, &mut self.ends_with);
            }
            if gives_up {
                // Otherwise ssh would keep trying for as long as the host is silent.
                end_children();
                let failure = interrupted("connecting again");
                return Err(Failure { code: self.ends_with.unwrap_or(failure.code), ..failure });
            }
            if ready.changes {
                let ended = || cannot(io::ErrorKind::UnexpectedEof.into());
                return made.try_recv().unwrap_or_else(|_| Err(ended()));
            }
        }
    }

    /// Prints above the prompt, or if there is none, at the cursor.
    fn print(&mut self, text: &str) -> Result<(), Failure> {
        if self.editor.is_open() {
            self.editor.print(text);
            return Ok(());
        }
        say(text)
    }
}

/// New connections.
struct Made {
    /// The one that owns the console's jobs.
    link: Client,
    /// The one for notifications.
    news: Client,
    /// The daemon's instance.
    instance: String,
}

/// Makes one attempt to establish both connections.
fn connect(address: &DaemonAddress, within: Duration) -> Result<Made, Failure> {
    let DaemonAddress::Remote(remote) = address else { return Err(interrupted("connecting again")) };
    let (link, instance) = remote.client(within)?;
    let (news, of_news) = remote.client(within)?;
    if instance != of_news {
        return Err(Failure::lost("the daemon was restarted in between"));
    }
    Ok(Made { link, news, instance })
}
