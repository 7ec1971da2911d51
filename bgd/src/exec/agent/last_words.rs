//! The last lines that an agent wrote to its standard error: what is told when it dies.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bgd_shared::show;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;

/// How many lines are kept.
const LINES: usize = 5;

/// The longest line that is kept, in bytes; the rest of it is dropped.
const LINE_BYTES: usize = 400;

/// How long words may be on their way when their writer has ended. A child that holds the pipe open may
/// hold it for ever.
pub const ON_THE_WAY: Duration = Duration::from_millis(200);

/// The last lines.
#[derive(Clone, Debug)]
pub struct LastWords {
    tail: Rc<RefCell<Tail>>,
    /// Whether somebody reads and more may come.
    reading: Rc<watch::Sender<bool>>,
}

impl Default for LastWords {
    fn default() -> Self {
        Self { tail: Rc::default(), reading: Rc::new(watch::channel(false).0) }
    }
}

#[derive(Debug, Default)]
struct Tail {
    lines: VecDeque<String>,
    /// The line that has not ended yet.
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
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.open)).into_owned();
        if show::is_blank(&line) {
            return;
        }
        let line = show::line(&line);
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line.trim().to_owned());
    }
}

impl LastWords {
    /// Reads until the pipe is closed by everybody who has it. A child of the agent may hold it open
    /// for longer than the agent lives, so nobody may wait for that.
    pub fn read(self, mut pipe: Receiver) -> impl Future<Output = ()> {
        self.reading.send_replace(true);
        async move {
            let mut buffer = vec![0; 4096];
            while let Ok(count) = pipe.read(&mut buffer).await
                && count > 0
            {
                self.tail.borrow_mut().push(&buffer[..count]);
            }
            self.tail.borrow_mut().end_line();
            self.reading.send_replace(false);
        }
    }

    /// Waits for the words of one that has ended, for a moment at most.
    pub async fn read_out(&self) {
        let mut reading = self.reading.subscribe();
        // What has not come until then is not told.
        let _ = tokio::time::timeout(ON_THE_WAY, reading.wait_for(|reading| !reading)).await;
    }

    /// A line that is worth telling, too.
    pub fn note(&self, line: &str) {
        let mut tail = self.tail.borrow_mut();
        tail.push(line.as_bytes());
        tail.end_line();
    }

    /// The lines as the end of a sentence; empty if there are none.
    pub fn tell(&self) -> String {
        let tail = self.tail.borrow();
        let lines: Vec<&str> = tail.lines.iter().map(String::as_str).collect();
        if lines.is_empty() { String::new() } else { format!("; its last words: {}", lines.join(" / ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_lines_are_kept_and_none_is_long() {
        let words = LastWords::default();
        for number in 0..10 {
            words.note(&format!("line {number}\r"));
        }
        words.note("\n  \n");
        words.note(&"x".repeat(10_000));
        let told = words.tell();
        assert!(told.starts_with("; its last words: line 6 / line 7 / line 8 / line 9 / xxx"), "{told}");
        assert!(told.len() < 600, "{}", told.len());
    }
}
