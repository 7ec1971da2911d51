//! Simulates years of a daemon's life within minutes (R132): the real dispatcher and core with simulated processes,
//! disk, threads and clients, on one clock that jumps to the next event. The same seed gives the same life, to the
//! byte. `tests/soak --simulate` does it for longer.

mod calls;
mod chance;
mod daemon;
mod disk;
mod keeper;
mod life;
mod model;
mod peer;
mod world;

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use self::life::{Kind, Outcome, simulate};

/// Seeds that have revealed a fault, with the days to simulate.
const FOUND: [(u64, u64, Kind); 8] = [
    // After an upgrade, pending starts waited for the next input.
    (2024, 50, Kind::Plain),
    // A call that waited for the start of a task got no reply if a full disk held the start back until the task was
    // ended.
    (909, 18, Kind::Durable),
    // A task whose submission was refused because the disk was full was still listed if it had ended at once.
    (2020, 5, Kind::Durable),
    // Events of a shutdown that cancelled many tasks were lost, as the daemon ended before they could be read.
    (2061, 13, Kind::Plain),
    // Events were not sent while a long response was pending, although the client had read everything.
    (10187, 46, Kind::Durable),
    // A task whose submission was refused because the disk was full ran if it had got the slot of another refused task.
    (20257, 30, Kind::Durable),
    // A task that was paused while the disk was full stayed stopped after a kill, and was listed as running.
    (424_247, 14, Kind::Durable),
    // An attempt that was lost while it started had the exit of the one before.
    (800_062, 17, Kind::Durable),
];

/// The days of each simulation if there are many.
const DAYS: u64 = 50;

#[test]
fn r132_same_seed_yields_identical_trace() {
    for kind in [Kind::Plain, Kind::Durable] {
        let once = simulate(1, 5, kind);
        assert_eq!(simulate(1, 5, kind), once);
        assert_ne!(simulate(2, 5, kind).trace, once.trace);
    }
}

#[test]
fn r132_simulated_weeks_lose_or_repeat_nothing() {
    let mut all = Outcome::default();
    for seed in 100..104 {
        all = sum(all, simulate(seed, 10, Kind::Plain));
    }
    assert!(all.runs > 1000 && all.ended > 500, "{all:?}");
    assert!(all.crashes > 1 && all.upgrades > 3 && all.shutdowns > 3, "{all:?}");
}

#[test]
fn r132_simulated_weeks_of_a_durable_daemon_lose_or_repeat_nothing() {
    let mut all = Outcome::default();
    for seed in 100..104 {
        all = sum(all, simulate(seed, 10, Kind::Durable));
    }
    assert!(all.runs > 1000 && all.ended > 500, "{all:?}");
    assert!(all.crashes > 3 && all.upgrades > 3 && all.stops > 3, "{all:?}");
}

#[test]
fn r132_formerly_failing_seeds_pass() {
    on_all_processors(FOUND.len() as u64, |number| {
        let (seed, days, kind) = FOUND[usize::try_from(number).unwrap()];
        simulate(seed, days, kind);
    });
}

/// How many lives of each kind a long simulation runs between two lines of progress.
const LIVES_A_LINE: u64 = 100;

/// `tests/soak --simulate`: seeds from `BGD_SIMULATE_SEED` on, for the requested total of days. Otherwise two days.
/// Each seed is used for the life of a plain daemon and for that of a durable one.
#[test]
fn r132_simulate_for_requested_days() {
    let number = |name: &str, otherwise| {
        std::env::var(name).map_or(otherwise, |text| text.parse::<u64>().expect("a number"))
    };
    let (seed, days) = (number("BGD_SIMULATE_SEED", 200), number("BGD_SIMULATE_DAYS", 2));
    let lives = days.div_ceil(DAYS);
    let (failed, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let all = std::sync::Mutex::new(Outcome::default());
    on_all_processors(lives, |life| {
        if failed.load(Ordering::Relaxed) {
            return;
        }
        let (seed, days) = (seed + life, DAYS.min(days - life * DAYS));
        let both = || sum(simulate(seed, days, Kind::Plain), simulate(seed, days, Kind::Durable));
        if let Ok(outcome) = catch_unwind(both) {
            let mut all = all.lock().unwrap();
            *all = sum(*all, outcome);
            // Shows that a run of an hour makes progress, and how far an interrupted one came.
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(LIVES_A_LINE) {
                eprintln!("{done} of {lives} plain and as many durable lives");
            }
        } else {
            failed.store(true, Ordering::Relaxed);
            eprintln!("A FAULT: tests/soak --simulate --seed {seed} --days {days}");
        }
    });
    let Outcome { runs, ended, crashes, upgrades, shutdowns, stops, trace } = all.into_inner().unwrap();
    println!(
        "{lives} plain and {lives} durable lives from seed {seed} on: {runs} runs, {ended} ends seen, {crashes} crashes, {upgrades} upgrades, {shutdowns} shutdowns, of which {stops} left their tasks; digest {:016x}",
        trace.0
    );
    assert!(!failed.load(Ordering::Relaxed), "a fault was found");
}

/// Calls `work` for each number below `count`, on all processors as they become free.
fn on_all_processors(count: u64, work: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let numbers = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < count);
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(|| std::iter::from_fn(numbers).for_each(&work));
        }
    });
}

fn sum(one: Outcome, other: Outcome) -> Outcome {
    Outcome {
        // Independent of the order.
        trace: chance::Trace(one.trace.0.wrapping_add(other.trace.0)),
        runs: one.runs + other.runs,
        ended: one.ended + other.ended,
        crashes: one.crashes + other.crashes,
        upgrades: one.upgrades + other.upgrades,
        shutdowns: one.shutdowns + other.shutdowns,
        stops: one.stops + other.stops,
    }
}
