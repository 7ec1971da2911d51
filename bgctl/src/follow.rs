//! Following an output: the kernel tells when the file grows, the daemon tells when the task has ended.
//! Nothing is polled in turns; the process sleeps until one of them speaks.

use std::os::fd::AsFd as _;
use std::path::Path;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::id::TaskId;
use bgd_shared::request::{BlockParams, TaskBlock};
use bgd_shared::task::Task;

use crate::copy::Copier;
use crate::failure::Failure;
use crate::link::sleep;
use crate::watch::Changes;

/// Copies what is there and what comes until the task has ended, and returns the task as it is then.
///
/// # Errors
/// The daemon went away (all that was written until then has been copied), or the reader of standard output has closed it.
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
                // It has only said that it lives.
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

/// Sleeps until the file may have changed (`false`) or the daemon has said something (`true`).
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
