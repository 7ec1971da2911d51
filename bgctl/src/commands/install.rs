//! `daemon install`: writes the systemd units by which a user's manager listens on the socket and starts the daemon. It
//! neither enables nor starts anything.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::files;
use crate::link;

/// Writes the units, and says what to do next.
pub fn run(context: &mut Context) -> Result<Code, Failure> {
    context.link.only_here("`daemon install`")?;
    let folder = files::config_home()
        .ok_or_else(|| Failure::usage("neither $HOME nor $XDG_CONFIG_HOME is set").hint("set $HOME"))?
        .join("systemd/user");
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
        (folder.join("bgd.socket"), socket_unit(&listen)),
        (folder.join("bgd.service"), service_unit(&command_word(&program)?)),
    ];
    // Nothing is written if one of them is somebody's own.
    units.iter().try_for_each(|(path, text)| may_write(path, text))?;
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
    let runs = context.link.running().is_ok_and(|daemon| daemon.is_some());
    context.print(&format!("now run\n{}", next_steps(runs)))?;
    Ok(Code::OK)
}

fn next_steps(runs: bool) -> String {
    let mut steps = String::new();
    if runs {
        steps += "  bgctl daemon stop        as the manager would take its socket away; ends all tasks\n";
    }
    steps + "  systemctl --user daemon-reload\n  systemctl --user enable --now bgd.socket\n"
}

/// Refuses to overwrite a unit that is different.
fn may_write(path: &Path, text: &str) -> Result<(), Failure> {
    match fs::read(path) {
        Ok(there) if there == text.as_bytes() => Ok(()),
        Ok(_) => {
            let message = format!("{} exists, and is not what would be written", path.display());
            Err(Failure::new(Code::WRONG_STATE, "exists", message).hint(
                "remove it first; changes of your own belong into a drop-in: systemctl --user edit bgd",
            ))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::io(format!("can't read {}", path.display()), &error)),
    }
}

fn socket_unit(listen: &str) -> String {
    format!(
        "[Unit]\nDescription=Background tasks: the socket of bgd\nDocumentation=man:bgd(1)\n\n\
         [Socket]\nListenStream={listen}\nSocketMode=0600\nDirectoryMode=0700\n\n\
         [Install]\nWantedBy=sockets.target\n"
    )
}

fn service_unit(program: &str) -> String {
    format!(
        "[Unit]\nDescription=Background tasks\nDocumentation=man:bgd(1)\n\n\
         [Service]\nType=notify\nExecStart={program}\nExecReload=kill -HUP $MAINPID\nDelegate=yes\n"
    )
}

/// A path as systemd takes it where it expects one: up to the end of the line, with `%` doubled.
fn path_word(path: &Path) -> Result<String, Failure> {
    let unfit = || {
        let message = format!("systemd takes no such path: {}", path.display());
        Failure::usage(message).hint("use a path without line breaks and other control characters")
    };
    let text = path.to_str().filter(|text| !text.contains(char::is_control)).ok_or_else(unfit)?;
    Ok(text.replace('%', "%%"))
}

/// A path as the first word of a command of systemd's.
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
    fn r170_a_program_is_named_as_systemd_reads_it() {
        let word = |path: &str| command_word(Path::new(path)).map_err(|failure| failure.message);
        assert_eq!(word("/usr/bin/bgd").unwrap(), "/usr/bin/bgd");
        assert_eq!(word("/home/a b/50%/\"x\"\\/bgd").unwrap(), r#""/home/a b/50%%/\"x\"\\/bgd""#);
        assert!(word("/home/a\nExecStartPre=x/bgd").unwrap_err().contains("no such path"));
    }

    #[test]
    fn r170_a_running_daemon_has_to_make_way() {
        assert!(next_steps(true).contains("bgctl daemon stop") && !next_steps(false).contains("stop"));
    }
}
