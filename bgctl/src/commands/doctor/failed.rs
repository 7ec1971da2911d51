//! The result of a check whose request failed. Makes no requests itself.

use crate::exit::Code;
use crate::failure::Failure;
use crate::render::doctor::Check;

/// Returns the check for a request that failed.
pub fn failed(part: &'static str, name: &str, failure: &Failure) -> Check {
    let otherwise = match failure.code {
        Code::CONFIG if names_line(&failure.message) => {
            "correct that line; then bgctl daemon start, or bgctl daemon reload if one runs"
        }
        Code::CONFIG => "correct that; then bgctl daemon start, or bgctl daemon reload if one runs",
        // Without a socket that may be used, the daemon can't be asked.
        Code::NOT_ALLOWED => "set BGD_SOCKET to a path in a folder of your own with mode 0700",
        _ => "see the daemon's log: bgctl daemon status names its folder",
    };
    let hint = failure.hint.as_deref().unwrap_or(otherwise);
    Check::fails(part, name, &failure.message, hint)
}

/// Reports whether a message about the configuration names the place of a text in it. An unreadable file has none.
fn names_line(message: &str) -> bool {
    message.contains(": line ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r168_hint_about_the_configuration_fits_its_error() {
        let hint =
            |message: &str| failed("daemon", "x", &Failure::new(Code::CONFIG, "x", message)).hint.unwrap();
        assert!(hint("/c: line 3, column 1: unknown key `x`").starts_with("correct that line;"));
        assert!(hint("/c: Permission denied (os error 13)").starts_with("correct that;"));
    }
}
