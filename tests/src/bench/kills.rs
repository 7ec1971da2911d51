//! Kills of a durable daemon at random moments, with 1,000 running and 10,000 pending tasks: how long it takes until
//! the next one answers, and that nothing was lost, executed twice, or ended with another code (R126, R127).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::client::Client;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    DaemonStatus, DaemonStatusOf, IdParams, NoParams, SubmitManyParams, SubmitParams, TaskGet, TaskSubmitMany,
};
use bgd_shared::socket::SocketPath;
use bgd_shared::task::{Exit, Status, Task};

use super::lasting::until_answer;
use super::pipeline::command;
use super::report::{Figure, Row, Target, Unit};
use super::stats::percentile;
use super::{Bench, Result};
use crate::{TestDaemon, wait};

/// Time limit until the next daemon answers, in microseconds.
const BACK: f64 = 500_000.0;

/// Number of tasks that run all the time, of short tasks that run beside them, and of pending tasks.
const LASTING: usize = 900;
const PASSING: usize = 100;
const PENDING: u64 = 10_000;

/// Tasks per submit.
const PART: usize = 200;

/// The submitted tasks: the number of each task, by its id.
type Known = Mutex<BTreeMap<TaskId, u64>>;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let kills = bench.of(5, 200);
    let config =
        format!("durable = true\nmax_concurrent_tasks = {}\n[limits]\ntasks = 500000", LASTING + PASSING);
    let mut daemon = TestDaemon::builder().config(config).start();
    let ledger = daemon.home().join("ledger");
    fs::write(&ledger, "")?;
    let (known, is_over) = (Known::default(), AtomicBool::new(false));
    let base = command(&daemon, &["true"]);
    let mut submitter =
        Submitter { socket: daemon.socket_path().clone(), base, ledger: ledger.clone(), next: 0, sent: 0 };
    submitter.lasting(&mut daemon.client(), &known)?;
    submitter.fill(&mut daemon.client(), &known)?;
    wait::poll_until("as many run as may", || {
        (daemon.status().summary.running >= LASTING as u64).then_some(())
    });
    let mut backs = Vec::new();
    let mut chance = 0x9e37_79b9_7f4a_7c15_u64;
    let sent = thread::scope(|scope| -> Result<u64> {
        let submits = scope.spawn(|| submitter.run(&known, &is_over));
        for _ in 0..kills {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            thread::sleep(Duration::from_micros(chance % 700_000));
            daemon.kill9();
            let begin = Instant::now();
            daemon.launch();
            backs.push(until_answer(&daemon, begin)?);
        }
        is_over.store(true, Ordering::Relaxed);
        submits.join().map_err(|_| "the submitter panicked".into())
    })?;
    let counts = Counts::of(&daemon, &known.into_inner()?, &ledger)?;
    let most = percentile(&backs, 100);
    let what = format!(
        "{kills} kills of a durable daemon, {} running and 10,000 pending: until it answers",
        LASTING + PASSING
    );
    let note = format!("of {sent} tasks {} have run; lost 0, twice 0, wrong codes 0", counts.ran);
    daemon.run(&["daemon", "stop", "--cancel"]).success();
    daemon.ended();
    if !counts.is_clean() {
        return Err(format!("{counts:?}").into());
    }
    Ok(vec![
        Row::new(format!("{what}, median"))
            .bgd_samples(&backs, Unit::Micros)
            .target(Target::AtMost(BACK, Unit::Micros))
            .note(note),
        Row::new("the same kills, longest")
            .bgd(Figure::new(most, Unit::Micros))
            .target(Target::AtMost(BACK, Unit::Micros)),
    ])
}

/// Submits tasks that each write their number into the ledger when they run, and end with a code derived from it.
struct Submitter {
    socket: SocketPath,
    base: SubmitParams,
    ledger: std::path::PathBuf,
    next: u64,
    sent: u64,
}

/// Returns the exit code of the task with this number.
fn code(number: u64) -> i32 {
    i32::try_from(number % 7).unwrap_or(0)
}

