//! Signals by name.

use std::str::FromStr as _;

use bgd_shared::error::{ErrorKind, RpcError};
use nix::sys::signal::Signal;

/// Parses a signal: a number, or a name with or without `SIG`.
///
/// # Errors
/// `invalid_params` if it is not a signal.
pub fn number(text: &str) -> Result<i32, RpcError> {
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("SIG") { upper.clone() } else { format!("SIG{upper}") };
    if let Ok(signal) = Signal::from_str(&name) {
        return Ok(signal as i32);
    }
    if let Ok(number @ 1..=64) = text.parse::<i32>() {
        return Ok(number);
    }
    let text: String = text.chars().take(32).collect();
    Err(RpcError::new(ErrorKind::InvalidParams, format!("{text:?} is not a signal"))
        .hint("give a number from 1 to 64, or a name such as TERM, INT, HUP, USR1"))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn signals_are_parsed_from_names_and_numbers() {
        for (text, signal) in [("TERM", 15), ("sigint", 2), ("Hup", 1), ("9", 9), ("34", 34)] {
            assert_eq!(number(text).unwrap(), signal, "{text}");
        }
        for text in ["", "0", "65", "-1", "NOPE", "SIG"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
