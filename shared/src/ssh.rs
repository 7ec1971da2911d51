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

/// Messages about a host that was reached, whose authentication or host key is the problem.
const REFUSALS: [&str; 3] =
    ["Permission denied", "Host key verification failed", "Too many authentication failures"];

/// Reports whether this message of ssh is about a problem that does not go away by itself: a person has to act, and
/// further attempts would only look like an attack.
pub fn is_refusal(message: &str) -> bool {
    REFUSALS.iter().any(|words| message.contains(words))
}

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
}
