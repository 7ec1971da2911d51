//! A running command of the channel `exec`: its output, its end, and its state for an upgrade in place.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bgd_shared::show;
use bgd_shared::task::Exit;
use bgd_shared::text::{beginning, ending};
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

use super::secrets::Secrets;
use crate::carry::{CarriedFds, Fd, bytes};
use crate::exec::host::{Leased, ProcessState, SIGKILL, SIGTERM};
use crate::exec::input::feed::{Feed, FeedState};
use crate::os::clock::Stamp;

/// The time between SIGTERM and SIGKILL after a timeout.
const GRACE: Duration = Duration::from_secs(2);

/// A command running for a notice.
pub struct Hook {
    pub process: Leased,
    pub feed: Feed,
    /// The command's standard output and error; dropped once it has closed both.
    pub output: Weak<Receiver>,
    pub words: RefCell<CapturedOutput>,
    /// When the command times out.
    pub deadline: Instant,
}

/// A command running for a notice, as data.
#[derive(Debug, Serialize, Deserialize)]
pub struct HookState {
    pub process: ProcessState,
    /// The command's standard input, unless already closed.
    pub feed: Option<FeedState>,
    /// The command's standard output and error, unless it has closed both.
    pub output: Option<Fd>,
    pub words: CapturedOutput,
    /// When the command times out.
    pub deadline: Stamp,
}

/// A command that the program before the upgrade started for a notice.
#[derive(Debug)]
pub struct HookLeft {
    /// The process; ended if dropped.
    pub process: Leased,
    /// The command's standard input and the rest to be written to it, unless already closed.
    pub stdin: Option<(OwnedFd, Vec<u8>)>,
    /// The command's standard output and error, unless it has closed both.
    pub output: Option<OwnedFd>,
    pub words: CapturedOutput,
    /// When the command times out.
    pub deadline: Stamp,
}

impl HookLeft {
    /// Resumes the command. Returns it with its output. Fails if a file descriptor can't be used.
    pub fn resume(self) -> io::Result<(Hook, Option<Rc<Receiver>>)> {
        let Self { process, stdin, output, words, deadline } = self;
        let output = output.map(|output| Receiver::from_owned_fd(output).map(Rc::new)).transpose()?;
        let feed = match stdin {
            Some((pipe, rest)) => Feed::begin(pipe, rest)?,
            None => Feed::ended(),
        };
        let shown = output.as_ref().map(Rc::downgrade).unwrap_or_default();
        let hook =
            Hook { process, feed, output: shown, words: words.into(), deadline: deadline.instant().into() };
        Ok((hook, output))
    }
}

impl Hook {
    /// Returns the state; `None` if the command's processes have ended.
    pub fn state(&self, named: &mut CarriedFds) -> Option<HookState> {
        let Self { process, feed, output, words, deadline } = self;
        (!process.0.is_gone()).then(|| HookState {
            process: process.0.state(),
            feed: feed.state(named),
            output: output.upgrade().map(|output| named.add(&*output)),
            words: words.borrow().clone(),
            deadline: Stamp::of(deadline.into_std()),
        })
    }

    /// Reads the command's output until no writer is left.
    pub async fn read(&self, output: &Receiver) {
        let mut buffer = vec![0; 64 * 1024];
        while output.readable().await.is_ok() {
            match output.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => self.words.borrow_mut().push(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// Waits for the command to exit, then kills the processes that it leaves behind. `None`: it timed out.
    pub async fn end(&self) -> Option<Exit> {
        let process = &self.process.0;
        let exit = tokio::time::timeout_at(self.deadline, process.exited()).await.ok();
        if exit.is_none() {
            process.end(SIGTERM);
            let _ = tokio::time::timeout(GRACE, process.until_ended()).await;
        }
        process.end(SIGKILL);
        process.until_ended().await;
        exit
    }
}

/// How many bytes are kept of the beginning of a command's output, and again of its end.
const KEPT_BYTES: usize = 2048;

/// The beginning and the end of a command's output, however long it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CapturedOutput {
    #[serde(with = "bytes")]
    first: Vec<u8>,
    #[serde(with = "bytes")]
    last: Vec<u8>,
    left_out: bool,
}

impl CapturedOutput {
    fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(KEPT_BYTES - self.first.len()));
        self.first.extend_from_slice(first);
        // At most `KEPT_BYTES` of the rest are kept.
        self.left_out |= self.last.len() + rest.len() > KEPT_BYTES;
        self.last.extend_from_slice(&rest[rest.len().saturating_sub(KEPT_BYTES)..]);
        self.last.drain(..self.last.len().saturating_sub(KEPT_BYTES));
    }
}

