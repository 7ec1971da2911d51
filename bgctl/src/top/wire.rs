//! The live view's communication with one host's daemon: its requests and the handling of replies and events. It
//! requests only what is being looked at: the list by events, and the outputs of visible tasks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use bgd_shared::agent::{AnswerParams, ResumeParams};
use bgd_shared::client::{ClientError, PolledClient, Protocol, Received};
use bgd_shared::error::RpcError;
use bgd_shared::event::{Event, EventKind, News};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::{LIST_PAGE, OUTPUT_CHUNK_BYTES};
use bgd_shared::request::{
    AgentAnswer, AttachParams, CancelParams, DetachParams, EventsSubscribe, ListParams, Method, OutputNews,
    OutputParams, RerunParams, SelectParams, Stream, SubscribeParams, TaskAttach, TaskCancel, TaskDetach,
    TaskHold, TaskList, TaskOutput, TaskRelease, TaskRerun, TaskResume, TaskUsage, UsageParams,
};
use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;
use serde_json::value::RawValue;

use super::meter::Meter;
use super::model::Live;
use super::pane::{Pane, TAIL};
use super::search::{PAGE, Page, Position, Search, State};
use super::task_call::TaskCall;
use super::task_key::{HostNo, TaskKey};
use super::ui::Ui;
use super::view::Frame;
use crate::failure::Failure;
use crate::progress::percent::{LINE_BYTES, in_output};
use crate::render::clean;
use crate::render::wall::Clock;

/// Maximum number of calls in flight for the last lines of visible tasks.
const LINES: usize = 8;

/// The unparsed result of a call, or the daemon's refusal.
type Outcome = Result<Box<RawValue>, RpcError>;

/// The purpose of a call.
enum Asked {
    Events,
    /// A page of the list.
    Page,
    /// The last line of a task.
    Line(TaskId),
    /// The end of a task's output, for the preview.
    Pane(TaskId),
    /// The terminal of a task, for the preview.
    Screen(TaskId),
    /// The resource usage of visible tasks.
    Usage,
    /// A part of an output, for the search of this number.
    Search(TaskId, Stream, u64),
    /// An action requested by a key, with the message for its completion.
    Act(String),
    /// A call whose result is ignored.
    Nothing,
}

/// A connection, and the data received from it.
pub struct Wire {
    pub client: PolledClient,
    host: HostNo,
    pub panes: HashMap<TaskId, Pane>,
    asked: HashMap<u64, Asked>,
    /// Tasks with an event since the current page was requested: the page may have older data about them. `None`:
    /// everything is listed.
    touched: Option<HashSet<TaskId>>,
    /// Whether events were lost since the listing under way began, so that another one must follow it.
    lists_again: bool,
    attached: HashSet<TaskId>,
    /// Tasks whose previews are read once more, although they follow nothing.
    reads_again: HashSet<TaskId>,
    search: Option<Search>,
    searches: u64,
    meter: Meter,
    clock: Clock,
}

