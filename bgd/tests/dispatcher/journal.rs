//! A durable dispatcher whose journal accepts changes, but reports them as written only on command.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bgd::carry::Obstacle;
use bgd::client::{Client, ClientLimits};
use bgd::config::Config;
use bgd::core::{ExecutorName, Ordinal, State};
use bgd::dispatcher::Dispatcher;
use bgd::dispatcher::upgrading::UpgradeContext;
use bgd::exec::context::Context;
use bgd::exec::executor::Executors;
use bgd::exec::messages;
use bgd::exec::output::OutputFolder;
use bgd::exec::threads::workers::{ELSEWHERE, Job, Workers};
use bgd::journal::{Journal, Recorded, Trouble};
use bgd::os::clock::Clock;
use bgd::os::signals;
use bgd::os::wall_clock::WallClock;
use bgd::wire::calls::{Body, Call};
use bgd::wire::mailbox::{Calls, Incoming, Internal, Internals, Mailbox};
use bgd::wire::server::ServerLimits;
use bgd_shared::message::parse_request;
use bgd_shared::request::{SubmitManyParams, SubmitParams};
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use futures_util::FutureExt as _;
use nix::sys::signal::{SigSet, Signal, raise};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::executors::scripted::Scripted;

/// More than may wait to be written, as each is a row of several kilobytes.
const TASKS: usize = 10_000;

fn full() -> Trouble {
    Trouble::of_disk("the disk is full")
}

/// The changes that the journal was given.
#[derive(Default)]
struct Given {
    step: AtomicU64,
    tasks: AtomicUsize,
    /// The latest states of the tasks.
    states: Mutex<BTreeMap<Ordinal, State>>,
}

struct Daemon {
    dispatcher: Dispatcher,
    mailbox: Mailbox,
    wall_clock: WallClock,
    calls: Calls,
    internals: Internals,
    given: Arc<Given>,
    /// The jobs of its workers, which nobody runs.
    jobs: Arc<Mutex<Vec<Job>>>,
    client: Arc<Client>,
    made: u64,
    _home: TempDir,
}

