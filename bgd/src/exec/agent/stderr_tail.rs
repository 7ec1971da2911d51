//! The last lines that an agent wrote to its standard error, which are reported when it dies.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::rc::Rc;
use std::time::Duration;

use bgd_shared::show;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;
use tokio::time::Instant;

/// How many lines are kept.
const LINES: usize = 5;

/// How many lines are reported while the agent is running.
const LIVING: usize = 3;

/// The longest line that is kept, in bytes; the rest of it is dropped.
const LINE_BYTES: usize = 400;

/// How long to wait for output after its writer has exited. The wait is limited, because a child may hold the pipe open
/// forever.
pub const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// The tail of an agent's standard error.
#[derive(Clone, Debug)]
pub struct StderrTail {
    tail: Rc<RefCell<Tail>>,
    /// How many meaningful lines there were so far.
    meaningful_lines: Rc<watch::Sender<u64>>,
    /// Whether the pipe is being read, so that more output may follow.
    reading: Rc<watch::Sender<bool>>,
    /// The pipe's number while the pipe is read.
    pipe: Rc<Cell<Option<RawFd>>>,
}

impl Default for StderrTail {
    fn default() -> Self {
        Self {
            tail: Rc::default(),
            meaningful_lines: Rc::default(),
            reading: Rc::new(watch::channel(false).0),
            pipe: Rc::default(),
        }
    }
}

/// The meaningful lines of a program's output: no stack traces and no logging below warnings, unless there is nothing
/// else. Keeps the last error, even if many lines follow it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Excerpt {
    lines: VecDeque<String>,
    /// How many meaningful lines there were, including dropped ones.
    count: u64,
    noise: VecDeque<String>,
    error: Option<String>,
}

impl Excerpt {
    /// Adds a line. Blank lines are ignored.
    pub fn push(&mut self, line: &str) {
        if show::is_blank(line) {
            return;
        }
        let is_noise = is_of_trace(line) || is_of_log(line);
        let line = show::line(line).trim().to_owned();
        if !is_noise && is_error(&line) {
            self.error = Some(line.clone());
        }
        self.count += u64::from(!is_noise);
        let lines = if is_noise { &mut self.noise } else { &mut self.lines };
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Returns the last `most` lines. If the last error is older, it replaces the first of these lines.
    pub fn last(&self, most: usize) -> Vec<&str> {
        let lines = if self.lines.is_empty() { &self.noise } else { &self.lines };
        let mut last: Vec<&str> =
            lines.iter().skip(lines.len().saturating_sub(most)).map(String::as_str).collect();
        if let Some(error) = self.error.as_deref().filter(|error| !last.contains(error))
            && let Some(first) = last.first_mut()
        {
            *first = error;
        }
        last
    }
}

/// Returns whether a line belongs to a stack trace as written by Node, Python, Rust, Go or Java.
fn is_of_trace(line: &str) -> bool {
    const BEGINNINGS: [&str; 7] = [
        "Traceback (most recent call last)",
        "stack backtrace:",
        "note: run with `RUST_BACKTRACE",
        "Node.js v",
        "goroutine ",
        "node:internal/",
        "File \"",
    ];
    let is_indented = line.starts_with([' ', '\t']);
    let text = line.trim();
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    BEGINNINGS.iter().any(|begin| text.starts_with(begin))
        || text.chars().all(|c| matches!(c, '^' | '~' | ' '))
        || is_indented && (text.starts_with("at ") || text.contains(".go:"))
        || is_indented && number.len() < text.len() && number.starts_with(": ")
}

/// Returns whether a line is logging of a level that does not indicate an error.
fn is_of_log(line: &str) -> bool {
    let levels = ["DEBUG", "TRACE", "INFO", "VERBOSE", "debug", "trace"];
    let mut words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).take(12);
    // A lower-case word may be part of a sentence; as a level it is in brackets or follows a `level` key.
    words.any(|word| {
        levels.contains(&word)
            && (word.chars().all(char::is_uppercase)
                || line.contains(&format!("[{word}]"))
                || line.contains(&format!("level={word}"))
                || line.contains(&format!("\"level\":\"{word}\"")))
    })
}

fn is_error(line: &str) -> bool {
    let line = line.to_lowercase();
    ["error", "panicked at", "panic: ", "fatal", "exception"].iter().any(|word| line.contains(word))
}

/// The part of a program's standard error that was read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tail {
    #[serde(rename = "telling")]
    excerpt: Excerpt,
    /// The unfinished line.
    open: Vec<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.end_line();
            } else if self.open.len() < LINE_BYTES {
                self.open.push(*byte);
            }
        }
    }

    fn end_line(&mut self) {
        self.excerpt.push(&String::from_utf8_lossy(&std::mem::take(&mut self.open)));
    }
}

impl StderrTail {
    /// Reads until every holder of the pipe has closed it. A child of the agent may hold the pipe open for longer than
    /// the agent runs, so nothing may wait for that.
    pub fn read(self, mut pipe: Receiver) -> impl Future<Output = ()> {
        self.reading.send_replace(true);
        self.pipe.set(Some(pipe.as_fd().as_raw_fd()));
        async move {
            let mut buffer = vec![0; 4096];
            while let Ok(count) = pipe.read(&mut buffer).await
                && count > 0
            {
                self.tail.borrow_mut().push(&buffer[..count]);
                self.speak();
            }
            self.tail.borrow_mut().end_line();
            self.speak();
            self.pipe.set(None);
            drop(pipe);
            self.reading.send_replace(false);
        }
    }

