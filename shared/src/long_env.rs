//! Environments that would make a line too long: they travel in a memory file whose descriptor goes with the line.
//!
//! The file is sealed, so that it can't be changed or shortened while it is read. It has the format of
//! `/proc/PID/environ`: NUL-terminated `NAME=value` entries.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

use crate::error::{ErrorKind, RpcError};
use crate::limits::{ENV_BYTES, ENV_INLINE_BYTES};
use crate::text::{Env, OsText};

/// Seals that make a memory file safe to read: its contents can't change.
fn sealed() -> SealFlags {
    SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW
}

/// Returns the size of an environment in bytes, as the system counts it.
fn bytes_of(env: &Env) -> usize {
    env.0.iter().map(|(name, value)| name.len() + value.as_bytes().len() + 2).sum()
}

fn too_long(bytes: u64) -> RpcError {
    let message = format!("the environment has {bytes} bytes; at most {ENV_BYTES} are allowed");
    RpcError::new(ErrorKind::InvalidParams, message)
        .hint("the system can't start programs with more: remove some variables, or put them into a file")
}

fn invalid(what: &str) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, format!("`env_fd`: {what}"))
        .hint("see task.submit in bgd-protocol(7) for how to create such a file")
}

/// Puts an environment into a memory file if it is too long for a line; otherwise returns `None`.
///
/// # Errors
/// The environment is longer than any program may get, or the system can't create the file.
pub fn put(env: &Env) -> Result<Option<OwnedFd>, RpcError> {
    let bytes = bytes_of(env);
    if bytes <= ENV_INLINE_BYTES {
        return Ok(None);
    }
    if bytes > ENV_BYTES {
        return Err(too_long(bytes as u64));
    }
    let made = write(env, bytes).map_err(|error| {
        let message =
            format!("the environment has {bytes} bytes, and a memory file for it can't be created: {error}");
        RpcError::new(ErrorKind::Internal, message)
    });
    made.map(Some)
}

fn write(env: &Env, bytes: usize) -> io::Result<OwnedFd> {
    let mut text = Vec::with_capacity(bytes);
    for (name, value) in &env.0 {
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(value.as_bytes());
        text.push(0);
    }
    let mut file = File::from(memfd_create("bgd-env", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(&text)?;
    fcntl_add_seals(&file, sealed())?;
    Ok(file.into())
}

/// Reads the environment in a memory file.
///
/// # Errors
/// The file is not sealed, is too long, or does not hold an environment.
pub fn take(descriptor: OwnedFd) -> Result<Env, RpcError> {
    // Only memory files have seals, so reading one never waits for a disk or the network.
    let seals = fcntl_get_seals(descriptor.as_fd()).unwrap_or(SealFlags::empty());
    if !seals.contains(sealed()) {
        return Err(invalid("it is not a memory file sealed against writing, shrinking and growing"));
    }
    let file = File::from(descriptor);
    let unreadable = |error: io::Error| invalid(&format!("it can't be read: {error}"));
    let length = file.metadata().map_err(unreadable)?.len();
    let bytes = usize::try_from(length).ok().filter(|bytes| *bytes <= ENV_BYTES);
    let mut text = vec![0; bytes.ok_or_else(|| too_long(length))?];
    file.read_exact_at(&mut text, 0).map_err(unreadable)?;
    read(&text)
}

fn read(text: &[u8]) -> Result<Env, RpcError> {
    let Some((0, entries)) = text.split_last() else {
        return if text.is_empty() {
            Ok(Env::default())
        } else {
            Err(invalid("the last entry is not NUL-terminated"))
        };
    };
    let entry = |entry: &[u8]| -> Result<(Box<str>, OsText), RpcError> {
        let equals = memchr::memchr(b'=', entry).ok_or_else(|| invalid("an entry is not NAME=value"))?;
        let (name, value) = (&entry[..equals], &entry[equals + 1..]);
        let name = std::str::from_utf8(name).map_err(|_| invalid("the name of a variable is not UTF-8"))?;
        Ok((name.into(), OsText::from(value.to_vec())))
    };
    entries.split(|byte| *byte == 0).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn env(pairs: Vec<(String, Vec<u8>)>) -> Env {
        pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    proptest! {
        #[test]
        fn environment_survives_the_transfer(
            pairs in prop::collection::vec(("[^=\\x00]{1,20}", prop::collection::vec(1..=255_u8, 0..50)), 0..20),
        ) {
            let env = env(pairs);
            let file = write(&env, bytes_of(&env)).expect("a memory file");
            prop_assert_eq!(take(file).expect("an environment"), env);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn only_environments_too_long_for_a_line_use_a_memory_file() {
        let long = |bytes: usize| env(vec![("A".to_owned(), vec![b'x'; bytes - 3])]);
        assert!(put(&long(ENV_INLINE_BYTES)).unwrap().is_none());
        assert!(put(&long(ENV_INLINE_BYTES + 1)).unwrap().is_some());
        assert!(put(&long(ENV_BYTES)).unwrap().is_some());
        let error = put(&long(ENV_BYTES + 1)).unwrap_err();
        assert!(error.message.contains(&(ENV_BYTES + 1).to_string()), "{error}");
    }

    #[test]
    fn unsealed_file_is_not_read() {
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&open, SealFlags::WRITE | SealFlags::GROW).unwrap();
        let null = File::open("/dev/null").unwrap();
        for descriptor in [open, null.into()] {
            assert!(take(descriptor).unwrap_err().message.contains("sealed"));
        }
    }

    #[test]
    fn malformed_environment_is_refused() {
        for (text, what) in
            [(&b"A=b"[..], "NUL"), (b"A\0", "NAME=value"), (b"\xff=b\0", "UTF-8"), (b"\0", "NAME=value")]
        {
            assert!(read(text).unwrap_err().message.contains(what), "{text:?}");
        }
        assert_eq!(read(b"").unwrap(), Env::default());
        assert_eq!(
            read(b"A=b=c\0B=\0").unwrap(),
            env(vec![("A".into(), b"b=c".to_vec()), ("B".into(), vec![])])
        );
    }
}