impl Daemon {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let clock = Clock::simulated(Timestamp::from_unix_ms(1_800_000_000_000));
        let config = Config::default();
        let (calls, facts, internals, mailbox) = bgd::wire::mailbox::new();
        let jobs = Arc::new(Mutex::new(Vec::new()));
        let waiting = Arc::clone(&jobs);
        let workers = Workers::simulated(move |job| waiting.lock().unwrap().push(job));
        let folder = Arc::new(OutputFolder::open(home.path().to_owned()).unwrap());
        let (reports, _) = messages::reports();
        let context = Context::new(folder, u64::MAX, workers, facts, reports, home.path().into());
        let (limits, _) = watch::channel(ServerLimits::from(&config));
        let identity = crate::identity("test".into(), home.path(), home.path(), clock.now());
        let held = Scripted::new(context.facts.clone(), None);
        let (executors, sender) = (Executors::default().with(ExecutorName::LOCAL, held), internals.clone());
        let dispatcher = Dispatcher::new(config, identity, executors, context, sender, limits);
        let upgrades = UpgradeContext {
            connections: Arc::default(),
            state: Box::new(|_| Err(Obstacle::lasting("it is a test"))),
            says: Box::new(|_| {}),
            stopping: |_| {},
        };
        let mut dispatcher = dispatcher.with_clock(clock).upgradable(upgrades);
        let given = Arc::<Given>::default();
        let takes = Arc::clone(&given);
        let journal = Journal::simulated(move |step, changes| {
            takes.step.store(step, Ordering::Relaxed);
            takes.tasks.fetch_add(changes.tasks.len(), Ordering::Relaxed);
            let states = changes.tasks.into_iter();
            let states = states.filter_map(|(ordinal, row)| Some((ordinal, row?.task.state.clone())));
            takes.states.lock().unwrap().extend(states);
        });
        dispatcher.make_durable(journal, None, true);
        let client = Arc::new(Client::new(1, ClientLimits { requests: 64, write_queue_bytes: 64 << 20 }));
        calls.try_send(Incoming::Connected(Arc::clone(&client))).unwrap();
        let wall_clock = WallClock::simulated(clock);
        Self { dispatcher, mailbox, wall_clock, calls, internals, given, jobs, client, made: 0, _home: home }
    }

    fn call(&mut self, method: &str, params: &Value) {
        self.made += 1;
        let line = json!({ "jsonrpc": "2.0", "id": self.made, "method": method, "params": params });
        let line = line.to_string();
        let request = parse_request(line.as_bytes()).unwrap();
        let body = Body::read(&request, Vec::new(), None);
        let reserved = body.reserve();
        assert!(self.client.begin_request(reserved));
        let call = Call { id: request.id, reserved, body };
        self.calls.try_send(Incoming::Call { client: Arc::clone(&self.client), call }).unwrap();
    }

    /// Lets the daemon do its pending work: the clock advances only when there is none.
    async fn rest(&mut self) {
        self.pass(Duration::from_millis(1)).await;
    }

    /// Lets this time pass.
    async fn pass(&mut self, time: Duration) {
        let goes = self.dispatcher.go(&mut self.mailbox, &mut self.wall_clock);
        assert!(tokio::time::timeout(time, goes).await.is_err(), "nobody has stopped it");
    }

    /// Submits a batch of this many held tasks.
    fn submit_batch(&mut self, tasks: usize) {
        let task = SubmitParams {
            cwd: Some("/".into()),
            env: Some(Env::default()),
            hold: true,
            ..Default::default()
        };
        let argvs = vec![vec!["true".into(), "x".repeat(4000).into()]; tasks];
        let params = SubmitManyParams { task: Some(Box::new(task)), argvs, ..Default::default() };
        self.call("task.submit_many", &serde_json::to_value(params).unwrap());
    }

    /// Submits a task, a script of its executor.
    fn submit(&mut self, script: &str, hold: bool) {
        let params = SubmitParams {
            argv: Some(vec![script.into()]),
            cwd: Some("/".into()),
            env: Some(Env::default()),
            hold,
            ..Default::default()
        };
        self.call("task.submit", &serde_json::to_value(params).unwrap());
    }

    /// Returns the state that the journal was last given of the only task.
    fn state(&self) -> State {
        let states = self.given.states.lock().unwrap();
        let [state] = &states.values().collect::<Vec<_>>()[..] else { panic!("{states:?}") };
        (*state).clone()
    }

    /// Asks the daemon to end.
    fn terminate(&self) {
        self.internals.send(Internal::Terminate { signal: "SIGTERM" });
    }

    /// Waits for the daemon's end.
    async fn ended(&mut self) {
        let goes = self.dispatcher.go(&mut self.mailbox, &mut self.wall_clock);
        tokio::time::timeout(Duration::from_mins(1), goes).await.expect("it ends");
    }

    /// Returns how many tasks the daemon has.
    async fn count_tasks(&mut self) -> u64 {
        self.call("task.list", &json!({ "limit": 1 }));
        self.rest().await;
        let [answer] = &self.lines()[..] else { panic!("one call has one answer") };
        answer["result"]["summary"]["pending"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    }

    /// Reports everything as written.
    fn written(&self) {
        self.recorded(None);
    }

    /// Reports that nothing more could be written.
    fn unwritten(&self) {
        self.recorded(Some(full()));
    }

    fn recorded(&self, trouble: Option<Trouble>) {
        let upto = self.given.step.load(Ordering::Relaxed);
        let recorded = Recorded { upto, is_written: trouble.is_none(), trouble };
        self.internals.send(Internal::Recorded(recorded));
    }

    /// Lets a batch of this many tasks enter, and reports each step as written or, if `is_full`, as failed. Then
    /// returns the answers to the client.
    async fn let_enter(&mut self, tasks: usize, is_full: bool) -> Vec<Value> {
        let mut answers = Vec::new();
        for _ in 0..tasks {
            self.recorded(is_full.then(full));
            self.rest().await;
            answers.extend(self.lines());
            if !answers.is_empty() {
                break;
            }
        }
        answers
    }

    /// Returns the lines sent to the client since the last call.
    fn lines(&self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(Some(bytes)) = self.client.next_bytes(|| false).now_or_never() {
            let _ = self.client.wrote();
            if bytes.is_empty() {
                break;
            }
            all.extend_from_slice(&bytes);
        }
        all.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }
}

