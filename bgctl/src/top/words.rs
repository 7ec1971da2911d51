//! A typed verb: splits it into words as a shell does, at blanks, with quotes, backslashes and comments, without any
//! expansion; and determines whether it ends work or names a host, as `bgctl` itself would parse it.

use std::ffi::OsString;

use crate::cli::{self, DaemonVerb, Globals, SessionVerb, Verb};

/// Splits a text into words; there are none in a comment.
///
/// # Errors
/// A quote is not closed, or nothing follows a backslash.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    shlex::split(text).ok_or_else(|| "a quote is not closed, or the last character is a backslash".to_owned())
}

/// Parses these words as `bgctl` would on a terminal, which is where the verb will run. `None` if they are invalid.
fn read(words: &[String]) -> Option<(Globals, Verb)> {
    let line = std::iter::once("bgctl".into()).chain(words.iter().map(OsString::from));
    cli::parse(line, true).ok()
}

/// Reports whether `bgctl` with these words would end or delete something. Invalid words end nothing.
pub fn ends_work(words: &[String]) -> bool {
    let Some((_, verb)) = read(words) else { return false };
    match verb {
        Verb::Cancel(_) | Verb::Clear(_) | Verb::Signal(_) => true,
        Verb::Session(args) => matches!(args.verb, SessionVerb::End { .. }),
        Verb::Daemon(args) => matches!(args.verb, DaemonVerb::Stop { .. } | DaemonVerb::Restart { .. }),
        _ => false,
    }
}

/// Reports whether `bgctl` with these words would talk to a machine that they name. Invalid words name none.
pub fn names_host(words: &[String]) -> bool {
    read(words).is_some_and(|(globals, _)| globals.host.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r162_words_are_split_like_in_a_shell() {
        assert_eq!(
            split(r#" submit -d 'a  b' "x\"y" c\ d '' "#).unwrap(),
            ["submit", "-d", "a  b", "x\"y", "c d", ""]
        );
        assert_eq!(split(r#"submit "a\b\$" 'c\d' e#f # g"#).unwrap(), ["submit", r"a\b$", r"c\d", "e#f"]);
        assert!(split("submit 'x").unwrap_err().contains("not closed"));
        assert!(split("submit x\\").unwrap_err().contains("backslash"));
        assert!(split(" \t").unwrap().is_empty());
    }

    #[test]
    fn r162_work_ending_verb_is_detected_around_any_options() {
        for (line, wanted) in [
            ("cancel --all", true),
            ("--json cancel 3f2a", true),
            ("-H host --connect-timeout 5s daemon stop", true),
            ("--socket=x daemon --no-start restart", true),
            ("--color never session end .", true),
            ("signal 3f2a INT", true),
            ("clear --all-sessions", true),
            ("-H cancel list", false),
            ("submit -- bgctl cancel --all", false),
            ("--json daemon status", false),
            ("session key", false),
            ("cancel", false),
            ("cancel --help", false),
            ("nonsense", false),
            ("", false),
        ] {
            assert_eq!(ends_work(&split(line).unwrap()), wanted, "{line}");
        }
    }

    #[test]
    fn r144_host_option_of_a_verb_is_detected() {
        for (line, names) in [
            ("-H far list", true),
            ("list --host=far", true),
            ("list", false),
            ("submit -- ssh -H far", false),
            ("-H far nonsense", false),
        ] {
            assert_eq!(names_host(&split(line).unwrap()), names, "{line}");
        }
    }
}
