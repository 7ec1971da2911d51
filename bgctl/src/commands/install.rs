//! `daemon install` and `uninstall`: write and remove the systemd units with which a user's service manager listens on
//! the socket and starts the daemon. They neither start nor end anything, but print the commands that do.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::removed;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::files;
use crate::link::{self, DaemonProcess};

/// Writes the units, and prints the next steps.
pub fn run(context: &mut Context) -> Result<Code, Failure> {
    context.link.only_here("`daemon install`")?;
    let folder = folder()?;
    let program = link::program_path();
    if !program.is_file() {
        let message = format!("the daemon's program {} is not found", program.display());
        return Err(Failure::new(Code::NO_DAEMON, "no_daemon_program", message)
            .hint("put bgd next to bgctl or in PATH, or set BGD_DAEMON to its path"));
    }
    let socket = context.link.socket()?;
    let is_usual = std::env::var_os("XDG_RUNTIME_DIR")
        .is_some_and(|folder| socket.as_path() == Path::new(&folder).join("bgd/bgd.sock"));
    let listen = if is_usual { "%t/bgd/bgd.sock".to_owned() } else { path_word(socket.as_path())? };
    let units = [
        (folder.join("bgd.socket"), with(SOCKET, LISTEN, &listen)),
        (folder.join("bgd.service"), with(SERVICE, EXEC, &command_word(&program)?)),
    ];
    // Write nothing if one of the files exists and is not from bgctl.
    for ((path, _), unit) in units.iter().zip([SOCKET, SERVICE]) {
        files::may_replace(path, |text| is_made_from(unit, text)).map_err(|failure| match failure.code {
            Code::WRONG_STATE => failure
                .hint("remove it first; put your own changes into a drop-in: systemctl --user edit bgd"),
            _ => failure,
        })?;
    }
    for (path, text) in &units {
        files::replace(path, text.as_bytes())
            .map_err(|error| Failure::io(format!("can't write {}", path.display()), &error))?;
    }
    if context.json() {
        let [(socket, _), (service, _)] = units;
        context.print_json(&serde_json::json!({"socket": socket, "service": service}))?;
        return Ok(Code::OK);
    }
    for (path, _) in &units {
        context.print(&format!("installed {}\n", path.display()))?;
    }
    let steps = next_steps(running(context));
    context.print(&format!("now run\n{steps}"))?;
    Ok(Code::OK)
}

/// What stopping the daemon does to its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    EndsTasks,
    /// It is durable.
    LeavesTasks,
}

impl Stop {
    const fn words(self) -> &'static str {
        match self {
            Self::EndsTasks => "ends all tasks",
            Self::LeavesTasks => "tasks keep running; the next daemon takes them over",
        }
    }
}

/// Finds out about the running daemon, if there is one, without a connection: if a service manager listens, that would
/// start one.
fn running(context: &Context) -> Option<Stop> {
    let daemon = DaemonProcess::of(&context.link.socket().ok()?)?;
    Some(if daemon.holder.note.durable { Stop::LeavesTasks } else { Stop::EndsTasks })
}

fn next_steps(stop: Option<Stop>) -> String {
    let mut steps = String::new();
    if let Some(stop) = stop {
        steps = format!("  bgctl daemon stop        systemd takes over its socket; {}\n", stop.words());
    }
    steps + "  systemctl --user daemon-reload\n  systemctl --user enable --now bgd.socket\n"
}

/// Removes the units, and the link that enabled the socket; prints how to stop the units.
pub fn undo(context: &mut Context) -> Result<Code, Failure> {
    context.link.only_here("`daemon uninstall`")?;
    let folder = folder()?;
    let units = [("bgd.socket", SOCKET), ("bgd.service", SERVICE)];
    // Remove nothing if one of the files is not from bgctl.
    for (name, unit) in units {
        files::may_replace(&folder.join(name), |text| is_made_from(unit, text))?;
    }
    let mut paths = Vec::new();
    for (name, unit) in units {
        let path = folder.join(name);
        let link = folder.join("sockets.target.wants").join(name);
        if fs::read_link(&link).is_ok_and(|target| target == path) && fs::remove_file(&link).is_ok() {
            files::remove_empty(link.parent());
            paths.push(link);
        }
        paths.extend(files::remove(path, |text| is_made_from(unit, text))?);
    }
    removed::report(&paths, context)?;
    if !paths.is_empty() && !context.json() {
        let effect = running(context).unwrap_or(Stop::EndsTasks).words();
        context.print(&format!(
            "now run\n  systemctl --user stop bgd.socket bgd.service     {effect}\n  \
             systemctl --user daemon-reload\n",
        ))?;
    }
    Ok(Code::OK)
}

