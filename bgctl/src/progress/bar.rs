//! Terminal progress for a caller that waits for tasks (R114): a bar for several tasks, the last output line for one.
//! Drawn on standard error on each update and once per second, and erased at the end.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::show::elapsed;
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::progress::percent::osc94_sequence;
use crate::render::clean;
use crate::render::list_format::is_dumb;
use crate::render::table::{run_time, status};
use crate::render::wall::Clock;

/// How often the elapsed time is redrawn.
pub const TICK: Duration = Duration::from_secs(1);

/// Template of the bar for several tasks; the bar is 30 columns wide.
const BAR: &str = "[{bar:30}] {wide_msg}";

/// Returns whether standard error is a terminal that supports redrawing.
pub fn is_drawable() -> bool {
    io::stderr().is_terminal() && !is_dumb()
}

/// Reports whether standard error accepts output without blocking.
fn is_ready() -> bool {
    let errors = io::stderr();
    poll(&mut [PollFd::new(errors.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO) == Ok(1)
}

/// A progress display on standard error, erased on drop.
pub struct Bar {
    drawn: ProgressBar,
    state: State,
    clock: Clock,
}

enum State {
    /// A task.
    One(Box<Task>, Percent),
    Many(Many),
}

/// Progress of several tasks.
#[derive(Debug)]
struct Many {
    statuses: HashMap<TaskId, Status>,
    /// The tasks that ask their user something.
    asking: BTreeSet<TaskId>,
    begun: Instant,
    /// Number of tasks that had already ended at `begun`.
    ended_before: usize,
    percent: Percent,
}

/// A progress in percent, and the one that the terminal shows; it may accept none for a while.
#[derive(Debug, Default)]
struct Percent {
    current: Cell<Option<u8>>,
    sent: Cell<Option<u8>>,
}

impl Percent {
    /// Sends the current progress to a terminal that accepts output, unless it shows that.
    fn send(&self) {
        let current = self.current.get();
        if self.sent.replace(current) != current {
            send_progress(current);
        }
    }
}

impl Bar {
    /// Starts drawing `tasks`, of which at least one is still active.
    pub fn begin(tasks: &[Task]) -> Self {
        let state = match tasks {
            [task] => State::One(Box::new(task.clone()), Percent::default()),
            _ => State::Many(Many::new(tasks, Instant::now())),
        };
        let (length, form) = match &state {
            State::One(..) => (None, "{wide_msg}"),
            State::Many(many) => (Some(many.statuses.len() as u64), BAR),
        };
        let drawn = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
        drawn.set_style(style.progress_chars("=> "));
        let bar = Self { drawn, state, clock: Clock::system(Timestamp::now()) };
        bar.draw();
        bar
    }

    /// Updates the displayed tasks; ignores all others.
    pub fn update<'a>(&mut self, tasks: impl IntoIterator<Item = &'a Task>) {
        for task in tasks {
            match &mut self.state {
                State::One(known, _) if known.id == task.id => **known = task.clone(),
                State::One(..) => {}
                State::Many(many) => {
                    if many.statuses.contains_key(&task.id) {
                        many.note(task);
                    }
                }
            }
        }
    }

    /// Stores the progress of the only task, and sends it to the terminal (OSC 9;4, R165).
    pub fn set_percent(&mut self, percent: Option<u8>) {
        if let State::One(_, known) = &self.state {
            known.current.set(percent);
            if is_ready() {
                known.send();
            }
        }
    }

    /// Redraws the current state, unless the terminal accepts no output now, for example after Ctrl-S.
    pub fn draw(&self) {
        if !is_ready() {
            return;
        }
        match &self.state {
            State::One(task, percent) => {
                let clock = self.clock.at(Timestamp::now());
                self.drawn.set_message(of_one(task, percent.current.get(), &clock));
                percent.send();
            }
            State::Many(many) => {
                let ended = many.count(|status| !status.is_active());
                self.drawn.set_position(ended as u64);
                let percent = u8::try_from(ended * 100 / many.statuses.len().max(1)).ok();
                many.percent.current.set(percent);
                many.percent.send();
                self.drawn.set_message(many.words(Instant::now()));
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if !is_ready() {
            self.drawn.set_draw_target(ProgressDrawTarget::hidden());
            return;
        }
        self.drawn.finish_and_clear();
        let (State::One(_, percent) | State::Many(Many { percent, .. })) = &self.state;
        percent.current.set(None);
        percent.send();
    }
}

/// Sends the progress to the terminal, which may show it in its title or taskbar.
fn send_progress(percent: Option<u8>) {
    // Standard error may be closed; nothing depends on it.
    let _ = io::stderr().write_all(osc94_sequence(percent).as_bytes());
}

/// Formats the run time with the question or the last output line; a pending task shows what it waits for.
fn of_one(task: &Task, percent: Option<u8>, clock: &Clock) -> String {
    if task.status == Status::Pending {
        return status(task, clock);
    }
    if let Some(asked) = &task.progress.needs_input {
        let question = clean(&asked.question);
        return format!("{} asks (bgctl answer {}): {question}", run_time(task, clock.now), task.id.short());
    }
    let line = task.progress.last_line.as_deref().map(clean).unwrap_or_default();
    let percent = percent.map_or_else(String::new, |percent| format!("{percent}% "));
    format!(
        "{} {percent}{}",
        run_time(task, clock.now),
        if line.is_empty() { clean(&task.description) } else { line }
    )
}

impl Many {
    fn new(tasks: &[Task], begun: Instant) -> Self {
        let mut many = Self {
            statuses: HashMap::new(),
            asking: BTreeSet::new(),
            begun,
            ended_before: 0,
            percent: Percent::default(),
        };
        for task in tasks {
            many.note(task);
        }
        many.ended_before = many.count(|status| !status.is_active());
        many
    }

    fn note(&mut self, task: &Task) {
        self.statuses.insert(task.id, task.status);
        if task.progress.needs_input.is_some() {
            self.asking.insert(task.id);
        } else {
            self.asking.remove(&task.id);
        }
    }

    fn count(&self, is_so: impl Fn(Status) -> bool) -> usize {
        self.statuses.values().filter(|status| is_so(**status)).count()
    }

    /// Formats the counts, such as `37/100, 2 failed, 4 running, about 3m`.
    fn words(&self, now: Instant) -> String {
        let all = self.statuses.len();
        let ended = self.count(|status| !status.is_active());
        let asks = |id: &TaskId| format!("{0} asks (bgctl answer {0})", id.short());
        // First, as the line may be cut at its end.
        let mut words: Vec<String> = self.asking.first().map(asks).into_iter().collect();
        words.push(format!("{ended}/{all}"));
        for (count, name) in [
            (self.count(|status| status == Status::Failed), "failed"),
            (self.count(|status| status == Status::Cancelled), "cancelled"),
            (self.count(|status| matches!(status, Status::Running | Status::Resumed)), "running"),
        ] {
            if count > 0 {
                words.push(format!("{count} {name}"));
            }
        }
        words.extend(self.left(ended, now).map(|ms| format!("about {}", about(ms))));
        words.join(", ")
    }

    /// Estimates the remaining time in milliseconds from the rate at which tasks have ended since `begun`; `None` if no
    /// task has ended.
    fn left(&self, ended: usize, now: Instant) -> Option<u64> {
        let since = u64::try_from(now.saturating_duration_since(self.begun).as_millis()).ok()?;
        let seen = u64::try_from(ended.checked_sub(self.ended_before)?).ok()?;
        let active = u64::try_from(self.statuses.len() - ended).ok()?;
        since.checked_mul(active)?.checked_div(seen)
    }
}

/// Formats an estimated duration in a single unit: more would suggest a precision that the estimate lacks.
fn about(ms: u64) -> String {
    match ms.saturating_add(500) / 1000 {
        seconds @ ..90 => format!("{seconds}s"),
        seconds @ ..5400 => format!("{}m", (seconds + 30) / 60),
        seconds @ ..172_800 => format!("{}h", (seconds + 1800) / 3600),
        _ => elapsed(ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    fn tasks(statuses: &[Status]) -> Vec<Task> {
        let task = |(number, status): (usize, &Status)| Task {
            id: TaskId::from_u128(number as u128),
            status: *status,
            ..samples::task()
        };
        statuses.iter().enumerate().map(task).collect()
    }

    #[test]
    fn r114_bar_of_many_tasks_counts_them_and_estimates_time_left() {
        use Status::{Cancelled, Completed, Failed, Pending, Running};
        let begun = Instant::now();
        let all = tasks(&[Completed, Running, Pending, Pending, Pending]);
        let mut many = Many::new(&all, begun);
        let later = begun + Duration::from_secs(100);
        assert_eq!(many.words(later), "1/5, 1 running", "nothing has ended since");
        many.statuses.insert(all[1].id, Failed);
        many.statuses.insert(all[2].id, Cancelled);
        assert_eq!(many.words(later), "3/5, 1 failed, 1 cancelled, about 2m");
        many.statuses.insert(all[3].id, Running);
        assert_eq!(many.words(begun), "3/5, 1 failed, 1 cancelled, 1 running, about 0s");
        many.asking.insert(all[3].id);
        let id = all[3].id.short();
        let asks = format!("{id} asks (bgctl answer {id}), 3/5, 1 failed");
        assert!(many.words(begun).starts_with(&asks), "{}", many.words(begun));
        many.note(&Task { status: Status::Completed, ..all[3].clone() });
        assert_eq!(many.words(begun), "4/5, 1 failed, 1 cancelled, about 0s");
    }

    #[test]
    fn r114_estimate_has_one_unit() {
        let shown = [0, 89_499, 89_500, 170_000, 5_399_000, 5_400_000, 172_799_000].map(about);
        assert_eq!(shown, ["0s", "89s", "2m", "3m", "90m", "2h", "48h"]);
    }

    #[test]
    fn r114_bar_of_one_task_shows_time_percent_and_last_line() {
        let clock = Clock::of_tests();
        let mut task = samples::task();
        assert_eq!(of_one(&task, None, &clock), "pending");
        task.status = Status::Running;
        task.started_at = Some(Timestamp::from_unix_ms(1_035_000));
        assert_eq!(of_one(&task, None, &clock), "1m 05s make -j8");
        task.progress.last_line = Some("CC\x1b x.c".into());
        assert_eq!(of_one(&task, None, &clock), "1m 05s CC\u{fffd} x.c");
        assert_eq!(of_one(&task, Some(42), &clock), "1m 05s 42% CC\u{fffd} x.c");
        task.progress.needs_input = Some(samples::question());
        let shown = of_one(&task, None, &clock);
        assert!(shown.starts_with("1m 05s asks (bgctl answer ") && shown.contains("): "), "{shown}");
    }
}