    /// Returns the tail, and the number of the pipe if more output may follow.
    pub fn state(&self) -> (Tail, Option<RawFd>) {
        // The lines are counted again, and reading is started again.
        let Self { tail, meaningful_lines: _, reading: _, pipe } = self;
        (tail.borrow().clone(), pipe.get())
    }

    /// Restores the tail from before an upgrade.
    pub fn restore(tail: Tail) -> Self {
        let this = Self::default();
        this.tail.replace(tail);
        this.speak();
        this
    }

    fn speak(&self) {
        let count = self.tail.borrow().excerpt.count;
        self.meaningful_lines.send_if_modified(|known| std::mem::replace(known, count) != count);
    }

    /// Subscribes to the number of meaningful lines so far.
    pub fn meaningful_lines(&self) -> watch::Receiver<u64> {
        self.meaningful_lines.subscribe()
    }

    /// Returns the meaningful lines after the first `before`, but at most the last [`LIVING`].
    pub fn since(&self, before: u64) -> String {
        let tail = self.tail.borrow();
        let new = usize::try_from(tail.excerpt.count.saturating_sub(before)).unwrap_or(usize::MAX);
        let lines = &tail.excerpt.lines;
        let last: Vec<&str> =
            lines.iter().skip(lines.len().saturating_sub(new.min(LIVING))).map(String::as_str).collect();
        last.join(" / ")
    }

    /// Waits until the output of an ended process is read, for at most [`DRAIN_TIMEOUT`].
    pub async fn read_out(&self) {
        let mut reading = self.reading.subscribe();
        // Later output is not reported.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading.wait_for(|reading| !reading)).await;
    }

    /// Adds a line from a source other than the pipe.
    pub fn note(&self, line: &str) {
        let mut tail = self.tail.borrow_mut();
        tail.push(line.as_bytes());
        tail.end_line();
    }

    /// Returns the lines as the end of a sentence; empty if there are none.
    pub fn summary(&self) -> String {
        let tail = self.tail.borrow();
        let lines = tail.excerpt.last(LINES);
        if lines.is_empty() { String::new() } else { format!("; last output: {}", lines.join(" / ")) }
    }
}

/// Waits until `from`, and then until the process has written new meaningful lines.
pub async fn speaks(meaningful_lines: &mut watch::Receiver<u64>, from: Instant) {
    tokio::time::sleep_until(from).await;
    if meaningful_lines.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the report for a program with this output.
    fn summary_of(text: &str) -> String {
        let words = StderrTail::default();
        for line in text.lines() {
            words.note(line);
        }
        words.summary()
    }

    #[test]
    fn last_output_shows_the_error_instead_of_its_stack_trace() {
        let node = "/srv/agent.js:7\n    throw new TypeError('no model')\n    ^\n\nTypeError: no model\n    \
            at start (/srv/agent.js:7:11)\n    at a (node:internal/b:1)\n    at b (x:1)\n    at c (x:2)\n    \
            at d (x:3)\n\nNode.js v22.1.0\n";
        assert!(summary_of(node).ends_with(" / TypeError: no model"), "{}", summary_of(node));
        let python = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    run()\n    ^^^^^\n\
            ValueError: no model\n";
        assert_eq!(summary_of(python), "; last output: run() / ValueError: no model");
        let rust = "thread 'main' panicked at src/main.rs:2:5:\nno model\nstack backtrace:\n   0: core::panic\n             \
            at ./x.rs:1:2\n   1: main\nnote: run with `RUST_BACKTRACE=full` for more\n";
        assert_eq!(summary_of(rust), "; last output: thread 'main' panicked at src/main.rs:2:5: / no model");
    }

    #[test]
    fn debug_lines_are_shown_only_if_there_is_nothing_else() {
        let debug = "2026-01-01T00:00:00Z DEBUG http: sent\n[debug] x\nlevel=debug y\nINFO started\n";
        assert!(summary_of(debug).contains("DEBUG http: sent / [debug] x"), "{}", summary_of(debug));
        assert_eq!(summary_of(&format!("Error: no key\n{debug}")), "; last output: Error: no key");
        let sentence = "turn debug output on";
        assert_eq!(summary_of(sentence), format!("; last output: {sentence}"));
        let later: Vec<String> = (0..9).map(|number| format!("bye {number}\n")).collect();
        let all = summary_of(&format!("fatal: no key\n{}", later.concat()));
        assert_eq!(all, "; last output: fatal: no key / bye 5 / bye 6 / bye 7 / bye 8");
    }

    #[test]
    fn new_lines_of_a_running_agent_are_reported_without_debug_lines() {
        let words = StderrTail::default();
        words.note("old");
        let before = words.tail.borrow().excerpt.count;
        assert_eq!(words.since(before), "");
        words.note("2026-01-01 DEBUG sent");
        assert_eq!(words.since(before), "");
        words.note("429, try 2");
        assert_eq!(words.since(before), "429, try 2");
        (3..9).for_each(|number| words.note(&format!("429, try {number}")));
        assert_eq!(words.since(before), "429, try 6 / 429, try 7 / 429, try 8");
    }

    #[test]
    fn only_the_last_lines_are_kept_and_shortened() {
        let words = StderrTail::default();
        for number in 0..10 {
            words.note(&format!("line {number}\r"));
        }
        words.note("\n  \n");
        words.note(&"x".repeat(10_000));
        let text = words.summary();
        assert!(text.starts_with("; last output: line 6 / line 7 / line 8 / line 9 / xxx"), "{text}");
        assert!(text.len() < 600, "{}", text.len());
    }
}
