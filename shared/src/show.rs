//! Text for people. Task descriptions, agents' questions and quoted errors may come from anyone; they must neither
//! control the terminal that shows them nor look like something else.
//!
//! U+FFFD replaces characters that are invisible or affect others: control characters (C0, DEL, C1), characters that
//! change the direction of text or have no width or glyph (zero-width characters, fillers, tags, variation
//! selectors), and code points for private use or unassigned ones. A blank replaces any other white space.
//! Replacements stay visible, so that no word can pass for another; one U+FFFD stands for any number of characters.
//!
//! Only emoji keep their joiners and selectors, as they may consist of several characters.

mod times;

use std::borrow::Cow;
use std::fmt::Display;
use std::io;

use anstream::adapter::strip_bytes;
use memchr::memchr;
use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};

use crate::consumption::{AgentUsage, Cost, PlanStep, StepStatus};
use crate::titles::TitleFilter;
use crate::usage::Usage;

pub use times::{duration, elapsed, elapsed_changes_in};

/// Replacement for characters that are not shown.
const REPLACED: char = char::REPLACEMENT_CHARACTER;

/// Removes terminal escape sequences, such as those of colours, and the titles of windows from a line.
pub fn without_escapes(line: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\x1b', line).is_none() {
        return Cow::Borrowed(line);
    }
    let line = TitleFilter::default().push(line);
    Cow::Owned(strip_bytes(&line).flatten().copied().collect())
}

/// Makes a text safe to show on one line.
pub fn line(text: &str) -> String {
    shown(text, |_| false)
}

/// Makes a text safe to show on several lines.
pub fn lines(text: &str) -> String {
    shown(text, |c| matches!(c, '\n' | '\t'))
}

fn shown(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut before = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let in_picture = match c {
            '\u{fe0e}' | '\u{fe0f}' => before.is_some_and(is_picture),
            '\u{200d}' => {
                let joins = |c: char| is_picture(c) || c == '\u{fe0f}';
                before.is_some_and(joins) && rest.peek().copied().is_some_and(is_picture)
            }
            _ => false,
        };
        match c {
            c if is_kept(c) || in_picture => out.push(c),
            '\n' | '\r' | '\t' => out.push(' '),
            // One stands for any number of them, as hidden characters take no space.
            c if is_hidden(c) && out.ends_with(REPLACED) => {}
            c if is_hidden(c) => out.push(REPLACED),
            c if c.is_whitespace() => out.push(' '),
            c => out.push(c),
        }
        // A selector counts only if it is kept.
        before = Some(c).filter(|c| in_picture || *c != '\u{fe0f}');
    }
    out
}

/// Formats a number of things: `1 task`, `2 tasks`.
pub fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, thing: &str) -> String {
    let s = if number == N::from(1) { "" } else { "s" };
    format!("{number} {thing}{s}")
}

/// Formats a number of bytes for people.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut rest, mut unit) = (count, 0);
    while rest >= 1024 * 1024 && unit + 1 < UNITS.len() {
        rest /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", rest / 1024, rest % 1024 * 10 / 1024, UNITS[unit])
}

/// Formats the resource usage of a run: `2m 05s of CPU, at most 1.2 GiB of memory, 3.4 MiB written`.
pub fn usage(usage: &Usage) -> String {
    let mut words = vec![format!("{} of CPU", elapsed(usage.cpu_ms()))];
    words.extend(usage.peak_memory_bytes.map(|peak| format!("at most {} of memory", bytes(peak))));
    words.extend((usage.written_bytes > 0).then(|| format!("{} written", bytes(usage.written_bytes))));
    words.join(", ")
}

/// Formats a number of tokens for people: `999`, `12.3k`, `1.2M`.
pub fn tokens(count: u64) -> String {
    match count {
        ..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{}.{}k", count / 1_000, count % 1_000 / 100),
        _ => format!("{}.{}M", count / 1_000_000, count % 1_000_000 / 100_000),
    }
}

/// Formats the tokens that an agent has consumed: `12.3k tokens in, 800 out, 1.2M cached`. `None` if the agent does not
/// report them.
pub fn agent_tokens(usage: &AgentUsage) -> Option<String> {
    let mut words = Vec::new();
    words.extend(usage.input_tokens.map(|count| format!("{} tokens in", tokens(count))));
    words.extend(usage.output_tokens.map(|count| format!("{} out", tokens(count))));
    words.extend(usage.cached_tokens.map(|count| format!("{} cached", tokens(count))));
    (!words.is_empty()).then(|| words.join(", "))
}

/// Formats how full the context of an agent is: `45.0k of 200.0k tokens (22%)`. `None` if the agent does not report it.
pub fn agent_context(usage: &AgentUsage) -> Option<String> {
    let used = tokens(usage.context_tokens?);
    Some(match (usage.context_size, usage.context_percent()) {
        (Some(size), Some(percent)) => format!("{used} of {} tokens ({percent}%)", tokens(size)),
        _ => format!("{used} tokens"),
    })
}

