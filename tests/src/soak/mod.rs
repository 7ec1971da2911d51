//! The soak (R133): a real daemon, and everything that users do to it and that befalls it, in any order and for as long as
//! you like. Each task leaves a line in a ledger, so that a lost run and a doubled one are seen. It ends with a table, and
//! fails if anything was lost, doubled or left.
//!
//! A plain daemon and a durable one take turns. The kill of the first ends its tasks; that of the second, or of its keeper,
//! must end none, nor change an exit code or an output.

mod acts;
mod durable;
mod figures;
mod ledger;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use self::acts::Soak;
pub use self::figures::Table;

/// How many acts there are between two looks at what must hold.
const EPOCH: u64 = 60;

/// How many tasks a batch has, at most, unless something else is asked for.
pub const BATCH: u64 = 60;

/// What the program is asked for.
#[derive(Debug, Parser)]
#[command(name = "soak", about = "Does everything to a real daemon, for hours, and counts what is lost")]
struct Args {
    /// How long, in hours
    #[arg(long, conflicts_with = "minutes")]
    hours: Option<u64>,
    /// How long, in minutes
    #[arg(long)]
    minutes: Option<u64>,
    /// Where chance begins; the same seed gives the same acts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many tasks a batch has, at most; with 400 of them a soak comes to a million tasks in an hour or two
    #[arg(long, default_value_t = BATCH, value_parser = clap::value_parser!(u64).range(1..=5000))]
    batch: u64,
}

/// Which daemon a soak is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One whose tasks end with it.
    Plain,
    /// One whose tasks go on.
    Durable,
}

impl Kind {
    /// Both, in the order of their turns.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Durable];
}

/// When a soak is over.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// At this moment.
    Moment(Instant),
    /// After so many acts.
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

/// Runs a soak of each of these, in turns, with this seed and batches of so many tasks at most. Returns their tables.
///
/// # Panics
/// The daemon does something that it must not, other than what the table counts.
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
