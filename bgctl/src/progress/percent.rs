//! The progress of a task, parsed from its output (R165). Parsed by the client, only for tasks that are being viewed.

use bgd_shared::request::OutputResult;

/// Number of bytes at the end of an output that are searched for progress.
pub const LINE_BYTES: i64 = 4096;

/// Parses the progress from an answer with the last bytes of an output.
pub fn in_output(answer: OutputResult) -> Option<u8> {
    let bytes = answer.encoding.decode(answer.data).unwrap_or_default();
    percent(&bytes, answer.task.progress.last_line.as_deref())
}

/// Parses the progress from the last bytes of an output: the last one sent to the terminal (OSC 9;4), else `n%` or
/// `a/b` in the last line.
pub fn percent(bytes: &[u8], last_line: Option<&str>) -> Option<u8> {
    match last_osc94(bytes) {
        Osc94Progress::Nothing => last_line.and_then(of_line),
        Osc94Progress::Progress(percent) => percent,
    }
}

/// The progress sent to the terminal.
enum Osc94Progress {
    Nothing,
    /// The percentage; `None` if the sequence reports no progress (any more).
    Progress(Option<u8>),
}

/// Parses the last OSC 9;4: `ESC ] 9 ; 4 ; state ; percent`, terminated by BEL or `ESC \`.
fn last_osc94(bytes: &[u8]) -> Osc94Progress {
    const START: &[u8] = b"\x1b]9;4;";
    let mut end = bytes.len();
    while let Some(at) = memchr::memmem::rfind(&bytes[..end], START) {
        let rest = &bytes[at + START.len()..];
        if let Some(length) = rest.iter().position(|byte| matches!(byte, 0x07 | 0x1b)) {
            return Osc94Progress::Progress(state(&rest[..length]));
        }
        // This sequence is incomplete: the one before it counts.
        end = at;
    }
    Osc94Progress::Nothing
}

/// Parses `state;percent`. State 1 is progress, 2 an error, 4 a warning; 0 is none, and 3 progress without a number.
fn state(parameters: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(parameters).ok()?;
    let (state, percent) = text.split_once(';')?;
    matches!(state, "1" | "2" | "4").then_some(())?;
    let percent = percent.trim_end_matches(';').parse::<u32>().ok()?.min(100);
    u8::try_from(percent).ok()
}

/// Returns the last `n%` of a line, else its last `a/b`. Neither may be part of a longer word.
pub fn of_line(line: &str) -> Option<u8> {
    let words = || {
        let is_separator =
            |c: char| c.is_whitespace() || matches!(c, '(' | ')' | '[' | ']' | '|' | ',' | ':' | '=');
        line.rsplit(is_separator).filter(|word| !word.is_empty())
    };
    words().find_map(of_hundred).or_else(|| words().find_map(of_all))
}

/// Parses `42%` or `42.7%`.
fn of_hundred(word: &str) -> Option<u8> {
    let number = word.strip_suffix('%').or_else(|| word.trim_end_matches(['.', ';']).strip_suffix('%'))?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(whole) && is_number(part)).then_some(())?;
    whole.parse::<u8>().ok().filter(|percent| *percent <= 100)
}

/// Parses `3/8`: done and total.
fn of_all(word: &str) -> Option<u8> {
    let (done, all) = word.trim_end_matches(['.', ';']).split_once('/')?;
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { text.parse::<u64>().ok() } else { None }
    };
    let (done, all) = (number(done)?, number(all)?);
    (done <= all).then_some(())?;
    u8::try_from(done.saturating_mul(100).checked_div(all)?).ok()
}

/// Returns the sequence that sets the terminal's progress; `None` removes it.
pub fn osc94_sequence(percent: Option<u8>) -> String {
    match percent {
        Some(percent) => format!("\x1b]9;4;1;{percent}\x1b\\"),
        None => "\x1b]9;4;0;0\x1b\\".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn r165_terminal_progress_sequence_takes_precedence() {
        assert_eq!(percent(b"\x1b]9;4;1;42\x07 7%", Some("7%")), Some(42));
        assert_eq!(percent(b"\x1b]9;4;1;42\x1b\\\x1b]9;4;1;43\x1b\\", None), Some(43));
        assert_eq!(percent(b"\x1b]9;4;1;42\x07\x1b]9;4;1;5", None), Some(42), "the last is not complete");
        assert_eq!(percent(b"\x1b]9;4;2;80\x07", None), Some(80), "an error is at some place, too");
        for more in [101, 250, 256, 100_000] {
            assert_eq!(percent(format!("\x1b]9;4;1;{more}\x07").as_bytes(), None), Some(100), "{more}");
        }
        assert_eq!(percent(b"\x1b]9;4;0;0\x07 7%", Some("7%")), None, "it says that there is none");
        assert_eq!(percent(b"\x1b]9;4;3\x07", Some("7%")), None);
        assert_eq!(percent(b"\x1b]9;4;1\x07\x1b]9;4;x;y\x07", None), None);
    }

    #[test]
    fn r165_percentage_is_read_from_last_line_otherwise() {
        let of = |line| percent(b"", Some(line));
        for (line, wanted) in [
            ("Epoch 3/8 [=====>    ] 42% loss 0.3", Some(42)),
            ("10% 20%", Some(20)),
            ("99.6% done", Some(99)),
            ("(100%)", Some(100)),
            ("[3/8] compiling x", Some(37)),
            ("Building 12/12: y.", Some(100)),
            ("0/5", Some(0)),
            ("progress=7%.", Some(7)),
            ("101%", None),
            ("9/8", None),
            ("0/0", None),
            ("src/4/5/x", None),
            ("2026/11/24", None),
            ("a%", None),
            ("x5%", None),
            ("-5%", None),
            (".5%", None),
            ("", None),
        ] {
            assert_eq!(of(line), wanted, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn r165_arbitrary_output_yields_at_most_100_percent(bytes in proptest::collection::vec(any::<u8>(), 0..200), line in ".{0,80}") {
            prop_assert!(percent(&bytes, Some(&line)).is_none_or(|percent| percent <= 100));
        }

        #[test]
        fn r165_written_progress_sequence_is_read_back(number in 0u8..=100) {
            prop_assert_eq!(percent(osc94_sequence(Some(number)).as_bytes(), None), Some(number));
            prop_assert_eq!(percent(osc94_sequence(None).as_bytes(), Some("5%")), None);
        }
    }
}
