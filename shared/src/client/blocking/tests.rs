//! Tests of the blocking client against scripted daemons.

use std::os::unix::net::UnixStream;

use super::*;
use crate::request::{SessionEnd, SessionEndParams};

#[test]
fn r21_polling_client_skips_the_probe_reply() {
    let (here, mut there) = UnixStream::pair().unwrap();
    let mut client = Client::over(OwnedFd::from(here).into());
    let call = client.send::<SessionEnd>(&SessionEndParams { session: "s".into() }, &[]).unwrap();
    // Unread data would turn the close into a reset.
    let asked = there.read(&mut [0; 1024]).unwrap();
    assert!(asked > 0);
    there.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\n").unwrap();
    assert_eq!(client.answered::<SessionEnd>(call).unwrap(), None);
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{call},"result":{{"cancelled":1,"cleared":2}}}}"#);
    let (begin, end) = answer.split_at(20);
    there.write_all(begin.as_bytes()).unwrap();
    assert_eq!(client.answered::<SessionEnd>(call).unwrap(), None, "it has not come yet");
    there.write_all(format!("{end}\n").as_bytes()).unwrap();
    assert_eq!(client.answered::<SessionEnd>(call).unwrap().map(|end| end.cleared), Some(2));
    drop(there);
    assert!(matches!(client.answered::<SessionEnd>(call), Err(ClientError::Closed)));
}

#[test]
fn r21_polling_client_waits_for_no_event_behind_a_probe_reply() {
    let (here, mut there) = UnixStream::pair().unwrap();
    let mut client = Client::over(OwnedFd::from(here).into());
    client.wait_at_most(Duration::from_millis(100));
    there.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\n").unwrap();
    assert_eq!(client.arrived_news().unwrap(), None);
    let gap =
        r#"{"jsonrpc":"2.0","method":"event","params":{"subscription":1,"kind":"gap","from":1,"to":2}}"#;
    let (begin, end) = gap.split_at(20);
    there.write_all(begin.as_bytes()).unwrap();
    assert_eq!(client.arrived_news().unwrap(), None, "it has not come yet");
    there.write_all(format!("{end}\n{gap}\n").as_bytes()).unwrap();
    assert!(client.arrived_news().unwrap().is_some());
    assert!(client.arrived_news().unwrap().is_some(), "received with the first one");
    drop(there);
    assert!(matches!(client.arrived_news(), Err(ClientError::Closed)));
}

#[test]
fn failed_send_on_an_open_connection_returns_at_once() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut client = Client::over(OwnedFd::from(here).into());
    let (sender, outcome) = std::sync::mpsc::channel();
    let send = std::thread::spawn(move || {
        let (file, _) = UnixStream::pair().unwrap();
        let many = [file.as_fd(); crate::limits::FDS_PER_FRAME + 1];
        let params = SessionEndParams { session: "s".into() };
        sender.send(client.send::<SessionEnd>(&params, &many).unwrap_err()).unwrap();
    });
    let error = outcome.recv_timeout(Duration::from_secs(10)).expect("it does not wait for the daemon");
    assert!(matches!(error, ClientError::Io(error) if error.kind() == io::ErrorKind::InvalidInput));
    drop(there);
    send.join().unwrap();
}

#[test]
fn answer_received_before_the_end_of_the_connection_is_returned() {
    let (here, mut there) = UnixStream::pair().unwrap();
    let mut client = Client::over(OwnedFd::from(here).into());
    let params = SessionEndParams { session: "s".into() };
    let calls = [(); 3].map(|()| client.send::<SessionEnd>(&params, &[]).unwrap());
    let read = there.read(&mut [0; 4096]).unwrap();
    assert!(read > 0, "unread data would turn the close into a reset");
    for call in calls {
        let answer =
            format!(r#"{{"jsonrpc":"2.0","id":{call},"result":{{"cancelled":1,"cleared":{call}}}}}"#);
        writeln!(there, "{answer}").unwrap();
    }
    drop(there);
    // The second answer is kept, and the third one is not parsed yet.
    assert_eq!(client.answer::<SessionEnd>(calls[1]).unwrap().cleared, calls[1]);
    for call in [calls[0], calls[2]] {
        assert_eq!(client.answered::<SessionEnd>(call).unwrap().map(|end| end.cleared), Some(call));
    }
    assert!(matches!(client.answered::<SessionEnd>(calls[2]), Err(ClientError::Closed)));
}
