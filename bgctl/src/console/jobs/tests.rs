//! Tests of the console's jobs, without a terminal.

use super::*;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use bgd_shared::client::Client;
use bgd_shared::request::{BlockResult, DetachResult, Encoding, StoppedNews};
use bgd_shared::task::Exit;
use serde::Serialize;
use serde_json::value::to_raw_value;

use crate::render::samples;

/// A console's jobs, and the daemon's end of their connection.
struct Bench {
    jobs: Jobs,
    link: PolledClient,
    daemon: BufReader<UnixStream>,
}

impl Bench {
    fn new() -> Self {
        let (here, there) = UnixStream::pair().unwrap();
        let link = Client::over(OwnedFd::from(here).into()).into();
        Self { jobs: Jobs::new(Key::default()), link, daemon: BufReader::new(there) }
    }

    fn beside(&mut self, number: u128, direct: bool) -> TaskId {
        let id = TaskId::from_u128(number);
        let job = self.jobs.new_job(id, format!("job {number}"), direct);
        self.jobs.put(&mut self.link, job).unwrap();
        id
    }

    /// Returns the next call received by the daemon: its number, method and task.
    fn called(&mut self) -> (u64, String, TaskId) {
        let mut line = String::new();
        self.daemon.read_line(&mut line).unwrap();
        let call: serde_json::Value = serde_json::from_str(&line).unwrap();
        let params = &call["params"];
        let id = if params["id"].is_null() { &params["ids"][0] } else { &params["id"] };
        let id = serde_json::from_value(id.clone()).unwrap();
        (call["id"].as_u64().unwrap(), call["method"].as_str().unwrap().to_owned(), id)
    }

    fn answer(&mut self, call: u64, outcome: Result<&impl Serialize, ErrorKind>) {
        let refused = |kind| RpcError::new(kind, "so it is");
        let outcome = outcome.map(|result| to_raw_value(result).unwrap()).map_err(refused);
        self.jobs.received(Received::Answer { call, outcome }).unwrap();
    }

    fn ends(&mut self, call: u64, id: TaskId) {
        let exit = Some(Exit::Code(0));
        let task = Task { id, status: Status::Completed, exit, ..samples::task() };
        let result = BlockResult {
            tasks: vec![task],
            timed_out: false,
            finished: vec![id],
            active: Vec::new(),
            cleared: None,
        };
        self.answer(call, Ok(&result));
    }

    fn is_moved(&mut self, call: u64, id: TaskId) {
        let result = DetachResult { task: Task { id, ..samples::task() }, message: String::new() };
        self.answer(call, Ok(&result));
    }

    fn shows(&mut self, id: TaskId, data: &str) {
        let (data, encoding) = (data.to_owned(), Encoding::default());
        let news = OutputNews { id, offset: 0, data, encoding, redraw: false, restore: None };
        self.jobs.received(Received::Output(Box::new(news))).unwrap();
    }

    fn press(&mut self) {
        self.jobs.pressed(&mut self.link).unwrap();
    }

    #[track_caller]
    fn says(&mut self, text: &str) {
        assert_eq!(self.jobs.take_output(), text);
    }
}

fn moved(id: TaskId) -> String {
    format!("Command was manually backgrounded by user with ID {id}\n")
}

#[test]
fn console_job_prints_its_lines_and_its_end() {
    let mut bench = Bench::new();
    let id = bench.beside(1, false);
    bench.says("[1] 00000000 running  job 1  [Ctrl-B] Background\n");
    let (end, method, task) = bench.called();
    assert_eq!((method.as_str(), task), ("task.block", id));
    bench.shows(id, "half");
    bench.says("");
    bench.shows(id, " a line\r\nrest");
    bench.says("[1] half a line\n");
    bench.ends(end, id);
    bench.says("[1] rest\n[1] completed  job 1\n");
    assert!(bench.jobs.beside().is_empty());
    bench.press();
    bench.shows(id, "late\n");
    bench.says("");
}

#[test]
fn job_has_one_pending_block_call_however_often_it_is_foregrounded() {
    let mut bench = Bench::new();
    let id = bench.beside(1, false);
    let (end, ..) = bench.called();
    for _ in 0..3 {
        let job = bench.jobs.take(&JobSelector::Latest).unwrap();
        assert_eq!(bench.jobs.take_end_call(id), Some(end));
        assert_eq!(bench.jobs.take_end_call(id), None, "whoever shows the job has it");
        bench.jobs.keep_end_call(id, end);
        bench.jobs.put(&mut bench.link, job).unwrap();
    }
    bench.press();
    assert_eq!(bench.called().1, "task.detach", "and not another task.block");
    bench.jobs.take_output();
    // A visit keeps the call for later use.
    bench.jobs.keep_end_call(TaskId::from_u128(2), 1000);
    let mut visit = Visit::of(&mut bench.jobs, TaskId::from_u128(2), Key::default());
    assert_eq!(visit.take_end_call(TaskId::from_u128(2)), Some(1000));
}

#[test]
fn refused_block_call_keeps_job_until_task_is_gone() {
    let mut bench = Bench::new();
    let id = bench.beside(1, false);
    let (end, ..) = bench.called();
    bench.jobs.take_output();
    bench.answer(end, Err::<&(), _>(ErrorKind::TooManyRequests));
    bench.says("[1] how it ended is unknown: so it is; `fg %1` asks again\n");
    let job = bench.jobs.take(&JobSelector::Latest).unwrap();
    bench.jobs.put(&mut bench.link, job).unwrap();
    let (end, method, _) = bench.called();
    assert_eq!(method, "task.block");
    bench.jobs.take_output();
    bench.answer(end, Err::<&(), _>(ErrorKind::TaskNotFound));
    bench.says("[1] gone: so it is\n");
    assert!(bench.jobs.beside().is_empty());
    assert_eq!(bench.jobs.jobs().pressed(), Press::Nothing, "{id} is in nobody's way");
}

