//! Frames: bytes go in, lines come out. No I/O, so the clients and the daemon share the code.
//!
//! A frame may have attachments (descriptors, for the daemon). They arrive with a chunk of bytes and belong to the last
//! line that begins in it, because the kernel delivers a message's descriptors with its first byte and ends the read
//! after that message.

use crate::limits::FDS_PER_FRAME;

/// Error for a line that can't be accepted. Its connection can't continue, since the start of the next line is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The line is longer than the limit.
    #[error("a line is longer than the limit of {limit} bytes")]
    TooLarge {
        /// The limit in bytes, newline included.
        limit: usize,
    },
    /// Too many attachments came with the line.
    #[error("more than {limit} descriptors came with one line")]
    TooManyAttachments {
        /// Maximum number of attachments.
        limit: usize,
    },
}

/// One line, without its newline.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<A> {
    /// The bytes.
    pub line: Vec<u8>,
    /// The attachments that came with the line.
    pub attachments: Vec<A>,
}

/// Undecoded input of a decoder: bytes and attachments that are not a complete line yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest<A> {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The attachments, each with the number of the line that it belongs to: line 0 begins with `bytes`.
    pub attachments: Vec<(u64, A)>,
}

/// Splits a stream of bytes into lines.
#[derive(Debug)]
pub struct FrameDecoder<A> {
    buffer: Vec<u8>,
    /// The bytes before this offset have been returned.
    start: usize,
    /// The bytes before this offset contain no newline.
    scanned: usize,
    limit: usize,
    attachments: Vec<(u64, A)>,
    /// Number of the line that begins at `start`.
    line_number: u64,
}

/// Finds newlines without detecting CPU features: in a short run of `bgctl` the detection takes longer than the whole
/// search, above all in a virtual machine.
fn newline() -> memchr::arch::all::memchr::One {
    memchr::arch::all::memchr::One::new(b'\n')
}

