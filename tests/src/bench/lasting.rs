//! The cost of durability (R120 to R131): the pause of an upgrade in place, the time until a durable daemon that was
//! killed answers again, and the overhead of a durable daemon per task.

use std::ffi::CString;
use std::fs;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

use bgd::os::spawn::{Announce, ChildStack, JobControl, Plan, spawn};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockMode, BlockParams, DaemonStatusOf, DaemonUpgrade, NoParams, TaskBlock, TaskSubmit, UpgradeParams,
};
use bgd_shared::task::{Exit, Status};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::kills;
use super::pipeline::{Pipeline, command, trivial};
use super::report::{Figure, Row, Target, Unit};
use super::stats::{float, micros, percentile};
use super::throughput;
use super::{Bench, Result};
use crate::prompts::fake_agent;
use crate::{Raw, TestDaemon, Viewer, Watch, wait};

/// Maximum pause of an upgrade, in microseconds.
const PAUSE: f64 = 300_000.0;

/// Number of commands that run during the upgrades, and of other objects.
const COMMANDS: usize = 1000;
const TERMINALS: usize = 20;
const TURNS: usize = 10;
const WAITS: u64 = 200;
const SUBSCRIBERS: usize = 20;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = upgrades(bench)?;
    rows.extend(kills::measure(bench)?);
    rows.extend(durable(bench)?);
    rows.push(announced(bench)?);
    Ok(rows)
}

/// Measures upgrades of a busy daemon.
fn upgrades(bench: &Bench) -> Result<Vec<Row>> {
    let config = format!("max_concurrent_tasks = 2000\n{}", fake_agent(&[], ""));
    let daemon = TestDaemon::builder().config(config).start();
    let mut client = daemon.client();
    let sleeps = command(&daemon, &["sleep", "100000"]);
    let mut tasks = Vec::new();
    for _ in 0..COMMANDS {
        tasks.push(client.call::<TaskSubmit>(&sleeps)?.task.id);
    }
    let repeats = daemon.in_terminal("stty -echo; echo ready; exec cat");
    let mut terminals: Vec<_> = (0..TERMINALS).map(|_| Viewer::run(&daemon, &repeats)).collect();
    let turns: Vec<_> = (0..TURNS).map(|_| daemon.prompt("say begun ; await go; say ended")).collect();
    let last = *tasks.last().ok_or("no task")?;
    let mut waits: Vec<Raw> = (0..WAITS).map(|_| Raw::connect(daemon.socket())).collect();
    let params = serde_json::to_value(BlockParams::until_ended(last))?;
    (1..).zip(&mut waits).for_each(|(id, raw)| raw.request(id, "task.block", &params));
    let subscribers: Vec<_> = (0..SUBSCRIBERS).map(|_| daemon.watch()).collect();
    let all = (COMMANDS + TERMINALS + TURNS) as u64;
    wait::poll_until("all of them run", || (daemon.status().summary.running == all).then_some(()));
    for (viewer, _) in &mut terminals {
        viewer.until_shown("ready\r\n");
    }
    let (mut pauses, mut calls, mut typed) = (Vec::new(), Vec::new(), "ready\r\n".to_owned());
    client.call::<DaemonUpgrade>(&UpgradeParams::default())?;
    let before = footprint(&daemon);
    for round in 0..bench.of(5, 100) {
        // Some of the output is in transit when everything stops.
        for (viewer, task) in &mut terminals {
            viewer.type_keys(task.id, &format!("line {round}\r"));
        }
        let line = format!("line {round}\r\n");
        typed.push_str(&line);
        let begin = Instant::now();
        let result = client.call::<DaemonUpgrade>(&UpgradeParams::default())?;
        calls.push(micros(begin.elapsed()));
        pauses.push(float(result.pause_ms) * 1000.0);
        if result.active != all {
            return Err(format!("{} of {all} tasks went on", result.active).into());
        }
    }
    let [before, after] = memory(&daemon, before);
    check_end_is_reported(&daemon, last, waits, subscribers)?;
    let shown: Vec<_> = terminals.iter().map(|(_, task)| task.id).collect();
    check_nothing_was_lost(&daemon, (&shown, &typed), &turns)?;
    let others: Vec<_> = tasks.iter().copied().filter(|task| *task != last).collect();
    others.chunks(500).for_each(|some| _ = daemon.cancel(some));
    drop(terminals);
    let what = format!(
        "upgrade with {COMMANDS} commands, {TERMINALS} terminals, {TURNS} turns, {WAITS} waits, {SUBSCRIBERS} subscribers"
    );
    let most = percentile(&pauses, 100);
    Ok(vec![
        Row::new(format!("{what}: pause, median"))
            .bgd_samples(&pauses, Unit::Micros)
            .target(Target::AtMost(PAUSE, Unit::Micros)),
        Row::new("the same, longest")
            .bgd(Figure::new(most, Unit::Micros))
            .target(Target::AtMost(PAUSE, Unit::Micros)),
        Row::new("the same, the whole call, median").bgd_samples(&calls, Unit::Micros).note("to know"),
        Row::new("the same, its own memory after all of them")
            .peer("after the first", before)
            .bgd(after)
            .target(Target::RatioAtMost(1.25)),
    ])
}

