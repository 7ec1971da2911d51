//! Descriptors that travel with a line (`SCM_RIGHTS`), and the credentials of a socket's peer.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, sockopt::PeerCredentials};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::limits::FDS_PER_FRAME;

/// Sends bytes with descriptors, which travel with the first byte. Returns the number of bytes sent; the rest must be
/// sent without descriptors.
///
/// # Errors
/// The system's error; `InvalidInput` for more than [`FDS_PER_FRAME`] descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(socket, bytes, fds, MsgFlags::empty())
}

/// Like [`send`], but never waits for room.
///
/// # Errors
/// The same; `WouldBlock` if there is no room now.
pub fn send_now(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(socket, bytes, fds, MsgFlags::MSG_DONTWAIT)
}

fn send_with(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: MsgFlags) -> io::Result<usize> {
    if fds.len() > FDS_PER_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one line"));
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(socket.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?)
}

/// Receives bytes and their descriptors. Zero bytes mean that the peer has closed.
///
/// # Errors
/// The system's error; `InvalidData` for more descriptors than [`FDS_PER_FRAME`], or than this process may still
/// open. All of them are closed then.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_FRAME))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    // Drain even a truncated message: the kernel has installed as many descriptors as there was space for.
    for received in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = received {
            fds.extend(rights);
        }
    }
    let is_cut = message.flags.contains(ReturnFlags::CTRUNC);
    if is_cut && fds.len() < FDS_PER_FRAME {
        let why = "this process can't open more file descriptors (RLIMIT_NOFILE)";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    if is_cut || fds.len() > FDS_PER_FRAME {
        let why = format!("more than {FDS_PER_FRAME} descriptors came with one line");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok((message.bytes, fds))
}

/// Returns the uid of the peer of a Unix socket, as the kernel recorded it when the peer connected or listened.
///
/// # Errors
/// The system's error, for example if the descriptor is not a Unix socket.
pub fn peer_uid(socket: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(&socket.as_fd(), PeerCredentials)?.uid())
}

/// Returns the pid of the peer of a Unix socket, as the kernel recorded it when the peer connected. `None` if the
/// peer is in another pid namespace and has no pid in this one.
pub fn peer_pid(socket: &impl AsFd) -> Option<i32> {
    getsockopt(&socket.as_fd(), PeerCredentials).ok().map(|peer| peer.pid()).filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptor_arrives_with_its_line() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        assert_eq!(send(&here, b"line\n", &[writer.as_fd()]).unwrap(), 5);
        drop(writer);
        let mut buffer = [0; 64];
        let (count, fds) = receive(&there, &mut buffer).unwrap();
        assert_eq!((&buffer[..count], fds.len()), (&b"line\n"[..], 1));
        std::fs::File::from(fds.into_iter().next().unwrap()).write_all(b"through it").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
    }

    #[test]
    fn too_many_descriptors_are_refused_on_both_sides() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let many = vec![writer.as_fd(); FDS_PER_FRAME + 1];
        assert_eq!(send(&here, b"x", &many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let raw: Vec<RawFd> = many.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let slices = [IoSlice::new(b"x")];
        sendmsg::<()>(here.as_raw_fd(), &slices, &rights, MsgFlags::empty(), None).unwrap();
        let error = receive(&there, &mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(writer);
        assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0, "those that had come are closed");
    }

    #[test]
    fn peer_uid_is_this_user() {
        let (here, _there) = UnixStream::pair().unwrap();
        assert_eq!(peer_uid(&here).unwrap(), nix::unistd::Uid::effective().as_raw());
    }
}
