//! Connects again after the daemon has ended or the connection was lost, beside everything else: on a thread of its
//! own, as that may wait for long.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::failure::Failure;
use crate::link::{DaemonWatch, Link};
use bgd_shared::client::PolledClient;

/// The pauses between attempts where nothing tells when it is worth one: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

/// A connection that is being made.
pub struct Connector {
    made: mpsc::Receiver<PolledClient>,
    /// Closed when the connection is made.
    woken: UnixStream,
}

impl Connector {
    /// Begins to connect until a daemon is there. Never starts one: whoever has stopped it does not want one.
    ///
    /// # Errors
    /// There can be no more threads or descriptors.
    pub fn begin(mut link: Link) -> Result<Self, Failure> {
        let cannot = |error: io::Error| Failure::io("can't connect again", &error);
        let (woken, wakes) = UnixStream::pair().map_err(cannot)?;
        let (send, made) = mpsc::channel();
        let connect = move || {
            let [mut pause, longest] = PAUSES;
            let client = loop {
                // Watched first, so that no daemon comes unseen in between.
                let watch = link.socket().and_then(DaemonWatch::new);
                match connected(&mut link) {
                    Ok(client) => break client,
                    Err(_) if watch.is_ok_and(|watch| watch.wait().is_ok()) => {}
                    Err(_) => {
                        // Nothing tells when a host is back, or a removed folder.
                        thread::sleep(pause);
                        pause = longest.min(pause * 2);
                    }
                }
            };
            // Nobody waits for it any more if the view has ended.
            let _ = send.send(client);
            drop(wakes);
        };
        thread::Builder::new().name("connect".to_owned()).spawn(connect).map_err(cannot)?;
        Ok(Self { made, woken })
    }

    /// Readable when the connection is made.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// The connection, once it is made.
    pub fn made(&self) -> Option<PolledClient> {
        self.made.try_recv().ok()
    }
}

/// Connects once; to another machine, for as long as that may take.
fn connected(link: &mut Link) -> Result<PolledClient, Failure> {
    if link.is_remote() {
        // A shared connection may be dead without knowing it.
        link.recover(Failure::lost("the connection is lost"))?;
        return link.polled();
    }
    Ok(link.existing()?.into())
}
