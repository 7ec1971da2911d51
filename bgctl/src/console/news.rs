//! Notifications about the background tasks of the console's parent session, as sentences for the user.
//!
//! They arrive on a separate connection, which a thread reads continuously regardless of what the user does, so the
//! daemon never has to drop any.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::event::{Event, EventKind};
use bgd_shared::id::TaskId;
use bgd_shared::mutex::Mutex;
use bgd_shared::request::{ListParams, ListResult, SubscribeParams, TaskList};
use bgd_shared::show;
use bgd_shared::task::{Origin, Status, Task};

use super::editor::{Heard as Said, MessageSender};
use crate::failure::Failure;
use crate::link::{Heard, Listener};
use crate::pages::fetch;
use crate::render::{bounded_line, clean, shortened};

/// Maximum number of characters shown of a task's description, error, or agent's question.
const SHOWN: usize = 100;

/// The notifications about a session's tasks, which continue across connections.
#[derive(Debug)]
pub struct News {
    session: String,
    speaker: MessageSender,
    place: Arc<Mutex<Place>>,
}

/// What was said so far.
#[derive(Debug, Default)]
struct Place {
    /// The number of the current connection: those of earlier ones say nothing more.
    connection: u32,
    /// The number of the last event.
    seq: u64,
    watch: Watch,
}

impl News {
    /// Subscribes to the events of a session, and from then on sends sentences about them to the console.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn begin(client: Client, session: &str, speaker: MessageSender) -> Result<Self, Failure> {
        let news = Self { session: session.to_owned(), speaker, place: Arc::default() };
        news.follow(client, false)?;
        Ok(news)
    }

    /// Returns the number of the current connection.
    pub fn connection(&self) -> u32 {
        self.place.lock().connection
    }

    /// Subscribes over a new connection. `is_same`: to the same daemon, so that what has happened meanwhile comes first.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn follow(&self, client: Client, is_same: bool) -> Result<(), Failure> {
        let (connection, seq) = {
            let mut place = self.place.lock();
            place.connection += 1;
            (place.connection, place.seq)
        };
        let since = is_same.then_some(seq);
        let params =
            SubscribeParams { session: Some(self.session.clone()), since, ..SubscribeParams::default() };
        let mut events = Listener::new(client, params)?;
        if !is_same {
            let watch = Watch::of(&active(&self.session, |page| Ok(events.call::<TaskList>(page)?))?);
            *self.place.lock() = Place { connection, seq: events.seq(), watch };
        }
        let (place, speaker) = (Arc::clone(&self.place), self.speaker.clone());
        let run = move || {
            let end = loop {
                match tell_next(&mut events, connection, &place, &speaker) {
                    Ok(true) => {}
                    end => break end,
                }
            };
            if end.is_err() && place.lock().connection == connection {
                speaker.say(Said::NewsLost);
            }
        };
        let thread = thread::Builder::new().name("news".to_owned()).spawn(run);
        thread.map(drop).map_err(|error| Failure::io("can't start a thread", &error))
    }
}

/// Lists the active tasks of a parent session, in as many calls as needed.
///
/// # Errors
/// A call fails.
pub fn active(
    session: &str,
    call: impl FnMut(&ListParams) -> Result<ListResult, Failure>,
) -> Result<Vec<Task>, Failure> {
    let status = vec![Status::Pending, Status::Running, Status::Resumed];
    let params = ListParams { session: Some(session.to_owned()), status, ..ListParams::default() };
    Ok(fetch(&params, usize::MAX, call)?.tasks)
}

/// Waits for an event and reports it. Returns false if nobody is listening any longer, or on another connection.
fn tell_next(
    events: &mut Listener,
    connection: u32,
    place: &Mutex<Place>,
    speaker: &MessageSender,
) -> Result<bool, ClientError> {
    let heard = events.next()?;
    let mut place = place.lock();
    if place.connection != connection {
        return Ok(false);
    }
    place.seq = events.seq();
    let sentence = match heard {
        Heard::Event(event) => place.watch.sentence_for(&event),
        Heard::Gap => {
            Some("[BACKGROUND TASKS] Some notifications were missed: see `bgctl list`\n".to_owned())
        }
    };
    Ok(sentence.is_none_or(|sentence| speaker.say(Said::News(sentence))))
}

/// Tracks which tasks are in the background: the end of a foreground job is reported by its own client.
#[derive(Debug, Default)]
struct Watch {
    /// Background tasks that started in the foreground.
    moved: HashSet<TaskId>,
}

impl Watch {
    /// Starts with the tasks that are active now.
    fn of(tasks: &[Task]) -> Self {
        let moved = tasks.iter().filter(|task| task.origin == Origin::Run && !task.foreground);
        Self { moved: moved.map(|task| task.id).collect() }
    }

