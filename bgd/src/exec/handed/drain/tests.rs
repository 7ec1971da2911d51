//! Tests of drains on real pipes and sockets.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::core::Fact;
use crate::exec::messages::{self, ExecutorMessage};

/// A drain that has begun, and the file that it fills.
struct StartedDrain {
    drains: Drains,
    path: PathBuf,
    /// Kept until the test ends.
    home: tempfile::TempDir,
}

/// Prepares a drain that fills an output file in a temporary folder.
async fn prepare(source: Source, via: Option<Via>) -> (Prepared, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let (done, result) = oneshot::channel();
    let flow = Flow { source, file: File::create(home.path().join("out")).unwrap(), via };
    let callback: PreparedCallback = Box::new(move |prepared| drop(done.send(prepared.unwrap())));
    DrainThread::start().unwrap().prepare(TaskId::random(), vec![flow], callback);
    (result.await.unwrap(), home)
}

async fn begin(source: Source) -> StartedDrain {
    begin_through(source, None).await
}

async fn begin_through(source: Source, via: Option<Via>) -> StartedDrain {
    let (prepared, home) = prepare(source, via).await;
    let (facts, _reports) = messages::facts();
    let loss = Loss::new(TaskId::random(), 1, facts);
    StartedDrain { drains: prepared.begin(&loss), path: home.path().join("out"), home }
}

/// Returns both ends of a TCP connection. They are blocking.
fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn numbered(bytes: usize) -> Vec<u8> {
    (0..).flat_map(|number: u64| format!("{number}\n").into_bytes()).take(bytes).collect()
}

#[tokio::test]
async fn prepared_drain_reads_nothing_before_it_begins() {
    let (mut reader, mut writer) = io::pipe().unwrap();
    let (prepared, home) = prepare(Source::Pipe(reader.try_clone().unwrap().into()), None).await;
    writer.write_all(b"mine").unwrap();
    drop(prepared);
    drop(writer);
    let mut text = String::new();
    io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!((text.as_str(), fs::read(home.path().join("out")).unwrap().len()), ("mine", 0));
}

#[tokio::test]
async fn every_byte_is_drained_up_to_the_end() {
    let wanted = numbered(3_000_000);
    let (reader, pipe) = io::pipe().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let (kept, its_far) = UnixStream::pair().unwrap();
    let (tcp, tcp_far) = tcp_pair();
    let (kept_tcp, kept_tcp_far) = tcp_pair();
    let cases: [(Source, bool, OwnedFd); 5] = [
        (Source::Pipe(reader.into()), false, pipe.into()),
        (Source::Socket(near.into()), false, far.into()),
        (Source::Socket(kept.into()), true, its_far.into()),
        (Source::Socket(tcp.into()), false, tcp_far.into()),
        (Source::Socket(kept_tcp.into()), true, kept_tcp_far.into()),
    ];
    for (source, is_kept, end) in cases {
        let begun = begin_through(source, is_kept.then(|| Via::new().unwrap())).await;
        let bytes = wanted.clone();
        let writer = thread::spawn(move || File::from(end).write_all(&bytes).unwrap());
        begun.drains.end().await;
        writer.join().unwrap();
        assert!(begun.drains.have_ended());
        assert!(fs::read(&begun.path).unwrap() == wanted, "other bytes than were written");
        begun.home.close().unwrap();
    }
}

#[tokio::test]
async fn settle_drains_what_is_in_the_pipe() {
    let (reader, mut writer) = io::pipe().unwrap();
    let begun = begin(Source::Pipe(reader.into())).await;
    for round in 1..=200 {
        writer.write_all(&[b'x'; 300]).unwrap();
        begun.drains.settle().await;
        assert_eq!(fs::metadata(&begun.path).unwrap().len(), round * 300);
    }
    assert!(!begun.drains.have_ended());
    drop(writer);
    // A process that another test starts at this moment has a copy of the write end until it executes its program.
    begun.drains.end().await;
    begun.drains.settle().await;
    assert!(begun.drains.have_ended());
}

#[tokio::test]
async fn blocking_tcp_socket_does_not_stall_the_drain_thread() {
    for is_kept in [false, true] {
        let (near, mut far) = tcp_pair();
        let via = is_kept.then(|| Via::new().unwrap());
        let begun = begin_through(Source::Socket(near.into()), via).await;
        let size = || fs::metadata(&begun.path).unwrap().len();
        for round in 1..=20 {
            far.write_all(&[b'x'; 300]).unwrap();
            let arrived = async {
                while size() < round * 300 {
                    begun.drains.settle().await;
                }
                begun.drains.settle().await;
            };
            let in_time = tokio::time::timeout(Duration::from_mins(1), arrived).await;
            in_time.expect("the thread waits for the socket");
        }
        drop(far);
        begun.drains.end().await;
        assert_eq!(size(), 20 * 300);
        begun.home.close().unwrap();
    }
}

#[tokio::test]
async fn endless_writer_does_not_stall_settle_or_discard() {
    let (reader, writer) = io::pipe().unwrap();
    let mut yes = std::process::Command::new("yes").stdout(writer).spawn().unwrap();
    let begun = begin(Source::Pipe(reader.into())).await;
    begun.drains.settle().await;
    begun.drains.discard();
    begun.drains.settle().await;
    let size = fs::metadata(&begun.path).unwrap().len();
    begun.drains.settle().await;
    assert_eq!(fs::metadata(&begun.path).unwrap().len(), size, "dropped from then on");
    let path = fs::canonicalize(&begun.path).unwrap();
    let mut open =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    assert!(open.all(|file| file != path), "its space on the disk is kept");
    yes.kill().unwrap();
    yes.wait().unwrap();
    begun.drains.end().await;
}

#[tokio::test]
async fn unwritable_output_file_does_not_block_the_writer() {
    let (reader, mut writer) = io::pipe().unwrap();
    let (near, mut far) = UnixStream::pair().unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let flows = vec![
        Flow { source: Source::Pipe(reader.into()), file: full(), via: None },
        Flow { source: Source::Socket(near.into()), file: full(), via: None },
    ];
    let (done, result) = oneshot::channel();
    let callback: PreparedCallback = Box::new(move |prepared| drop(done.send(prepared.unwrap())));
    DrainThread::start().unwrap().prepare(TaskId::random(), flows, callback);
    let (facts, mut reports) = messages::facts();
    let drains = result.await.unwrap().begin(&Loss::new(TaskId::random(), 1, facts));
    let writers = thread::spawn(move || {
        writer.write_all(&numbered(1_000_000)).unwrap();
        far.write_all(&numbered(1_000_000)).unwrap();
    });
    drains.end().await;
    writers.join().unwrap();
    let (mut lost, mut reasons) = (0, BTreeSet::new());
    while let Ok(ExecutorMessage::Fact { fact: Fact::Lost { bytes, why }, .. }) = reports.try_recv() {
        lost += bytes;
        reasons.insert(why.to_string());
    }
    // The first is the error of `splice` for such a file.
    assert_eq!(Vec::from_iter(reasons), ["Invalid argument", "No space left on device"]);
    assert_eq!(lost, 2_000_000, "both streams' loss is reported before their end");
}