#[test]
fn r130_large_batch_enters_only_as_fast_as_it_is_written() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut daemon = Daemon::new();
        daemon.submit_batch(TASKS);
        daemon.rest().await;
        let given = daemon.given.tasks.load(Ordering::Relaxed);
        assert!((1..TASKS / 2).contains(&given), "{given} of its tasks wait to be written");
        assert!(daemon.lines().is_empty(), "nothing is answered before it is written");
        // The rest follows step by step.
        while daemon.given.tasks.load(Ordering::Relaxed) < TASKS {
            let before = daemon.given.tasks.load(Ordering::Relaxed);
            daemon.written();
            daemon.rest().await;
            assert!(daemon.given.tasks.load(Ordering::Relaxed) > before, "it stands still after {before}");
        }
        daemon.written();
        daemon.rest().await;
        let [answer] = &daemon.lines()[..] else { panic!("it is answered once") };
        assert_eq!(answer["result"]["ids"].as_array().map(Vec::len), Some(TASKS), "{answer}");
    });
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test);
}

#[test]
fn r130_batch_already_in_journal_enters_completely_although_disk_fills() {
    run(async {
        let mut daemon = Daemon::new();
        daemon.submit_batch(TASKS);
        daemon.rest().await;
        daemon.written();
        daemon.rest().await;
        assert!(daemon.lines().is_empty(), "the rest of its tasks are still to be added");
        let answers = daemon.let_enter(TASKS, true).await;
        let [answer] = &answers[..] else { panic!("it is answered once: {answers:?}") };
        assert_eq!(answer["result"]["ids"].as_array().map(Vec::len), Some(TASKS), "{answer}");
        assert_eq!(daemon.count_tasks().await, TASKS as u64);
        daemon.written();
        assert_eq!(daemon.count_tasks().await, TASKS as u64);
    });
}

#[test]
fn r130_batch_not_yet_in_journal_is_refused_entirely_although_disk_has_room_again() {
    run(async {
        let mut daemon = Daemon::new();
        daemon.submit_batch(TASKS);
        daemon.rest().await;
        daemon.unwritten();
        let answers = daemon.let_enter(TASKS, false).await;
        let [answer] = &answers[..] else { panic!("it is answered once: {answers:?}") };
        assert_eq!(answer["error"]["data"]["kind"], "journal_unwritable", "{answer}");
        daemon.written();
        assert_eq!(daemon.count_tasks().await, 0);
    });
}

#[test]
fn r130_request_about_another_task_is_answered_although_a_batch_is_refused() {
    run(async {
        let mut daemon = Daemon::new();
        daemon.submit("true", true);
        daemon.rest().await;
        daemon.written();
        daemon.rest().await;
        let [old] = &daemon.lines()[..] else { panic!("it is answered") };
        let old = old["result"]["task"]["id"].clone();
        // The steps of both requests add tasks of the batch.
        daemon.submit_batch(1000);
        daemon.call("task.edit", &json!({ "id": old, "description": "edited" }));
        daemon.rest().await;
        assert!(daemon.lines().is_empty(), "nothing is answered before it is written");
        daemon.unwritten();
        daemon.rest().await;
        let mut answers = daemon.lines();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let [batch, edit] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(batch["error"]["data"]["kind"], "journal_unwritable", "{batch}");
        assert_eq!(edit["result"]["task"]["description"], "edited", "{edit}");
        assert_eq!(daemon.count_tasks().await, 1);
    });
}

/// No wait ends that.
#[test]
fn r123_upgrade_after_a_panic_of_the_journal_is_refused_at_once() {
    run(async {
        let mut daemon = Daemon::new();
        daemon.recorded(Some(Trouble::Panicked));
        daemon.call("daemon.upgrade", &json!({ "binary": "/bgd" }));
        daemon.rest().await;
        let [answer] = &daemon.lines()[..] else { panic!("it is answered once") };
        assert_eq!(answer["error"]["data"]["kind"], "upgrade_refused", "{answer}");
        let why = Trouble::Panicked.to_string();
        assert!(answer["error"]["message"].as_str().unwrap().ends_with(&why), "{answer}");
    });
}

