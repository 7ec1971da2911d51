//! The messages between the daemon and the leader of a terminal, as bytes. No I/O happens here.
//!
//! The order and its answer pass between two processes of the same program, so there is nothing to negotiate. The
//! leader's later reports are a **protocol between versions**: a leader outlives upgrades of its daemon (R121), and its
//! daemon may be newer by any number of releases. It changes only by additions:
//!
//! - On the socket of the order, or on a separate one received with it, the leader writes [`STOPPED`] and
//!   [`CONTINUED`], a byte each, whenever its job does so, and finally, if it does not know the job's exit, [`UNKNOWN`]
//!   and the reason as text up to the end of the stream. The daemon ignores other bytes before that one.
//! - The daemon writes nothing to that socket. When it is closed or anything arrives, the leader hangs up its job and
//!   ends.
//! - The leader exits, by code or signal, like its job, after a SIGCONT if it was stopped.
//! - It has the daemon's marks in its environment and in its limits, by which its tree is found.

use std::ffi::CString;
use std::io;

use nix::errno::Errno;

use crate::os::spawn::{SpawnError, Stage};

/// The job that a leader is to start in its terminal.
#[derive(Debug, PartialEq, Eq)]
pub struct JobOrder {
    /// The paths to try, in this order.
    pub programs: Vec<CString>,
    /// The arguments, starting with the program's name.
    pub argv: Vec<CString>,
    /// The complete environment.
    pub env: Vec<CString>,
    /// The working directory.
    pub folder: CString,
    /// The file mode creation mask.
    pub umask: u32,
    /// The resource limits to set: number, soft and hard.
    pub rlimits: Vec<(i32, u64, u64)>,
    /// Which of the three standard streams are descriptors sent with the order; the others are the terminal.
    pub given: [bool; 3],
    /// The message that the job announces before it executes its program; empty for none. Otherwise a byte follows the
    /// order, with these descriptors: the leader's end of the socket for its reports, the socket to announce on, and
    /// those to announce besides that of the job.
    pub announcement: Vec<u8>,
}

/// The length of an order's head, which contains the length of the rest.
pub const HEAD_BYTES: usize = 8;

impl JobOrder {
    /// Returns the bytes, including the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes.extend(self.umask.to_le_bytes());
        bytes.extend(self.given.map(u8::from));
        put_count(&mut bytes, self.rlimits.len());
        for (resource, soft, hard) in &self.rlimits {
            bytes.extend(resource.to_le_bytes());
            bytes.extend(soft.to_le_bytes());
            bytes.extend(hard.to_le_bytes());
        }
        put_texts(&mut bytes, std::slice::from_ref(&self.folder));
        for texts in [&self.programs, &self.argv, &self.env] {
            put_texts(&mut bytes, texts);
        }
        put_count(&mut bytes, self.announcement.len());
        bytes.extend_from_slice(&self.announcement);
        let rest = (bytes.len() - HEAD_BYTES) as u64;
        bytes[..HEAD_BYTES].copy_from_slice(&rest.to_le_bytes());
        bytes
    }

    /// Returns the number of bytes that follow this head.
    pub fn rest(head: [u8; HEAD_BYTES]) -> usize {
        usize::try_from(u64::from_le_bytes(head)).unwrap_or(usize::MAX)
    }

    /// Decodes the rest after the head.
    ///
    /// # Errors
    /// The bytes are not an order.
    pub fn decode(rest: &[u8]) -> io::Result<Self> {
        let mut from = Bytes(rest);
        let umask = u32::from_le_bytes(from.take()?);
        let given = from.take::<3>()?.map(|given| given != 0);
        let rlimits = (0..from.count()?)
            .map(|_| {
                let resource = i32::from_le_bytes(from.take()?);
                Ok((resource, u64::from_le_bytes(from.take()?), u64::from_le_bytes(from.take()?)))
            })
            .collect::<io::Result<_>>()?;
        let folder = from.texts()?.pop().ok_or_else(garbled)?;
        let (programs, argv, env) = (from.texts()?, from.texts()?, from.texts()?);
        let announcement = from.count().and_then(|count| from.bytes(count))?;
        Ok(Self { programs, argv, env, folder, umask, rlimits, given, announcement })
    }
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    bytes.extend((count as u64).to_le_bytes());
}