fn folder() -> Result<PathBuf, Failure> {
    let home = files::config_home()
        .ok_or_else(|| Failure::usage("neither $HOME nor $XDG_CONFIG_HOME is set").hint("set $HOME"))?;
    Ok(home.join("systemd/user"))
}

/// The units as installed by packages. The files are links, since everything that a published package needs must be in
/// its folder.
const SOCKET: &str = include_str!("../../files/bgd.socket");
const SERVICE: &str = include_str!("../../files/bgd.service");

/// The settings whose values depend on this installation.
const LISTEN: &str = "ListenStream=";
const EXEC: &str = "ExecStart=";

/// Returns a unit with the value of the one setting that begins with `key` replaced.
fn with(unit: &str, key: &str, value: &str) -> String {
    let lines = unit
        .lines()
        .map(|line| if line.starts_with(key) { format!("{key}{value}\n") } else { format!("{line}\n") });
    lines.collect()
}

/// Reports whether the text is the unit as written by some bgctl: only values that depend on the installation may
/// differ, and of the daemon's command only the path.
fn is_made_from(unit: &str, text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let is_path = |value: &str| !value.contains(' ') || value.starts_with('"') && value.ends_with('"');
    let written: Vec<&str> = text.split('\n').collect();
    let wanted: Vec<&str> = unit.split('\n').collect();
    written.len() == wanted.len()
        && written.iter().zip(wanted).all(|(written, wanted)| {
            let is_own = |key: &str| wanted.starts_with(key) && written.starts_with(key);
            *written == wanted || is_own(LISTEN) || is_own(EXEC) && is_path(&written[EXEC.len()..])
        })
}

/// Formats a path for a systemd setting that expects one: up to the end of the line, with `%` doubled.
fn path_word(path: &Path) -> Result<String, Failure> {
    let unfit = || {
        let message = format!("systemd does not accept such a path: {}", path.display());
        Failure::usage(message).hint("use a path without line breaks and other control characters")
    };
    let text = path.to_str().filter(|text| !text.contains(char::is_control)).ok_or_else(unfit)?;
    Ok(text.replace('%', "%%"))
}

/// Formats a path as the first word of a systemd command.
fn command_word(path: &Path) -> Result<String, Failure> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+%".contains(byte);
    let text = path_word(path)?;
    if OsStr::as_bytes(path.as_os_str()).iter().all(plain) {
        return Ok(text);
    }
    Ok(format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r170_program_path_is_quoted_for_systemd() {
        let word = |path: &str| command_word(Path::new(path)).map_err(|failure| failure.message);
        assert_eq!(word("/usr/bin/bgd").unwrap(), "/usr/bin/bgd");
        assert_eq!(word("/home/a b/50%/\"x\"\\/bgd").unwrap(), r#""/home/a b/50%%/\"x\"\\/bgd""#);
        assert!(word("/home/a\nExecStartPre=x/bgd").unwrap_err().contains("such a path"));
    }

    #[test]
    fn r170_installed_unit_is_recognized_regardless_of_paths() {
        let written = with(SERVICE, EXEC, "/home/a/.cargo/bin/bgd");
        assert!(written.contains("ExecStart=/home/a/.cargo/bin/bgd\n") && written.contains("Delegate=yes\n"));
        assert!(is_made_from(SERVICE, written.as_bytes()) && is_made_from(SERVICE, SERVICE.as_bytes()));
        assert!(is_made_from(SOCKET, with(SOCKET, LISTEN, "/tmp/a b").as_bytes()));
        for changed in [
            format!("{written}# mine\n"),
            with(&written, EXEC, "/bin/bgd --log file"),
            with(&written, "Delegate=", "no"),
        ] {
            assert!(!is_made_from(SERVICE, changed.as_bytes()), "{changed}");
        }
    }

    #[test]
    fn r170_next_steps_include_daemon_stop_if_one_is_running() {
        let steps = next_steps(Some(Stop::EndsTasks));
        assert!(steps.contains("bgctl daemon stop") && !next_steps(None).contains("stop"));
        assert!(steps.contains("ends all tasks"));
    }

    #[test]
    fn r170_next_steps_say_that_tasks_of_a_durable_daemon_keep_running() {
        let steps = next_steps(Some(Stop::LeavesTasks));
        assert!(steps.contains("tasks keep running; the next daemon takes them over"), "{steps}");
        assert!(!steps.contains("ends all tasks"), "{steps}");
    }
}
