//! Typed input on its way to the job: presses of the key are detected, and all other input is queued in order until the
//! daemon accepts it, one call at a time.

use bgd_shared::foreground::{Key, KeyScanner, Piece};

use crate::chunks::{FEW_BYTES, chunk_bytes};

/// Number of bytes to queue before the keyboard is no longer read. The terminal buffers some more, as for any program.
const TYPED_BYTES: usize = 64 * 1024;

/// Maximum number of bytes sent in one call: a terminal accepts no more at once.
const CALL_BYTES: usize = 4096;

#[derive(Debug)]
pub struct Input {
    scanner: KeyScanner,
    /// Input for the job. The first `under_way` bytes were sent and await the answer.
    typed: Vec<u8>,
    under_way: usize,
    /// Maximum number of bytes that the daemon accepts in one call; `None` while unknown.
    most: Option<usize>,
    /// Input typed after a press whose hand-over is in flight: for the job if the hand-over fails.
    behind: Vec<u8>,
    /// Whether the last press went to the job, so that the release of the key does too.
    key_passes: bool,
}

/// The effect of a press, decided by the owner of the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressEffect {
    /// The press is dropped.
    Nothing,
    /// The press is passed to the job.
    Pass,
    /// A hand-over begins: queue further input separately.
    Begin,
}

impl Input {
    /// Creates an empty queue.
    pub fn new(key: Key) -> Self {
        Self {
            scanner: KeyScanner::new(key),
            typed: Vec::new(),
            under_way: 0,
            most: None,
            behind: Vec::new(),
            key_passes: false,
        }
    }

