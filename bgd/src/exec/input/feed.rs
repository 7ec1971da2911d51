//! Writes a text of any length to the standard input of a program: the prompt of an agent, or the notice of a hook.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe::Sender;

use crate::carry::{CarriedFds, Fd, bytes};

/// A text that is being written.
#[derive(Debug)]
pub struct Feed(Rc<RefCell<Option<Rest>>>);

/// A text that is being written, as data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FeedState {
    pub pipe: Fd,
    /// The unwritten bytes.
    #[serde(with = "bytes")]
    pub rest: Vec<u8>,
}

#[derive(Debug)]
struct Rest {
    /// The pipe's number.
    number: RawFd,
    text: Vec<u8>,
    /// How many bytes of the text are written.
    written: usize,
}

impl Feed {
    /// Starts writing. The pipe is closed when everything is written, or as soon as the program stops reading.
    ///
    /// # Errors
    /// The pipe can't be registered with the runtime.
    pub fn begin(pipe: OwnedFd, text: Vec<u8>) -> io::Result<Self> {
        let pipe = Sender::from_owned_fd(pipe)?;
        let rest = Rest { number: pipe.as_fd().as_raw_fd(), text, written: 0 };
        let rest = Rc::new(RefCell::new(Some(rest)));
        let this = Self(Rc::clone(&rest));
        tokio::task::spawn_local(async move {
            while write(&pipe, &rest) {
                if pipe.writable().await.is_err() {
                    break;
                }
            }
            rest.replace(None);
        });
        Ok(this)
    }

    /// Creates a feed whose text is already written.
    pub fn ended() -> Self {
        Self(Rc::default())
    }

    /// Returns the pipe and the unwritten bytes; `None` if the pipe is closed.
    pub fn state(&self, named: &mut CarriedFds) -> Option<FeedState> {
        let rest = self.0.borrow();
        let Rest { number, text, written } = rest.as_ref()?;
        Some(FeedState { pipe: named.number(*number), rest: text[*written..].to_vec() })
    }
}

/// Writes as much as the pipe accepts. Returns whether there is more to write.
fn write(pipe: &Sender, rest: &RefCell<Option<Rest>>) -> bool {
    let mut rest = rest.borrow_mut();
    let Some(Rest { text, written, .. }) = &mut *rest else { return false };
    while *written < text.len() {
        match pipe.try_write(&text[*written..]) {
            Ok(count) => *written += count,
            // A program need not read the whole text.
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    false
}
