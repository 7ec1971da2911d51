//! Time from a task's real end until its waiter returns.

use std::process::Command;
use std::thread;
use std::time::Duration;

use bgd_shared::request::{BlockMode, BlockParams, TaskBlock};

use super::peers::{Pueue, Tsp};
use super::report::{Figure, Row, Target, Unit};
use super::stats::percentile;
use super::timing::{Stamp, now_ns};
use super::{Bench, Result};
use crate::TestDaemon;

/// How long a waiter gets to block before the task ends. The peers have no event to announce that they wait.
const SETTLE: Duration = Duration::from_millis(15);

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let daemon = TestDaemon::start();
    let mut stamp = Stamp::new(daemon.home())?;
    let tsp = Tsp::start()?;
    let mut tsp_stamp = tsp.as_ref().map(|tsp| Stamp::new(tsp.home())).transpose()?;
    let (mut call, mut whole, mut tsp_whole) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.of(40, 300) {
        call.push(of_call(&daemon, &mut stamp)?);
        whole.push(of_bgctl(&daemon, &mut stamp)?);
        if let (Some(tsp), Some(stamp)) = (&tsp, &mut tsp_stamp) {
            tsp_whole.push(of_tsp(tsp, stamp)?);
        }
    }
    let pueue_whole = of_pueue(bench.of(2, 5))?;
    let process = |what: &str| Row::new(what).bgd_samples(&whole, Unit::Micros);
    let against = |row: Row, peer: &str, samples: &[f64]| {
        if samples.is_empty() { row.no_peer(peer) } else { row.peer_samples(peer, samples, Unit::Micros) }
    };
    let p99 = |samples: &[f64]| Figure::new(percentile(samples, 99), Unit::Micros);
    let most = Target::AtMost(5000.0, Unit::Micros);
    let mut rows = vec![
        against(process("wake-up, whole process: bgctl block, median"), "tsp -w", &tsp_whole)
            .target(Target::RatioAtMost(1.0)),
        Row::new("wake-up, whole process, p99").bgd(p99(&whole)).target(most),
        against(Row::new("wake-up of a call, median").bgd_samples(&call, Unit::Micros), "tsp -w", &tsp_whole)
            .target(Target::RatioAtMost(1.0)),
        Row::new("wake-up of a call, p99").bgd(p99(&call)).target(most),
        against(process("wake-up, whole process, median"), "pueue wait", &pueue_whole),
    ];
    if !tsp_whole.is_empty() {
        let figure = p99(&tsp_whole);
        rows[1] = rows[1].clone().peer("tsp -w", figure);
    }
    Ok(rows)
}

fn of_call(daemon: &TestDaemon, stamp: &mut Stamp) -> Result<f64> {
    let id = daemon.submit(&stamp.next_argv());
    let mut client = daemon.client();
    stamp.wait_started();
    let params = BlockParams {
        ids: vec![id.into()],
        timeout_ms: Some(60_000),
        mode: BlockMode::All,
        ..BlockParams::default()
    };
    let call = client.send::<TaskBlock>(&params, &[])?;
    thread::sleep(SETTLE);
    stamp.trigger()?;
    client.answer::<TaskBlock>(call)?;
    stamp.micros_until(now_ns())
}

fn of_bgctl(daemon: &TestDaemon, stamp: &mut Stamp) -> Result<f64> {
    let id = daemon.submit(&stamp.next_argv()).to_string();
    stamp.wait_started();
    of_process(daemon.bgctl(&["block", &id]), stamp)
}

fn of_tsp(tsp: &Tsp, stamp: &mut Stamp) -> Result<f64> {
    let argv = stamp.next_argv();
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let id = tsp.add(&argv)?;
    stamp.wait_started();
    of_process(tsp.command(&["-w", &id]), stamp)
}

fn of_process(mut command: Command, stamp: &mut Stamp) -> Result<f64> {
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let mut waiter = command.spawn()?;
    thread::sleep(SETTLE);
    stamp.trigger()?;
    let status = waiter.wait()?;
    let now = now_ns();
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    stamp.micros_until(now)
}

fn of_pueue(count: usize) -> Result<Vec<f64>> {
    let Some(pueue) = Pueue::start()? else { return Ok(Vec::new()) };
    let mut stamp = Stamp::new(pueue.home())?;
    let mut samples = Vec::new();
    for _ in 0..count {
        pueue.command(&["add", "--", &stamp.next_argv().join(" ")]).status()?;
        stamp.wait_started();
        samples.push(of_process(pueue.command(&["wait"]), &mut stamp)?);
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakeup_is_measured() {
        let daemon = TestDaemon::start();
        let mut stamp = Stamp::new(daemon.home()).unwrap();
        for measured in [of_call, of_bgctl] {
            assert!(measured(&daemon, &mut stamp).unwrap() > 0.0);
        }
    }

    #[test]
    fn peer_wakeup_is_measured() {
        let Some(tsp) = Tsp::start().unwrap() else { return };
        let mut stamp = Stamp::new(tsp.home()).unwrap();
        for _ in 0..3 {
            assert!(of_tsp(&tsp, &mut stamp).unwrap() > 0.0);
        }
    }
}