impl CapturedOutput {
    /// Formats the output as the end of a sentence, with secrets hidden; empty if there is no output.
    pub fn output_suffix(&self, secrets: &Secrets) -> String {
        let text = self.on_one_line(secrets);
        if text.is_empty() { text } else { format!("; it wrote: {}", shortened(text)) }
    }

    fn on_one_line(&self, secrets: &Secrets) -> String {
        let text = if self.left_out {
            let [first, last] = [&self.first, &self.last].map(|part| String::from_utf8_lossy(part));
            format!("{}\n...\n{}", secrets.hide_in_beginning(&first), secrets.hide_in_end(&last))
        } else {
            secrets.hide(&String::from_utf8_lossy(&[&*self.first, &*self.last].concat()))
        };
        let lines: Vec<String> =
            text.lines().filter(|line| !show::is_blank(line)).map(|line| show::line(line.trim())).collect();
        lines.join(" / ")
    }
}

/// How many bytes of the output are shown at most of its beginning, and again of its end: the text becomes one line of a
/// status and of the log.
const SHOWN_BYTES: usize = 400;

/// Leaves out the middle of a long text.
fn shortened(text: String) -> String {
    if text.len() <= 2 * SHOWN_BYTES {
        return text;
    }
    let ends = [beginning(&text, SHOWN_BYTES), ending(&text, SHOWN_BYTES)];
    let [first, last] = ends.map(|part| part.trim_matches([' ', '/']));
    format!("{first} / ... / {last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        Secrets::new(["s3cret-value-of-it".to_owned()])
    }

    fn output_suffix(words: &CapturedOutput) -> String {
        words.output_suffix(&secrets())
    }

    #[test]
    fn long_hook_output_keeps_beginning_and_end() {
        let mut words = CapturedOutput::default();
        assert_eq!(output_suffix(&words), "");
        words.push(b"one\r\n\n");
        words.push(b"\x1b[1mtwo\n");
        assert_eq!(output_suffix(&words), "; it wrote: one / \u{fffd}[1mtwo");
        for _ in 0..100 {
            words.push(&[b'x'; 1000]);
        }
        words.push(b"\nthe end\n");
        let text = output_suffix(&words);
        assert!(text.starts_with("; it wrote: one / \u{fffd}[1mtwo / xxx"), "{text}");
        assert!(text.contains("x / ... / x") && text.ends_with("x / the end"), "{text}");
        assert!(text.len() < 2 * SHOWN_BYTES + 50, "{}", text.len());
        let mut words = CapturedOutput::default();
        words.push(&b"y\n".repeat(100_000));
        let text = output_suffix(&words);
        assert!(text.len() < 2 * SHOWN_BYTES + 50, "{}", text.len());
        assert!(text.starts_with("; it wrote: y / y /") && text.contains(" / y / ... / y / "), "{text}");
        let mut words = CapturedOutput::default();
        words.push("ä".repeat(1000).as_bytes());
        assert!(output_suffix(&words).contains("ä / ... / ä"), "it is cut between characters");
    }

    #[test]
    fn secret_split_by_truncation_is_hidden() {
        let mut words = CapturedOutput::default();
        // The secret starts at the end of the first part and continues in the rest.
        words.push(&[b'x'; KEPT_BYTES - 6]);
        words.push(b"s3cret-value-of-it");
        assert!(words.on_one_line(&secrets()).ends_with("x(secret)"));
        words.push(&[b'y'; KEPT_BYTES - 12]);
        assert!(
            words.on_one_line(&secrets()).ends_with('y')
                && words.on_one_line(&secrets()).contains("x(secret)yyy")
        );
        words.push(b"\n");
        let text = words.on_one_line(&secrets());
        assert!(text.contains("x(secret) / ... / ") && !text.contains("s3cret"), "{text}");
        assert!(!text.contains("value-of"), "{text}");
    }
}
