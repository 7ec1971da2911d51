//! Follows an output. The kernel reports when the file grows, the daemon when the task ends; the process sleeps until
//! either happens, and polls only a file that another machine may write.

use std::os::fd::AsFd as _;
use std::path::Path;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::id::TaskId;
use bgd_shared::request::{BlockParams, TaskBlock};
use bgd_shared::task::Task;

use crate::failure::Failure;
use crate::link::sleep;
use crate::output::copy::Copier;
use crate::watch::Changes;

/// Copies existing and new output until the task has ended, then returns the task.
///
/// # Errors
/// The daemon went away (everything written before that has been copied), or the reader of standard output closed it.
pub fn follow(
    client: &mut Client,
    id: TaskId,
    path: &Path,
    copier: &mut Copier,
) -> Result<Option<Task>, Failure> {
    let changes = Changes::of(path).map_err(|error| Failure::io(path.display(), &error))?;
    let call = client.send::<TaskBlock>(&BlockParams::until_ended(id), &[])?;
    loop {
        copier.copy_growing()?;
        if wait(client, &changes)? {
            let answer = match client.answered::<TaskBlock>(call) {
                // Only a keep-alive, not the answer.
                Ok(None) => continue,
                Ok(Some(ended)) => Ok(ended),
                Err(error) => Err(error),
            };
            copier.copy_growing()?;
            return match answer {
                Ok(ended) => Ok(ended.tasks.into_iter().next()),
                Err(ClientError::Closed | ClientError::Io(_)) => Err(Failure::new(
                    crate::exit::Code::NO_DAEMON,
                    "connection_lost",
                    "the daemon has ended; this is the output until then",
                )),
                Err(error) => Err(error.into()),
            };
        }
    }
}

/// Sleeps until the file may have changed (`false`) or the daemon has sent something (`true`).
fn wait(client: &mut Client, changes: &Changes) -> Result<bool, Failure> {
    let until = client.until().into_iter().chain(changes.next_look()).min();
    let [daemon, file] = sleep([Some(client.as_fd()), changes.descriptor()], until)?;
    if file {
        changes.take()?;
    }
    if !daemon {
        client.keep_up()?;
    }
    Ok(daemon)
}
