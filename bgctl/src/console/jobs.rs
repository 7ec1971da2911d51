//! The jobs in the console's foreground: those next to the prompt, with their output and the calls to the daemon
//! about them. `bgd_shared::foreground` alone decides what the key does.

use std::collections::HashMap;

use bgd_shared::client::{ClientError, PolledClient, Protocol, Received};
use bgd_shared::foreground::{Answer, Can, Finished, Foreground, Key, Outcome, Press};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockParams, DetachParams, OutputNews, ResizeParams, SignalParams, TaskBlock, TaskDetach, TaskResize,
    TaskSignal, TerminalSize,
};
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;

use super::line::Which;
use super::lines::Lines;
use crate::ending;
use crate::render::wall::Clock;
use crate::render::{bounded_line, clean, table};
use crate::terminal::Host;

/// The most characters shown of a job's command line.
const SHOWN: usize = 100;

/// All jobs in the foreground.
#[derive(Debug)]
pub struct Jobs {
    rules: Foreground<TaskId>,
    beside: Vec<Job>,
    calls: HashMap<u64, Call>,
    /// Sentences and lines to show at the prompt.
    said: String,
}

/// A job next to the prompt.
#[derive(Debug)]
pub struct Job {
    pub id: TaskId,
    /// The number in brackets.
    pub number: usize,
    /// What the user typed.
    pub text: String,
    /// Whether the user started it directly.
    pub direct: bool,
    /// Whether it is stopped and waits for SIGCONT.
    pub stopped: bool,
    /// What restores a terminal that has shown the job.
    pub restore: String,
    lines: Lines,
    /// The ended task, while its hand-over is in flight.
    ended: Option<Box<Task>>,
}

/// The purpose of a call.
#[derive(Debug)]
enum Call {
    End(TaskId),
    Detach(TaskId),
}

impl Jobs {
    /// Starts without jobs.
    pub fn new(key: Key) -> Self {
        Self { rules: Foreground::new(key), beside: Vec::new(), calls: HashMap::new(), said: String::new() }
    }

    /// The jobs next to the prompt, the latest one last.
    pub fn beside(&self) -> &[Job] {
        &self.beside
    }

    /// Takes the text to show at the prompt, in whole lines.
    pub fn take_output(&mut self) -> String {
        for job in &mut self.beside {
            self.said.push_str(&job.lines.take(job.number, &job.id.short()));
        }
        std::mem::take(&mut self.said)
    }

    /// Creates a job in the foreground, with the lowest free number.
    pub fn new_job(&mut self, id: TaskId, text: String, direct: bool) -> Job {
        self.rules.started(id, if direct { Can::Direct } else { Can::Yes });
        let is_taken = |number: &usize| self.beside.iter().any(|job| job.number == *number);
        // If all lower numbers are taken, this one is free.
        let last = self.beside.len() + 1;
        let number = (1..last).find(|number| !is_taken(number)).unwrap_or(last);
        Job {
            id,
            number,
            text,
            direct,
            stopped: false,
            restore: String::new(),
            lines: Lines::default(),
            ended: None,
        }
    }

