//! What is different if the console's jobs run on another machine: its folders are found by a shell there, and a lost
//! connection, which ends the foreground jobs, is made again.

use std::time::{Duration, Instant};

use bgd_shared::client::Client;
use bgd_shared::request::{
    BlockParams, ClearParams, Hello, HelloParams, OutputParams, SubmitParams, TaskBlock, TaskClear,
    TaskOutput, TaskSubmit,
};
use bgd_shared::show::count;
use bgd_shared::task::Status;

use super::{Console, Folder, Jobs, news, say};
use crate::exit::Code;
use crate::failure::Failure;
use crate::job::Work;
use crate::link::{Way, is_lost};

/// The pause between attempts to connect again.
const PAUSE: Duration = Duration::from_millis(500);

/// The most bytes of a path, or of a shell's message about it.
const PATH_BYTES: u64 = 8192;

impl Console {
    /// Changes the folder for later lines.
    pub(super) fn change_folder(&mut self, words: &str) -> Result<(), Failure> {
        if self.way.host().is_none() {
            return self.folder.change(words);
        }
        let params = self.params("cd", Work::Shell(Folder::finding(words).into()))?;
        let task = self.call::<TaskSubmit>(&SubmitParams { foreground: true, ..params })?.task;
        let ended = self.call::<TaskBlock>(&BlockParams::until_ended(task.id))?.tasks.pop();
        let output = OutputParams { id: task.id.into(), offset: None, limit: Some(PATH_BYTES), stream: None };
        let output = self.call::<TaskOutput>(&output)?;
        let said = output.encoding.decode(output.data).map_err(Failure::unreadable_output)?;
        // Nobody wants to see it in a list.
        let clear = ClearParams { ids: Some(vec![task.id.into()]), ..ClearParams::default() };
        self.call::<TaskClear>(&clear)?;
        if ended.is_some_and(|task| task.status == Status::Completed) {
            self.folder.changed(said);
            return Ok(());
        }
        Err(Folder::refused(&String::from_utf8_lossy(&said)))
    }

    /// Connects to the other machine again after this failure, and says so.
    ///
    /// # Errors
    /// The failure, if it is another one or the daemon is on this machine; the machine can't be reached in time, or a
    /// signal asks to leave.
    pub(super) fn recover(&mut self, failure: Failure) -> Result<(), Failure> {
        let Some(host) = self.way.host().filter(|_| is_lost(&failure)).map(ToString::to_string) else {
            return Err(failure);
        };
        let ended = self.jobs.beside().len();
        let what = if ended > 0 {
            format!("; {} ended with it", count(ended, "foreground job"))
        } else {
            String::new()
        };
        self.tell(&format!("bgctl: the connection to {host} is lost{what}; connecting again\n"))?;
        self.jobs = Jobs::new(self.key);
        let deadline = Instant::now() + self.connect_timeout;
        let (link, news, instance) = loop {
            match reconnect(&self.way) {
                Ok(made) => break made,
                Err(failure) if Instant::now() + PAUSE > deadline => return Err(failure),
                Err(_) => {}
            }
            if self.is_asked_to_leave() {
                return Err(Failure::new(
                    Code::INTERRUPTED,
                    "interrupted",
                    "interrupted while connecting again",
                ));
            }
            // Nothing reports that a host is back.
            std::thread::sleep(PAUSE);
        };
        self.link = link.into();
        news::follow(news, &self.session, self.editor.speaker())?;
        let lost =
            if instance == self.instance { "" } else { "; its daemon was restarted, and its tasks are lost" };
        self.instance = instance;
        self.tell(&format!("bgctl: connected to {host} again{lost}\n"))
    }

    /// Prints above the prompt, or where it would be.
    fn tell(&mut self, text: &str) -> Result<(), Failure> {
        if self.editor.is_open() {
            self.editor.print(text);
            return Ok(());
        }
        say(text)
    }
}

/// Makes the two connections of a console, and learns which daemon it is.
fn reconnect(way: &Way) -> Result<(Client, Client, String), Failure> {
    let (mut link, news) = (way.client()?, way.client()?);
    let instance = link.call::<Hello>(&HelloParams::default())?.instance;
    Ok((link, news, instance))
}
