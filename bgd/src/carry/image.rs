//! The format of a carried state: a header line, followed by the state as JSON, in an anonymous file of the kernel.
//! JSON describes itself, so that each release can read the state of its predecessor.

use std::fs::File;
use std::io::{self, BufRead as _, Read as _, Seek as _, Write as _};
use std::os::fd::{OwnedFd, RawFd};

use bgd_shared::text::hex;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The format that this program writes. It is incremented when a predecessor's state can't be read unchanged.
pub const FORMAT: u32 = 2;

/// The formats that this program reads.
pub const READS: &[u32] = &[1, 2];

/// The maximum size of a state: several times the memory limit of tasks.
pub const MOST_BYTES: u64 = 4 << 30;

/// The maximum size of the first line: enough for the numbers of more descriptors than a process can have.
const MOST_HEAD_BYTES: u64 = 64 << 20;

/// The identifier in the first line of every state.
const MAGIC: &str = "bgd-state";

/// The first line. It suffices to go back to the program that wrote the state, regardless of the rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Head {
    magic: String,
    format: u32,
    /// The version of the program that wrote the state.
    pub version: String,
    /// The descriptor number of that program.
    pub program: RawFd,
    /// The numbers of all descriptors of the state, including `program`.
    pub descriptors: Vec<RawFd>,
}

impl Head {
    /// Reads only the first line and rewinds the file.
    ///
    /// # Errors
    /// The line can't be read or is not that of a state.
    pub fn read(file: &mut File) -> Result<Self, ImageError> {
        let mut line = Vec::new();
        file.rewind()?;
        let read = io::BufReader::new(&*file).take(MOST_HEAD_BYTES).read_until(b'\n', &mut line);
        file.rewind()?;
        read?;
        Self::parse(line.strip_suffix(b"\n").ok_or(ImageError::Foreign)?)
    }

    fn parse(line: &[u8]) -> Result<Self, ImageError> {
        let head: Self = serde_json::from_slice(line).map_err(|_| ImageError::Foreign)?;
        if head.magic == MAGIC { Ok(head) } else { Err(ImageError::Foreign) }
    }
}

/// Why a state can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a state.
    #[error("it is not the state of a bgd")]
    Foreign,
    /// This program does not read this format.
    #[error("it has format {0}, and this program reads {reads:?}", reads = READS)]
    Format(u32),
    /// The file is larger than [`MOST_BYTES`].
    #[error("it is larger than {MOST_BYTES} bytes")]
    TooLarge,
    /// The state is damaged.
    #[error("it can't be read: {0}")]
    Damaged(String),
}

/// Writes a state. Returns the file and the digest of its bytes.
///
/// # Errors
/// There is not enough memory.
pub fn write(state: &impl Serialize, program: RawFd, descriptors: &[RawFd]) -> io::Result<(OwnedFd, String)> {
    let fd = memfd_create(c"bgd-state", MFdFlags::MFD_CLOEXEC)?;
    let mut file = io::BufWriter::new(Hashing { file: File::from(fd), hash: Sha256::new() });
    let head = Head {
        magic: MAGIC.into(),
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        program,
        descriptors: descriptors.to_vec(),
    };
    serde_json::to_writer(&mut file, &head)?;
    file.write_all(b"\n")?;
    serde_json::to_writer(&mut file, state)?;
    let Hashing { mut file, hash } = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok((file.into(), hex(&hash.finalize())))
}

/// The bytes of a state, with the parsed first line.
pub struct Image {
    bytes: Vec<u8>,
    end_of_head: usize,
    pub head: Head,
}

impl Image {
    /// Reads a state from the file's current position.
    ///
    /// # Errors
    /// The file can't be read, is too large, or is not a state.
    pub fn read(file: &mut File) -> Result<Self, ImageError> {
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(ImageError::TooLarge);
        }
        let end_of_head = memchr::memchr(b'\n', &bytes).ok_or(ImageError::Foreign)?;
        let head = Head::parse(&bytes[..end_of_head])?;
        Ok(Self { bytes, end_of_head, head })
    }

    /// Parses the state.
    ///
    /// # Errors
    /// The state is damaged, or this program does not read its format.
    pub fn decode<S: DeserializeOwned>(&self) -> Result<S, ImageError> {
        if !READS.contains(&self.head.format) {
            return Err(ImageError::Format(self.head.format));
        }
        serde_json::from_slice(&self.bytes[self.end_of_head..])
            .map_err(|error| ImageError::Damaged(error.to_string()))
    }

    /// Returns the digest of all bytes.
    pub fn digest(&self) -> String {
        hex(&Sha256::digest(&self.bytes))
    }
}

/// A file whose content is hashed while it is written.
struct Hashing {
    file: File,
    hash: Sha256,
}

impl io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    proptest! {
        #[test]
        fn r122_state_image_survives_a_round_trip(state: Vec<(u64, String)>) {
            let (fd, digest) = write(&state, 5, &[5, 7]).unwrap();
            let mut file = File::from(fd);
            prop_assert_eq!(Head::read(&mut file).unwrap().descriptors, [5, 7]);
            let image = Image::read(&mut file).unwrap();
            prop_assert_eq!((image.head.program, &image.head.descriptors[..]), (5, &[5, 7][..]));
            prop_assert_eq!((image.decode::<Vec<(u64, String)>>().unwrap(), image.digest()), (state, digest));
        }

        #[test]
        fn r123_arbitrary_bytes_are_refused_as_image(bytes: Vec<u8>) {
            prop_assert!(Image::read(&mut file(&bytes)).is_err());
            prop_assert!(Head::read(&mut file(&bytes)).is_err());
        }
    }

    #[test]
    fn r123_refusal_of_an_image_names_the_reason() {
        let of = |magic: &str, format: u32, state: &str| {
            let head = format!(
                r#"{{"magic":"{magic}","format":{format},"version":"","program":3,"descriptors":[]}}"#
            );
            let image = Image::read(&mut file(format!("{head}\n{state}").as_bytes()));
            image.and_then(|image| image.decode::<Vec<u64>>()).unwrap_err().to_string()
        };
        assert_eq!(of("other", 1, "[]"), "it is not the state of a bgd");
        assert_eq!(of("bgd-state", 99, "[]"), "it has format 99, and this program reads [1, 2]");
        let damaged = of("bgd-state", 1, "[1, 2");
        assert!(damaged.starts_with("it can't be read: EOF"), "{damaged}");
    }
}