    /// Puts a job next to the prompt.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn put(&mut self, link: &mut PolledClient, job: Job) -> Result<(), ClientError> {
        let call = link.call::<TaskBlock>(&BlockParams::until_ended(job.id))?;
        self.calls.insert(call, Call::End(job.id));
        let state = if job.stopped { "stopped" } else { "running" };
        let hint = self.rules.hint().filter(|_| !job.direct && !job.stopped);
        let hint = hint.map(|hint| format!("  {hint}")).unwrap_or_default();
        self.say(&format!("[{}] {} {state}  {}{hint}", job.number, job.id.short(), shown(&job.text)));
        self.beside.push(job);
        Ok(())
    }

    /// Takes a job from next to the prompt, to give it the terminal.
    pub fn take(&mut self, which: &Which) -> Option<Job> {
        let place = match which {
            Which::Latest => self.beside.len().checked_sub(1),
            Which::Number(number) => self.beside.iter().position(|job| job.number == *number),
            Which::Task(task) => {
                let mut places =
                    self.beside.iter().enumerate().filter(|(_, job)| task.range().contains(&job.id));
                match (places.next(), places.next()) {
                    (Some((place, _)), None) => Some(place),
                    // The daemon reports an ambiguous id.
                    _ => None,
                }
            }
        }?;
        let mut job = self.beside.remove(place);
        self.say_lines(&mut job);
        Some(job)
    }

    /// Notes that a job that had the terminal has ended.
    pub fn ended(&mut self, id: TaskId) {
        if self.rules.finished(&id) == Finished::Wait {
            // Its end arrived first, so the hand-over comes too late.
            let _ = self.rules.answered(&id, Answer::AlreadyFinished);
        }
    }

    /// Handles the key at the prompt.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn pressed(&mut self, link: &mut PolledClient) -> Result<(), ClientError> {
        match self.rules.pressed() {
            Press::Take(id) => self.hand_over(link, id),
            Press::Refuse(sentence) => {
                self.say(&sentence);
                Ok(())
            }
            Press::Nothing | Press::Ignore | Press::Pass => Ok(()),
        }
    }

    /// Sends the terminal size to all jobs next to the prompt.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn resize(&self, link: &mut PolledClient, size: TerminalSize) -> Result<(), ClientError> {
        for job in &self.beside {
            let size = ResizeParams { id: job.id.into(), rows: size.rows, cols: size.cols };
            link.call::<TaskResize>(&size)?;
        }
        Ok(())
    }

    fn output(&mut self, news: OutputNews) -> Result<(), ClientError> {
        let Some(job) = self.beside.iter_mut().find(|job| job.id == news.id) else { return Ok(()) };
        if let Some(restore) = news.restore {
            job.restore = restore;
        }
        // A redraw repeats what was shown before.
        if !news.redraw {
            let bytes = news.encoding.decode(news.data);
            job.lines.push(&bytes.map_err(|error| ClientError::Garbled(error.to_string()))?);
        }
        Ok(())
    }

    fn finished(&mut self, id: TaskId, task: Task) {
        let Some(place) = self.beside.iter().position(|job| job.id == id) else { return };
        if self.rules.finished(&id) == Finished::Wait {
            self.beside[place].ended = Some(Box::new(task));
        } else {
            let mut job = self.beside.remove(place);
            self.say_lines(&mut job);
            self.say(&format!("[{}] {}  {}", job.number, how(&task), shown(&job.text)));
        }
    }

    fn answered(&mut self, id: TaskId, answer: Answer) {
        match self.rules.answered(&id, answer) {
            Some(Outcome::Backgrounded(id, sentence)) => {
                if let Some(place) = self.beside.iter().position(|job| job.id == id) {
                    let mut job = self.beside.remove(place);
                    self.say_lines(&mut job);
                }
                self.say(&sentence);
            }
            Some(Outcome::Finished(id)) => {
                // Otherwise its end is yet to come.
                let job = self.beside.iter_mut().find(|job| job.id == id);
                if let Some(task) = job.and_then(|job| job.ended.take()) {
                    self.finished(id, *task);
                }
            }
            Some(Outcome::Stays(_, sentence)) => self.say(&sentence),
            None => {}
        }
    }

    /// Shows all output of the job before anything is said about it.
    fn say_lines(&mut self, job: &mut Job) {
        job.lines.finish();
        self.said.push_str(&job.lines.take(job.number, &job.id.short()));
    }

    fn say(&mut self, sentence: &str) {
        self.said.push_str(sentence);
        self.said.push('\n');
    }
}

impl Host for Jobs {
    fn jobs(&mut self) -> &mut Foreground<TaskId> {
        &mut self.rules
    }

    /// A stopped job waits next to the prompt.
    fn leaves_stopped(&self) -> bool {
        true
    }

    fn hand_over(&mut self, link: &mut PolledClient, id: TaskId) -> Result<(), ClientError> {
        if self.beside.iter().any(|job| job.id == id && job.stopped) {
            let go_on = SignalParams { id: id.into(), signal: "CONT".to_owned(), tree: true };
            link.call::<TaskSignal>(&go_on)?;
        }
        let call = link.call::<TaskDetach>(&DetachParams { id: id.into(), background: true })?;
        self.calls.insert(call, Call::Detach(id));
        Ok(())
    }

