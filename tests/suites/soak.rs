//! The soak and the simulation as parts of the tests: short, and bounded by the amount of work, not by time (R133).

use bgd_tests::soak::{BATCH, Kind, Table, Until, run};

/// Runs a soak of this many acts. Returns its table, which is clean.
#[track_caller]
fn soaked(seed: u64, kind: Kind, acts: u64) -> Table {
    let table = run((seed, BATCH), &[kind], Until::Acts(acts)).remove(0);
    assert!(table.is_clean(), "{table}");
    assert!(table.tasks > 500, "{table}");
    table
}

#[test]
fn r133_random_operations_lose_duplicate_and_leave_nothing() {
    let table = soaked(133, Kind::Plain, 240);
    assert!(table.upgrades + table.refused > 0 && table.kills + table.shutdowns > 0, "{table}");
}

#[test]
fn r133_kills_of_durable_daemon_and_keeper_lose_and_duplicate_nothing() {
    let table = soaked(133, Kind::Durable, 360);
    assert!(table.upgrades > 0 && table.kills > 3 && table.keepers > 0 && table.stops > 0, "{table}");
    assert!(table.figures.len() > 2, "{table}");
}