fn put_texts(bytes: &mut Vec<u8>, texts: &[CString]) {
    put_count(bytes, texts.len());
    for text in texts {
        bytes.extend_from_slice(text.as_bytes_with_nul());
    }
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is not an order from a bgd of the same version")
}

/// Bytes that are consumed from the front.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(garbled)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn count(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn bytes(&mut self, count: u64) -> io::Result<Vec<u8>> {
        let count = usize::try_from(count).ok().filter(|count| *count <= self.0.len()).ok_or_else(garbled)?;
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(bytes.to_vec())
    }

    fn texts(&mut self) -> io::Result<Vec<CString>> {
        (0..self.count()?).map(|_| self.text()).collect()
    }

    fn text(&mut self) -> io::Result<CString> {
        let end = memchr::memchr(0, self.0).ok_or_else(garbled)?;
        let (text, rest) = self.0.split_at(end + 1);
        self.0 = rest;
        CString::from_vec_with_nul(text.to_vec()).map_err(|_| garbled())
    }
}

/// The length of a leader's answer.
pub const ANSWER_BYTES: usize = 5;

/// Encodes a leader's answer: the pid of the job, whose pidfd is sent along, or the error.
pub fn answer(started: Result<i32, SpawnError>) -> [u8; ANSWER_BYTES] {
    let (kind, number) = match started {
        Ok(pid) => (0, pid),
        Err(SpawnError { stage, errno }) => {
            let place = Stage::ALL.iter().position(|known| *known == stage).unwrap_or(0);
            (u8::try_from(place + 1).unwrap_or(1), errno as i32)
        }
    };
    let [a, b, c, d] = number.to_le_bytes();
    [kind, a, b, c, d]
}

/// Decodes a leader's answer.
pub fn read_answer(answer: [u8; ANSWER_BYTES]) -> Result<i32, SpawnError> {
    let [kind, a, b, c, d] = answer;
    let number = i32::from_le_bytes([a, b, c, d]);
    match kind.checked_sub(1) {
        None => Ok(number),
        Some(place) => {
            let stage = Stage::ALL.get(usize::from(place)).copied().unwrap_or(Stage::Clone);
            Err(SpawnError { stage, errno: Errno::from_raw(number) })
        }
    }
}

/// A leader's later report about its job, a single byte: the job has stopped.
pub const STOPPED: u8 = b's';

/// A leader's report: the job continues.
pub const CONTINUED: u8 = b'c';

/// A leader's report: the job has ended, and its exit is unknown; the reason follows as text, to the end.
pub const UNKNOWN: u8 = b'u';

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts() -> impl Strategy<Value = Vec<CString>> {
        let text = prop::collection::vec(1..=255_u8, 0..20);
        let text = text.prop_map(|bytes| CString::new(bytes).expect("without NUL"));
        prop::collection::vec(text, 0..5)
    }

    prop_compose! {
        fn orders()(
            programs in texts(), argv in texts(), env in texts(), mut folders in texts(),
            umask: u32, given: [bool; 3], rlimits: Vec<(i32, u64, u64)>, announcement: Vec<u8>,
        ) -> JobOrder {
            let folder = folders.pop().unwrap_or_default();
            JobOrder { programs, argv, env, folder, umask, rlimits, given, announcement }
        }
    }

    proptest! {
        #[test]
        fn order_survives_a_round_trip(order in orders(), cut in 1_usize..100) {
            let bytes = order.encode();
            let (head, rest) = bytes.split_first_chunk().expect("a head");
            prop_assert_eq!(JobOrder::rest(*head), rest.len());
            prop_assert!(JobOrder::decode(&rest[..rest.len().saturating_sub(cut)]).is_err());
            prop_assert_eq!(JobOrder::decode(rest).expect("an order"), order);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = JobOrder::decode(&bytes);
        }
    }

    /// Leaders of every release so far use these bytes.
    #[test]
    fn r121_leader_protocol_bytes_are_stable() {
        assert_eq!([STOPPED, CONTINUED, UNKNOWN], *b"scu");
    }

    #[test]
    fn answer_survives_a_round_trip() {
        assert_eq!(read_answer(answer(Ok(4711))).unwrap(), 4711);
        for stage in Stage::ALL {
            let error = read_answer(answer(Err(SpawnError { stage, errno: Errno::E2BIG }))).unwrap_err();
            assert_eq!((error.stage, error.errno), (stage, Errno::E2BIG));
        }
    }
}
