//! The handling of keys. A key changes the state, or requests something from outside: a call, a verb, the end. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use bgd_shared::task::Status;

use super::keys::Key;
use super::model::{Head, Model, Spot};
use super::row::Row;
use super::task_call::TaskCall;
use super::task_key::{HostNo, TaskKey};
use crate::options;

/// Maximum number of characters of a typed line.
const LINE_CHARS: usize = 4096;

/// What a key for tasks says if no task is selected, for example on a heading.
const NO_TASK: &str = "select a task first";

/// A request to the surroundings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// A call to the daemon.
    Call(TaskCall),
    /// A verb of `bgctl` with its arguments, which gets the terminal. Without a host, the arguments name one.
    Verb(Option<HostNo>, Vec<String>),
    /// An immediate attempt to connect to a host that does not answer.
    Retry(HostNo),
    /// Show the output of a task in the pager.
    Page(TaskKey),
    /// Search the outputs of all tasks; an empty text ends the search.
    Search(String),
    /// Stop the process, as Ctrl-Z does.
    Stop,
    /// Redraw everything.
    Redraw,
    Quit,
}

/// The current meaning of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    List,
    /// A line is being typed.
    Typing(Line, String),
    /// A confirmation before something ends work.
    Confirm(String, Want),
    /// The keys are shown, starting with this line.
    Help(usize),
    /// A graph is shown, starting with this line.
    Graph(Vec<String>, usize),
    /// The whole question of a task's agent is shown.
    Question(Question),
}

/// The place in a question that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub task: TaskKey,
    /// The number of the question; another one is shown from its beginning.
    pub request: u64,
    /// The first line that is shown.
    pub at: usize,
}

/// The purpose of a typed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Filter,
    /// A search in outputs.
    Search,
    /// A prompt to this task's agent.
    Prompt(TaskKey),
    /// A verb for this host. `None`: the verb names a host itself.
    Verb(Option<HostNo>),
}

/// How the preview is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preview {
    /// Beside the list if there is room.
    #[default]
    Auto,
    /// Always, below the list if there is no room beside it.
    On,
    Off,
}

/// The state of the live view, with its key handling.
#[derive(Debug)]
pub struct Ui {
    pub model: Model,
    pub mode: Mode,
    pub preview: Preview,
    /// A message shown until the next key.
    pub note: Option<String>,
    /// The outcomes of the last calls, by host; `Err` holds the error message.
    pub outcomes: BTreeMap<HostNo, Result<String, String>>,
    /// The search in progress or completed, over all hosts.
    pub search: Option<super::search::State>,
    /// Whether no keys can be pressed, as only a single frame is printed.
    pub is_still: bool,
    /// The number of rows for a text that covers the list, in the last frame.
    pub rows: usize,
    /// The task and the number of the question of which the last frame showed the end, or all.
    pub question_shown: Option<(TaskKey, u64)>,
    /// The part of a question that the last frame showed.
    pub question_drawn: Option<Question>,
    /// The screen row of the first list line, and the lines drawn last.
    pub drawn: (u16, Vec<Spot>),
}

impl Ui {
    pub fn new(model: Model) -> Self {
        Self {
            model,
            mode: Mode::List,
            preview: Preview::Auto,
            note: None,
            outcomes: BTreeMap::new(),
            search: None,
            is_still: false,
            question_shown: None,
            question_drawn: None,
            rows: 0,
            drawn: (0, Vec::new()),
        }
    }

    /// Handles a key. Returns the request to the surroundings, if any.
    pub fn key(&mut self, key: Key) -> Option<Want> {
        self.note = None;
        self.outcomes.clear();
        if key == Key::Ctrl('z') {
            return Some(Want::Stop);
        }
        match std::mem::take(&mut self.mode) {
            Mode::List => self.in_list(key),
            Mode::Typing(line, text) => self.in_line(line, text, key),
            Mode::Confirm(question, want) => match key {
                Key::Char('y') => {
                    self.model.unmark();
                    Some(want)
                }
                Key::Char('n' | 'q') | Key::Escape | Key::Enter | Key::Ctrl('c') => None,
                _ => {
                    self.mode = Mode::Confirm(question, want);
                    None
                }
            },
            Mode::Help(at) => {
                self.mode = self.scrolled(at, &key).map_or(Mode::List, Mode::Help);
                None
            }
            Mode::Graph(lines, at) => {
                let most = lines.len().saturating_sub(1);
                let at = self.scrolled(at, &key);
                self.mode = at.map_or(Mode::List, |at| Mode::Graph(lines, at.min(most)));
                None
            }
            Mode::Question(question) => match key {
                Key::Char('y') => self.allow(question.task, Some(question)),
                Key::Char('n') => self.answer(question.task, "deny"),
                key => {
                    let at = self.scrolled(question.at, &key);
                    self.mode = at.map_or(Mode::List, |at| Mode::Question(Question { at, ..question }));
                    None
                }
            },
        }
    }

