//! The client for programs with their own poll loop. Nothing here blocks.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg};

use super::blocking::{Client, Parts, check};
use super::error::ClientError;
use super::protocol::{Call, Protocol, Received};
use super::watchdog::Watchdog;
use crate::request::Method;
use crate::socket::SocketPath;
use crate::transport::{Listener, Stream};

/// Bytes per read. Under a flood of terminal output, the daemon's lines are about this long.
const READ_BYTES: usize = 64 * 1024;

/// A connection for any number of concurrent calls, for callers that sleep in `poll`.
///
/// Poll its socket for reading, and for writing while [`wants_write`](Self::wants_write). Then call
/// [`read`](Self::read) or [`write`](Self::write), and take messages from [`next_received`](Self::next_received) until
/// there are none. While the caller does not read, the daemon holds back terminal output. Also wake up at
/// [`until`](Self::until), and call [`keep_up`](Self::keep_up) then.
#[derive(Debug)]
pub struct PolledClient {
    stream: Stream,
    protocol: Protocol,
    /// Messages received while this was a blocking connection.
    early: VecDeque<Received>,
    outbox: Vec<u8>,
    /// Descriptors that travel with lines in the outbox.
    along: VecDeque<Along>,
    buffer: Box<[u8]>,
    socket: Option<SocketPath>,
    listener: Option<Listener>,
    watchdog: Watchdog,
}

/// A descriptor that travels with the first byte of a line.
#[derive(Debug)]
struct Along {
    /// Offset of the line in the outbox.
    at: usize,
    bytes: usize,
    file: OwnedFd,
}

impl PolledClient {
    /// Returns when to check on the daemon if nothing arrives before; `None` while no answer is pending.
    pub fn until(&self) -> Option<Instant> {
        self.protocol.has_pending().then(|| self.watchdog.until())
    }