/// Returns the daemon's own memory in KiB, and the number of its descriptors and threads.
fn footprint(daemon: &TestDaemon) -> [u64; 3] {
    let process = daemon.process();
    [
        process.own_memory_kb(),
        process.descriptors().expect("the daemon runs") as u64,
        process.threads().len() as u64,
    ]
}

/// Ends a task, and checks that all clients are still connected and are notified of the end: each wait once, each
/// subscriber without a gap.
fn check_end_is_reported(
    daemon: &TestDaemon,
    task: TaskId,
    waits: Vec<Raw>,
    subscribers: Vec<Watch>,
) -> Result<()> {
    daemon.cancel(&[task]);
    for mut raw in waits {
        let is_answered = raw.receive().is_some_and(|answer| answer["result"]["tasks"][0].is_object());
        // The next message must be the answer to another question.
        if !is_answered || !raw.is_served() {
            return Err("a client was not answered once".into());
        }
    }
    for mut watch in subscribers {
        watch.until(|event| event.task.id == task && event.task.completed_at.is_some());
    }
    Ok(())
}

/// Waits until a daemon has no more descriptors and threads than before, except the guard of the last upgrade. Returns
/// its memory before and now.
fn memory(daemon: &TestDaemon, before: [u64; 3]) -> [Figure; 2] {
    let after = wait::poll_until("as many descriptors and threads as before", || {
        let after = footprint(daemon);
        (after[1] <= before[1] && after[2] <= before[2] + 1).then_some(after)
    });
    [before, after].map(|[memory, ..]| Figure::new(float(memory) * 1024.0, Unit::Bytes))
}

/// Checks that these terminals have shown this to the byte, and that these turns run to completion.
fn check_nothing_was_lost(
    daemon: &TestDaemon,
    (terminals, typed): (&[TaskId], &str),
    turns: &[TaskId],
) -> Result<()> {
    for task in terminals {
        let output = || daemon.output(*task);
        wait::poll_until("everything is repeated", || (output().len() >= typed.len()).then_some(()));
        if output() != typed.as_bytes() {
            return Err(format!("a terminal has shown {:?}", String::from_utf8_lossy(&output())).into());
        }
    }
    fs::write(daemon.home().join("go"), "")?;
    for task in daemon.block(turns) {
        let said = daemon.output(task.id);
        if task.status != Status::Completed || said != b"begunended\n" {
            return Err(format!("{task:?} has said {:?}", String::from_utf8_lossy(&said)).into());
        }
    }
    Ok(())
}

/// Compares a durable daemon with a plain one.
fn durable(bench: &Bench) -> Result<Vec<Row>> {
    let config = |durable: bool| format!("durable = {durable}\nmax_concurrent_tasks = 2\n");
    let [plain, durable] = [false, true].map(|is| TestDaemon::builder().config(config(is)).start());
    let count = bench.of(500, 4000);
    let mut rates = [Vec::new(), Vec::new()];
    let mut submits = [Vec::new(), Vec::new()];
    let mut ones = [Vec::new(), Vec::new()];
    for daemon in [&plain, &durable] {
        throughput::of_bgd(daemon, count / 10)?;
    }
    for _ in 0..bench.of(3, 7) {
        for (place, daemon) in [&plain, &durable].into_iter().enumerate() {
            submits[place].push(submit_rate(daemon, count)?);
            rates[place].push(throughput::of_bgd(daemon, count)?);
            let mut pipeline = Pipeline::connect(daemon)?;
            for _ in 0..bench.of(20, 100) {
                ones[place].push(one(daemon, &mut pipeline)?);
            }
        }
    }
    let row = |what: &str, [plain, durable]: &[Vec<f64>; 2], unit| {
        Row::new(what)
            .peer_samples("the same of one that is not durable", plain, unit)
            .bgd_samples(durable, unit)
    };
    Ok(vec![
        row("submits a second of a durable daemon, one connection", &submits, Unit::PerSecond)
            .paired()
            .target(Target::RatioAtLeast(0.5)),
        row("trivial tasks a second of a durable daemon, 2 at once", &rates, Unit::PerSecond)
            .paired()
            .note("to know"),
        row("one trivial task of a durable daemon, from the submit to its end", &ones, Unit::Micros)
            .note("to know"),
    ])
}