    /// Adds what one read of the terminal has returned; `press` decides about each press. `is_leaving` means that a
    /// hand-over is in flight. Returns the number of bytes that the terminal sent for the press that began a hand-over,
    /// if one did.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        mut is_leaving: bool,
        mut press: impl FnMut() -> PressEffect,
    ) -> Option<usize> {
        self.scanner.note_read(bytes);
        let mut begun = None;
        while let Some(piece) = self.scanner.scan(&mut bytes) {
            let text = match piece {
                Piece::Pass(text) => text,
                Piece::Released(text) if self.key_passes => text,
                Piece::Released(_) => continue,
                Piece::Pressed(text) => {
                    let does = press();
                    self.key_passes = does == PressEffect::Pass;
                    if does == PressEffect::Begin {
                        is_leaving = true;
                        begun = Some(text.len());
                    }
                    if !self.key_passes {
                        continue;
                    }
                    text
                }
            };
            let queue = if is_leaving { &mut self.behind } else { &mut self.typed };
            queue.extend_from_slice(text);
        }
        begun
    }

    /// Reports whether the beginning of a possible key sequence is held back.
    pub fn is_holding(&self) -> bool {
        self.scanner.is_holding()
    }

    /// Passes the held-back bytes to the job.
    pub fn give_up(&mut self, is_leaving: bool) {
        let queue = if is_leaving { &mut self.behind } else { &mut self.typed };
        queue.extend_from_slice(self.scanner.flush());
    }

    /// Reports whether more input may be queued.
    pub fn has_room(&self) -> bool {
        self.typed.len() + self.behind.len() < TYPED_BYTES
    }

    /// Moves the input typed during a failed hand-over to the job's queue.
    pub fn stay(&mut self) {
        self.typed.append(&mut self.behind);
    }

    /// Reports whether the daemon's limit is worth asking for: it is unknown, and there is more input than any daemon
    /// accepts in one call.
    pub fn wants_limit(&self) -> bool {
        self.most.is_none() && self.typed.len() > FEW_BYTES
    }

    /// Sends calls of at most `frame_bytes`, the daemon's limit, from now on.
    pub fn limit(&mut self, frame_bytes: u64) {
        self.most = Some(chunk_bytes(frame_bytes).min(CALL_BYTES));
    }

    /// Reports whether there is input for the job that it has not accepted yet.
    pub fn has_typed(&self) -> bool {
        !self.typed.is_empty()
    }

    /// Takes the next part of the input for the job that was not sent yet, for a call that does not wait for the answer
    /// to the one before; `None` if there is none.
    pub fn take_unsent(&mut self) -> Option<Vec<u8>> {
        let upto = self.typed.len().min(self.under_way + self.most.unwrap_or(CALL_BYTES));
        let part: Vec<u8> = self.typed.drain(self.under_way..upto).collect();
        (!part.is_empty()).then_some(part)
    }

    /// Returns the bytes to send next; `None` if there are none, or an answer is awaited.
    pub fn next_bytes(&mut self) -> Option<Vec<u8>> {
        if self.under_way > 0 || self.typed.is_empty() {
            return None;
        }
        self.under_way = self.typed.len().min(self.most.unwrap_or(FEW_BYTES));
        Some(self.typed[..self.under_way].to_vec())
    }

    /// Removes the `count` bytes that the job has accepted. The other bytes sent are sent again.
    pub fn taken(&mut self, count: usize) {
        self.typed.drain(..count.min(self.under_way));
        self.under_way = 0;
    }

    /// Drops all input for the job, which accepts no more.
    pub fn drop_all(&mut self) {
        self.typed.clear();
        self.under_way = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> PressEffect {
        panic!("the key was not pressed")
    }

    #[test]
    fn typed_bytes_are_sent_in_order_one_call_at_a_time() {
        let mut input = Input::new(Key::default());
        assert_eq!(input.next_bytes(), None);
        input.push(b"ab", false, never);
        assert_eq!(input.next_bytes().unwrap(), b"ab");
        input.push(b"cd", false, never);
        assert_eq!(input.next_bytes(), None, "the answer is to come");
        input.taken(1);
        assert_eq!(input.next_bytes().unwrap(), b"bcd", "what was not taken is sent again");
        input.taken(3);
        assert_eq!(input.next_bytes(), None);
        input.push(&vec![b'x'; TYPED_BYTES], false, never);
        assert!(!input.has_room());
        assert!(input.wants_limit());
        assert_eq!(input.next_bytes().unwrap().len(), FEW_BYTES, "any daemon accepts that");
        input.limit(1 << 20);
        assert!(!input.wants_limit());
        input.taken(FEW_BYTES);
        assert_eq!(input.next_bytes().unwrap().len(), CALL_BYTES);
        input.taken(CALL_BYTES);
        assert!(input.has_room());
        input.limit(4096);
        assert_eq!(input.next_bytes().unwrap().len(), FEW_BYTES);
        input.drop_all();
        assert_eq!(input.next_bytes(), None);
    }

    #[test]
    fn r67_input_typed_after_the_key_reaches_the_job_only_if_it_stays() {
        let mut input = Input::new(Key::default());
        let mut presses = 0;
        let mut press = || {
            presses += 1;
            if presses == 1 { PressEffect::Begin } else { PressEffect::Nothing }
        };
        assert_eq!(input.push(b"yes\n\x02\x02ls\x02\n", false, &mut press), Some(1));
        assert_eq!(input.push(b"\x02pwd", true, &mut press), None);
        assert_eq!(presses, 4);
        assert_eq!(input.next_bytes().unwrap(), b"yes\n");
        input.taken(4);
        assert_eq!(input.next_bytes(), None);
        input.stay();
        assert_eq!(input.next_bytes().unwrap(), b"ls\npwd");
    }

    #[test]
    fn unsent_input_is_taken_without_waiting_for_an_answer() {
        let mut input = Input::new(Key::default());
        assert!(!input.has_typed());
        input.push(b"one", false, never);
        input.next_bytes();
        input.push(b"two\x02behind", false, || PressEffect::Begin);
        assert_eq!(input.take_unsent().unwrap(), b"two");
        assert_eq!(input.take_unsent(), None);
        assert!(input.has_typed(), "an answer is to come");
        input.taken(3);
        assert!(!input.has_typed());
        assert_eq!(input.next_bytes(), None, "what was typed after the key waits");
    }

    #[test]
    fn r64_direct_job_receives_key_press_and_release() {
        let mut input = Input::new(Key::default());
        let typed = b"\x02a\x1b[98;5u\x1b[98;5:3u";
        assert_eq!(input.push(&typed[..10], false, || PressEffect::Pass), None);
        assert_eq!(input.push(&typed[10..], false, || PressEffect::Pass), None);
        assert_eq!(input.next_bytes().unwrap(), typed);
        input.taken(typed.len());
        assert_eq!(input.push(b"\x1b[98;5u\x1b[98;5:3u", false, || PressEffect::Begin), Some(7));
        assert_eq!(input.next_bytes(), None);
    }

    #[test]
    fn key_works_after_the_end_of_a_paste_was_lost() {
        let mut input = Input::new(Key::default());
        assert_eq!(input.push(b"\x1b[200~a\x02b", false, never), None);
        assert_eq!(input.push(b"\x02", false, || PressEffect::Begin), Some(1));
        assert_eq!(input.next_bytes().unwrap(), b"\x1b[200~a\x02b");
    }

    #[test]
    fn lone_escape_is_released_on_give_up() {
        let mut input = Input::new(Key::default());
        input.push(b"\x1b", false, never);
        assert!(input.is_holding());
        assert_eq!(input.next_bytes(), None);
        input.give_up(false);
        assert!(!input.is_holding());
        assert_eq!(input.next_bytes().unwrap(), b"\x1b");
    }
}
