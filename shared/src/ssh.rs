//! Facts about OpenSSH's client, `ssh`: its options, its shared connections, its messages.

use std::path::{Path, PathBuf};

/// The maximum length of a control socket's path, in bytes: ssh appends 17 characters while it creates the socket, and
/// 107 fit.
const CONTROL_PATH_BYTES: usize = 107 - 17;

/// Options for keep-alive messages, used if the user has set no interval: the seconds of silence after which ssh probes
/// the connection, and the number of unanswered probes after which it gives up.
pub const KEEP_ALIVE: [&str; 4] = ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=2"];

/// Options that print the user's settings for a host. With `BatchMode`, Debian's ssh has an interval of 5 minutes that
/// the user has not set.
pub const PRINT_SETTINGS: [&str; 3] = ["-G", "-o", "BatchMode=no"];

/// The exit code of ssh if it could not connect, was cut off, or a signal killed what it ran.
pub const CUT: i32 = 255;

/// Messages about a host that was reached, whose authentication or host key is the problem.
const REFUSALS: [&str; 3] =
    ["Permission denied", "Host key verification failed", "Too many authentication failures"];

/// Reports whether this message of ssh is about a problem that does not go away by itself: a person has to act, and
/// further attempts would only look like an attack.
fn is_refusal(message: &str) -> bool {
    REFUSALS.iter().any(|words| message.contains(words))
}

/// The maximum number of lines of a refusal that are passed on: for a changed host key, the file and the line of the
/// known key, how to remove it, and whose key it is.
const REFUSAL_LINES: usize = 5;

/// The maximum size of the lines before the last of a refusal, in bytes: messages are cut at their end.
const REFUSAL_BYTES: usize = 300;

/// Returns, on one line, what ssh says about a problem that does not go away by itself: its last lines, as a long
/// warning in a frame or the banner of the site may come first. `None` if it says nothing of that kind. Not cleaned.
pub fn refusal(message: &str) -> Option<String> {
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("@ "));
    let lines: Vec<&str> = lines.filter(|line| !line.bytes().all(|byte| byte == b'@')).collect();
    let last = lines.iter().rposition(|line| is_refusal(line))?;
    let mut bytes = 0;
    let fits = |line: &&&str| {
        bytes += line.len();
        bytes <= REFUSAL_BYTES
    };
    let before = lines[..last].iter().rev().take(REFUSAL_LINES - 1).take_while(fits).count();
    let mut text = String::new();
    for line in &lines[last - before..=last] {
        match text.chars().next_back() {
            None => {}
            // The line introduces this one.
            Some(':') => text.push(' '),
            Some(_) => text.push_str("; "),
        }
        text.push_str(line.trim_end_matches('.'));
    }
    Some(text)
}

/// How `bgctl` words the advice to have programs copied. Where a configuration says that in place of an option, these
/// words are replaced.
pub const WITH_BOOTSTRAP: &str = "with --bootstrap";

/// Reports whether these settings, printed with [`PRINT_SETTINGS`], leave the detection of a dead connection to the
/// operating system, which takes hours. `None` if ssh did not print them in time, as on a busy machine: then it is better
/// to override the user's interval than to miss a dead connection.
pub fn needs_keep_alive(settings: Option<&[u8]>) -> bool {
    settings.is_none_or(|text| text.split(|byte| *byte == b'\n').any(|line| line == b"serveraliveinterval 0"))
}

/// Reports whether this path can be the control socket of a shared connection.
pub fn can_be_control_path(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    // ssh would expand a `%`.
    bytes.len() <= CONTROL_PATH_BYTES && !bytes.contains(&b'%')
}

/// Returns the ssh client that bgctl runs: `$BGD_SSH`, else the one in PATH.
pub fn program() -> PathBuf {
    std::env::var_os("BGD_SSH").filter(|path| !path.is_empty()).unwrap_or_else(|| "ssh".into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r145_refusals_of_ssh_are_distinguished_from_passing_troubles() {
        for message in [
            "me@far: Permission denied (publickey).",
            "Host key verification failed.",
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
        ] {
            assert!(is_refusal(message), "{message}");
        }
        for message in ["ssh: connect to host far port 22: No route to host", "Connection closed", ""] {
            assert!(!is_refusal(message), "{message}");
        }
    }

    #[test]
    fn r151_long_ssh_warning_does_not_hide_the_refusal() {
        let frame = "@".repeat(59);
        let warning = format!(
            "{frame}\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n{frame}\r\n\
             IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r\n{}\r\n\
             Please contact your system administrator.\r\n",
            "Someone could be eavesdropping! ".repeat(10)
        );
        let last = "Offending ED25519 key in /home/me/known_hosts:7\r\n  remove with:\r\n  \
                    ssh-keygen -f '/home/me/known_hosts' -R 'far'\r\n\
                    Host key for far has changed and you have requested strict checking.\r\n\
                    Host key verification failed.\r\n";
        assert_eq!(
            refusal(&format!("{warning}{last}")).unwrap(),
            "Offending ED25519 key in /home/me/known_hosts:7; remove with: ssh-keygen -f '/home/me/known_hosts' -R \
             'far'; Host key for far has changed and you have requested strict checking; Host key verification failed"
        );
        let key = format!(
            "{frame}\n@ WARNING: UNPROTECTED PRIVATE KEY FILE! @\n{frame}\nPermission denied (publickey).\n"
        );
        assert_eq!(refusal(&key).unwrap(), "Permission denied (publickey)");
        assert_eq!(refusal("ssh: connect to host far port 22: No route to host\n"), None);
        let too_many = "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\n\
                        Disconnected from 10.0.0.1 port 22\n";
        assert!(refusal(too_many).unwrap().ends_with("Too many authentication failures"));
    }
}