/// Formats a cost: `1.20 USD`, `0.0042 USD`.
pub fn cost(cost: &Cost) -> String {
    let units = cost.amount.units();
    // Two significant digits, and at least cents.
    let digits = match units {
        0.0 => 2,
        ..0.000_1 => 6,
        ..0.01 => 4,
        _ => 2,
    };
    format!("{units:.digits$} {}", line(&cost.currency))
}

/// Formats an agent's consumption on one line. `None` if the agent does not report it.
pub fn agent_usage(usage: &AgentUsage) -> Option<String> {
    let words: Vec<String> = agent_tokens(usage).into_iter().chain(usage.cost.as_ref().map(cost)).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Formats a step of an agent's plan, with a mark for its progress: `[x] read the code`.
pub fn step(step: &PlanStep) -> String {
    let mark = match step.status {
        StepStatus::Pending => "[ ]",
        StepStatus::InProgress => "[>]",
        StepStatus::Completed => "[x]",
        StepStatus::Cancelled => "[-]",
        StepStatus::Unknown => "[?]",
    };
    format!("{mark} {}", line(&step.text))
}

/// Wordings of libraries for invalid values, and plain ones.
const PLAIN: [(&str, &str); 8] = [
    ("invalid digit found in string", "not a whole number"),
    ("cannot parse integer from empty string", "not a whole number"),
    ("number too large to fit in target type", "too large"),
    ("number too small to fit in target type", "too small"),
    ("number would be zero for non-zero type", "must be 1 or more"),
    ("invalid float literal", "not a number"),
    ("stream did not contain valid UTF-8", "not UTF-8"),
    ("environment variable not found", "not set"),
];

/// Replaces the wording of library errors quoted in a message with plain words: without the number that the standard
/// library appends to the system's message, as in `No such file or directory (os error 2)`.
pub fn plain(message: &str) -> Cow<'_, str> {
    let mut message = Cow::Borrowed(message);
    for (theirs, ours) in PLAIN {
        if message.contains(theirs) {
            message = message.replace(theirs, ours).into();
        }
    }
    let mut from = 0;
    while let Some(begin) = message[from..].find(OS_ERROR).map(|at| from + at) {
        let digits = begin + OS_ERROR.len();
        let end = message[digits..].find(|c: char| !c.is_ascii_digit()).map(|count| digits + count);
        from = digits;
        if let Some(end) = end.filter(|end| *end > digits && message[*end..].starts_with(')')) {
            message.to_mut().replace_range(begin..=end, "");
            from = begin;
        }
    }
    message
}

/// Text that the standard library puts between the system's message and the error number.
const OS_ERROR: &str = " (os error ";

/// Describes the losses caused by the kill of a daemon: `started` is the number of tasks that it had started, including
/// ended ones, since only their outputs show that they existed.
pub fn lost_tasks(started: u64) -> String {
    format!(
        "the previous daemon was killed: its running and pending tasks are lost, and the output of every task that it \
         had started ({started})"
    )
}

/// Describes that the file of a durable daemon's journal is not at this path any more.
pub fn missing_journal(path: &str) -> String {
    format!("the journal {path} was removed, moved or replaced")
}

/// Says what follows from a machine that does not show its processes.
pub const HIDDEN_PROCESSES: &str =
    "/proc can't be read, so processes that a task has started may be left when it ends or is cancelled";

/// Formats the exit code of a process.
pub fn exit_code(code: i32) -> String {
    format!("exit code {code}")
}

/// Returns a signal's name, such as `SIGTERM`. `None` for signals without one, such as real-time signals.
pub fn signal_name(number: i32) -> Option<&'static str> {
    Signal::try_from(number).ok().map(Signal::as_str)
}

/// Formats a signal as its number and name, such as `15 (SIGTERM)`.
pub fn signal(number: i32) -> String {
    signal_name(number).map_or_else(|| number.to_string(), |name| format!("{number} ({name})"))
}

/// Reports whether a text has no visible characters.
pub fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || is_hidden(c))
}

/// Reports whether a character is invisible, or affects how others are shown.
pub fn is_hidden(c: char) -> bool {
    match c {
        ' '..='~' => false,
        _ if c.is_control() => true,
        // Default-ignorable in Unicode, or with a blank glyph.
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{2800}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}'
        // Private use.
        | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'.. => true,
        _ => !c.is_whitespace() && !has_meaning(c),
    }
}

/// Reports whether the code point is assigned in Unicode: the standard library escapes the others. It also escapes a
/// combining mark at the beginning of a text, so another character comes first.
fn has_meaning(c: char) -> bool {
    let mut buffer = [b'a'; 5];
    let end = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..end]).unwrap_or("a");
    text.escape_debug().nth(1) == Some(c)
}

