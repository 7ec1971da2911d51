//! Tests of single connections, without a dispatcher.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use tokio::sync::mpsc;

use super::*;

/// Nothing takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// Creates a connection that has sent nothing.
fn connected(socket: UnixStream, shared: &Shared) -> Arc<Connection> {
    socket.set_nonblocking(true).unwrap();
    let client = Client::new(1, ClientLimits { requests: 2, write_queue_bytes: 1000 });
    let progress = Progress {
        decoder: FrameDecoder::new(1000),
        hand: Vec::new(),
        written: 0,
        is_known: false,
        no_more_requests: false,
        is_refused: false,
    };
    let stream = watch::readable(socket.into()).unwrap();
    Connection::added(stream, Arc::new(client), (Room::All, true), progress, shared)
}

#[tokio::test]
async fn r121_connection_sent_away_just_before_an_upgrade_is_closed_after_it() {
    let (calls, _mailbox) = mpsc::channel(1);
    let shared = Shared { calls, silent: Arc::default(), connections: Arc::default() };
    let (here, _there) = UnixStream::pair().unwrap();
    let connection = connected(here, &shared);
    connection.progress.lock().is_known = true;
    assert!(!connection.state(&mut CarriedFds::default()).unwrap().no_more_requests);
    assert!(shared.evict(Room::All), "it has sent nothing");
    let state = connection.state(&mut CarriedFds::default()).unwrap();
    assert!(state.no_more_requests && state.is_refused);
}

#[tokio::test]
async fn connection_sent_away_while_its_request_waits_for_the_dispatcher_ends() {
    let (calls, mut mailbox) = mpsc::channel(1);
    let shared = Shared { calls, silent: Arc::default(), connections: Arc::default() };
    let (here, mut there) = UnixStream::pair().unwrap();
    let connection = connected(here, &shared);
    let client = &connection.client;
    let (_open, closing) = watched::channel(false);
    let served = tokio::spawn(Arc::clone(&connection).serve(closing));
    there.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hello\"}\n").unwrap();
    // That it has connected takes the only place in the mailbox. The request waits for it, in the socket or read.
    for _ in 0..10_000 {
        if !connection.has_unread() {
            break;
        }
        tokio::task::yield_now().await;
    }
    // Nobody reads this.
    there.write_all(b"more").unwrap();
    client.evict(b"bye\n");
    while ioctl_fionread(&there).unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(mailbox.recv().await, Some(Incoming::Connected(_))));
    let gone = tokio::time::timeout(PATIENCE, mailbox.recv()).await.expect("it ends");
    assert!(matches!(gone, Some(Incoming::Gone(_))), "{gone:?}");
    served.await.unwrap();
    drop(connection);
    let mut text = String::new();
    there.read_to_string(&mut text).expect("its end is no error");
    assert_eq!(text, "bye\n");
}

#[tokio::test]
async fn connection_is_not_read_between_the_end_of_the_dispatcher_and_that_of_the_daemon() {
    let (calls, mailbox) = mpsc::channel(1);
    drop(mailbox);
    let shared = Shared { calls, silent: Arc::default(), connections: Arc::default() };
    let (here, _there) = UnixStream::pair().unwrap();
    let connection = connected(here, &shared);
    connection.progress.lock().is_known = true;
    tokio::select! {
        biased;
        _ = connection.take_all() => panic!("it would be read without a limit"),
        () = std::future::ready(()) => {}
    }
    let (close, closing) = watched::channel(false);
    let served = tokio::spawn(connection.serve(closing));
    close.send_replace(true);
    tokio::time::timeout(PATIENCE, served).await.expect("it ends").unwrap();
}
