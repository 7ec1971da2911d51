//! The caller: the parent session and the terminal of this process.

use bgd_shared::proc::ProcessStat;
use bgd_shared::request::OriginTerminal;

use nix::sys::utsname::uname;

use crate::failure::Failure;

/// Stands for the parent session of this process where a session key is expected.
const THIS: &str = ".";

/// Returns the parent session key: the given one, else `$BGD_SESSION` (empty for none), else one derived from the
/// terminal, if any: `tmux:%3@312`, `ssh:192.0.2.7:51514`, `tty:/dev/pts/4@81512`.
///
/// # Errors
/// `$BGD_SESSION` is needed, and is not UTF-8.
pub fn key(named: Option<String>, is_remote: bool) -> Result<Option<String>, Failure> {
    let found = terminal().map(|terminal| {
        let key = found(&terminal);
        if is_remote { format!("from:{}:{key}", this_machine()) } else { key }
    });
    chosen(named, found)
}

/// Like [`key`], for a terminal that was already looked up.
///
/// # Errors
/// As for [`key`].
pub fn key_at(named: Option<String>, terminal: Option<&OriginTerminal>) -> Result<Option<String>, Failure> {
    chosen(named, terminal.map(found))
}

fn chosen(named: Option<String>, found: Option<String>) -> Result<Option<String>, Failure> {
    let key = match named.filter(|key| key != THIS) {
        Some(key) => Some(key),
        None => of_environment()?,
    };
    Ok(key.or(found).filter(|key| !key.is_empty()))
}

/// Returns `$BGD_SESSION`; empty for no parent session.
///
/// # Errors
/// It is not UTF-8.
pub fn of_environment() -> Result<Option<String>, Failure> {
    let Some(key) = std::env::var_os("BGD_SESSION") else { return Ok(None) };
    // Falling back to another session could cancel the wrong tasks.
    key.into_string().map(Some).map_err(|_| {
        Failure::usage("BGD_SESSION is not UTF-8").hint("set it to the key of a parent session, as text")
    })
}

/// Returns the name of this machine. On a remote machine, a terminal's key alone could be that of a terminal there.
fn this_machine() -> String {
    uname().map(|system| system.nodename().to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the given parent session, if any; `.` means that of this process.
///
/// # Errors
/// `.` was given, but this process has no parent session.
pub fn named(named: Option<String>, is_remote: bool) -> Result<Option<String>, Failure> {
    named.map(|key| if key == THIS { this(is_remote) } else { Ok(key) }).transpose()
}

/// Returns the parent session of this process.
///
/// # Errors
/// There is none.
pub fn this(is_remote: bool) -> Result<String, Failure> {
    key(None, is_remote)?.ok_or_else(|| {
        Failure::usage("no parent session: $BGD_SESSION is unset or empty, and there is no terminal")
            .hint("give the key of the parent session, or set BGD_SESSION")
    })
}

fn found(terminal: &OriginTerminal) -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let (Some(server), Some(pane)) = (variable("TMUX"), variable("TMUX_PANE")) {
        return tmux_key(&server, &pane);
    }
    // The client's address and port. Shells that share a connection (ControlMaster) share them.
    if let Some(connection) = variable("SSH_CONNECTION") {
        let mut words = connection.split(' ');
        if let (Some(address), Some(port)) = (words.next(), words.next()) {
            return format!("ssh:{address}:{port}");
        }
    }
    // The number is the start time of the session leader in clock ticks since boot: another shell may get the same
    // device later, and is a different session.
    match ProcessStat::of(terminal.leader).and_then(|leader| leader.field::<u64>(22)) {
        Some(started) => format!("tty:{}@{started}", terminal.path),
        None => format!("tty:{}", terminal.path),
    }
}

/// Returns the key of a pane: the name of its tmux server (none for the default one), its number, and the server's pid.
/// Each server numbers its panes from 0, also the next one on the same socket. `$TMUX` holds the socket path, the pid
/// and a number, separated by commas.
fn tmux_key(variable: &str, pane: &str) -> String {
    let mut fields = variable.split(',');
    let socket = fields.next().unwrap_or_default();
    let name = match socket.rsplit('/').next().unwrap_or_default() {
        "default" => "",
        name => name,
    };
    match fields.next().and_then(|pid| pid.parse::<u32>().ok()) {
        Some(pid) => format!("tmux:{name}{pane}@{pid}"),
        None => format!("tmux:{name}{pane}"),
    }
}

/// Returns the controlling terminal of this process, if any.
pub fn terminal() -> Option<OriginTerminal> {
    of_stat(&ProcessStat::own()?)
}

fn of_stat(stat: &ProcessStat) -> Option<OriginTerminal> {
    let (leader, path) = (stat.field::<i32>(6)?, stat.terminal()?);
    // A leader of 0 or less is outside this pid namespace, so the terminal can't be seen from here.
    (leader > 0).then_some(OriginTerminal { path, leader })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_session_name_is_taken_verbatim() {
        assert_eq!(named(None, false), Ok(None));
        assert_eq!(named(Some("discord:4711".into()), false), Ok(Some("discord:4711".into())));
        assert_eq!(key(Some("discord:4711".into()), true), Ok(Some("discord:4711".into())));
        assert_eq!(key(Some(String::new()), false), Ok(None));
    }

    #[test]
    fn key_of_a_pane_names_its_tmux_server() {
        assert_eq!(tmux_key("/tmp/tmux-1000/default,312,0", "%3"), "tmux:%3@312");
        assert_eq!(tmux_key("/tmp/tmux-1000/work,312,0", "%3"), "tmux:work%3@312");
        assert_eq!(tmux_key("/tmp/tmux-1000/work", "%3"), "tmux:work%3");
        assert_eq!(tmux_key("nonsense,,", "%3"), "tmux:nonsense%3");
    }

    #[test]
    fn terminal_whose_leader_is_not_seen_is_none() {
        let read = |line: &str| of_stat(&ProcessStat::parse(line.as_bytes()).unwrap());
        assert_eq!(read("10 (x) S 1 10 0 34816 10"), None);
        assert_eq!(read("10 (x) S 1 10 9 34816 10").unwrap().leader, 9);
    }
}
