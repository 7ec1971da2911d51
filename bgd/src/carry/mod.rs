//! What an upgrade in place carries from one program to the next (R120 to R123): descriptors by number, and the state
//! of every owner as data. The owners write their state themselves, and are built from it again; this module knows none of
//! them.
//!
//! Nothing is taken apart: until the next program is executed, everything goes on being what it was, so that an upgrade
//! that fails has changed nothing.

pub mod handover;
pub mod image;
pub mod program;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::os::inherited;

/// Why nothing can be carried at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Something is under way that ends within moments: try again shortly. The text says what, as the subject and
    /// predicate of a sentence.
    Passing(String),
    /// Something can't be carried. The text says what, likewise.
    Lasting(String),
}

impl Obstacle {
    /// Something is under way that ends within moments.
    pub fn passing(what: impl Into<String>) -> Self {
        Self::Passing(what.into())
    }

    /// Something can't be carried.
    pub fn lasting(what: impl Into<String>) -> Self {
        Self::Lasting(what.into())
    }
}

/// A descriptor in a state, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fd(RawFd);

impl Fd {
    /// Stands for the pidfd of the process that a state is about, where that comes apart from it.
    pub const OF_PROCESS: Self = Self(-1);
}

/// The descriptors that a state names.
#[derive(Debug, Default)]
pub struct Named(Vec<RawFd>);

impl Named {
    /// Names a descriptor. It must stay open until the next program is executed.
    pub fn add(&mut self, fd: &impl AsFd) -> Fd {
        self.number(fd.as_fd().as_raw_fd())
    }

    /// Names a descriptor that another owner keeps open.
    pub fn number(&mut self, number: RawFd) -> Fd {
        self.0.push(number);
        Fd(number)
    }

    /// Adds those that another thread has named.
    pub fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Returns all numbers.
    pub fn numbers(&self) -> &[RawFd] {
        &self.0
    }
}

/// The descriptors that came with a state. Each is taken once.
#[derive(Debug)]
pub struct Came(BTreeMap<RawFd, Where>);

/// Where a descriptor is that a state names.
#[derive(Debug)]
enum Where {
    /// At that number.
    There,
    /// It was received, and has another number here.
    Here(OwnedFd),
}

impl Came {
    /// Takes these descriptors over: none of them is passed on to other programs from now on.
    ///
    /// # Errors
    /// One of them is not open, or is named twice.
    pub fn new(numbers: &[RawFd]) -> io::Result<Self> {
        inherited::set_inheritable(numbers, false)?;
        let all: BTreeMap<_, _> = numbers.iter().map(|number| (*number, Where::There)).collect();
        if all.len() == numbers.len() {
            Ok(Self(all))
        } else {
            Err(io::Error::other("a descriptor is named twice in the state"))
        }
    }

    /// Has descriptors that were received, with what the state calls each.
    pub fn received(descriptors: impl IntoIterator<Item = (Fd, OwnedFd)>) -> Self {
        Self(descriptors.into_iter().map(|(Fd(number), fd)| (number, Where::Here(fd))).collect())
    }

    /// Takes a descriptor.
    ///
    /// # Errors
    /// It did not come, or was taken before.
    pub fn take(&mut self, Fd(number): Fd) -> io::Result<OwnedFd> {
        match self.0.remove(&number) {
            Some(Where::There) => Ok(inherited::claim(number)),
            Some(Where::Here(fd)) => Ok(fd),
            None => Err(io::Error::other(format!("descriptor {number} of the state is missing"))),
        }
    }

    /// Returns a descriptor that was received and is not taken yet.
    pub fn get(&self, Fd(number): Fd) -> Option<BorrowedFd<'_>> {
        match self.0.get(&number)? {
            Where::Here(fd) => Some(fd.as_fd()),
            Where::There => None,
        }
    }

    /// Takes a descriptor by its number.
    ///
    /// # Errors
    /// It did not come, or was taken before.
    pub fn take_number(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        self.take(Fd(number))
    }

    /// Checks that every descriptor was taken: another one would stay open for ever.
    ///
    /// # Errors
    /// Some were not.
    pub fn finish(self) -> io::Result<()> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(number) => {
                Err(io::Error::other(format!("descriptor {number} of the state belongs to nobody")))
            }
        }
    }
}

/// Bytes as text, for `#[serde(with)]`.
pub mod bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Writes bytes in base64.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    /// Reads them.
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
    fn r122_each_descriptor_is_taken_once_and_none_is_left() {
        let files: Vec<File> = (0..2).map(|_| File::open("/dev/null").unwrap()).collect();
        let mut named = Named::default();
        // The numbers of copies, which nobody else owns.
        let copies: Vec<OwnedFd> =
            files.iter().map(|file| file.as_fd().try_clone_to_owned().unwrap()).collect();
        let fds: Vec<Fd> = copies.iter().map(|copy| named.add(copy)).collect();
        copies.into_iter().for_each(std::mem::forget);
        inherited::set_inheritable(named.numbers(), true).unwrap();
        let mut came = Came::new(named.numbers()).unwrap();
        drop(came.take(fds[0]).unwrap());
        assert!(came.take(fds[0]).is_err(), "it was taken");
        let error = came.finish().unwrap_err().to_string();
        assert!(error.contains("belongs to nobody"), "{error}");
        let mut came = Came::new(&[fds[1].0]).unwrap();
        drop(came.take(fds[1]).unwrap());
        came.finish().unwrap();
        assert!(Came::new(&[fds[1].0]).is_err(), "it is closed");
    }
}
