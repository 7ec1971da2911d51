//! `bgctl shell-prompt` as a whole process: the cost of each prompt of a shell (R169), against a program that does
//! nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::report::{Row, Target, Unit};
use super::stats::micros;
use super::timing::timed;
use super::{Bench, Result};
use crate::TestDaemon;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let daemon = TestDaemon::start();
    for _ in 0..2 {
        daemon.submit(&["sleep", "100000"]);
    }
    let failed = daemon.submit(&["false"]);
    daemon.block(&[failed]);
    let output = daemon.home().join("printed");
    let empty = empty_program(daemon.home())?;
    let (mut nothing, mut prompt) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(60, 500) {
        nothing.push(micros(timed(&mut Command::new(&empty), &output)?.0));
        let (time, shown) = timed(&mut daemon.bgctl(&["shell-prompt"]), &output)?;
        if !shown.starts_with("bgd:2") {
            return Err(format!("the prompt shows {shown:?}").into());
        }
        prompt.push(micros(time));
    }
    Ok(vec![
        Row::new("bgctl shell-prompt, whole process")
            .peer_samples("an empty program, static", &nothing, Unit::Micros)
            .bgd_samples(&prompt, Unit::Micros)
            .target(Target::RatioAtMost(2.0))
            .note("for the static programs of .ci/dist"),
    ])
}

/// Compiles a program that does nothing. Static, so that it does not even search for a library.
fn empty_program(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("empty.c"), folder.join("empty"));
    std::fs::write(&source, "int main(void) { return 0; }\n")?;
    let status = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(&source).status()?;
    if !status.success() {
        return Err(format!("cc: {status}").into());
    }
    Ok(program)
}