impl Wire {
    /// Subscribes to the events of a host, and requests the first page of its list.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn begin(host: HostNo, client: PolledClient, ui: &mut Ui) -> Result<Self, ClientError> {
        let mut wire = Self {
            client,
            host,
            panes: HashMap::new(),
            asked: HashMap::new(),
            touched: None,
            lists_again: false,
            attached: HashSet::new(),
            reads_again: HashSet::new(),
            search: None,
            searches: 0,
            meter: Meter::default(),
            clock: Clock::system(Timestamp::now()),
        };
        wire.subscribe()?;
        wire.list(ui)?;
        Ok(wire)
    }

    fn subscribe(&mut self) -> Result<(), ClientError> {
        self.call::<EventsSubscribe>(&SubscribeParams::default(), Asked::Events)
    }

    /// Lists everything, initially or after events were lost. A listing under way is completed first: two at once would
    /// each remove the tasks that only the other has listed.
    fn list(&mut self, ui: &mut Ui) -> Result<(), ClientError> {
        if self.touched.is_some() {
            self.lists_again = true;
            return Ok(());
        }
        ui.model.begin_listing(self.host);
        self.page(None)
    }

    fn page(&mut self, after: Option<u64>) -> Result<(), ClientError> {
        self.touched = Some(HashSet::new());
        let params = ListParams { limit: Some(LIST_PAGE), after, ..ListParams::default() };
        self.call::<TaskList>(&params, Asked::Page)
    }

    fn call<M: Method>(&mut self, params: &M::Params, what: Asked) -> Result<(), ClientError> {
        let number = self.client.call::<M>(params)?;
        self.asked.insert(number, what);
        Ok(())
    }

    /// Handles a message from the daemon.
    ///
    /// # Errors
    /// The connection is broken, or the message is invalid.
    pub fn received(&mut self, received: Received, ui: &mut Ui) -> Result<(), ClientError> {
        match received {
            Received::Answer { call, outcome } => match self.asked.remove(&call) {
                Some(asked) => self.answered(asked, outcome, ui),
                None => Ok(()),
            },
            Received::News(news) => match news.news {
                News::Event(event) => self.event(&event, ui),
                // Events are missing, so everything is listed again. Subscribing again would duplicate a subscription
                // that has not ended.
                News::Gap(gap) => {
                    if gap.ended {
                        self.subscribe()?;
                    }
                    let shown: Vec<TaskId> = self.panes.keys().copied().collect();
                    shown.into_iter().try_for_each(|id| self.lose_terminal(id))?;
                    self.list(ui)
                }
            },
            Received::Output(news) => {
                self.shown(*news);
                Ok(())
            }
            Received::Stopped(_) => Ok(()),
        }
    }

    fn event(&mut self, event: &Event, ui: &mut Ui) -> Result<(), ClientError> {
        let task = &event.task;
        if let Some(touched) = &mut self.touched {
            touched.insert(task.id);
        }
        if event.kind == EventKind::Cleared {
            ui.model.remove(self.host.task(task.id));
            self.panes.remove(&task.id);
            return Ok(());
        }
        if changes_terminal(event.kind) {
            self.lose_terminal(task.id)?;
        }
        self.clock.now = event.at;
        ui.model.put(self.host, task, &self.clock);
        ui.model.output_grew(self.host.task(task.id));
        if let Some(pane) = self.panes.get_mut(&task.id) {
            pane.is_stale = true;
            pane.end = task.output.bytes;
            pane.set_task(task);
        }
        Ok(())
    }

    /// Notes that the terminal of a task is gone, or may be that of another attempt, to which we are not attached.
    fn lose_terminal(&mut self, id: TaskId) -> Result<(), ClientError> {
        let was_attached = self.attached.contains(&id);
        if let Some(pane) = self.panes.get_mut(&id) {
            pane.has_no_screen = false;
            // The screen that was awaited may never be drawn.
            pane.is_asked &= !was_attached;
        }
        // The news may be late, and the terminal the one that it is about.
        if was_attached { self.detach(id) } else { Ok(()) }
    }

    fn answered(&mut self, asked: Asked, outcome: Outcome, ui: &mut Ui) -> Result<(), ClientError> {
        match asked {
            Asked::Page => self.listed(outcome, ui)?,
            Asked::Events => {
                Protocol::result::<EventsSubscribe>(outcome)?;
            }
            Asked::Nothing => {}
            Asked::Line(id) => line_read(self.host.task(id), outcome, ui)?,
            Asked::Pane(id) => self.pane_read(id, outcome)?,
            Asked::Screen(id) => {
                if let (Err(_), Some(pane)) = (outcome, self.panes.get_mut(&id)) {
                    // The task has ended meanwhile, so its output is shown instead.
                    self.attached.remove(&id);
                    (pane.has_no_screen, pane.is_stale, pane.is_asked) = (true, true, false);
                }
            }
            Asked::Usage => self.measured(outcome, ui)?,
            Asked::Search(id, stream, number) => self.searched(id, stream, number, outcome, ui)?,
            Asked::Act(words) => {
                let failed = |error| Failure::from(ClientError::Rpc(error)).message;
                ui.show_outcome(self.host, outcome.map(|_| words).map_err(failed));
            }
        }
        Ok(())
    }

    fn listed(&mut self, outcome: Outcome, ui: &mut Ui) -> Result<(), ClientError> {
        let page = Protocol::result::<TaskList>(outcome)?;
        let touched = self.touched.take().unwrap_or_default();
        ui.model.make_room(self.host, usize::try_from(page.summary.total()).unwrap_or(0));
        self.clock.now = Timestamp::now();
        for task in page.tasks.iter().filter(|task| !touched.contains(&task.id)) {
            ui.model.put_listed(self.host, task, &self.clock);
        }
        if page.next.is_some() {
            return self.page(page.next);
        }
        ui.model.end_listing(self.host);
        if std::mem::take(&mut self.lists_again) {
            return self.list(ui);
        }
        Ok(())
    }

    fn pane_read(&mut self, id: TaskId, outcome: Outcome) -> Result<(), ClientError> {
        let Some(pane) = self.panes.get_mut(&id) else { return Ok(()) };
        pane.is_asked = false;
        let raw = match outcome {
            Ok(raw) => raw,
            Err(error) => {
                pane.set_unreadable(&error.message);
                return Ok(());
            }
        };
        let answer = Protocol::result::<TaskOutput>(Ok(raw))?;
        pane.set_task(&answer.task);
        // With `split` this counts both outputs, and a short read marks the end.
        let is_all = (answer.next - answer.offset) < OUTPUT_CHUNK_BYTES.min(TAIL);
        pane.end = if is_all { answer.next } else { answer.task.output.bytes };
        if let Ok(bytes) = answer.encoding.decode(answer.data) {
            pane.set_output(answer.offset, &bytes);
        }
        Ok(())
    }

    /// Adds output of a task's terminal to its preview.
    fn shown(&mut self, news: OutputNews) {
        if let (Some(pane), Ok(bytes)) = (self.panes.get_mut(&news.id), news.encoding.decode(news.data)) {
            pane.is_asked = false;
            pane.set_screen(&bytes, news.redraw);
        }
    }

    /// Requests the data of visible tasks that is missing or stale, and detaches from tasks that are no longer visible.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn tend(&mut self, ui: &mut Ui, frame: &Frame) -> Result<(), ClientError> {
        self.tend_panes(ui, frame)?;
        let under_way = self.asked.values().filter(|asked| matches!(asked, Asked::Line(_))).count();
        let mut room = LINES.saturating_sub(under_way);
        let host = self.host;
        for key in frame.tasks.iter().filter(|key| key.host == host) {
            let is_running =
                ui.model.row(*key).is_some_and(|row| matches!(row.status, Status::Running | Status::Resumed));
            let is_known = ui.model.live(*key).is_some_and(|live| !live.is_stale);
            if room == 0 || !is_running || is_known {
                continue;
            }
            room -= 1;
            let known = ui.model.live(*key).cloned().unwrap_or_default();
            // Output that arrives meanwhile makes it stale again.
            ui.model.set_live(*key, Live { is_stale: false, ..known });
            self.call::<TaskOutput>(&output(key.id, -LINE_BYTES), Asked::Line(key.id))?;
        }
        if frame.shows_usage {
            self.tend_usage(ui, frame)?;
        }
        self.tend_search()
    }

    /// Requests the resource usage of the visible running tasks every other second, as no events report it.
    fn tend_usage(&mut self, ui: &Ui, frame: &Frame) -> Result<(), ClientError> {
        let running = |key: &&TaskKey| {
            ui.model.row(**key).is_some_and(|row| matches!(row.status, Status::Running | Status::Resumed))
        };
        let own = frame.tasks.iter().filter(|key| key.host == self.host);
        let ids: Vec<TaskId> =
            own.filter(running).map(|key| key.id).take(bgd_shared::limits::USAGES).collect();
        self.meter.keep(&ids);
        let is_asked = self.asked.values().any(|asked| matches!(asked, Asked::Usage));
        if ids.is_empty() || is_asked || !self.meter.is_due(Instant::now()) {
            return Ok(());
        }
        self.call::<TaskUsage>(&UsageParams { ids: refs(&ids) }, Asked::Usage)
    }

    fn measured(&mut self, outcome: Outcome, ui: &mut Ui) -> Result<(), ClientError> {
        // One of the tasks is gone, or the daemon is too old for this method: the next measurement may succeed.
        let Ok(raw) = outcome else { return Ok(()) };
        let now = Instant::now();
        for usage in Protocol::result::<TaskUsage>(Ok(raw))?.usages {
            let cpu = self.meter.percent(&usage, now);
            // In this case the last line still has to be requested.
            let unread = || Live { is_stale: true, ..Live::default() };
            let key = self.host.task(usage.id);
            let known = ui.model.live(key).cloned().unwrap_or_else(unread);
            ui.model.set_live(key, Live { cpu, memory_bytes: Some(usage.memory_bytes), ..known });
        }
        Ok(())
    }

    /// Has the previews read once more: the user, who comes back from another program, may have seen newer output there.
    pub fn read_again(&mut self) {
        self.reads_again.extend(self.panes.keys());
    }

    fn tend_panes(&mut self, ui: &Ui, frame: &Frame) -> Result<(), ClientError> {
        let own = frame.previews.iter().map(|(key, _)| key).filter(|key| key.host == self.host);
        let visible: HashSet<TaskId> = own.map(|key| key.id).collect();
        self.panes.retain(|id, _| visible.contains(id));
        self.reads_again.retain(|id| visible.contains(id));
        let left: Vec<TaskId> = self.attached.iter().filter(|id| !visible.contains(id)).copied().collect();
        for id in left {
            self.detach(id)?;
        }
        for id in visible {
            let key = self.host.task(id);
            let is_pinned = ui.model.pins().contains(&key);
            let pane = self.panes.entry(id).or_default();
            let has_screen = !pane.has_no_screen
                && ui.model.row(key).is_some_and(|row| row.has_terminal && row.status == Status::Running);
            let is_known = pane.is_known();
            if self.attached.contains(&id) {
                if is_known && !pane.is_asked && (!is_pinned || !has_screen) {
                    self.detach(id)?;
                }
                continue;
            }
            // An unpinned preview stays as it was when selected or come back to, once it has shown any output, until the
            // task has ended; a pinned one stays attached to its terminal.
            let has_ended = ui.model.row(key).is_some_and(|row| !row.status.is_active());
            let is_followed = is_pinned || has_ended || pane.is_blank();
            let is_needed = !is_known
                || (is_followed && pane.is_stale)
                || (is_pinned && has_screen)
                || self.reads_again.contains(&id);
            if pane.is_asked || !is_needed {
                continue;
            }
            self.reads_again.remove(&id);
            (pane.is_asked, pane.is_stale) = (true, false);
            if has_screen {
                self.attached.insert(id);
                self.call::<TaskAttach>(
                    &AttachParams { id: id.into(), rows: None, cols: None },
                    Asked::Screen(id),
                )?;
            } else {
                let offset = pane.continues_at();
                self.call::<TaskOutput>(&output(id, offset), Asked::Pane(id))?;
            }
        }
        Ok(())
    }

    fn detach(&mut self, id: TaskId) -> Result<(), ClientError> {
        self.attached.remove(&id);
        self.call::<TaskDetach>(&DetachParams { id: id.into(), background: false }, Asked::Nothing)
    }

    /// Starts a search in the outputs of these tasks, replacing the previous one; an empty text ends the search.
    /// Returns false if the text is too long.
    pub fn search(&mut self, text: &str, tasks: VecDeque<TaskId>) -> bool {
        self.searches += 1;
        self.search = if text.is_empty() { None } else { Search::begin(self.searches, text, tasks) };
        text.is_empty() || self.search.is_some()
    }

    /// Reports whether all tasks of the host are known.
    pub const fn is_listed(&self) -> bool {
        self.touched.is_none()
    }

    /// Returns the state of the search, if there is one.
    pub fn search_state(&self) -> Option<&State> {
        self.search.as_ref().map(|search| &search.state)
    }

    fn tend_search(&mut self) -> Result<(), ClientError> {
        while let Some(search) = &mut self.search {
            let Some(place) = search.next() else { break };
            let number = search.number;
            self.search_at(place, number)?;
        }
        Ok(())
    }

    fn search_at(&mut self, place: Position, number: u64) -> Result<(), ClientError> {
        let Position { id, stream, offset } = place;
        let params = OutputParams { limit: Some(PAGE), stream: Some(stream), ..output(id, offset) };
        self.call::<TaskOutput>(&params, Asked::Search(id, stream, number))
    }

    fn searched(
        &mut self,
        id: TaskId,
        stream: Stream,
        number: u64,
        outcome: Outcome,
        ui: &mut Ui,
    ) -> Result<(), ClientError> {
        let Some(search) = self.search.as_mut().filter(|search| search.number == number) else {
            return Ok(());
        };
        let mut more = None;
        if let Ok(raw) = outcome {
            let answer = Protocol::result::<TaskOutput>(Ok(raw))?;
            let (offset, next) = (answer.offset, answer.next);
            let known = &answer.task.output;
            let (size, is_split) = (known.bytes, known.stderr_path.is_some());
            let bytes = answer.encoding.decode(answer.data).unwrap_or_default();
            let (is_found, then) =
                search.take(id, stream, Page { offset, next, size, is_split, bytes: &bytes });
            if is_found {
                ui.model.find(self.host.task(id));
            }
            more = then;
        } else {
            // The task is gone, so nothing is found in it.
            search.skip(id);
        }
        more.map_or(Ok(()), |place| self.search_at(place, number))
    }

    /// Performs the action of a key.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn act(&mut self, act: &TaskCall<TaskId>, ui: &mut Ui) -> Result<(), ClientError> {
        let whom = |ids: &[TaskId]| match ids {
            [id] => id.short(),
            ids => format!("{} tasks", ids.len()),
        };
        let cancel = |ids: &[TaskId]| CancelParams { ids: refs(ids), ..CancelParams::default() };
        let select = |ids: &[TaskId]| SelectParams { ids: refs(ids), matching: None };
        match act {
            TaskCall::Cancel(ids) => {
                let words = format!("cancelling {}; SIGKILL follows after the grace period", whom(ids));
                ui.show_outcome(self.host, Ok(words));
                self.call::<TaskCancel>(&cancel(ids), Asked::Act(format!("cancelled {}", whom(ids))))
            }
            TaskCall::Kill(ids) => {
                let params =
                    CancelParams { signal: Some("KILL".to_owned()), grace_ms: Some(0), ..cancel(ids) };
                self.call::<TaskCancel>(&params, Asked::Act(format!("killed {}", whom(ids))))
            }
            TaskCall::Rerun(ids) => {
                let params = RerunParams { ids: refs(ids), ..RerunParams::default() };
                self.call::<TaskRerun>(&params, Asked::Act(format!("submitted {} again", whom(ids))))
            }
            TaskCall::Hold(ids) => {
                self.call::<TaskHold>(&select(ids), Asked::Act(format!("held {}", whom(ids))))
            }
            TaskCall::Release(ids) => {
                self.call::<TaskRelease>(&select(ids), Asked::Act(format!("released {}", whom(ids))))
            }
            TaskCall::Answer { task: id, request, option } => {
                let params = AnswerParams { id: (*id).into(), request: *request, option: option.clone() };
                self.call::<AgentAnswer>(&params, Asked::Act(format!("answered {}", id.short())))
            }
            TaskCall::Prompt(id, prompt) => {
                let params = ResumeParams {
                    id: (*id).into(),
                    prompt: prompt.clone(),
                    settings: bgd_shared::agent::AgentSettings::default(),
                };
                self.call::<TaskResume>(&params, Asked::Act(format!("sent the prompt to {}", id.short())))
            }
        }
    }
}

/// Reports whether a task has another terminal after this event, or none any more.
fn changes_terminal(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Started
            | EventKind::Retrying
            | EventKind::Completed
            | EventKind::Failed
            | EventKind::Cancelled
    )
}

fn refs(ids: &[TaskId]) -> Vec<TaskRef> {
    ids.iter().map(|id| (*id).into()).collect()
}

fn output(id: TaskId, offset: i64) -> OutputParams {
    OutputParams { id: id.into(), offset: Some(offset), limit: Some(TAIL), stream: None }
}

fn line_read(key: TaskKey, outcome: Outcome, ui: &mut Ui) -> Result<(), ClientError> {
    // The task is gone, so there is no line.
    let Ok(known) = outcome else { return Ok(()) };
    let answer = Protocol::result::<TaskOutput>(Ok(known))?;
    let line = answer.task.progress.last_line.as_deref().map(clean).unwrap_or_default();
    let known = ui.model.live(key).cloned().unwrap_or_default();
    ui.model.set_live(key, Live { percent: in_output(answer), line, ..known });
    Ok(())
}

#[cfg(test)]
mod tests;
