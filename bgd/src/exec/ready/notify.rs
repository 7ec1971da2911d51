//! Waits until a process reports that it is ready, as `sd_notify(3)` does.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg};
use tokio::io::unix::AsyncFd;

use super::looks::Looks;
use crate::exec::awaited::NotifySocket;
use crate::exec::threads::workers::Workers;
use crate::exec::tree::Tree;
use crate::os::watch;

/// The maximum number of bytes read of a message; programs send no longer ones.
const MESSAGE_BYTES: usize = 4096;

/// The maximum number of descriptors that can come with a message; they are not needed, and closed.
const MESSAGE_FDS: usize = 253;

/// Waits until a process of this tree reports that it is ready. Leaves that message in the socket for [`drain`]: if
/// another program takes over before the dispatcher is notified, it finds the message there. Reports to `looks` when no
/// message is left.
pub async fn until_notified(socket: &NotifySocket, tree: &Tree, workers: &Workers, looks: &Looks) {
    let Some(messages) = messages(socket) else { return looks.give_up().await };
    // Of a socket that was empty from the beginning, the runtime reports nothing.
    let look = looks.begin();
    if receive(messages.get_ref(), MsgFlags::MSG_PEEK).is_err() {
        looks.note_vain(look);
    }
    loop {
        let message = next(&messages, MsgFlags::MSG_PEEK, looks).await;
        if !message.says_ready() {
            next(&messages, MsgFlags::empty(), looks).await;
            continue;
        }
        let (tree, sender) = (tree.clone(), message.sender);
        let is_foreign = workers.walk(move || sender.is_some_and(|sender| tree.is_foreign(sender))).await;
        if is_foreign != Some(true) {
            return;
        }
        tracing::info!(sender, "a process of another task says that this one is ready");
        next(&messages, MsgFlags::empty(), looks).await;
    }
}

/// Reads and drops all further messages, forever, so that no sender blocks.
pub async fn drain(socket: &NotifySocket) {
    if let Some(messages) = messages(socket) {
        let looks = Looks::default();
        loop {
            next(&messages, MsgFlags::empty(), &looks).await;
        }
    }
}

fn messages(socket: &NotifySocket) -> Option<AsyncFd<OwnedFd>> {
    let watched = socket.socket.try_clone().and_then(|socket| watch::readable(socket.into()));
    watched.inspect_err(|error| tracing::error!(%error, "a notification socket can't be watched")).ok()
}

struct Message {
    text: Vec<u8>,
    /// The sender's pid, if that process is visible here.
    sender: Option<i32>,
}

impl Message {
    fn says_ready(&self) -> bool {
        self.text.split(|byte| *byte == b'\n').any(|line| line == b"READY=1")
    }
}

/// Waits for the next message, and removes it from the socket unless the flags prevent that. Reports to `looks` when
/// there is none left.
async fn next(messages: &AsyncFd<OwnedFd>, flags: MsgFlags, looks: &Looks) -> Message {
    loop {
        let mut ready = tokio::select! {
            ready = messages.readable() => match ready {
                Ok(ready) => Some(ready),
                Err(_) => return std::future::pending().await,
            },
            () = looks.until_due() => None,
        };
        let look = looks.begin();
        let received = receive(messages.get_ref(), flags);
        match received {
            Ok(message) => return message,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Some(ready) = &mut ready {
                    ready.clear_ready();
                }
                looks.note_vain(look);
            }
            Err(error) => {
                tracing::warn!(%error, "a notification can't be read");
                return looks.give_up().await;
            }
        }
    }
}

fn receive(socket: &OwnedFd, flags: MsgFlags) -> io::Result<Message> {
    let mut text = vec![0; MESSAGE_BYTES];
    let mut space = cmsg_space!(UnixCredentials, [RawFd; MESSAGE_FDS]);
    let mut parts = [IoSliceMut::new(&mut text)];
    let flags = flags | MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let (bytes, mut sender) = (received.bytes, None);
    for along in received.cmsgs().into_iter().flatten() {
        match along {
            ControlMessageOwned::ScmCredentials(who) => sender = Some(who.pid()).filter(|pid| *pid > 0),
            ControlMessageOwned::ScmRights(fds) => fds.into_iter().for_each(|fd| {
                let _: Result<(), Errno> = nix::unistd::close(fd);
            }),
            _ => {}
        }
    }
    text.truncate(bytes);
    Ok(Message { text, sender })
}
