//! First contact (R172): from a package, or from a clone of the repository, to the output of a first task.

use std::path::Path;
use std::process::Command;

use super::report::{Figure, Row, Target, Unit};
use super::timing::timed;
use super::{Bench, Result};
use crate::docs::{blocks, root as repository};
use crate::packages::{MAIN_JOB, deb, wheel};
use crate::root::Root;
use crate::user::must_be_root;
use crate::{Outcome, TestDaemon};

/// Time limit for a package, in seconds.
const PACKAGE: f64 = 10.0;

/// Time limit for a clone, in seconds, on two processors.
const CLONE: f64 = 180.0;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    must_be_root();
    let mut rows = vec![from_deb(bench)?, from_wheel(bench)?];
    if !bench.quick {
        rows.push(from_clone()?);
    }
    Ok(rows)
}

fn row(what: &str, samples: &[f64], most: f64) -> Row {
    Row::new(what).bgd_samples(samples, Unit::Seconds).target(Target::AtMost(most, Unit::Seconds))
}

/// Measures the package on a minimal Debian system without bgd.
fn from_deb(bench: &Bench) -> Result<Row> {
    let package = deb();
    let script = format!(
        "begin=$(date +%s%N); dpkg -i /tmp/bgd.deb >/dev/null 2>&1; {MAIN_JOB}; \
         echo $((($(date +%s%N) - begin) / 1000)); bgctl daemon stop >/dev/null"
    );
    let mut seconds = Vec::new();
    for _ in 0..bench.of(1, 5) {
        let said = Root::unpack().run(&[&package], &script).success().stdout_text();
        let micros =
            said.strip_prefix("from a task\n").ok_or_else(|| format!("a first user sees {said:?}"))?;
        seconds.push(micros.trim().parse::<f64>()? / 1e6);
    }
    Ok(row("`dpkg -i` of the package, and the output of a first task", &seconds, PACKAGE))
}

/// Measures the wheel in an empty Python environment.
fn from_wheel(bench: &Bench) -> Result<Row> {
    let wheel = wheel();
    let script =
        format!("env/bin/pip install --quiet --no-index \"$0\"; PATH=$PWD/env/bin:$PATH; {MAIN_JOB}");
    let mut seconds = Vec::new();
    for _ in 0..bench.of(1, 5) {
        let home = TestDaemon::home_only();
        let mut python = Command::new("python3");
        Outcome::of(python.args(["-m", "venv"]).arg(home.home().join("env"))).success();
        let (time, said) = first(&home, &script, Some(&wheel))?;
        if said != "from a task\n" {
            return Err(format!("a first user sees {said:?}").into());
        }
        seconds.push(time);
    }
    Ok(row("`pip install` of the wheel, and the output of a first task", &seconds, PACKAGE))
}

/// Measures a clone, and in it the first command of the README, whose task waits for three seconds. Only once, as it
/// takes minutes.
fn from_clone() -> Result<Row> {
    let home = TestDaemon::home_only();
    let command = blocks("README.md", "sh").into_iter().next().ok_or("the README has no command")?;
    let script = format!("git clone --quiet \"$0\" bgd; cd bgd; {command}");
    let (time, said) = first(&home, &script, Some(repository()))?;
    if !said.starts_with("step 1\nstep 2\nstep 3\n") {
        return Err(format!("a first user sees {said:?}").into());
    }
    let figure = Figure::new(time, Unit::Seconds);
    let row = Row::new("a clone, and the first command of the README").bgd(figure);
    Ok(row.target(Target::AtMost(CLONE, Unit::Seconds)).note("crates that were downloaded before are there"))
}

/// Runs a script in this home as its user would, and ends the daemon that it has started. Returns the seconds and the
/// output.
fn first(home: &TestDaemon, script: &str, argument: Option<&Path>) -> Result<(f64, String)> {
    let mut shell = Command::new("bash");
    shell.env_clear().envs(home.environment()).current_dir(home.home());
    // In spite of the new home, the toolchain stays where it was.
    for name in ["PATH", "CARGO_HOME", "RUSTUP_HOME"] {
        shell.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    shell.args(["-euc", script]).args(argument);
    let measured = timed(&mut shell, &home.home().join("printed"));
    home.run(&["daemon", "stop"]).success();
    let (time, said) = measured?;
    Ok((time.as_secs_f64(), said))
}
