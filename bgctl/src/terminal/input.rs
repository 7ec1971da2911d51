//! What is typed, on its way to the job: the presses of the key are found, the rest is kept in its order
//! until the daemon takes it, one call at a time.

use bgd_shared::foreground::{Key, KeyScanner, Piece};

/// What was typed and not yet taken by the job before the keyboard is not read any more; the terminal
/// keeps some more, as it does for every program.
const TYPED_BYTES: usize = 64 * 1024;

/// The most bytes that go up with one call.
const CALL_BYTES: usize = 4096;

/// What is typed.
#[derive(Debug)]
pub struct Input {
    scanner: KeyScanner,
    /// For the job. The first `under_way` bytes of it were sent, and the answer is still to come.
    typed: Vec<u8>,
    under_way: usize,
    /// What was typed behind a press while its hand-over is under way: the job's if nothing comes of it.
    behind: Vec<u8>,
    /// Whether the last press was the job's, so that it learns when the key is let go, too.
    key_passes: bool,
}

/// What a press does, as whoever knows the jobs decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Nothing: it is dropped.
    Nothing,
    /// It is the job's.
    Pass,
    /// A hand-over begins. What is typed from now on is kept apart.
    Begin,
}

impl Input {
    /// Nothing was typed yet.
    pub fn new(key: Key) -> Self {
        Self {
            scanner: KeyScanner::new(key),
            typed: Vec::new(),
            under_way: 0,
            behind: Vec::new(),
            key_passes: false,
        }
    }

    /// Takes what was typed; `press` decides on each press. `is_leaving`: a hand-over is under way.
    /// Gives the number of bytes that the terminal sent for the press that began one.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        mut is_leaving: bool,
        mut press: impl FnMut() -> Does,
    ) -> Option<usize> {
        let mut begun = None;
        while let Some(piece) = self.scanner.scan(&mut bytes) {
            let text = match piece {
                Piece::Pass(text) => text,
                Piece::Released(text) if self.key_passes => text,
                Piece::Released(_) => continue,
                Piece::Pressed(text) => {
                    let does = press();
                    self.key_passes = does == Does::Pass;
                    if does == Does::Begin {
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

    /// Whether the beginning of a key is held back, and is to be given up in a moment.
    pub fn is_holding(&self) -> bool {
        self.scanner.is_holding()
    }

    /// Gives it up: it is for the job.
    pub fn give_up(&mut self, is_leaving: bool) {
        let queue = if is_leaving { &mut self.behind } else { &mut self.typed };
        queue.extend_from_slice(self.scanner.flush());
    }

    /// Whether more may be typed.
    pub fn has_room(&self) -> bool {
        self.typed.len() + self.behind.len() < TYPED_BYTES
    }

    /// The hand-over came to nothing: what was typed meanwhile is the job's.
    pub fn stay(&mut self) {
        self.typed.append(&mut self.behind);
    }

    /// What is to be sent next; `None` while nothing is there, or an answer is to come.
    pub fn next_bytes(&mut self) -> Option<Vec<u8>> {
        if self.under_way > 0 || self.typed.is_empty() {
            return None;
        }
        self.under_way = self.typed.len().min(CALL_BYTES);
        Some(self.typed[..self.under_way].to_vec())
    }

    /// The job has taken so many of the bytes that were sent; the rest is sent again.
    pub fn taken(&mut self, count: usize) {
        self.typed.drain(..count.min(self.under_way));
        self.under_way = 0;
    }

    /// The job takes nothing any more.
    pub fn drop_all(&mut self) {
        self.typed.clear();
        self.under_way = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> Does {
        panic!("the key was not pressed")
    }

    #[test]
    fn what_is_typed_goes_up_in_order_one_call_at_a_time() {
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
        assert_eq!(input.next_bytes().unwrap().len(), CALL_BYTES);
        input.taken(CALL_BYTES);
        assert!(input.has_room());
        input.drop_all();
        assert_eq!(input.next_bytes(), None);
    }

    #[test]
    fn r67_what_is_typed_behind_the_key_is_the_jobs_only_if_it_stays() {
        let mut input = Input::new(Key::default());
        let mut presses = 0;
        let mut press = || {
            presses += 1;
            if presses == 1 { Does::Begin } else { Does::Nothing }
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
    fn r64_the_key_of_a_direct_job_is_its_own_with_its_release() {
        let mut input = Input::new(Key::default());
        let typed = b"\x02a\x1b[98;5u\x1b[98;5:3u";
        assert_eq!(input.push(&typed[..10], false, || Does::Pass), None);
        assert_eq!(input.push(&typed[10..], false, || Does::Pass), None);
        assert_eq!(input.next_bytes().unwrap(), typed);
        input.taken(typed.len());
        assert_eq!(input.push(b"\x1b[98;5u\x1b[98;5:3u", false, || Does::Begin), Some(7));
        assert_eq!(input.next_bytes(), None);
    }

    #[test]
    fn a_lone_escape_is_given_up() {
        let mut input = Input::new(Key::default());
        input.push(b"\x1b", false, never);
        assert!(input.is_holding());
        assert_eq!(input.next_bytes(), None);
        input.give_up(false);
        assert!(!input.is_holding());
        assert_eq!(input.next_bytes().unwrap(), b"\x1b");
    }
}
