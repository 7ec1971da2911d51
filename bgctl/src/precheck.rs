//! What of a job can't work, as far as it can be seen before it is submitted: a program that is not there, a folder
//! that is not there, a line in quotes. The daemon finds out the same when the job starts, which may be much later.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bgd_shared::request::{ChannelStatus, DaemonStatusOf, NoParams, SubmitParams};
use bgd_shared::text::OsText;
use nix::unistd::{AccessFlags, access};

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::{bounded, clean};

/// The most characters of a command that are said back.
const SHOWN_CHARS: usize = 80;

/// What is likely to fail, a sentence each.
///
/// # Errors
/// The command is a whole line in quotes, which no program is called: `code` is that of the verb for this.
pub fn check(params: &SubmitParams, verb: &str, code: Code) -> Result<Vec<String>, Failure> {
    let Some(folder) = &params.cwd else { return Ok(Vec::new()) };
    let folder = Path::new(OsStr::from_bytes(folder.as_bytes()));
    if !folder.is_dir() {
        let shown = shown(&folder.to_string_lossy());
        return Ok(vec![format!("there is no folder {shown}: the task will fail unless it is made in time")]);
    }
    let Some([program, arguments @ ..]) = params.argv.as_deref() else { return Ok(Vec::new()) };
    if is_there(program, params, folder) {
        return Ok(Vec::new());
    }
    let name = shown(&program.to_string_lossy());
    if arguments.is_empty() && program.as_bytes().contains(&b' ') {
        let message = format!("no program is called \"{name}\": in quotes it is one word");
        return Err(Failure::new(code, "usage", message).hint(format!(
            "drop the quotes: `bgctl {verb} -- {name}`; or have a shell read the line: `bgctl {verb} --shell '{name}'`"
        )));
    }
    let place = if program.as_bytes().contains(&b'/') { "" } else { " in PATH" };
    Ok(vec![format!("there is no program {name}{place}: the task will fail unless it is installed in time")])
}

/// Whether the folder of a job that starts at once can be entered: of whoever names it, it is no fault of bgd.
///
/// # Errors
/// It can't.
pub fn folder(params: &SubmitParams) -> Result<(), Failure> {
    let Some(folder) = &params.cwd else { return Ok(()) };
    let path = Path::new(OsStr::from_bytes(folder.as_bytes()));
    // With a slash behind it, it must be a folder.
    let Err(error) = access(&path.join(""), AccessFlags::X_OK) else { return Ok(()) };
    let message = format!("cannot enter the folder {}: {}", shown(&folder.to_string_lossy()), error.desc());
    Err(Failure::new(Code::NOT_EXECUTABLE, "usage", message).hint("name another folder with --cwd"))
}

/// Why the channel of a task can't deliver, as far as the daemon knows.
///
/// # Errors
/// The daemon is gone.
pub fn channel(name: &str, context: &mut Context) -> Result<Option<String>, Failure> {
    let channels = context.call::<DaemonStatusOf>(&NoParams {})?.channels;
    let problem = channels.into_iter().find(|channel| channel.name == name).and_then(problem);
    Ok(problem.map(|problem| format!("the channel {} can't deliver: {}", shown(name), clean(&problem))))
}

/// Why it is not likely to deliver anything.
fn problem(channel: ChannelStatus) -> Option<String> {
    // One that nothing has ever gone through is as good as one without settings. Terminals are not one channel: what
    // went wrong in another says nothing of this one.
    let is_one = channel.kind != "tty";
    channel.problem.or_else(|| channel.last_error.filter(|_| is_one && channel.sent == 0))
}

fn shown(text: &str) -> String {
    bounded(&clean(text), SHOWN_CHARS).into_owned()
}

/// Whether there is such a program for the job, as execvp(3) looks for it.
fn is_there(program: &OsText, params: &SubmitParams, folder: &Path) -> bool {
    let name = OsStr::from_bytes(program.as_bytes());
    if program.as_bytes().contains(&b'/') {
        return folder.join(name).exists();
    }
    let path = params.env.as_ref().and_then(|env| env.get("PATH"));
    // Without one the daemon's system has a default, which nobody else knows.
    let Some(path) = path else { return true };
    std::env::split_paths(OsStr::from_bytes(path.as_bytes())).any(|place| {
        let file = folder.join(place).join(name);
        file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::text::Env;

    fn params(argv: &[&str], cwd: &str, path: &str) -> SubmitParams {
        SubmitParams {
            argv: Some(argv.iter().map(|word| (*word).into()).collect()),
            cwd: Some(cwd.into()),
            env: Some(Env([("PATH".into(), path.into())].into())),
            ..SubmitParams::default()
        }
    }

    #[test]
    fn what_is_there_is_not_warned_of() {
        for (argv, path) in [
            (&["sh", "-c", "true"][..], "/bin:/usr/bin"),
            (&["/bin/sh"], ""),
            (&["bin/sh"], "/nowhere"),
            (&["./bin/sh", "x"], ""),
            (&["sh"], "/nowhere:bin"),
        ] {
            assert_eq!(check(&params(argv, "/", path), "submit", Code::USAGE), Ok(Vec::new()), "{argv:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for (argv, cwd, named) in [
            (&["nosuch", "x y"][..], "/", "no program nosuch in PATH"),
            (&["/bin/nosuch"], "/", "no program /bin/nosuch:"),
            (&["etc"], "/", "no program etc in PATH"),
            (&["sh"], "/nowhere/at/all", "no folder /nowhere/at/all"),
        ] {
            let warnings = check(&params(argv, cwd, "/bin:/"), "submit", Code::USAGE).unwrap();
            assert!(matches!(&*warnings, [one] if one.contains(named)), "{warnings:?}");
        }
    }

    #[test]
    fn another_terminal_that_is_closed_says_nothing_of_this_one() {
        let of = |name: &str, problem: Option<&str>| {
            let channel = ChannelStatus {
                name: name.into(),
                kind: name.into(),
                problem: problem.map(Into::into),
                last_error: Some("/dev/pts/3 is closed".into()),
                ..ChannelStatus::default()
            };
            super::problem(channel)
        };
        assert_eq!(of("exec", None).as_deref(), Some("/dev/pts/3 is closed"));
        assert_eq!(of("tty", None), None);
        assert_eq!(of("tty", Some("no terminal")).as_deref(), Some("no terminal"));
    }

    #[test]
    fn a_line_in_quotes_is_told_from_a_program() {
        let failure = check(&params(&["make -j8"], "/", "/bin"), "submit", Code::USAGE).unwrap_err();
        let text = failure.to_string();
        for part in ["\"make -j8\"", "`bgctl submit -- make -j8`", "--shell 'make -j8'"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(check(&params(&["make -j8", "all"], "/", "/bin"), "submit", Code::USAGE).is_ok());
    }
}