    fn received(&mut self, received: Received) -> Result<(), ClientError> {
        match received {
            Received::Output(news) => self.output(*news)?,
            Received::Stopped(news) => {
                if let Some(job) = self.beside.iter_mut().find(|job| job.id == news.id)
                    && !std::mem::replace(&mut job.stopped, true)
                {
                    let sentence = format!("[{}] stopped  {}", job.number, shown(&job.text));
                    self.say(&sentence);
                }
            }
            Received::Answer { call, outcome } => match self.calls.remove(&call) {
                Some(Call::End(id)) => {
                    if let Some(task) = Protocol::result::<TaskBlock>(outcome)?.tasks.pop() {
                        self.finished(id, task);
                    }
                }
                Some(Call::Detach(id)) => match Protocol::result::<TaskDetach>(outcome) {
                    Ok(result) => self.answered(id, Answer::Backgrounded(result.task.id)),
                    Err(ClientError::Rpc(error)) => self.answered(id, Answer::from(&error)),
                    Err(error) => return Err(error),
                },
                None => {}
            },
            Received::News(_) => {}
        }
        Ok(())
    }
}

/// Shows a background task from within the console, which keeps its own jobs. The key leaves the task again.
#[derive(Debug)]
pub struct Visit<'a> {
    jobs: &'a mut Jobs,
    alone: Foreground<TaskId>,
}

impl<'a> Visit<'a> {
    /// Starts a visit to this task.
    pub fn of(jobs: &'a mut Jobs, task: TaskId, key: Key) -> Self {
        let mut alone = Foreground::new(key);
        alone.started(task, Can::Yes);
        Self { jobs, alone }
    }
}

impl Host for Visit<'_> {
    fn jobs(&mut self) -> &mut Foreground<TaskId> {
        &mut self.alone
    }

    fn leaves_stopped(&self) -> bool {
        true
    }

    fn hand_over(&mut self, link: &mut PolledClient, job: TaskId) -> Result<(), ClientError> {
        self.jobs.hand_over(link, job)
    }

    fn received(&mut self, received: Received) -> Result<(), ClientError> {
        self.jobs.received(received)
    }
}

/// How a job ended, such as `completed` or `failed (2)`.
pub fn how(task: &Task) -> String {
    // The status of a task that timed out already says so.
    let says_all = task.status == Status::Completed || task.timed_out;
    let remark = if says_all { None } else { ending::remark(task) };
    let remark = remark.map(|remark| format!(": {}", clean(&remark))).unwrap_or_default();
    format!("{}{remark}", table::status(task, &Clock::system(Timestamp::now())))
}

/// Shortens a job's command line for display.
pub fn shown(text: &str) -> String {
    bounded_line(text, SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use bgd_shared::client::Client;
    use bgd_shared::error::ErrorKind;
    use bgd_shared::error::RpcError;
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

        /// The next call that the daemon sees: its number, method and task.
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
            let result =
                BlockResult { tasks: vec![task], timed_out: false, finished: vec![id], active: Vec::new() };
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
    fn a_job_beside_the_prompt_shows_its_lines_and_its_end() {
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
    fn r63_the_key_takes_the_latest_that_may_be() {
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
    fn r66_a_job_that_finished_first_shows_its_own_end() {
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
    fn r68_a_job_that_could_not_be_moved_says_so_and_stays() {
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
    fn a_stopped_job_goes_on_in_the_background() {
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
    fn jobs_are_found_by_what_users_call_them() {
        let mut bench = Bench::new();
        let ids = [1, 2, 3].map(|number| bench.beside(number, false));
        let whole = Which::Task(ids[0].into());
        for (which, id) in [(Which::Number(2), ids[1]), (Which::Latest, ids[2]), (whole, ids[0])] {
            assert_eq!(bench.jobs.take(&which).unwrap().id, id, "{which:?}");
        }
        for which in [Which::Number(1), Which::Latest, Which::Task(ids[1].into())] {
            assert!(bench.jobs.take(&which).is_none(), "{which:?}");
        }
        bench.beside(4, false);
        bench.beside(5, false);
        let ambiguous = Which::Task("0000".parse().unwrap());
        assert!(bench.jobs.take(&ambiguous).is_none());
    }

    #[test]
    fn a_job_that_ended_on_the_terminal_stands_in_nobodys_way() {
        let mut bench = Bench::new();
        let other = bench.beside(1, false);
        let (.., first) = bench.called();
        assert_eq!(first, other);
        let job = bench.jobs.new_job(TaskId::from_u128(2), "job 2".into(), false);
        // Its hand-over is in flight when it ends.
        assert_eq!(bench.jobs.jobs().pressed(), Press::Take(job.id));
        bench.jobs.ended(job.id);
        bench.press();
        assert_eq!(bench.called().2, other);
    }
}