    /// Shows the outcome of a call to a host. With several hosts, their messages are combined, failures first.
    pub fn show_outcome(&mut self, host: HostNo, outcome: Result<String, String>) {
        if !self.model.is_several() {
            self.note = Some(outcome.unwrap_or_else(|failed| failed));
            return;
        }
        self.outcomes.insert(host, outcome);
        let words = |is_failed: bool| {
            let outcomes = self.outcomes.iter().filter(move |(_, outcome)| outcome.is_err() == is_failed);
            outcomes.map(|(host, Ok(words) | Err(words))| format!("{}: {words}", self.model.host_name(*host)))
        };
        self.note = Some(words(true).chain(words(false)).collect::<Vec<_>>().join("; "));
    }

    fn in_list(&mut self, key: Key) -> Option<Want> {
        let page = isize::try_from(self.drawn.1.len().max(2) - 1).unwrap_or(1);
        match key {
            Key::Up | Key::Char('k') => self.model.move_by(-1),
            Key::Down | Key::Char('j') => self.model.move_by(1),
            Key::PageUp => self.model.move_by(-page),
            Key::PageDown => self.model.move_by(page),
            Key::Home => self.model.select_end(false),
            Key::End | Key::Char('G') => self.model.select_end(true),
            Key::Wheel(lines) => self.model.move_by(lines),
            Key::Click(row, _) => self.click(row),
            Key::Left => self.model.fold(true),
            Key::Right => self.model.fold(false),
            Key::Tab => {
                self.model.fold_by_next();
                self.note = Some(format!("folded by {}", self.model.by().name()));
            }
            Key::Char(' ') => self.model.mark(),
            Key::Char('f') => self.pin(),
            Key::Char('v') => {
                self.preview = if self.preview == Preview::Off { Preview::On } else { Preview::Off };
            }
            Key::Char('/') => self.mode = Mode::Typing(Line::Filter, self.model.filter().to_owned()),
            Key::Char('?') => self.mode = Mode::Typing(Line::Search, String::new()),
            Key::Char(':') => self.mode = Mode::Typing(Line::Verb(self.target()), String::new()),
            Key::Char('g') => self.show_graph(),
            Key::Help => self.mode = Mode::Help(0),
            Key::Escape => return self.escape(),
            Key::Char('q') | Key::Ctrl('c') => return Some(Want::Quit),
            Key::Ctrl('l') => return Some(Want::Redraw),
            key => return self.on_tasks(&key),
        }
        None
    }

    /// Returns the first line to show of a text that covers the list, after a key. `None` if the key closes the text.
    fn scrolled(&self, at: usize, key: &Key) -> Option<usize> {
        let page = self.rows.max(1);
        match key {
            Key::Down | Key::Char('j') => Some(at.saturating_add(1)),
            Key::Up | Key::Char('k') => Some(at.saturating_sub(1)),
            Key::PageDown => Some(at.saturating_add(page)),
            Key::PageUp => Some(at.saturating_sub(page)),
            Key::Wheel(lines) => Some(at.saturating_add_signed(*lines)),
            _ => None,
        }
    }

    /// Handles the keys that act on tasks.
    fn on_tasks(&mut self, key: &Key) -> Option<Want> {
        if let (Key::Enter, Some(Spot::Head(head))) = (key, self.model.selected()) {
            if let Head::Host(host) = head
                && self.model.silence(*host).is_some()
            {
                return Some(Want::Retry(*host));
            }
            let is_folded = self.model.is_folded(head);
            self.model.fold(!is_folded);
            return None;
        }
        match key {
            Key::Enter => self.open(),
            Key::Char('o') => {
                let key = self.one()?;
                self.model.see(key);
                Some(Want::Page(key))
            }
            Key::Char('y') => self.one().and_then(|task| self.allow(task, None)),
            Key::Char('n') => self.one().and_then(|task| self.answer(task, "deny")),
            Key::Char('p') => self.prompt(),
            Key::Char('r') => self.rerun(),
            Key::Char('x') => self.end("cancel", TaskCall::Cancel),
            Key::Char('X') => self.end("kill", TaskCall::Kill),
            Key::Char('h') => self.hold(),
            _ => None,
        }
    }

    /// Returns the selected task; shows a message if there is none.
    fn one(&mut self) -> Option<TaskKey> {
        let key = self.model.selected_task();
        if key.is_none() {
            self.note = Some(NO_TASK.to_owned());
        }
        key
    }

