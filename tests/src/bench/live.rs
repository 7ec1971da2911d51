//! The cost of `bgctl top`: its first frame, frames and memory with many tasks, and how it follows a burst (R163).

use std::time::{Duration, Instant};

use bgd_shared::id::TaskRef;
use bgd_shared::request::{CancelParams, SubmitManyParams, TaskCancel, TaskSubmitMany};

use super::pipeline::trivial;
use super::report::{Figure, Row, Target, Unit};
use super::stats::{float, micros};
use super::timing::timed;
use super::{Bench, Result};
use crate::{Process, Terminal, TestDaemon};

/// Times one frame against a list of the same tasks, as whole processes.
pub fn frame(daemon: &TestDaemon, tasks: usize, bench: &Bench) -> Result<Row> {
    let output = daemon.home().join("printed");
    let (mut list, mut top) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(5, 20) {
        list.push(micros(timed(&mut daemon.bgctl(&["list", "--all"]), &output)?.0));
        top.push(micros(timed(&mut daemon.bgctl(&["top", "--once"]), &output)?.0));
    }
    Ok(Row::new(format!("bgctl top --once with {tasks} tasks, whole process"))
        .peer_samples("bgctl list --all", &list, Unit::Micros)
        .bgd_samples(&top, Unit::Micros)
        .target(Target::RatioAtMost(2.0)))
}

/// Times the live view in a terminal, from its start until it has listed all tasks, against a list of the same tasks.
pub fn start(daemon: &TestDaemon, tasks: usize, bench: &Bench) -> Result<Row> {
    let output = daemon.home().join("printed");
    let (mut list, mut top) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(5, 20) {
        list.push(micros(timed(&mut daemon.bgctl(&["list", "--all"]), &output)?.0));
        let begin = Instant::now();
        let mut live = Terminal::bgctl(daemon, &["top"]);
        live.wait_text(&format!("{tasks} done"));
        top.push(micros(begin.elapsed()));
    }
    Ok(Row::new(format!("bgctl top with {tasks} tasks, start to all of them in a terminal"))
        .peer_samples("bgctl list --all", &list, Unit::Micros)
        .bgd_samples(&top, Unit::Micros)
        .target(Target::RatioAtMost(2.0)))
}

/// A live view, with its processor time at the last look.
struct Watched {
    top: Terminal,
    process: Process,
    used: Duration,
}

impl Watched {
    fn begin(daemon: &TestDaemon, tasks: usize) -> Result<Self> {
        let mut top = Terminal::bgctl(daemon, &["top"]);
        top.wait_text(&format!("{tasks} done"));
        let process = top.process();
        let used = process.first_thread_time().ok_or("the view has ended")?;
        Ok(Self { top, process, used })
    }

    /// Types keys, waits until `is_so` holds for the screen, and returns the processor time since the screen before, in
    /// microseconds: on a busy machine, most of the elapsed time is spent on other programs.
    fn press(&mut self, keys: &str, is_so: impl Fn(&vt100::Screen) -> bool) -> Result<f64> {
        self.top.type_keys(keys);
        self.top.wait(keys, is_so);
        let before =
            std::mem::replace(&mut self.used, self.process.first_thread_time().ok_or("it has ended")?);
        Ok(micros(self.used.saturating_sub(before)))
    }

    /// Like [`Self::press`], until the screen has this text.
    fn press_for(&mut self, keys: &str, text: &str) -> Result<f64> {
        self.press(keys, |screen| screen.contents().contains(text))
    }

    /// Like [`Self::press`], until the screen differs from the one before.
    fn press_for_change(&mut self, keys: &str) -> Result<f64> {
        let before = self.top.emulated().contents_formatted();
        self.press(keys, |screen| screen.contents_formatted() != before)
    }
}

/// Measures a live view that has listed all tasks: its memory, and the processor time from a key to its frame.
pub fn many(daemon: &TestDaemon, tasks: usize, bench: &Bench) -> Result<Vec<Row>> {
    let mut top = Watched::begin(daemon, tasks)?;
    let (mut moves, mut orders, mut filters) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.of(3, 20) {
        // An arrow, a page, both ends, the help.
        for keys in ["\x1b[B", "\x1b[6~", "\x1b[F", "\x1b[5~", "\x1b[H", "\x1bOP", "q"] {
            moves.push(top.press_for_change(keys)?);
        }
        for name in ["session", "group", "batch", "dependency", "status"] {
            orders.push(top.press_for("\t", &format!("\nfolded by {name}"))?);
        }
        top.press("/", |screen| screen.contents().trim_end().ends_with("\n/"))?;
        for part in ["t", "tr", "tru", "true"] {
            filters.push(top.press_for(&part[part.len() - 1..], &format!("/{part} ("))?);
        }
        top.press_for("\x15\r", "F1 help")?;
    }
    let most = top.process.status_value("VmHWM").ok_or("the view has ended")?;
    let row = |what: &str, times: &[f64]| {
        Row::new(format!("bgctl top with {tasks} tasks: processor time of {what}"))
            .bgd_samples(times, Unit::Micros)
            .target(Target::AtMost(16_000.0, Unit::Micros))
    };
    Ok(vec![
        row("an arrow, a page, an end, the help", &moves),
        row("Tab", &orders),
        row("a letter of a filter", &filters),
        Row::new(format!("memory of bgctl top with {tasks} tasks, at most"))
            .bgd(Figure::new(float(most * 1024), Unit::Bytes))
            .target(Target::AtMost(60e6, Unit::Bytes)),
    ])
}

/// Measures how many events a second a live view processes: those of a batch that is held, and cancelled at once.
pub fn burst(bench: &Bench) -> Result<Row> {
    let count = bench.of(2_000, 10_000);
    let daemon = TestDaemon::start();
    let mut top = Terminal::bgctl(&daemon, &["top"]);
    top.wait_text("no tasks");
    let begin = Instant::now();
    let task = bgd_shared::request::SubmitParams { argv: None, hold: true, ..trivial(&daemon) };
    let argvs = vec![vec!["true".into()]; count];
    let params = SubmitManyParams { task: Some(Box::new(task)), argvs, ..SubmitManyParams::default() };
    let ids: Vec<TaskRef> =
        daemon.client().call::<TaskSubmitMany>(&params)?.ids.into_iter().map(TaskRef::from).collect();
    for part in ids.chunks(1000) {
        daemon
            .client()
            .call::<TaskCancel>(&CancelParams { ids: part.to_vec(), ..CancelParams::default() })?;
    }
    top.wait_text(&format!("nothing needs you | {count} done\n"));
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Row::new(format!("{} events in a burst, until bgctl top shows the end", 2 * count))
        .bgd(Figure::new(seconds, Unit::Seconds))
        .target(Target::AtMost(float(2 * count as u64) / 10_000.0, Unit::Seconds))
        .note("10,000 events a second; held tasks that are submitted and cancelled at once"))
}
