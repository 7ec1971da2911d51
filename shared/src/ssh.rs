//! Messages of OpenSSH's client, `ssh`.

/// Messages about a host that was reached, whose authentication or host key is the problem.
const REFUSALS: [&str; 3] =
    ["Permission denied", "Host key verification failed", "Too many authentication failures"];

/// Reports whether this message of ssh is about a problem that does not go away by itself: a person has to act, and
/// further attempts would only look like an attack.
pub fn is_refusal(message: &str) -> bool {
    REFUSALS.iter().any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r145_refusals_of_ssh_are_told_from_passing_troubles() {
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