/// Submits held tasks, which do not start. Returns tasks per second.
fn submit_rate(daemon: &TestDaemon, count: usize) -> Result<f64> {
    let mut pipeline = Pipeline::connect(daemon)?;
    let held = bgd_shared::request::SubmitParams { hold: true, ..trivial(daemon) };
    let submits = pipeline.prepare(&held, count)?;
    let begin = Instant::now();
    pipeline.submit(&submits)?;
    let rate = float(count as u64) / begin.elapsed().as_secs_f64();
    daemon.run(&["cancel", "--all"]).success();
    daemon.run(&["clear", "--all-sessions"]).success();
    Ok(rate)
}

fn one(daemon: &TestDaemon, pipeline: &mut Pipeline) -> Result<f64> {
    let params = trivial(daemon);
    let begin = Instant::now();
    let id = pipeline.call::<TaskSubmit>(&params)?.task.id;
    let block = BlockParams {
        ids: vec![id.into()],
        timeout_ms: Some(60_000),
        mode: BlockMode::All,
        ..BlockParams::default()
    };
    let ended = pipeline.call::<TaskBlock>(&block)?;
    let time = micros(begin.elapsed());
    match ended.tasks.first().and_then(|task| task.exit.as_ref()) {
        Some(Exit::Code(0)) => Ok(time),
        other => Err(format!("it ended otherwise: {other:?}").into()),
    }
}

/// Measures the cost of the announcement that each process makes at its start to the keeper of a durable daemon.
fn announced(bench: &Bench) -> Result<Row> {
    let count = bench.of(300, 3000);
    // A start needs all signals blocked in its thread.
    let started = thread::spawn(move || -> std::result::Result<[Vec<f64>; 2], String> {
        let starts = || -> std::io::Result<[Vec<f64>; 2]> {
            pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None)?;
            let (near, far) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            let keeper = thread::spawn(move || {
                let mut bytes = [0; 4096];
                let mut far = UnixStream::from(far);
                // The kernel closes the descriptors that come along.
                while matches!(far.read(&mut bytes), Ok(1..)) {}
            });
            let null = std::fs::File::open("/dev/null")?;
            let message = [b'x'; 400];
            let announce = Announce {
                socket: near.as_fd(),
                message: &message,
                pid_at: 21,
                descriptors: &[null.as_fd()],
            };
            let (mut stack, mut times) = (ChildStack::default(), [Vec::new(), Vec::new()]);
            let text = |text: &str| CString::new(text).unwrap_or_default();
            for _ in 0..count {
                for (place, announce) in [None, Some(announce)].into_iter().enumerate() {
                    let plan = Plan {
                        programs: &[text("/bin/true")],
                        argv: &[text("true")],
                        env: &[],
                        folder: c"/",
                        umask: 0o022,
                        rlimits: &[],
                        reset_signals: &[],
                        stdio: [null.as_fd(); 3],
                        cgroup: None,
                        control: JobControl::Session,
                        announce,
                    };
                    let begin = Instant::now();
                    let spawned =
                        spawn(&plan, &mut stack).map_err(|error| std::io::Error::from(error.errno))?;
                    times[place].push(micros(begin.elapsed()));
                    spawned.pidfd.until_ended();
                    spawned.pidfd.reap();
                }
            }
            drop(near);
            let _ = keeper.join();
            Ok(times)
        };
        starts().map_err(|error| error.to_string())
    });
    let [without, with] = started.join().map_err(|_| "it panicked")??;
    Ok(Row::new("starting /bin/true that announces itself to a keeper, until its exec")
        .peer_samples("without", &without, Unit::Micros)
        .bgd_samples(&with, Unit::Micros)
        .note("to know"))
}

/// Waits until a daemon answers. Returns the time since `since`, in microseconds.
pub(super) fn until_answer(daemon: &TestDaemon, since: Instant) -> Result<f64> {
    daemon.client().call::<DaemonStatusOf>(&NoParams {})?;
    Ok(micros(since.elapsed()))
}