/// An error of the disk may read like any other.
#[test]
fn r130_hint_of_a_refused_submission_follows_from_the_kind_of_trouble() {
    run(async {
        let mut daemon = Daemon::new();
        let kinds = [
            (Trouble::Missing(Path::new("/journal").into()), "after the folder is back"),
            (Trouble::Panicked, "the next daemon finds them again"),
            (Trouble::FileLimit, "from a shell without that limit"),
        ];
        for (trouble, expected) in kinds {
            let disk = Trouble::of_disk(trouble.to_string());
            for (trouble, expected) in [(trouble, expected), (disk, "free some space")] {
                let why = trouble.to_string();
                daemon.recorded(Some(trouble));
                daemon.rest().await;
                daemon.submit("true", false);
                daemon.rest().await;
                let [answer] = &daemon.lines()[..] else { panic!("it is answered once") };
                let error = &answer["error"];
                assert!(error["message"].as_str().unwrap().ends_with(&why), "{answer}");
                assert!(error["data"]["hint"].as_str().unwrap().contains(expected), "{answer}");
            }
        }
    });
}

/// Each of these programs may block a thread for good.
#[test]
fn r123_upgrades_to_programs_on_disks_that_hang_occupy_few_threads() {
    run(async {
        let mut daemon = Daemon::new();
        for _ in 0..=ELSEWHERE {
            daemon.call("daemon.upgrade", &json!({ "binary": "/bgd" }));
            daemon.pass(Duration::from_mins(1)).await;
            let [answer] = &daemon.lines()[..] else { panic!("it is answered once") };
            assert!(answer["error"]["message"].as_str().unwrap().contains("does not answer"), "{answer}");
        }
        assert_eq!(daemon.jobs.lock().unwrap().len(), ELSEWHERE);
    });
}

/// The unit that the daemon and its tasks are in may be about to end.
#[test]
fn r131_start_written_after_the_stop_is_left_to_the_next_daemon() {
    run(async {
        let mut daemon = Daemon::new();
        daemon.submit("runs", false);
        daemon.rest().await;
        assert!(matches!(daemon.state(), State::Starting { .. }), "it waits for the journal");
        daemon.terminate();
        daemon.rest().await;
        daemon.written();
        daemon.ended().await;
        assert!(matches!(daemon.state(), State::Queued { .. }), "{:?}", daemon.state());
    });
}

/// The connection would be kept open for its answer, which cannot come.
#[test]
fn r131_call_that_waits_for_a_start_left_to_the_next_daemon_does_not_delay_the_end() {
    run(async {
        let mut daemon = Daemon::new();
        daemon.submit("runs", false);
        daemon.call("task.list", &json!({}));
        daemon.rest().await;
        let [list] = &daemon.lines()[..] else { panic!("the task is not written yet") };
        let id = &list["result"]["tasks"][0]["id"];
        daemon.call("task.write", &json!({ "id": id, "data": "x" }));
        daemon.rest().await;
        assert_eq!(daemon.client.unanswered(), 2, "it waits for the start of the task");
        daemon.terminate();
        daemon.rest().await;
        daemon.written();
        daemon.ended().await;
        assert!(matches!(daemon.state(), State::Queued { .. }), "{:?}", daemon.state());
        assert_eq!(daemon.client.unanswered(), 0);
    });
}

/// Ends of tasks that got the same signal may be handled before it, and free their slots.
#[test]
fn r131_nothing_starts_while_the_signal_to_end_is_unread() {
    run(async {
        let mut daemon = Daemon::new();
        daemon.submit("runs", false);
        daemon.rest().await;
        // Only for this thread.
        signals::block_commands();
        raise(Signal::SIGTERM).unwrap();
        daemon.written();
        daemon.rest().await;
        daemon.written();
        daemon.rest().await;
        assert!(matches!(daemon.state(), State::Queued { .. }), "{:?}", daemon.state());
        assert_eq!(SigSet::from_iter([Signal::SIGTERM]).wait(), Ok(Signal::SIGTERM));
        daemon.terminate();
        daemon.ended().await;
        assert!(matches!(daemon.state(), State::Queued { .. }), "{:?}", daemon.state());
    });
}
