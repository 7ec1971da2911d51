//! `bgctl output` of 1 GB against `cat` of the same file.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::report::{Row, Target, Unit};
use super::stats::float;
use super::{Bench, Result};
use crate::TestDaemon;

/// Consumes the output of a program, and returns the time until it ends.
type Take = fn(Command, u64) -> Result<Duration>;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let bytes: u64 = bench.of(200_000_000, 1_000_000_000);
    let daemon = TestDaemon::builder().config("[limits]\noutput_bytes = \"20GiB\"").start();
    let line = format!("yes 'a line of some length, as compilers write them' | head -c {bytes}");
    let id = daemon.submit_shell(&line);
    let task = daemon.block(&[id]).remove(0);
    if task.output.bytes != bytes {
        return Err(format!("the output is {:?}", task.output).into());
    }
    let id = id.to_string();
    let path = Path::new(&task.output.path);
    let mut rows = Vec::new();
    let ways: [(&str, Take); 2] = [("/dev/null", to_null), ("a pipe", to_pipe)];
    for (where_to, take) in ways {
        let (mut cat, mut bgd) = (Vec::new(), Vec::new());
        let speed = |time: Duration| float(bytes) / time.as_secs_f64();
        for _ in 0..bench.of(5, 9) {
            let mut command = Command::new("cat");
            command.arg(path);
            cat.push(speed(take(command, bytes)?));
            bgd.push(speed(take(daemon.bgctl(&["output", &id]), bytes)?));
        }
        let row = Row::new(format!("bgctl output of {:.1} GB to {where_to}", float(bytes) / 1e9))
            .peer_samples("cat FILE", &cat, Unit::BytesPerSecond)
            .bgd_samples(&bgd, Unit::BytesPerSecond)
            .paired();
        rows.push(row.target(Target::RatioAtLeast(0.8)));
    }
    Ok(rows)
}

fn to_null(mut command: Command, _: u64) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begin = Instant::now();
    let status = command.status()?;
    let time = begin.elapsed();
    if status.success() { Ok(time) } else { Err(format!("{command:?}: {status}").into()) }
}

fn to_pipe(mut command: Command, bytes: u64) -> Result<Duration> {
    let (mut reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer);
    let mut buffer = vec![0; 1024 * 1024];
    let mut taken = 0;
    let begin = Instant::now();
    let mut child = command.spawn()?;
    drop(command); // closes its copy of the write end
    loop {
        match reader.read(&mut buffer)? {
            0 => break,
            count => taken += count as u64,
        }
    }
    let status = child.wait()?;
    let time = begin.elapsed();
    if !status.success() || taken != bytes {
        return Err(format!("{status}, {taken} bytes came").into());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_read_to_its_end() {
        for take in [to_null, to_pipe] as [Take; 2] {
            let mut command = Command::new("head");
            command.args(["-c", "3000000", "/dev/zero"]);
            assert!(take(command, 3_000_000).unwrap() > Duration::ZERO);
        }
        assert!(to_pipe(Command::new("true"), 1).is_err());
    }
}
