//! The bench: the table 'Speed' of the architecture, measured as ratios in one run.
//!
//! Figures from a shared machine are noisy, so the candidates are measured alternately (A, B, A, B, …), several times,
//! and compared by their medians. One file per measurement; each returns rows.

mod far;
mod filled;
mod first;
mod foreground;
mod idle;
mod kills;
mod lasting;
mod live;
mod machine;
mod memory;
mod notices;
mod order;
mod peers;
mod pipeline;
mod prompt;
mod read_output;
mod report;
mod slurm;
mod stats;
mod submit;
mod throughput;
mod timing;
mod turns;
mod waiters;
mod wakeup;
mod write_output;

use std::any::Any;
use std::error::Error;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;

use self::machine::Machine;
use self::report::{Row, table};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A measurement: its name on the command line, and its function.
type Measurement = (&'static str, fn(&Bench) -> Result<Vec<Row>>);

const MEASUREMENTS: &[Measurement] = &[
    ("throughput", throughput::measure),
    ("wakeup", wakeup::measure),
    ("submit", submit::measure),
    ("prompt", prompt::measure),
    ("filled", filled::measure),
    ("idle", idle::measure),
    ("write", write_output::measure),
    ("read", read_output::measure),
    ("waiters", waiters::measure),
    ("turns", turns::measure),
    ("foreground", foreground::measure),
    ("notices", notices::measure),
    ("order", order::measure),
    ("lasting", lasting::measure),
    ("first", first::measure),
    ("slurm", slurm::measure),
    ("far", far::measure),
];

/// Measures bgd against bare system calls and its peers, as ratios in one run. The measurements: throughput, wakeup,
/// submit, prompt (`shell-prompt`), filled (100,000 tasks: submit, list, memory, `top`), idle, write, read, waiters,
/// turns (of an agent), foreground (`run`), notices (subscribers, hooks, webhooks), order (batches, groups,
/// dependents), lasting (upgrades in place, kills of a durable daemon), far (another machine by ssh on loopback), first
/// (from a package or a clone to a first result; needs root), slurm (10,000 tasks of a real cluster; needs root).
#[derive(Debug, Parser)]
#[command(name = "tests/bench")]
struct Bench {
    /// Smaller amounts: for a rough idea, not for a judgement.
    #[arg(long)]
    quick: bool,
    /// Number of runs, one after the other; the table has the minimum and the maximum of each figure.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,
    /// Where to write the figures, with every sample and the machine.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only these measurements.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    quick: bool,
    runs: &'a [Vec<Row>],
}

impl Bench {
    /// Returns the amount for a quick or a full run.
    fn of<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    fn run(&self) -> Result<Vec<Row>> {
        if let Some(name) = self.only.iter().find(|name| MEASUREMENTS.iter().all(|(known, _)| known != name))
        {
            return Err(format!("there is no measurement {name:?}; --help names them").into());
        }
        let mut rows = Vec::new();
        for (name, measure) in MEASUREMENTS {
            if !self.only.is_empty() && !self.only.iter().any(|wanted| wanted == name) {
                continue;
            }
            eprintln!("{name} …");
            // A measurement that panics (because a daemon leaves a process, say) must not abort the others.
            let outcome = catch_unwind(AssertUnwindSafe(|| measure(self)));
            let measured = match outcome {
                Ok(Ok(rows)) => rows,
                Ok(Err(error)) => vec![failed(name, &error.to_string())],
                Err(panic) => vec![failed(name, word_of(panic.as_ref()))],
            };
            rows.extend(measured.into_iter().map(|row| Row { measurement: name, ..row }));
        }
        Ok(rows)
    }

    fn json_path(&self) -> PathBuf {
        let program = std::env::current_exe().unwrap_or_default();
        let target = program.ancestors().nth(2).unwrap_or(Path::new(".")).to_owned();
        self.json.clone().unwrap_or_else(|| target.join("bench.json"))
    }
}

fn failed(name: &str, why: &str) -> Row {
    Row { met: Some(false), ..Row::new(name).note(format!("failed: {}", why.trim())) }
}

fn word_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// Runs the bench. The exit code is 1 if a target was missed, 2 if the bench could not run.
pub fn main() -> ExitCode {
    let bench = Bench::parse();
    if cfg!(debug_assertions) {
        eprintln!("this is no release build: the figures mean nothing");
    }
    let machine = Machine::this();
    let path = bench.json_path();
    let runs: Result<Vec<_>> = (0..bench.runs).map(|_| bench.run()).collect();
    let written = runs.and_then(|runs| {
        println!("{machine}\n\n{}", table(&runs));
        let report = Report { machine: &machine, quick: bench.quick, runs: &runs };
        fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")?;
        Ok(runs.iter().flatten().all(|row| row.met != Some(false)))
    });
    match written {
        Ok(all_met) => {
            eprintln!("written to {}", path.display());
            ExitCode::from(u8::from(!all_met))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
