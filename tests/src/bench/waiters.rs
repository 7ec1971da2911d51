//! Ten thousand clients wait for one task: all of them wake up within a second of its end.

use std::io::{Read as _, Write as _};

use bgd_shared::message::request_line;
use bgd_shared::request::{BlockMode, BlockParams, Method as _, TaskBlock};
use bgd_shared::transport::{Stream, connect};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::report::{Figure, Row, Target, Unit};
use super::timing::{Stamp, now_ns};
use super::{Bench, Result};
use crate::TestDaemon;

/// Descriptors reserved for other purposes.
const SPARE: u64 = 500;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let wanted = 10_000;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let count = usize::try_from(wanted.min(hard.saturating_sub(SPARE)))?;
    let daemon = TestDaemon::builder().config("[limits]\nconnections = 12000").start();
    let mut stamp = Stamp::new(daemon.home())?;
    let (mut all, mut first) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(2, 5) {
        let (until_first, until_last) = round(&daemon, &mut stamp, count)?;
        first.push(until_first);
        all.push(until_last);
    }
    let mut row = Row::new(format!("{count} clients block on one task: until the last has its answer"))
        .bgd_samples(&all, Unit::Micros)
        .target(Target::AtMost(1e6, Unit::Micros))
        .note(format!("the first after {}", Figure::new(super::stats::median(&first), Unit::Micros)));
    if (count as u64) < wanted {
        row = row.note(format!("RLIMIT_NOFILE is {hard}: fewer than {wanted}"));
    }
    Ok(vec![row])
}

fn round(daemon: &TestDaemon, stamp: &mut Stamp, count: usize) -> Result<(f64, f64)> {
    let id = daemon.submit(&stamp.next_argv());
    stamp.wait_started();
    let params = BlockParams {
        ids: vec![id.into()],
        timeout_ms: Some(120_000),
        mode: BlockMode::All,
        ..BlockParams::default()
    };
    let line = request_line(1, TaskBlock::NAME, &params);
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        let mut client = connect(daemon.socket_path())?;
        client.write_all(&line)?;
        epoll.add(&client, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
        clients.push(client);
    }
    // Once this later request is answered, the daemon has read all of the waits, or nearly so.
    daemon.status();
    std::thread::sleep(std::time::Duration::from_millis(200));
    stamp.trigger()?;
    let (first, last) = collect(&epoll, &mut clients)?;
    Ok((stamp.micros_until(first)?, stamp.micros_until(last)?))
}

/// Waits until every client has its whole answer. Returns when the first and the last client had it.
fn collect(epoll: &Epoll, clients: &mut [Stream]) -> Result<(i64, i64)> {
    let mut events = vec![EpollEvent::empty(); 1024];
    let mut buffer = vec![0; 64 * 1024];
    let (mut first, mut left) = (None, clients.len());
    while left > 0 {
        let ready = epoll.wait(&mut events, EpollTimeout::try_from(60_000_i32)?)?;
        if ready == 0 {
            return Err(format!("{left} clients get no answer").into());
        }
        first.get_or_insert_with(now_ns);
        for event in &events[..ready] {
            let client = &mut clients[usize::try_from(event.data())?];
            let count = client.read(&mut buffer)?;
            let answer = &buffer[..count];
            if count == 0 || answer.windows(8).any(|part| part == b"\"error\":{") {
                return Err(format!("an answer is {:?}", String::from_utf8_lossy(answer)).into());
            }
            if answer.ends_with(b"\n") {
                epoll.delete(&*client)?;
                left -= 1;
            }
        }
    }
    Ok((first.unwrap_or_default(), now_ns()))
}
