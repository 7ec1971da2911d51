//! The result of a soak.

use std::fmt;

use super::Kind;
use crate::process::Process;

/// Resources of the daemon's process, while there are no tasks.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Private memory, in KiB.
    pub memory: u64,
    pub descriptors: u64,
    pub threads: u64,
}

impl Figures {
    pub fn of(daemon: &Process) -> Self {
        let descriptors = std::fs::read_dir(daemon.proc("fd")).expect("its descriptors").count();
        Self {
            memory: daemon.own_memory_kb(),
            descriptors: descriptors as u64,
            threads: daemon.threads().len() as u64,
        }
    }
}

/// The result of a soak.
#[derive(Clone, Debug)]
pub struct Table {
    /// Kind of the daemon.
    pub kind: Kind,
    /// Acts carried out.
    pub acts: u64,
    /// Submitted tasks.
    pub tasks: u64,
    /// Tasks whose run is missing, or whose end is not as expected.
    pub lost: u64,
    /// Runs that happened twice, or were never requested.
    pub doubled: u64,
    /// Processes that were left although no task was.
    pub left: u64,
    /// Zombies of the daemon.
    pub zombies: u64,
    /// Tasks that ended with a killed daemon, as they must: for a durable one turns of agents, and running tasks if its
    /// keeper is killed together with it.
    pub cut: u64,
    /// Daemons that were killed.
    pub kills: u64,
    /// Keepers that were killed.
    pub keepers: u64,
    /// Daemons that were shut down with their tasks.
    pub shutdowns: u64,
    /// Daemons that were stopped, whose tasks continued.
    pub stops: u64,
    /// Upgrades in place.
    pub upgrades: u64,
    /// Upgrades that were refused, as some state can't be carried over.
    pub refused: u64,
    /// Processes of tasks that were killed.
    pub killed: u64,
    /// Figures of daemons without tasks, one per look.
    pub figures: Vec<Figures>,
    /// Further faults, in words.
    pub faults: Vec<String>,
}

/// Maximum private memory of a daemon without tasks, in KiB: 8 MiB are its history, and up to 13 MiB for a plain one
/// and 18 for a durable one were measured after a million tasks in batches of 1,500. While such a batch runs, it has 50
/// MiB.
pub const MOST_MEMORY: u64 = 24 * 1024;

/// Maximum increase of descriptors and threads: workers that start with their first job. Three of them have a runtime
/// each (for agents, terminals and drained pipes), with six descriptors; an idle agent's process has four.
const MORE: u64 = 24;

impl Table {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            acts: 0,
            tasks: 0,
            lost: 0,
            doubled: 0,
            left: 0,
            zombies: 0,
            cut: 0,
            kills: 0,
            keepers: 0,
            shutdowns: 0,
            stops: 0,
            upgrades: 0,
            refused: 0,
            killed: 0,
            figures: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Reports whether figures stay within the bounds.
    fn is_flat(&self) -> bool {
        let Some(first) = self.figures.first() else { return true };
        self.figures.iter().all(|figures| {
            figures.memory <= MOST_MEMORY
                && figures.descriptors <= first.descriptors + MORE
                && figures.threads <= first.threads + MORE
        })
    }

    /// Reports whether nothing was lost, doubled or left.
    pub fn is_clean(&self) -> bool {
        let bad = self.lost + self.doubled + self.left + self.zombies;
        bad == 0 && self.faults.is_empty() && self.is_flat()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acts, tasks, lost, doubled, left, zombies, cut, kills, keepers, shutdowns, stops, .. } =
            self;
        writeln!(
            f,
            "daemon                  {}",
            if self.kind == Kind::Durable { "durable" } else { "plain" }
        )?;
        writeln!(f, "acts                    {acts}")?;
        writeln!(f, "tasks                   {tasks}")?;
        writeln!(f, "lost                    {lost}")?;
        writeln!(f, "doubled                 {doubled}")?;
        writeln!(f, "processes left          {left}")?;
        writeln!(f, "zombies                 {zombies}")?;
        writeln!(f, "daemons killed          {kills}, which cut {cut} tasks")?;
        writeln!(f, "keepers killed          {keepers}")?;
        writeln!(f, "daemons shut down       {shutdowns}, stopped {stops}")?;
        writeln!(f, "upgrades in place       {}, refused {}", self.upgrades, self.refused)?;
        writeln!(f, "processes killed        {}", self.killed)?;
        let range = |name: &str, of: fn(&Figures) -> u64, unit: &str, f: &mut fmt::Formatter<'_>| {
            let all = || self.figures.iter().map(of);
            let (first, last) = (all().next().unwrap_or(0), all().next_back().unwrap_or(0));
            let (low, high) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
            writeln!(f, "{name:<24}{first}{unit} first, {last}{unit} last, {low} to {high}")
        };
        range("descriptors", |figures| figures.descriptors, "", f)?;
        range("threads", |figures| figures.threads, "", f)?;
        range("own memory", |figures| figures.memory / 1024, " MiB", f)?;
        writeln!(f, "flat                    {}", if self.is_flat() { "yes" } else { "NO" })?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "FAULT: {fault}"))?;
        write!(f, "{}", if self.is_clean() { "clean" } else { "NOT CLEAN" })
    }
}