#[test]
fn r63_key_backgrounds_latest_eligible_job() {
    let mut bench = Bench::new();
    let ids = [(1, false), (2, false), (3, true)].map(|(number, direct)| bench.beside(number, direct));
    let said = bench.jobs.take_output();
    assert!(said.ends_with("[3] 00000000 running  job 3\n"), "no hint for what can't be moved: {said}");
    for _ in ids {
        bench.called();
    }
    bench.press();
    bench.press();
    let (detach, method, task) = bench.called();
    assert_eq!((method.as_str(), task), ("task.detach", ids[1]));
    bench.shows(ids[1], "so far\n");
    bench.is_moved(detach, ids[1]);
    bench.says(&format!("[2] so far\n{}", moved(ids[1])));
    bench.press();
    let (detach, _, task) = bench.called();
    assert_eq!(task, ids[0], "and the press in between was ignored");
    bench.is_moved(detach, ids[0]);
    bench.says(&moved(ids[0]));
    bench.press();
    bench.says("");
    assert_eq!(bench.jobs.beside().len(), 1);
    assert_eq!(bench.beside(4, false), TaskId::from_u128(4));
    bench.says("[1] 00000000 running  job 4  [Ctrl-B] Background\n");
}

#[test]
fn r66_job_that_finished_before_detach_shows_its_own_end() {
    for end_comes_first in [true, false] {
        let mut bench = Bench::new();
        let id = bench.beside(1, false);
        bench.jobs.take_output();
        let (end, ..) = bench.called();
        bench.press();
        let (detach, ..) = bench.called();
        let refusal = Err::<&(), _>(ErrorKind::AlreadyFinished);
        if end_comes_first {
            bench.ends(end, id);
            bench.says("");
            bench.answer(detach, refusal);
        } else {
            bench.answer(detach, refusal);
            bench.says("");
            bench.ends(end, id);
        }
        bench.says("[1] completed  job 1\n");
        assert!(bench.jobs.beside().is_empty());
    }
}

#[test]
fn r68_job_that_cannot_be_backgrounded_says_so_and_stays() {
    let mut bench = Bench::new();
    let id = bench.beside(1, false);
    bench.jobs.take_output();
    let (end, ..) = bench.called();
    bench.press();
    let (detach, ..) = bench.called();
    bench.answer(detach, Err::<&(), _>(ErrorKind::NotBackgroundable));
    bench.says("This job could not be backgrounded and keeps running here: so it is\n");
    bench.ends(end, id);
    bench.says("[1] completed  job 1\n");
}

#[test]
fn stopped_job_is_continued_when_backgrounded() {
    let mut bench = Bench::new();
    let id = bench.beside(1, false);
    bench.called();
    bench.jobs.take_output();
    for _ in 0..2 {
        bench.jobs.received(Received::Stopped(StoppedNews { id })).unwrap();
    }
    bench.says("[1] stopped  job 1\n");
    bench.press();
    let methods = [bench.called().1, bench.called().1];
    assert_eq!(methods, ["task.signal", "task.detach"]);
}

#[test]
fn jobs_are_found_by_number_latest_or_task_id() {
    let mut bench = Bench::new();
    let ids = [1, 2, 3].map(|number| bench.beside(number, false));
    let whole = JobSelector::Task(ids[0].into());
    for (which, id) in [(JobSelector::Number(2), ids[1]), (JobSelector::Latest, ids[2]), (whole, ids[0])] {
        assert_eq!(bench.jobs.take(&which).unwrap().id, id, "{which:?}");
    }
    for which in [JobSelector::Number(1), JobSelector::Latest, JobSelector::Task(ids[1].into())] {
        assert!(bench.jobs.take(&which).is_none(), "{which:?}");
    }
    bench.beside(4, false);
    bench.beside(5, false);
    let ambiguous = JobSelector::Task("0000".parse().unwrap());
    assert!(bench.jobs.take(&ambiguous).is_none());
}

#[test]
fn job_that_ended_mid_handover_does_not_block_the_key() {
    let mut bench = Bench::new();
    let other = bench.beside(1, false);
    let (.., first) = bench.called();
    assert_eq!(first, other);
    let job = bench.jobs.new_job(TaskId::from_u128(2), "job 2".into(), false);
    // The hand-over of the job is in flight when the job ends.
    assert_eq!(bench.jobs.jobs().pressed(), Press::Take(job.id));
    bench.jobs.ended(job.id);
    bench.press();
    assert_eq!(bench.called().2, other);
}

#[test]
fn hand_over_is_awaited_until_its_answer() {
    let mut bench = Bench::new();
    let id = bench.beside(1, false);
    bench.called();
    assert!(!bench.jobs.is_handing_over());
    bench.press();
    let (detach, ..) = bench.called();
    assert!(bench.jobs.is_handing_over());
    bench.is_moved(detach, id);
    assert!(!bench.jobs.is_handing_over());
}

#[test]
fn r63_ended_job_that_is_not_beside_does_not_take_the_key() {
    let mut bench = Bench::new();
    let beside = bench.beside(1, false);
    bench.called();
    // Its view has failed, which keeps the call.
    let job = bench.jobs.new_job(TaskId::from_u128(2), "job 2".into(), false);
    bench.jobs.keep_end_call(job.id, 1000);
    bench.ends(1000, job.id);
    bench.press();
    assert_eq!(bench.called().2, beside);
}
