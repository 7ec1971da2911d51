//! `bgctl submit` as a whole process, from spawn to exit: the cost of each task for a script.

use super::peers::{Pueue, Tsp};
use super::report::{Row, Target, Unit};
use super::stats::micros;
use super::timing::timed;
use super::{Bench, Result};
use crate::TestDaemon;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let daemon = TestDaemon::start();
    let tsp = Tsp::start()?;
    let pueue = Pueue::start()?;
    let output = daemon.home().join("printed");
    let (mut bgd, mut spooler, mut pueues) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.of(60, 500) {
        let (time, id) = timed(&mut daemon.bgctl(&["submit", "--", "true"]), &output)?;
        bgd.push(micros(time));
        // Each sample starts on an idle machine.
        daemon.block(&[id.trim().parse::<bgd_shared::id::TaskRef>()?.exact().ok_or("no id was printed")?]);
        if let Some(tsp) = &tsp {
            let (time, id) = timed(&mut tsp.command(&["true"]), &output)?;
            spooler.push(micros(time));
            tsp.wait(id.trim())?;
        }
        if let (Some(pueue), 0..20) = (&pueue, round) {
            pueues.push(micros(timed(&mut pueue.command(&["add", "--", "true"]), &output)?.0));
        }
    }
    let row = |what: &str, peer: &str, samples: &[f64]| {
        let row = Row::new(what).bgd_samples(&bgd, Unit::Micros);
        if samples.is_empty() { row.no_peer(peer) } else { row.peer_samples(peer, samples, Unit::Micros) }
    };
    Ok(vec![
        row("bgctl submit -- true, whole process", "tsp true", &spooler).target(Target::RatioAtMost(1.0)),
        row("the same", "pueue add -- true", &pueues).note("to know"),
    ])
}
