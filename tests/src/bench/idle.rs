//! System calls of an idle daemon within ten seconds: there must be none.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use bgd_shared::request::SubmitParams;

use super::peers::find;
use super::pipeline::trivial;
use super::report::{Figure, Row, Target, Unit};
use super::stats::float;
use super::{Bench, Result};
use crate::{Process, TestDaemon, wait};

/// Attaching interrupts the call each thread sleeps in, and some calls restart because of it. Calls this soon after
/// attaching are caused by strace.
const ATTACH: Duration = Duration::from_secs(1);

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let time = Duration::from_secs(bench.of(3, 10));
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 200").start();
    daemon.block(&[daemon.submit(&["true"])]);
    let idle = count(&daemon, time)?;
    let sleepers: Vec<_> = (0..100).map(|_| daemon.submit(&["sleep", "100000"])).collect();
    for id in &sleepers {
        daemon.wait_running(*id);
    }
    let busy = count(&daemon, time)?;
    for _ in 0..100 {
        daemon.submit_with(&SubmitParams { delay_ms: Some(3_600_000), ..trivial(&daemon) });
    }
    let delayed = count(&daemon, time)?;
    let row = |what: &str, (calls, how): (u64, String)| {
        Row::new(format!("system calls in {} s, {what}", time.as_secs()))
            .bgd(Figure::new(float(calls), Unit::Calls))
            .target(Target::AtMost(0.0, Unit::Calls))
            .note(how)
    };
    Ok(vec![row("idle", idle), row("with 100 tasks running", busy), row("and 100 delayed", delayed)])
}

/// Counts the system calls of an idle daemon within that time. Returns the count and the method.
pub fn count(daemon: &TestDaemon, time: Duration) -> Result<(u64, String)> {
    // Clients have just disconnected; handling that is not idle work.
    thread::sleep(Duration::from_millis(500));
    let process = daemon.process();
    if find("strace").is_some()
        && let Some(counted) = by_strace(&process, daemon.home(), time)?
    {
        return Ok(counted);
    }
    let before = process.switches();
    thread::sleep(time);
    Ok((process.switches() - before, "wake-ups of its threads; strace could not look".into()))
}

/// Counts the calls that begin later than [`ATTACH`] after strace has attached. `None` if strace may not attach.
fn by_strace(process: &Process, folder: &Path, time: Duration) -> Result<Option<(u64, String)>> {
    let log = folder.join("strace.log");
    let said = folder.join("strace.stderr");
    let _ = fs::remove_file(&log);
    let mut command = Command::new("strace");
    command.args(["-f", "-ttt", "-o"]).arg(&log).args(["-p", &process.pid().to_string()]);
    command.stdin(Stdio::null()).stderr(fs::File::create(&said)?);
    let mut strace = command.spawn()?;
    // "attached", or the reason why it may not attach.
    wait::for_line(&said, "strace: ");
    let begin = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)? + ATTACH;
    thread::sleep(ATTACH + time);
    let end = begin + time;
    if strace.try_wait()?.is_some() {
        return Ok(None);
    }
    let strace_process = Process::open(strace.id().cast_signed()).ok_or("strace is gone")?;
    strace_process.signal(rustix::process::Signal::INT)?;
    strace.wait()?;
    let text = fs::read_to_string(&log)?;
    let calls: Vec<&str> =
        text.lines().filter_map(|line| call(line, begin.as_secs_f64(), end.as_secs_f64())).collect();
    let mut how = "strace".to_owned();
    if let Some(first) = calls.first() {
        how = format!("strace; first: {}", first.chars().take(60).collect::<String>());
    }
    Ok(Some((calls.len() as u64, how)))
}

/// Returns the call in a line such as `123 1700000000.123456 read(3, …`, if the call began between `begin`
/// and `end`. The second half of a call (`<... read resumed>`) counts too: it shows that a thread woke up.
fn call(line: &str, begin: f64, end: f64) -> Option<&str> {
    let rest = line.trim_start().split_once(' ')?.1.trim_start();
    let (at, call) = rest.split_once(' ')?;
    let at: f64 = at.parse().ok()?;
    (at > begin && at < end && !call.starts_with("+++")).then_some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strace_counts_calls_of_idle_and_busy_processes() {
        let folder = tempfile::tempdir().unwrap();
        let counted = |program: &str, ms: u64| {
            let mut child = Command::new("sh").args(["-c", program]).stdin(Stdio::piped()).spawn().unwrap();
            let process = Process::open(child.id().cast_signed()).unwrap();
            let counted = by_strace(&process, folder.path(), Duration::from_millis(ms)).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            counted.expect("strace may attach").0
        };
        assert_eq!(counted("read line", 100), 0);
        // The shorter ones are enough, unless the machine is busy.
        assert!([100, 1000, 10_000].iter().any(|ms| counted("while :; do : </dev/null; done", *ms) > 10));
    }

    #[test]
    fn only_calls_within_the_interval_count() {
        assert_eq!(call("12 100.5 read(3, \"\", 1) = 0", 100.0, 110.0), Some("read(3, \"\", 1) = 0"));
        assert_eq!(call("12  100.5 <... read resumed>) = 0", 100.0, 110.0), Some("<... read resumed>) = 0"));
        assert_eq!(call("12 99.5 read(3", 100.0, 110.0), None);
        assert_eq!(call("12 110.5 read(3", 100.0, 110.0), None);
        assert_eq!(call("12 100.5 +++ exited with 0 +++", 100.0, 110.0), None);
        assert_eq!(call("garbage", 100.0, 110.0), None);
    }
}