    fn click(&mut self, row: u16) {
        let (first, lines) = &self.drawn;
        let at = row.checked_sub(*first).and_then(|row| lines.get(usize::from(row)));
        if let Some(spot) = at.cloned() {
            self.model.select(&spot);
        }
    }

    fn pin(&mut self) {
        if !self.model.pin() {
            self.note = Some("at most 4 previews can be pinned: press f on one to unpin it".to_owned());
        } else if !self.model.pins().is_empty() && self.preview == Preview::Off {
            self.preview = Preview::On;
        }
    }

    fn open(&mut self) -> Option<Want> {
        let key = self.one()?;
        self.model.see(key);
        let is_running =
            self.model.row(key).is_some_and(|row| matches!(row.status, Status::Running | Status::Resumed));
        if is_running {
            return Some(Want::Verb(Some(key.host), vec!["attach".to_owned(), key.id.to_string()]));
        }
        Some(Want::Page(key))
    }

    /// Allows what a task's agent asks if the last frame showed the end of this question; else shows it, or its next
    /// page: nobody is to allow what nobody could read.
    fn allow(&mut self, task: TaskKey, shown: Option<Question>) -> Option<Want> {
        let asked = self.model.row(task).and_then(|row| row.question.as_deref());
        let Some(request) = asked.map(|asked| asked.request) else { return self.answer(task, "allow") };
        if self.question_shown == Some((task, request)) {
            return self.answer(task, "allow");
        }
        let question = match shown.filter(|shown| shown.request == request) {
            // Each page is drawn before the next one, however fast the key repeats.
            Some(shown) if self.question_drawn == Some(shown) => {
                Question { at: shown.at.saturating_add(self.rows), ..shown }
            }
            Some(shown) => shown,
            None => Question { task, request, at: 0 },
        };
        self.mode = Mode::Question(question);
        None
    }

    /// Answers the question of a task's agent. The option is chosen by the same rule as in `bgctl answer`.
    fn answer(&mut self, key: TaskKey, word: &str) -> Option<Want> {
        let Some(asked) = self.model.row(key).and_then(|row| row.question.as_deref()) else {
            self.note = Some("this task has no open question".to_owned());
            return None;
        };
        match options::pick(&asked.options, word) {
            Ok(option) => Some(Want::Call(TaskCall::Answer {
                task: key,
                request: asked.request,
                option: option.map(|option| option.id.clone()),
            })),
            Err(why) => {
                self.note = Some(format!("{why}; see `bgctl answer {}`", key.short()));
                None
            }
        }
    }

    fn prompt(&mut self) -> Option<Want> {
        let key = self.one()?;
        let row = self.model.row(key)?;
        match (row.is_agent, row.status) {
            (true, Status::Completed) => self.mode = Mode::Typing(Line::Prompt(key), String::new()),
            (true, _) => self.note = Some("a prompt needs a completed agent task".to_owned()),
            (false, _) => self.note = Some("this task runs a command; only agents get prompts".to_owned()),
        }
        None
    }

    fn rerun(&mut self) -> Option<Want> {
        let keys = self.chosen_where(|row| !row.status.is_active(), "only ended tasks can be rerun")?;
        self.model.unmark();
        Some(Want::Call(TaskCall::Rerun(keys)))
    }

    /// Returns the chosen tasks of which this holds. If there are none, shows `why_not`; if no task is chosen at all,
    /// shows that.
    fn chosen_where(&mut self, is_so: impl Fn(&Row) -> bool, why_not: &str) -> Option<Vec<TaskKey>> {
        let chosen = self.model.chosen();
        if chosen.is_empty() {
            self.note = Some(NO_TASK.to_owned());
            return None;
        }
        let is_chosen = |key: &TaskKey| self.model.row(*key).is_some_and(&is_so);
        let keys: Vec<TaskKey> = chosen.into_iter().filter(is_chosen).collect();
        if keys.is_empty() {
            self.note = Some(why_not.to_owned());
            return None;
        }
        Some(keys)
    }

    fn end(&mut self, what: &str, act: fn(Vec<TaskKey>) -> TaskCall) -> Option<Want> {
        let keys = self.chosen_where(Row::can_be_cancelled, "no task is selected that can be cancelled")?;
        let whom = match &keys[..] {
            [key] => format!("{} {}", key.short(), self.model.row(*key).map_or("", |row| &row.description)),
            keys => format!("{} tasks", keys.len()),
        } + &self.on_hosts(&keys);
        self.mode = Mode::Confirm(format!("{what} {whom}? y/n"), Want::Call(act(keys)));
        None
    }