    /// Returns the sentence about an event, if it needs one.
    fn sentence_for(&mut self, event: &Event) -> Option<String> {
        let task = &event.task;
        match event.kind {
            EventKind::Backgrounded | EventKind::Resumed => {
                if task.origin == Origin::Run {
                    self.moved.insert(task.id);
                }
                None
            }
            EventKind::Completed | EventKind::Failed | EventKind::Cancelled => {
                let is_news = self.moved.remove(&task.id) || task.origin != Origin::Run;
                is_news.then(|| ended(task))
            }
            EventKind::NeedsInput if !task.foreground => asks(task),
            EventKind::NeedsInput
            | EventKind::Submitted
            | EventKind::Started
            | EventKind::Output
            | EventKind::Progress
            | EventKind::Ready
            | EventKind::Paused
            | EventKind::Continued
            | EventKind::Held
            | EventKind::Released
            | EventKind::Edited
            | EventKind::Retrying
            | EventKind::Cleared => None,
        }
    }
}

fn ended(task: &Task) -> String {
    let status = task.status.as_str().to_uppercase();
    let why = task.error.as_deref().map(|why| format!(" {}", bounded_line(why, SHOWN))).unwrap_or_default();
    // The error of a timeout already contains the time.
    let ended = task.completed_at.or(task.started_at).unwrap_or(task.created_at);
    let time = task.run_time_ms(ended).filter(|_| !task.timed_out).map(|ran| {
        let comma = if why.is_empty() { "" } else { "," };
        let after = if task.status == Status::Completed { "in" } else { "after" };
        format!("{comma} {after} {}", show::elapsed(ran))
    });
    let time = time.unwrap_or_default();
    format!("[BACKGROUND TASK {status}] {}{why}{time}: \"{}\"\n", task.id.short(), name(task))
}

fn asks(task: &Task) -> Option<String> {
    let question = bounded_line(&task.progress.needs_input.as_ref()?.question, SHOWN);
    let id = task.id.short();
    Some(format!("[BACKGROUND TASK ASKS] {id} {question}: \"{}\": bgctl answer {id}\n", name(task)))
}

fn name(task: &Task) -> String {
    shortened(&clean(&task.description), SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::{question, task};
    use bgd_shared::task::Progress;
    use bgd_shared::time::Timestamp;

    fn event(kind: EventKind, task: &Task) -> Event {
        Event { seq: 1, at: Timestamp::from_unix_ms(0), kind, task: task.clone() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_unix_ms(second * 1000)
    }

    fn ended(origin: Origin, status: Status, error: Option<&str>) -> Task {
        let (started_at, completed_at) = (Some(at(1000)), Some(at(1012)));
        Task { origin, status, error: error.map(str::to_owned), started_at, completed_at, ..task() }
    }

    #[test]
    fn end_of_background_task_is_announced() {
        let mut watch = Watch::default();
        let task = ended(Origin::Submit, Status::Completed, None);
        assert_eq!(
            watch.sentence_for(&event(EventKind::Completed, &task)).unwrap(),
            "[BACKGROUND TASK COMPLETED] 3f2a9c1e in 12s: \"make -j8\"\n"
        );
        let task = ended(Origin::Handoff, Status::Failed, Some("exited with\ncode 2"));
        assert_eq!(
            watch.sentence_for(&event(EventKind::Failed, &task)).unwrap(),
            "[BACKGROUND TASK FAILED] 3f2a9c1e exited with code 2, after 12s: \"make -j8\"\n"
        );
        let task = Task { started_at: None, ..ended(Origin::Submit, Status::Cancelled, None) };
        assert_eq!(
            watch.sentence_for(&event(EventKind::Cancelled, &task)).unwrap(),
            "[BACKGROUND TASK CANCELLED] 3f2a9c1e: \"make -j8\"\n"
        );
    }

    #[test]
    fn end_of_foreground_job_is_not_announced() {
        let mut watch = Watch::default();
        let task = ended(Origin::Run, Status::Completed, None);
        assert_eq!(watch.sentence_for(&event(EventKind::Completed, &task)), None);
        for moved in [EventKind::Backgrounded, EventKind::Resumed] {
            assert_eq!(watch.sentence_for(&event(moved, &task)), None);
            assert!(watch.sentence_for(&event(EventKind::Completed, &task)).is_some());
            assert_eq!(watch.sentence_for(&event(EventKind::Completed, &task)), None, "once");
        }
        let active = Task { status: Status::Running, ..task };
        let mut watch = Watch::of(&[active.clone(), Task { id: TaskId::from_u128(1), ..active.clone() }]);
        assert!(watch.sentence_for(&event(EventKind::Failed, &active)).is_some(), "it was moved before");
        let mut watch = Watch::of(&[Task { foreground: true, ..active.clone() }]);
        assert_eq!(watch.sentence_for(&event(EventKind::Failed, &active)), None);
    }

    #[test]
    fn question_of_background_agent_is_announced() {
        let progress = Progress { needs_input: Some(question()), ..Progress::default() };
        let asking = Task { progress, ..task() };
        assert_eq!(
            Watch::default().sentence_for(&event(EventKind::NeedsInput, &asking)).unwrap(),
            "[BACKGROUND TASK ASKS] 3f2a9c1e Run `make`?: \"make -j8\": bgctl answer 3f2a9c1e\n"
        );
        let foreground = Task { foreground: true, ..asking };
        assert_eq!(Watch::default().sentence_for(&event(EventKind::NeedsInput, &foreground)), None);
    }
}
