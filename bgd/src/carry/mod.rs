//! The data carried by an upgrade in place from one program to the next (R120 to R123): descriptors by number, and the
//! state of every owner. Each owner writes its own state and is rebuilt from it; this module depends on none of them.
//!
//! Nothing is taken apart: everything stays unchanged until the next program is executed, so that a failed upgrade has
//! no effect.

pub mod handover;
pub mod image;
pub mod program;
pub mod standstill;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::os::inherited;

/// Why nothing can be carried at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Something is in progress that ends within moments: try again shortly. The text describes it, as subject and
    /// predicate of a sentence.
    Passing(String),
    /// Something can't be carried. The text describes it in the same form.
    Lasting(String),
}

impl Obstacle {
    /// Creates an [`Obstacle::Passing`].
    pub fn passing(what: impl Into<String>) -> Self {
        Self::Passing(what.into())
    }

    /// Creates an [`Obstacle::Lasting`].
    pub fn lasting(what: impl Into<String>) -> Self {
        Self::Lasting(what.into())
    }
}

/// The number of a descriptor in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fd(RawFd);

impl Fd {
    /// A placeholder for the pidfd of the process described by a state, if that comes separately.
    pub const OF_PROCESS: Self = Self(-1);
}

/// The descriptors named in a state.
#[derive(Debug, Default)]
pub struct CarriedFds(Vec<RawFd>);

impl CarriedFds {
    /// Adds a descriptor, which must stay open until the next program is executed.
    pub fn add(&mut self, fd: &impl AsFd) -> Fd {
        self.number(fd.as_fd().as_raw_fd())
    }

    /// Adds a descriptor that another owner keeps open.
    pub fn number(&mut self, number: RawFd) -> Fd {
        self.0.push(number);
        Fd(number)
    }

    /// Adds the descriptors of another thread.
    pub fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn numbers(&self) -> &[RawFd] {
        &self.0
    }
}

/// The descriptors received with a state. Each can be taken once.
#[derive(Debug)]
pub struct ReceivedFds(BTreeMap<RawFd, Where>);

/// The location of a descriptor named in a state.
#[derive(Debug)]
enum Where {
    /// Under that number, in this process.
    There,
    /// Received, under another number.
    Here(OwnedFd),
}

impl ReceivedFds {
    /// Takes over these descriptors; they are not inherited by other programs from now on.
    ///
    /// # Errors
    /// A descriptor is not open, or is named twice.
    pub fn new(numbers: &[RawFd]) -> io::Result<Self> {
        inherited::set_inheritable(numbers, false)?;
        let all: BTreeMap<_, _> = numbers.iter().map(|number| (*number, Where::There)).collect();
        if all.len() == numbers.len() {
            Ok(Self(all))
        } else {
            Err(io::Error::other("a descriptor is named twice in the state"))
        }
    }

    /// Creates it from received descriptors and their numbers in the state.
    pub fn received(descriptors: impl IntoIterator<Item = (Fd, OwnedFd)>) -> Self {
        Self(descriptors.into_iter().map(|(Fd(number), fd)| (number, Where::Here(fd))).collect())
    }

    /// Takes a descriptor.
    ///
    /// # Errors
    /// The descriptor was not received, or was already taken.
    pub fn take(&mut self, Fd(number): Fd) -> io::Result<OwnedFd> {
        match self.0.remove(&number) {
            Some(Where::There) => Ok(inherited::claim(number)),
            Some(Where::Here(fd)) => Ok(fd),
            None => Err(io::Error::other(format!("descriptor {number} of the state is missing"))),
        }
    }

    /// Returns a received descriptor that has not been taken yet.
    pub fn get(&self, Fd(number): Fd) -> Option<BorrowedFd<'_>> {
        match self.0.get(&number)? {
            Where::Here(fd) => Some(fd.as_fd()),
            Where::There => None,
        }
    }

    /// Takes a descriptor by its number.
    ///
    /// # Errors
    /// The descriptor was not received, or was already taken.
    pub fn take_number(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        self.take(Fd(number))
    }

    /// Checks that every descriptor was taken: any other would stay open forever.
    ///
    /// # Errors
    /// Some descriptors were not taken.
    pub fn finish(self) -> io::Result<()> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(number) => Err(io::Error::other(format!("descriptor {number} of the state has no owner"))),
        }
    }
}

/// Serializes bytes as base64 text, for `#[serde(with)]`.
pub mod bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn r122_each_descriptor_is_taken_once_and_leftovers_are_an_error() {
        let files: Vec<File> = (0..2).map(|_| File::open("/dev/null").unwrap()).collect();
        let mut named = CarriedFds::default();
        // The numbers of leaked copies, so that nothing else owns them.
        let copies: Vec<OwnedFd> =
            files.iter().map(|file| file.as_fd().try_clone_to_owned().unwrap()).collect();
        let fds: Vec<Fd> = copies.iter().map(|copy| named.add(copy)).collect();
        copies.into_iter().for_each(std::mem::forget);
        inherited::set_inheritable(named.numbers(), true).unwrap();
        let mut received = ReceivedFds::new(named.numbers()).unwrap();
        drop(received.take(fds[0]).unwrap());
        assert!(received.take(fds[0]).is_err(), "it was taken");
        let error = received.finish().unwrap_err().to_string();
        assert!(error.contains("has no owner"), "{error}");
        let mut received = ReceivedFds::new(&[fds[1].0]).unwrap();
        drop(received.take(fds[1]).unwrap());
        received.finish().unwrap();
        // A number that no other thread can get meanwhile, unlike those that were just closed.
        assert!(ReceivedFds::new(&[RawFd::MAX]).is_err(), "it is not open");
    }
}