/// Reports whether selectors and joiners can combine a character into an emoji.
fn is_picture(c: char) -> bool {
    let is_symbol = matches!(c, '\u{2190}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}');
    is_symbol && !is_hidden(c)
}

/// Writes JSON with every hidden character escaped, so that the meaning is the same and a terminal is not affected.
///
/// # Errors
/// The value can't be written as JSON. Wire types always can.
pub fn json(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(1024);
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Escaping))?;
    Ok(bytes)
}

struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let mut begin = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| is_hidden(*c)) {
            out.write_all(&text.as_bytes()[begin..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            begin = at + c.len_utf8();
        }
        out.write_all(&text.as_bytes()[begin..])
    }

    fn write_char_escape<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        CompactFormatter.write_char_escape(out, escape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumption::Amount;
    use proptest::prelude::*;

    /// Deceptive characters.
    const DECEIVERS: &str = "\u{0}\u{7}\u{8}\u{1b}\u{7f}\u{80}\u{85}\u{9b}\u{9f}\u{ad}\u{61c}\u{200b}\u{200c}\u{200e}\u{200f}\
        \u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2060}\u{2066}\u{2067}\u{2068}\u{2069}\u{feff}\
        \u{fe00}\u{e000}\u{f8ff}\u{378}\u{115f}\u{1160}\u{3164}\u{ffa0}\u{2800}\u{34f}\u{180e}\u{e0001}\u{e0041}\
        \u{e007f}\u{e0100}\u{f0000}\u{10ffff}";

    #[test]
    fn library_errors_are_reworded_plainly() {
        let missing = io::Error::from_raw_os_error(2);
        assert_eq!(
            plain(&format!("/a: {missing}, /b: {missing}; x")),
            "/a: No such file or directory, /b: No such file or directory; x"
        );
        let number = "x".parse::<u8>().unwrap_err().to_string();
        assert_eq!(plain(&format!("--limit: {number}")), "--limit: not a whole number");
        for error in ["".parse::<u8>(), "300".parse::<u8>()].map(Result::unwrap_err) {
            assert_ne!(plain(&error.to_string()), error.to_string());
        }
        assert_ne!(
            plain(&"-300".parse::<i8>().unwrap_err().to_string()),
            "number too small to fit in target type"
        );
        assert_eq!(plain(&"x".parse::<f64>().unwrap_err().to_string()), "not a number");
        assert_eq!(plain(&std::env::var("BGD_NO_SUCH").unwrap_err().to_string()), "not set");
        for kept in ["", "ä (os error ", "(os error 2)", "a (os error x)", "a (os error )", "a (os error 2"]
        {
            assert_eq!(plain(kept), kept);
        }
    }

    #[test]
    fn usage_is_summarized_briefly() {
        let used = Usage { user_ms: 120_000, system_ms: 5_000, peak_memory_bytes: None, written_bytes: 0 };
        assert_eq!(usage(&used), "2m 05s of CPU");
        let all = Usage { peak_memory_bytes: Some(3 << 29), written_bytes: 1000, ..used };
        assert_eq!(usage(&all), "2m 05s of CPU, at most 1.5 GiB of memory, 1000 B written");
    }

    #[test]
    fn agent_usage_is_summarized_briefly() {
        assert_eq!([999, 1_000, 12_345, 1_250_000].map(tokens), ["999", "1.0k", "12.3k", "1.2M"]);
        let cost = |units| Cost { amount: Amount::of(units).unwrap(), currency: "USD".into() };
        assert_eq!(
            [0.0, 0.00014, 0.25, 12.5].map(|units| super::cost(&cost(units))),
            ["0.00 USD", "0.0001 USD", "0.25 USD", "12.50 USD"]
        );
        assert_eq!(super::cost(&cost(0.000_014)), "0.000014 USD");
        let none = AgentUsage::default();
        assert_eq!((agent_usage(&none), agent_tokens(&none), agent_context(&none)), (None, None, None));
        let all = AgentUsage {
            input_tokens: Some(12_345),
            output_tokens: Some(800),
            cached_tokens: Some(1_250_000),
            context_tokens: Some(45_000),
            context_size: Some(200_000),
            cost: Some(cost(1.2)),
        };
        let words = "12.3k tokens in, 800 out, 1.2M cached, 1.20 USD";
        assert_eq!(agent_usage(&all).as_deref(), Some(words));
        assert_eq!(agent_context(&all).as_deref(), Some("45.0k of 200.0k tokens (22%)"));
        let unsized_one = AgentUsage { context_size: None, ..all };
        assert_eq!(agent_context(&unsized_one).as_deref(), Some("45.0k tokens"));
        let step = |status| super::step(&PlanStep { text: "read\n".into(), status });
        assert_eq!([step(StepStatus::Completed), step(StepStatus::InProgress)], ["[x] read ", "[>] read "]);
    }

    #[test]
    fn deceptive_characters_are_replaced() {
        for c in DECEIVERS.chars() {
            assert!(is_hidden(c), "{c:?}");
            for text in [format!("{c}"), format!("a{c}b"), format!("👍{c}👍"), format!("ا{c}ب")] {
                assert!(!line(&text).contains(c) && !lines(&text).contains(c), "{text:?}");
                assert_eq!(line(&text).chars().count(), text.chars().count(), "{text:?}");
            }
        }
        assert_eq!(line("rm\u{200d} -\u{fe0f}rf \u{202e}fdp.exe"), "rm\u{fffd} -\u{fffd}rf \u{fffd}fdp.exe");
        assert_eq!(line("a\x1b[2Jb\u{9b}c\r\nd\te\u{a0}f\u{3000}g"), "a\u{fffd}[2Jb\u{fffd}c  d e f g");
        assert_eq!(lines("a\n\tb\r\n\x1b"), "a\n\tb \n\u{fffd}");
        assert_eq!(line("a\0\0\0\u{202e}\u{200b}b"), "a\u{fffd}b", "one for all");
        assert!(is_blank("\0\u{200b} \n") && is_blank("") && !is_blank("\0a"));
    }

    #[test]
    fn window_titles_and_colours_are_removed_from_lines() {
        for (line, plain) in [
            ("plain", "plain"),
            ("\x1b[1mbold\x1b[m", "bold"),
            ("\x1bkvim\x1b\\$ make\x1bkmake\x1b\\ up", "$ make up"),
            ("\x1b]0;bash\x07up", "up"),
            ("up \x1bkthe next line ends it", "up "),
            ("\x1b\\up", "up"),
        ] {
            assert_eq!(String::from_utf8_lossy(&without_escapes(line.as_bytes())), plain, "{line:?}");
        }
    }

    #[test]
    fn ordinary_text_stays_unchanged() {
        for text in [
            "make -j8 && echo \"ok\" > ~/log | \\ 'x'",
            "Größe, naïve, e\u{301}, Ελλάδα, Україна",
            "日本語、한국어, ไทย, हिन्दी, עברית, العربية",
            "✔️ done, 👨\u{200d}👩\u{200d}👧, 🏳️\u{200d}🌈, 👍🏽, → ∑ ½ … “q” – €",
        ] {
            assert_eq!(line(text), text);
            assert_eq!(lines(text), text);
        }
    }

    #[test]
    fn json_escapes_deceptive_characters() {
        let bytes = json(&DECEIVERS).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.is_ascii(), "{text}");
        assert!(
            text.contains(r"\u009b") && text.contains(r"\u202e") && text.contains(r"\udb40\udc41"),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), DECEIVERS);
        assert_eq!(json(&"a\n\"ü\\👍").unwrap(), serde_json::to_vec("a\n\"ü\\👍").unwrap());
    }

    fn text() -> impl Strategy<Value = String> {
        let any = prop_oneof![
            any::<char>(),
            proptest::sample::select(
                DECEIVERS.chars().chain("\u{200d}\u{fe0e}\u{fe0f}👍👩✔ \n\tab1".chars()).collect::<Vec<_>>()
            ),
        ];
        proptest::collection::vec(any, 0..40).prop_map(|chars| chars.into_iter().collect())
    }

    proptest! {
        #[test]
        fn shown_text_has_no_hidden_characters_and_is_stable(text in text()) {
            let one = line(&text);
            prop_assert!(!one.contains('\n'));
            for shown in [one, lines(&text).replace(['\n', '\t'], " ")] {
                let mut before = 'a';
                for c in shown.chars() {
                    // Joiners and selectors follow emoji only.
                    let joins = matches!(c, '\u{200d}' | '\u{fe0e}' | '\u{fe0f}');
                    prop_assert!(!is_hidden(c) || joins && (is_picture(before) || before == '\u{fe0f}'), "{shown:?}");
                    before = c;
                }
                prop_assert_eq!(line(&shown), shown, "what is shown is shown as it is");
            }
        }

        #[test]
        fn json_survives_a_round_trip(text in text()) {
            let bytes = json(&text).unwrap();
            prop_assert!(!String::from_utf8(bytes.clone()).unwrap().contains(is_hidden));
            prop_assert_eq!(serde_json::from_slice::<String>(&bytes).unwrap(), text);
        }
    }

    #[test]
    fn signals_are_shown_by_number_and_name() {
        assert_eq!(signal(15), "15 (SIGTERM)");
        assert_eq!(signal(10), "10 (SIGUSR1)");
        assert_eq!(signal(40), "40", "a real-time signal has no name");
    }
}
