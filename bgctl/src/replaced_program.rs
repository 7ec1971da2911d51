//! Notifies the user once a day that an installation has replaced the program of the running daemon (R124). Asks on a
//! connection that the verb has used; never opens one, and never fails.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use bgd_shared::owned;
use bgd_shared::request::{DaemonStatusOf, NoParams, ProgramState};

use crate::cli::Verb;
use crate::context::Context;
use crate::remark::say;
use crate::render::clean;
use crate::state::state_folder;

/// Interval between two notices.
const PAUSE: Duration = Duration::from_hours(24);

/// Interval between checks while the program has not been replaced.
const LOOK_EVERY: Duration = Duration::from_mins(10);

/// Timeout for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Prints a notice on standard error, if that is a terminal, when the daemon's program was replaced.
pub fn notify(context: &mut Context) {
    if context.json()
        || context.link.is_remote()
        || !context.link.is_connected()
        || !io::stderr().is_terminal()
    {
        return;
    }
    let folder = state_folder();
    let file = folder.join("look-for-program");
    // The daemon of another socket may keep its state elsewhere; without a place for the note, nothing is printed.
    if !folder.is_dir() || !is_due(&file, SystemTime::now()) {
        return;
    }
    let Ok(client) = context.link.client() else { return };
    let Ok(status) = client.call_within::<DaemonStatusOf>(&NoParams {}, Some(PATIENCE)) else { return };
    let replaced = status.program.filter(|program| program.state == ProgramState::Replaced);
    let pause = if replaced.is_some() { PAUSE } else { LOOK_EVERY };
    if note(&file, SystemTime::now() + pause).is_ok()
        && let Some(program) = replaced
    {
        let path = clean(&program.path);
        say(format_args!(
            "bgctl: {path} was replaced since the daemon started; `bgctl daemon upgrade` switches to the new one \
             without ending any task"
        ));
    }
}

/// Reports whether a notice may follow this verb: the verb does not concern the daemon itself, and its output is not
/// read by a program.
pub const fn may_follow(verb: &Verb) -> bool {
    !matches!(
        verb,
        Verb::Daemon(_)
            | Verb::Doctor(_)
            | Verb::Dial(_)
            | Verb::ShellPrompt(_)
            | Verb::ShellInit(_)
            | Verb::Completions(_)
    )
}

/// Reports whether it is time to check again. The file's modification time is that of the next check; a time beyond the
/// longest pause must come from a wrong clock.
fn is_due(file: &Path, now: SystemTime) -> bool {
    let Ok(next) = fs::metadata(file).and_then(|meta| meta.modified()) else { return true };
    next <= now || next > now + PAUSE
}

fn note(file: &Path, next: SystemTime) -> io::Result<()> {
    owned::file(OpenOptions::new().write(true).truncate(true), file, 0o600)?.set_modified(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r124_replaced_program_check_is_rate_limited_but_due_if_clock_is_set_back() {
        let folder = tempfile::tempdir().unwrap();
        let (file, now) = (folder.path().join("look"), SystemTime::now());
        assert!(is_due(&file, now), "nobody has looked yet");
        note(&file, now + LOOK_EVERY).unwrap();
        assert!(!is_due(&file, now) && is_due(&file, now + LOOK_EVERY));
        note(&file, now + PAUSE).unwrap();
        assert!(!is_due(&file, now));
        assert!(is_due(&file, now - Duration::from_mins(1)), "the clock was set back");
    }
}