impl Submitter {
    /// Submits tasks that run `then` after they have written their numbers. Tasks without an answer may have been
    /// accepted.
    fn submit(&mut self, client: &mut Client, count: usize, then: &str, known: &Known) -> Result<()> {
        let numbers: Vec<u64> = (self.next..).take(count).collect();
        self.next += count as u64;
        let line = |number: &u64| {
            format!("echo {number} >> '{}'; {then}; exit {}", self.ledger.display(), code(*number))
        };
        let argvs =
            numbers.iter().map(|number| ["sh", "-c", &line(number)].map(Into::into).to_vec()).collect();
        let task = SubmitParams { argv: None, ..self.base.clone() };
        let params = SubmitManyParams { task: Some(Box::new(task)), argvs, ..SubmitManyParams::default() };
        let ids = client.call::<TaskSubmitMany>(&params)?.ids;
        self.sent += ids.len() as u64;
        known.lock().map_err(|_| "a panic")?.extend(ids.into_iter().zip(numbers));
        Ok(())
    }

    /// Submits the tasks that run all the time.
    fn lasting(&mut self, client: &mut Client, known: &Known) -> Result<()> {
        self.submit(client, LASTING, "exec sleep 100000", known)
    }

    /// Submits short tasks until [`PENDING`] of them are pending.
    fn fill(&mut self, client: &mut Client, known: &Known) -> Result<()> {
        while client.call::<DaemonStatusOf>(&NoParams {})?.summary.pending < PENDING {
            self.submit(client, PART, "sleep 0.5", known)?;
        }
        Ok(())
    }

    /// Keeps the number of pending tasks up over the kills. Returns how many tasks were accepted.
    fn run(mut self, known: &Known, is_over: &AtomicBool) -> u64 {
        while !is_over.load(Ordering::Relaxed) {
            // Without a daemon there is no answer; the next one will answer.
            if let Ok(mut client) = Client::connect(&self.socket) {
                client.wait_at_most(wait::PATIENCE);
                let _ = self.fill(&mut client, known);
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.sent
    }
}

/// The results at the end.
#[derive(Debug, Default)]
struct Counts {
    ran: u64,
    lost: u64,
    twice: u64,
    wrong: u64,
}

impl Counts {
    fn of(daemon: &TestDaemon, known: &BTreeMap<TaskId, u64>, ledger: &Path) -> Result<Self> {
        // Pending tasks must not start; running ones may end, except those that never do.
        daemon.run(&["group", "pause", "default"]).success();
        wait::poll_until("only what lasts runs", || {
            let DaemonStatus { summary, .. } = daemon.status();
            (summary.running <= LASTING as u64).then_some(())
        });
        let mut lines: BTreeMap<u64, u64> = BTreeMap::new();
        for line in fs::read_to_string(ledger)?.lines() {
            *lines.entry(line.parse()?).or_default() += 1;
        }
        let mut counts =
            Self { twice: lines.values().filter(|count| **count > 1).count() as u64, ..Self::default() };
        let mut client = daemon.client();
        for (id, number) in known {
            match client.call::<TaskGet>(&IdParams { id: (*id).into() }) {
                Ok(result) => counts.add(&result.task, *number, lines.contains_key(number)),
                Err(_) => counts.lost += 1,
            }
        }
        Ok(counts)
    }

    fn add(&mut self, task: &Task, number: u64, has_run: bool) {
        self.ran += u64::from(has_run);
        let is_right = match task.status {
            Status::Pending => !has_run,
            Status::Running => has_run,
            Status::Completed | Status::Failed => {
                let is_right = task.exit == Some(Exit::Code(code(number)));
                if has_run && !is_right {
                    eprintln!("{task:?}");
                    self.wrong += 1;
                    return;
                }
                has_run
            }
            Status::Cancelled | Status::Resumed => false,
        };
        if !is_right {
            eprintln!("{task:?}");
            self.lost += 1;
        }
    }

    fn is_clean(&self) -> bool {
        self.lost + self.twice + self.wrong == 0
    }
}
