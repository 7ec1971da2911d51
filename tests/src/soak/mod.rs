//! The soak (R133): a real daemon, with all user actions and external events, in any order and for as long as you like.
//! Each task leaves a line in a ledger, so that lost and doubled runs are detected. It ends with a table, and fails if
//! anything was lost, doubled or left.
//!
//! A plain daemon and a durable one alternate. The kill of a plain daemon ends its tasks; that of a durable one, or of
//! its keeper, must end none, nor change an exit code or an output.

mod acts;
mod durable;
mod figures;
mod ledger;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use self::acts::Soak;
pub use self::figures::Table;

/// Number of acts between two checks.
const EPOCH: u64 = 60;

/// Default for the maximum number of tasks in a batch.
pub const BATCH: u64 = 60;

#[derive(Debug, Parser)]
#[command(name = "soak", about = "Does everything to a real daemon, for hours, and counts what is lost")]
struct Args {
    /// Duration in hours
    #[arg(long, conflicts_with = "minutes")]
    hours: Option<u64>,
    /// Duration in minutes
    #[arg(long)]
    minutes: Option<u64>,
    /// Seed of the random acts; the same seed gives the same acts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum number of tasks in a batch; with 400, a soak reaches a million tasks in an hour or two
    #[arg(long, default_value_t = BATCH, value_parser = clap::value_parser!(u64).range(1..=5000))]
    batch: u64,
}

/// Kind of the daemon in a soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A daemon whose tasks end with it.
    Plain,
    /// A daemon whose tasks outlive it.
    Durable,
}

impl Kind {
    /// Both kinds, in the order of their turns.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Durable];
}

/// When a soak is over.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// At this moment.
    Moment(Instant),
    /// After this many acts.
    Acts(u64),
}

impl Until {
    fn is_over(self, acts: u64) -> bool {
        match self {
            Self::Moment(end) => Instant::now() >= end,
            Self::Acts(most) => acts >= most,
        }
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    let Args { hours, minutes, seed, batch } = Args::parse();
    let minutes = minutes.unwrap_or(hours.unwrap_or(1) * 60);
    let end = Instant::now() + Duration::from_secs(minutes * 60);
    let tables = run((seed, batch), &Kind::ALL, Until::Moment(end));
    for table in &tables {
        println!("{table}\n");
    }
    if tables.iter().all(Table::is_clean) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a soak of each of these kinds, alternately, with this seed and this maximum number of tasks in a batch. Returns
/// their tables.
///
/// # Panics
/// The daemon violates an invariant other than those that the table counts.
pub fn run((seed, batch): (u64, u64), kinds: &[Kind], until: Until) -> Vec<Table> {
    let mut soaks: Vec<Soak> = kinds.iter().map(|kind| Soak::start((seed, batch), *kind)).collect();
    let mut acts = 0;
    while !until.is_over(acts) {
        for soak in &mut soaks {
            (0..EPOCH).for_each(|_| soak.act());
            soak.settle();
        }
        acts += EPOCH;
    }
    soaks.into_iter().map(Soak::end).collect()
}
