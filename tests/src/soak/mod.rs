//! The soak (R133): a real daemon, and everything that users do to it and that befalls it, in any order and for as long as
//! you like. Each task leaves a line in a ledger, so that a lost run and a doubled one are seen. It ends with a table, and
//! fails if anything was lost, doubled or left.

mod acts;
mod figures;
mod ledger;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use self::acts::Soak;
pub use self::figures::Table;

/// How many acts there are between two looks at what must hold.
const EPOCH: u64 = 60;

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
    let Args { hours, minutes, seed } = Args::parse();
    let minutes = minutes.unwrap_or(hours.unwrap_or(1) * 60);
    let table = run(seed, Until::Moment(Instant::now() + Duration::from_secs(minutes * 60)));
    println!("{table}");
    if table.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a soak.
///
/// # Panics
/// The daemon does something that it must not, other than what the table counts.
pub fn run(seed: u64, until: Until) -> Table {
    let mut soak = Soak::start(seed);
    let mut acts = 0;
    while !until.is_over(acts) {
        soak.act();
        acts += 1;
        if acts.is_multiple_of(EPOCH) {
            soak.settle();
        }
    }
    soak.settle();
    soak.end(acts)
}
