//! The keeper: a small process that holds what must survive the kill of a daemon (R126): a pidfd of every process that
//! was started for a task, and the descriptors that connect the daemon to it.
//!
//! The keeper is independent of tasks: it holds messages with their descriptors, each under a key, and passes them to
//! the next daemon. It does not interpret the messages, so it can serve daemons of other versions. Processes announce
//! themselves to it before they execute their programs: no program ever runs without being held.

pub mod client;
mod place;
pub mod process;
mod reach;
pub mod socket;
mod start;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;
use nix::errno::Errno;

/// The first argument that makes a process a keeper.
pub const ARGUMENT: &str = "--keeper";

/// The name of the keeper's socket in the instance's folder.
pub const SOCKET: &str = "keeper";

/// The maximum size of a message's text.
pub const MESSAGE_BYTES: usize = 32 * 1024;

/// The timeout for sending a message to the keeper or receiving one.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many connections may wait to be accepted: those of the next daemon and of daemons killed while they waited.
const BACKLOG: i32 = 16;

/// The size of a message before its text: a word, the key, and the PID.
const HEAD_BYTES: usize = 25;

/// The offset of the PID in a message.
pub const PID_AT: usize = 21;

/// Reports whether there is just no room for a message now.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Reports whether this user has too many descriptors in flight to send more now.
fn is_crowded(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ETOOMANYREFS as i32)
}

/// The subject of a message: a run of a task, or the descriptors that it is to start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub task: TaskId,
    pub run: u32,
}

impl Key {
    /// The key of the note with the last number of the reported events. No task has it.
    const OF_EVENTS: Self = Self { task: TaskId::from_u128(0), run: 1 };

    /// Returns the key of the descriptors that a pending task is to start with. No run has it, as runs count from 1.
    pub const fn of_pending(task: TaskId) -> Self {
        Self { task, run: 0 }
    }

    /// Reports whether this is the key of the descriptors of a pending task.
    pub const fn is_of_pending(self) -> bool {
        self.run == 0
    }

    /// The bit that makes the key of a run the key of the note of when its process ended. No run has it.
    const END: u32 = 1 << 31;

    /// Returns the key of the note of when this run's process ended, in milliseconds since 1970. The keeper makes it
    /// while there is no daemon.
    fn of_end(self) -> Self {
        Self { run: self.run | Self::END, ..self }
    }

    /// Returns the run whose end this note is about; `None` if this is the key of something else.
    fn ended_run(self) -> Option<Self> {
        (self.run & Self::END != 0).then_some(Self { run: self.run & !Self::END, ..self })
    }
}

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    /// Hold the attached descriptors, replacing those of the same key.
    Keep = 1,
    /// Close the descriptors of this key.
    Drop = 2,
    /// Close all descriptors and end.
    End = 3,
    /// From the keeper: everything was sent. The text is [`OTHERS_MAY_SAY_MORE`] or [`NOBODY_ELSE`]; from an earlier
    /// keeper, it is empty.
    Done = 4,
    /// Close one descriptor of this key. The text is its position, as one byte.
    Part = 5,
    /// From the next daemon, which has the locks of the one before: accept nothing more from others, and send what has
    /// arrived until then. Unknown to earlier keepers.
    Alone = 6,
}

/// Earlier connections may still announce something.
const OTHERS_MAY_SAY_MORE: &[u8] = &[0];

/// Only this connection is still served.
const NOBODY_ELSE: &[u8] = &[1];

#[derive(Debug, PartialEq, Eq)]
struct Message<'a> {
    word: MessageKind,
    key: Key,
    pid: i32,
    text: &'a [u8],
}

impl<'a> Message<'a> {
    fn encode(&self) -> Vec<u8> {
        let Self { word, key: Key { task, run }, pid, text } = self;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + text.len());
        bytes.push(*word as u8);
        bytes.extend(task.as_u128().to_le_bytes());
        bytes.extend(run.to_le_bytes());
        bytes.extend(pid.to_le_bytes());
        bytes.extend(*text);
        bytes
    }

    /// Returns a note with the last number of the reported events.
    fn of_events(text: &'a [u8; 8]) -> Self {
        Self { word: MessageKind::Keep, key: Key::OF_EVENTS, pid: 0, text }
    }

    /// Returns a message without key and text.
    fn bare(word: MessageKind) -> Self {
        Self { word, key: Key { task: TaskId::from_u128(0), run: 0 }, pid: 0, text: &[] }
    }

    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (word, rest) = bytes.split_first()?;
        let (task, rest) = rest.split_first_chunk()?;
        let (run, rest) = rest.split_first_chunk()?;
        let (pid, text) = rest.split_first_chunk()?;
        let word = match word {
            1 => MessageKind::Keep,
            2 => MessageKind::Drop,
            3 => MessageKind::End,
            4 => MessageKind::Done,
            5 => MessageKind::Part,
            6 => MessageKind::Alone,
            _ => return None,
        };
        let key = Key { task: TaskId::from_u128(u128::from_le_bytes(*task)), run: u32::from_le_bytes(*run) };
        Some(Self { word, key, pid: i32::from_le_bytes(*pid), text })
    }
}

/// Returns the message by which a process announces itself; its PID must be inserted at [`PID_AT`].
pub fn announcement(key: Key, text: &[u8]) -> Vec<u8> {
    Message { word: MessageKind::Keep, key, pid: 0, text }.encode()
}

/// The held content for a run.
#[derive(Debug)]
pub struct Kept {
    pub key: Key,
    /// The PID of its process.
    pub pid: i32,
    /// The daemon's description of the run.
    pub text: Vec<u8>,
    /// The descriptors; the pidfd comes first.
    pub descriptors: Vec<OwnedFd>,
    /// When the process ended, if there was no daemon then.
    pub ended_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn r126_keeper_message_survives_a_round_trip(task: u128, run: u32, pid: i32, text: Vec<u8>) {
            let key = Key { task: TaskId::from_u128(task), run };
            let message = Message { word: MessageKind::Keep, key, pid, text: &text };
            let bytes = message.encode();
            prop_assert_eq!(Message::decode(&bytes).unwrap(), message);
            prop_assert_eq!(&bytes[PID_AT..][..4], pid.to_le_bytes());
        }

        #[test]
        fn r126_arbitrary_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            if let Some(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}