    /// Checks on a daemon that has been silent for long. The caller must have read everything that has arrived. May be
    /// called at any time.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn keep_up(&mut self) -> Result<(), ClientError> {
        if !self.protocol.has_pending() {
            return Ok(());
        }
        if check(&mut self.watchdog, self.listener.as_ref(), self.socket.as_ref())? {
            self.outbox.extend_from_slice(&Protocol::probe());
            return self.write();
        }
        Ok(())
    }

    /// Sends a call and returns its number, which the answer will carry. Bytes that the kernel does not accept at
    /// once are buffered without a limit, so the caller must bound its calls.
    ///
    /// # Errors
    /// A broken connection.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<u64, ClientError> {
        let Call { number, line, along } = self.protocol.call::<M>(params)?;
        self.along.extend(along.map(|file| Along { at: self.outbox.len(), bytes: line.len(), file }));
        self.watchdog.asked(Instant::now());
        self.outbox.extend_from_slice(&line);
        self.write()?;
        Ok(number)
    }

    /// Reports whether calls are waiting to be written.
    pub fn wants_write(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Writes as much as the kernel accepts now.
    ///
    /// # Errors
    /// A broken connection. A connection closed by the daemon is not an error here: its last messages are still to be
    /// read, and [`read`](Self::read) reports the end.
    pub fn write(&mut self) -> Result<(), ClientError> {
        let mut sent = 0;
        let outcome = loop {
            if sent == self.outbox.len() {
                break Ok(());
            }
            match self.send_from(sent) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    sent = self.outbox.len();
                    self.along.clear();
                    break Ok(());
                }
                Err(error) => break Err(io::Error::from(error).into()),
            }
        };
        self.outbox.drain(..sent);
        for along in &mut self.along {
            along.at -= sent;
        }
        outcome
    }

    /// Sends once, starting at offset `sent`. A descriptor travels only with its own line.
    fn send_from(&mut self, sent: usize) -> Result<usize, Errno> {
        const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
        let Some(Along { at, bytes, file }) = self.along.front() else {
            return send(&self.stream, &self.outbox[sent..], FLAGS);
        };
        if sent < *at {
            return send(&self.stream, &self.outbox[sent..*at], FLAGS);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let line = IoSlice::new(&self.outbox[sent..sent + bytes]);
        let count = sendmsg(&self.stream, &[line], &mut control, FLAGS)?;
        self.along.pop_front();
        Ok(count)
    }

    /// Reads once, if data is available.
    ///
    /// # Errors
    /// A broken connection; [`ClientError::Closed`] if the daemon has closed it.
    pub fn read(&mut self) -> Result<(), ClientError> {
        loop {
            match recv(&self.stream, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                // ECONNRESET: the daemon has closed without reading all of our calls.
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(ClientError::Closed),
                Ok((count, _)) => {
                    self.watchdog.heard(Instant::now());
                    self.protocol.push(&self.buffer[..count]);
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Returns the next message from the daemon, if it is complete.
    ///
    /// # Errors
    /// As for [`Protocol::next_received`].
    pub fn next_received(&mut self) -> Result<Option<Received>, ClientError> {
        match self.early.pop_front() {
            Some(received) => Ok(Some(received)),
            None => self.protocol.next_received(),
        }
    }
}

impl From<Client> for PolledClient {
    /// Continues a blocking connection. Messages that it has received but not returned come first.
    fn from(client: Client) -> Self {
        let Parts { stream, protocol, received: early, socket, listener, watchdog } = client.into_parts();
        let buffer = vec![0; READ_BYTES].into();
        let (outbox, along) = (Vec::new(), VecDeque::new());
        Self { stream, protocol, early, outbox, along, buffer, socket, listener, watchdog }
    }
}

impl AsFd for PolledClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::request::{DaemonReload, Hello, HelloParams, HelloResult, NoParams};

    /// Returns a client and the daemon's end of its connection.
    fn pair() -> (Client, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (Client::over(OwnedFd::from(here).into()), there)
    }

    fn answer(call: u64) -> String {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{call},\"result\":{{\"changed\":[],\"needs_restart\":[]}}}}\n")
    }

    #[test]
    fn polled_client_never_blocks() {
        let (client, mut daemon) = pair();
        let mut client = PolledClient::from(client);
        client.read().unwrap();
        assert!(client.next_received().unwrap().is_none());
        let call = client.call::<DaemonReload>(&NoParams {}).unwrap();
        daemon.write_all(&answer(call).as_bytes()[..20]).unwrap();
        client.read().unwrap();
        assert!(client.next_received().unwrap().is_none(), "half an answer");
        daemon.write_all(&answer(call).as_bytes()[20..]).unwrap();
        client.read().unwrap();
        assert!(matches!(client.next_received().unwrap(), Some(Received::Answer { call: 1, .. })));
        // A child that another test is starting may have a copy of the descriptor.
        daemon.shutdown(Shutdown::Both).unwrap();
        assert!(matches!(client.read(), Err(ClientError::Closed)));
    }

    #[test]
    fn calls_exceeding_the_socket_buffer_are_kept() {
        let (client, mut daemon) = pair();
        let mut client = PolledClient::from(client);
        let params = HelloParams { client: Some("x".repeat(100_000)), ..HelloParams::default() };
        let mut calls = 0;
        while !client.wants_write() {
            client.call::<Hello>(&params).unwrap();
            calls += 1;
        }
        let mut got = 0;
        let mut buffer = vec![0; 1 << 20];
        while client.wants_write() {
            got += daemon.read(&mut buffer).unwrap();
            client.write().unwrap();
        }
        drop(client);
        while let Ok(count @ 1..) = daemon.read(&mut buffer) {
            got += count;
        }
        assert!(got > calls * 100_000, "{got} of {calls} calls");
    }

    #[test]
    fn descriptor_travels_with_its_own_line() {
        use crate::request::{SubmitParams, TaskSubmit};
        use crate::text::OsText;
        let (here, daemon) = UnixStream::pair().unwrap();
        let mut client = PolledClient::from(Client::of(OwnedFd::from(here).into()));
        let long = OsText::from("x".repeat(crate::limits::ENV_INLINE_BYTES));
        let env = [("LONG".into(), long.clone())].into_iter().collect();
        let submit = SubmitParams { env: Some(env), ..SubmitParams::default() };
        let hello = HelloParams { client: Some("x".repeat(100_000)), ..HelloParams::default() };
        while !client.wants_write() {
            client.call::<Hello>(&hello).unwrap();
        }
        client.call::<TaskSubmit>(&submit).unwrap();
        client.call::<DaemonReload>(&NoParams {}).unwrap();
        let mut decoder = crate::frame::FrameDecoder::new(1 << 20);
        let mut buffer = vec![0; 1 << 16];
        loop {
            let (count, received) = crate::fds::receive(&daemon, &mut buffer).unwrap();
            decoder.push(&buffer[..count], received);
            client.write().unwrap();
            while let Some(frame) = decoder.next_frame().unwrap() {
                let line = String::from_utf8(frame.line).unwrap();
                assert_eq!(frame.attachments.len(), usize::from(line.contains("task.submit")), "{line:.100}");
                for file in frame.attachments {
                    assert!(line.contains(r#""env_fd":true"#), "{line}");
                    assert_eq!(crate::long_env::take(file).unwrap().get("LONG"), Some(&long));
                }
                if line.contains("daemon.reload") {
                    return;
                }
            }
        }
    }

    #[test]
    fn early_replies_are_not_lost() {
        let (mut client, mut daemon) = pair();
        let first = client.send::<DaemonReload>(&NoParams {}, &[]).unwrap();
        let second = client.send::<Hello>(&HelloParams::default(), &[]).unwrap();
        let third = client.send::<DaemonReload>(&NoParams {}, &[]).unwrap();
        let hello = hello();
        daemon.write_all((answer(third) + &answer(first)).as_bytes()).unwrap();
        let id = serde_json::from_str(&second.to_string()).unwrap();
        daemon.write_all(&crate::message::result_line(&id, &hello)).unwrap();
        assert_eq!(client.answer::<Hello>(second).unwrap(), hello);
        client.answer::<DaemonReload>(first).unwrap();
        daemon.write_all(answer(99).as_bytes()).unwrap();
        let mut client = PolledClient::from(client);
        client.read().unwrap();
        for expected in [third, 99] {
            let received = client.next_received().unwrap();
            assert!(matches!(received, Some(Received::Answer { call, .. }) if call == expected));
        }
    }

    fn hello() -> HelloResult {
        serde_json::from_value(serde_json::json!({
            "protocol": 1, "version": "", "instance": "", "pid": 1, "background_key": "ctrl-b",
            "limits": {"frame_bytes": 1, "connections": 1, "requests": 1, "write_queue_bytes": 1, "tasks": 1,
                "output_bytes": 1, "event_history_bytes": 1, "max_concurrent_tasks": 1},
        }))
        .unwrap()
    }
}