    /// Holds pending tasks, or releases them if the first one is held.
    fn hold(&mut self) -> Option<Want> {
        let keys =
            self.chosen_where(|row| row.status == Status::Pending, "only pending tasks can be held")?;
        let is_held = self.model.row(keys[0]).is_some_and(|row| row.is_held);
        self.model.unmark();
        Some(Want::Call(if is_held { TaskCall::Release(keys) } else { TaskCall::Hold(keys) }))
    }

    /// Ends the search, else removes the marks, else clears the filter.
    fn escape(&mut self) -> Option<Want> {
        if self.search.is_some() {
            return Some(Want::Search(String::new()));
        }
        if !self.model.unmark() {
            self.model.set_filter("");
        }
        None
    }

    fn show_graph(&mut self) {
        if let Some(key) = self.one() {
            self.mode = Mode::Graph(super::graph::lines(&self.model, key), 0);
        }
    }

    fn in_line(&mut self, line: Line, mut text: String, key: Key) -> Option<Want> {
        match key {
            Key::Char(c) if text.chars().count() < LINE_CHARS => text.push(c),
            Key::Paste(paste) => {
                let room = LINE_CHARS.saturating_sub(text.chars().count());
                text.extend(paste.chars().take(room));
            }
            Key::Backspace if !text.is_empty() => {
                text.pop();
            }
            Key::Ctrl('u') => text.clear(),
            Key::Ctrl('w') => {
                let kept = text.trim_end().rfind(' ').map_or(0, |at| at + 1);
                text.truncate(kept);
            }
            Key::Escape | Key::Ctrl('c') | Key::Backspace => {
                if line == Line::Filter {
                    self.model.set_filter("");
                }
                return None;
            }
            Key::Enter => return self.entered(line, text),
            _ => {}
        }
        if line == Line::Filter {
            self.model.set_filter(&text);
            self.model.filter().clone_into(&mut text);
        }
        self.mode = Mode::Typing(line, text);
        None
    }

    fn entered(&mut self, line: Line, text: String) -> Option<Want> {
        match line {
            Line::Filter => None,
            Line::Search => Some(Want::Search(text)),
            _ if text.trim().is_empty() => None,
            Line::Prompt(key) => Some(Want::Call(TaskCall::Prompt(key, text))),
            Line::Verb(host) => self.verb(host, &text),
        }
    }

    /// Returns the only host of the chosen tasks, or that of the selected heading.
    fn target(&self) -> Option<HostNo> {
        if !self.model.is_several() {
            return self.model.hosts().next();
        }
        let hosts: BTreeSet<HostNo> = self.model.chosen().iter().map(|key| key.host).collect();
        match (hosts.len(), self.model.selected()) {
            (1, _) => hosts.first().copied(),
            (0, Some(Spot::Head(Head::Host(host)))) => Some(*host),
            _ => None,
        }
    }

    /// Returns the host prefix for the confirmation of a verb. `None` if neither the view nor the verb names a host.
    fn prefix(&self, host: Option<HostNo>, words: &[String]) -> Option<String> {
        match host {
            Some(host) if self.model.is_several() => Some(format!("-H {} ", self.model.host_name(host))),
            Some(_) => Some(String::new()),
            None => super::words::names_host(words).then(String::new),
        }
    }

    /// Describes the hosts of these tasks for a confirmation; empty if there is only one host in the view.
    fn on_hosts(&self, keys: &[TaskKey]) -> String {
        let hosts: BTreeSet<HostNo> = keys.iter().map(|key| key.host).collect();
        match hosts.first() {
            Some(host) if self.model.is_several() && hosts.len() == 1 => {
                format!(" on {}", self.model.host_name(*host))
            }
            Some(_) if self.model.is_several() => format!(" on {} hosts", hosts.len()),
            _ => String::new(),
        }
    }

    /// Runs a typed verb; asks for confirmation first if it ends work.
    fn verb(&mut self, host: Option<HostNo>, text: &str) -> Option<Want> {
        let mut words = match super::words::split(text) {
            Ok(words) => words,
            Err(why) => {
                self.note = Some(why);
                return None;
            }
        };
        if words.is_empty() {
            return None;
        }
        if words.first().is_some_and(|word| word == "bgctl") {
            words.remove(0);
        }
        let host = host.filter(|_| !super::words::names_host(&words));
        let Some(prefix) = self.prefix(host, &words) else {
            self.note = Some("on which host? select a task there, or name it: `:-H HOST VERB`".to_owned());
            return None;
        };
        let asks = super::words::ends_work(&words);
        let want = Want::Verb(host, words);
        if asks {
            let text = text.trim();
            let named = text.strip_prefix("bgctl ").unwrap_or(text);
            self.mode = Mode::Confirm(format!("bgctl {prefix}{named}? y/n"), want);
            return None;
        }
        Some(want)
    }
}

#[cfg(test)]
mod tests;
