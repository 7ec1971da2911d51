//! Tests the core with random histories, a fake clock and fake executors, and with tables.

mod expected;
mod histories_elsewhere;
mod model;
mod ops;
mod rules;
mod rules_agent;
mod rules_batch;
mod rules_durable;
mod rules_elsewhere;
mod rules_foreground;
mod rules_history;
mod rules_kept;
mod rules_notes;
mod rules_notices;
mod rules_order;
mod rules_portions;
mod rules_ready;
mod rules_rerun;
mod rules_room;
mod rules_settings;
mod rules_waits;
mod sim;
mod support;
mod table;
mod table_agent;
mod table_foreground;
mod wire;

use std::cell::{Cell, RefCell};

use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

// Under its name in the daemon.
use bgd_core as core;
use expected::{PLACES, Reached};
use ops::history;
use sim::Sim;

/// Minimum number of steps in a normal run.
const STEPS: u64 = 1_250_000;

/// Runs histories of this length until this many steps are made, and shrinks a failing one. Without a seed, they differ
/// each time.
fn run_histories(seed: Option<u8>, length: std::ops::Range<usize>, steps: u64) -> (u64, Reached) {
    let average = (length.start + length.end) as u64 / 2;
    // The exact number of cases can't be known in advance, so add a tenth.
    let cases = u32::try_from(steps / average * 11 / 10 + 2).unwrap_or(u32::MAX);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut runner = match seed {
        Some(seed) => {
            let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
            TestRunner::new_with_rng(config, rng)
        }
        None => TestRunner::new(config),
    };
    let (made, reached) = (Cell::new(0), RefCell::new(Reached::new()));
    // With a plain daemon, or with a durable one.
    let result = runner.run(&(any::<bool>(), history(length)), |(is_durable, ops)| {
        let mut sim = Sim::new(is_durable);
        let result = sim.run(&ops);
        made.set(made.get() + sim.steps);
        for (place, times) in sim.reached {
            *reached.borrow_mut().entry(place).or_default() += times;
        }
        result
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, (is_durable, ops))) => {
            panic!("{why}\nafter these steps (durable: {is_durable}): {ops:?}")
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
    (made.get(), reached.into_inner())
}

/// The same histories in every run, so that a failure is reproducible.
#[test]
fn a_million_random_steps_break_no_rule() {
    let halves = [1, 2].map(|seed| std::thread::spawn(move || run_histories(Some(seed), 1..2000, STEPS / 2)));
    let halves = halves.map(|half| half.join().expect("the failure is printed above"));
    let steps: u64 = halves.iter().map(|(steps, _)| steps).sum();
    let times = |place| halves.iter().filter_map(|(_, reached)| reached.get(place)).sum::<u64>();
    let places = PLACES.map(|place| (place, times(place)));
    println!("{steps} steps; {places:?}");
    assert!(steps >= STEPS, "{steps}");
    // A durable daemon stops once per history, and seldom while a task ends that would be retried.
    let wanted = |place| if place == "left to be tried again" { 1 } else { 100 };
    assert!(places.iter().all(|(place, times)| *times >= wanted(*place)), "{places:?}");
}

/// Different histories in every run. Short ones, as they show a failure best.
#[test]
fn random_histories_break_no_rule() {
    let (steps, _) = run_histories(None, 1..100, 50_000);
    assert!(steps >= 50_000, "{steps}");
}
