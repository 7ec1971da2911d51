//! Checks the ids of sessions that programs print.

use bgd_shared::limits::AGENT_SESSION_BYTES;
use bgd_shared::show;

use crate::agents::SESSION;

/// Returns why an id can't be used to continue a session with this command line; `None` if it can. It is what a program
/// has printed, so it must not become an option.
pub fn unusable(id: &str, resume: &[String]) -> Option<&'static str> {
    if show::is_blank(id) {
        Some("it is blank")
    } else if id.len() > AGENT_SESSION_BYTES {
        Some("it is too long")
    } else if id.contains(char::is_control) {
        Some("it has control characters")
    } else if id.starts_with('-') && resume.iter().any(|word| word.starts_with(SESSION)) {
        Some("it begins with `-`, and would be an option of the command line")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_that_could_not_be_an_argument_is_unusable() {
        let [own, joined] = ["{session}", "--resume={session}"].map(|word| [word.to_owned()]);
        for id in ["", " ", "a\0b", "a\nb", &"x".repeat(AGENT_SESSION_BYTES + 1)] {
            assert!(unusable(id, &own).is_some() && unusable(id, &joined).is_some(), "{id:?}");
        }
        assert!(unusable("--evil", &own).is_some_and(|why| why.contains("option")));
        assert_eq!((unusable("--evil", &joined), unusable("a-b c", &own)), (None, None));
    }
}