impl<A> FrameDecoder<A> {
    /// Creates a decoder for lines of at most `limit` bytes, newline included.
    pub const fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, limit, attachments: Vec::new(), line_number: 0 }
    }

    /// Returns the undecoded input, for another decoder to continue with. `name` converts each attachment.
    pub fn rest<B>(&self, mut name: impl FnMut(&A) -> B) -> Rest<B> {
        let attachments = &self.attachments;
        Rest {
            bytes: self.buffer[self.start..].to_vec(),
            attachments: attachments.iter().map(|(line, a)| (line - self.line_number, name(a))).collect(),
        }
    }

    /// Creates a decoder that continues with the undecoded input of another one.
    pub fn resume_from(limit: usize, rest: Rest<A>) -> Self {
        Self { buffer: rest.bytes, attachments: rest.attachments, ..Self::new(limit) }
    }

    /// Accepts the next bytes of the stream and their attachments.
    pub fn push(&mut self, bytes: &[u8], attachments: impl IntoIterator<Item = A>) {
        let mut attachments = attachments.into_iter().peekable();
        if attachments.peek().is_some() {
            let line = self.line_number + self.last_line_begun(bytes);
            // Complete lines are consumed before more is read, so these attachments belong to one line. One over the
            // limit is enough to detect the excess; the rest is dropped at once.
            let room = (FDS_PER_FRAME + 1).saturating_sub(self.attachments.len());
            self.attachments.extend(attachments.take(room).map(|attachment| (line, attachment)));
        }
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the number of the last line that begins in `bytes`, counted from the line at `start`.
    fn last_line_begun(&self, bytes: &[u8]) -> u64 {
        let newlines = |bytes: &[u8]| newline().count(bytes) as u64;
        let before = newlines(&self.buffer[self.start..]);
        before + newlines(&bytes[..bytes.len().saturating_sub(1)])
    }

    /// Returns the next line, if it is complete. Skips blank lines without attachments.
    ///
    /// # Errors
    /// [`FrameError`] as soon as a line can no longer end within the limit, or has too many attachments.
    pub fn next_frame(&mut self) -> Result<Option<Frame<A>>, FrameError> {
        if self.attachments.len() > FDS_PER_FRAME {
            return Err(FrameError::TooManyAttachments { limit: FDS_PER_FRAME });
        }
        loop {
            let Some(length) = newline().find(&self.buffer[self.scanned..]) else {
                self.scanned = self.buffer.len();
                if self.buffer.len() - self.start >= self.limit {
                    return Err(FrameError::TooLarge { limit: self.limit });
                }
                self.free_empty_buffer();
                return Ok(None);
            };
            let end = self.scanned + length;
            if end + 1 - self.start > self.limit {
                return Err(FrameError::TooLarge { limit: self.limit });
            }
            let line = self.buffer[self.start..end].to_vec();
            self.start = end + 1;
            self.scanned = self.start;
            let attachments = self.take_attachments();
            self.line_number += 1;
            if !line.iter().all(u8::is_ascii_whitespace) || !attachments.is_empty() {
                return Ok(Some(Frame { line, attachments }));
            }
        }
    }

    fn take_attachments(&mut self) -> Vec<A> {
        let line_number = self.line_number;
        let mine = self.attachments.iter().take_while(|(line, _)| *line <= line_number).count();
        self.attachments.drain(..mine).map(|(_, attachment)| attachment).collect()
    }

    /// Frees an empty buffer: ten thousand idle connections need none, and its old contents may be secret.
    fn free_empty_buffer(&mut self) {
        if self.start == self.buffer.len() {
            self.start = 0;
            self.scanned = 0;
            self.buffer = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(decoder: &mut FrameDecoder<u8>) -> Vec<Frame<u8>> {
        std::iter::from_fn(|| decoder.next_frame().unwrap()).collect()
    }

    proptest! {
        #[test]
        fn lines_are_independent_of_chunking(
            lines in prop::collection::vec("[a-z]{1,40}", 0..20),
            cuts in prop::collection::vec(1usize..30, 1..60),
        ) {
            let stream: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            let mut decoder = FrameDecoder::new(64);
            let mut got = Vec::new();
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (chunk, tail) = rest.split_at(rest.len().min(*cut));
                decoder.push(chunk, None);
                got.extend(drain(&mut decoder).into_iter().map(|frame| String::from_utf8(frame.line).unwrap()));
                rest = tail;
            }
            prop_assert_eq!(got, lines);
        }

        #[test]
        fn r121_another_decoder_continues_with_the_rest(text in "[a-z\n]{0,60}", cut in 0_usize..60) {
            let bytes = text.as_bytes();
            let (before, after) = bytes.split_at(cut.min(bytes.len()));
            let mut whole = FrameDecoder::new(64);
            let mut first = FrameDecoder::new(64);
            for decoder in [&mut whole, &mut first] {
                decoder.push(before, [1]);
            }
            let taken = first.next_frame().unwrap();
            prop_assert_eq!(&taken, &whole.next_frame().unwrap());
            let mut second = FrameDecoder::resume_from(64, first.rest(|number| *number));
            for decoder in [&mut whole, &mut second] {
                decoder.push(after, [2]);
            }
            prop_assert_eq!(drain(&mut second), drain(&mut whole));
        }

        #[test]
        fn no_line_exceeds_the_limit(bytes: Vec<u8>, limit in 1usize..50) {
            let mut decoder = FrameDecoder::<u8>::new(limit);
            decoder.push(&bytes, None);
            while let Ok(Some(frame)) = decoder.next_frame() {
                prop_assert!(frame.line.len() < limit);
            }
        }
    }

    #[test]
    fn attachment_belongs_to_the_last_line_beginning_in_its_chunk() {
        let mut decoder = FrameDecoder::new(100);
        decoder.push(b"first", []);
        decoder.push(b" ends\nsecond\n", [7]);
        decoder.push(b"third ", [8, 9]);
        decoder.push(b"ends\nfourth\n", []);
        let frames = drain(&mut decoder);
        let attached: Vec<_> = frames.iter().map(|frame| frame.attachments.clone()).collect();
        assert_eq!(attached, [vec![], vec![7], vec![8, 9], vec![]]);
    }

    #[test]
    fn attachments_per_line_are_bounded() {
        let mut decoder = FrameDecoder::new(1000);
        for number in 0..20 {
            decoder.push(b"x", [number]);
        }
        assert_eq!(decoder.attachments.len(), FDS_PER_FRAME + 1);
        assert_eq!(decoder.next_frame(), Err(FrameError::TooManyAttachments { limit: FDS_PER_FRAME }));
    }

    #[test]
    fn endless_line_fails_at_the_limit() {
        let mut decoder = FrameDecoder::<u8>::new(1000);
        for _ in 0..99 {
            decoder.push(&[b'x'; 10], None);
            assert_eq!(decoder.next_frame(), Ok(None));
        }
        decoder.push(&[b'x'; 10], None);
        assert_eq!(decoder.next_frame(), Err(FrameError::TooLarge { limit: 1000 }));
    }

    #[test]
    fn buffer_is_released_when_drained() {
        let mut decoder = FrameDecoder::<u8>::new(1 << 20);
        for bytes in [1, 500_000] {
            decoder.push(&vec![b'x'; bytes], None);
            decoder.push(b"\n", None);
            drain(&mut decoder);
            assert_eq!(decoder.buffer.capacity(), 0);
        }
    }
}
