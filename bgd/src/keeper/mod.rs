//! The keeper: a small process that holds what must survive a daemon that is killed (R126) — a pidfd of every process that
//! was started for a task, and the descriptors by which the daemon is connected with it.
//!
//! It knows nothing of tasks: it holds messages with their descriptors, each under a key, and gives them to the next daemon.
//! The messages are the daemons' own business, so that a keeper serves daemons of other versions. The processes themselves
//! announce themselves to it, before they execute their programs: nothing has ever run that it does not hold.

pub mod client;
pub mod process;
mod reach;

use std::os::fd::OwnedFd;
use std::time::Duration;

use bgd_shared::id::TaskId;

/// The first argument that makes a process a keeper.
pub const ARGUMENT: &str = "--keeper";

/// The name of its socket in the instance's folder.
pub const SOCKET: &str = "keeper";

/// The most bytes of a message.
pub const MESSAGE_BYTES: usize = 32 * 1024;

/// How long the keeper may take to receive a message, or to send one.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many may wait to be served: the next daemon, and those that were killed while they waited.
const BACKLOG: i32 = 16;

/// The bytes of a message before its text: a word, the key, and the pid.
const HEAD_BYTES: usize = 25;

/// Where the pid is in a message.
pub const PID_AT: usize = 21;

/// What a message is about: a run of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub task: TaskId,
    pub run: u32,
}

impl Key {
    /// That of the note which says up to which number events were told. No task has it.
    const OF_EVENTS: Self = Self { task: TaskId::from_u128(0), run: 1 };
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// Hold the descriptors that came along, in the place of those of the same key.
    Keep = 1,
    /// Close those of this key.
    Drop = 2,
    /// Close all, and end.
    End = 3,
    /// From the keeper: that was all. Its text is [`OTHERS_MAY_SAY_MORE`] or [`NOBODY_ELSE`]; that of an earlier keeper is
    /// empty.
    Done = 4,
    /// Close the one descriptor of this key whose place the text says, as one byte.
    Part = 5,
    /// From the next daemon, which has the locks of the one before: take no more from anybody else, and say what has come
    /// until then. An earlier keeper does not know it.
    Alone = 6,
}

/// Those that were connected before may still announce something.
const OTHERS_MAY_SAY_MORE: &[u8] = &[0];

/// From now on only this connection is heard.
const NOBODY_ELSE: &[u8] = &[1];

#[derive(Debug, PartialEq, Eq)]
struct Message<'a> {
    word: Word,
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

    /// One that notes up to which number events were told.
    fn of_events(text: &'a [u8; 8]) -> Self {
        Self { word: Word::Keep, key: Key::OF_EVENTS, pid: 0, text }
    }

    /// One about nothing.
    fn bare(word: Word) -> Self {
        Self { word, key: Key { task: TaskId::from_u128(0), run: 0 }, pid: 0, text: &[] }
    }

    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (word, rest) = bytes.split_first()?;
        let (task, rest) = rest.split_first_chunk()?;
        let (run, rest) = rest.split_first_chunk()?;
        let (pid, text) = rest.split_first_chunk()?;
        let word = match word {
            1 => Word::Keep,
            2 => Word::Drop,
            3 => Word::End,
            4 => Word::Done,
            5 => Word::Part,
            6 => Word::Alone,
            _ => return None,
        };
        let key = Key { task: TaskId::from_u128(u128::from_le_bytes(*task)), run: u32::from_le_bytes(*run) };
        Some(Self { word, key, pid: i32::from_le_bytes(*pid), text })
    }
}

/// Returns the message by which a process announces itself; its pid is put in at [`PID_AT`].
pub fn announcement(key: Key, text: &[u8]) -> Vec<u8> {
    Message { word: Word::Keep, key, pid: 0, text }.encode()
}

/// What was held for a run.
#[derive(Debug)]
pub struct Kept {
    /// The run.
    pub key: Key,
    /// The pid of its process.
    pub pid: i32,
    /// What the daemon said of it.
    pub text: Vec<u8>,
    /// The descriptors, that of the process first.
    pub descriptors: Vec<OwnedFd>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn r126_a_message_is_read_as_it_was_written(task: u128, run: u32, pid: i32, text: Vec<u8>) {
            let key = Key { task: TaskId::from_u128(task), run };
            let message = Message { word: Word::Keep, key, pid, text: &text };
            let bytes = message.encode();
            prop_assert_eq!(Message::decode(&bytes).unwrap(), message);
            prop_assert_eq!(&bytes[PID_AT..][..4], pid.to_le_bytes());
        }

        #[test]
        fn r126_whatever_comes_is_read_or_refused(bytes: Vec<u8>) {
            if let Some(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}
