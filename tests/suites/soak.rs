//! The soak and the simulation as parts of the tests: short, and bounded by what is done, not by time (R133).

use bgd_tests::soak::{Until, run};

#[test]
fn r133_nothing_is_lost_doubled_or_left_by_hundreds_of_acts() {
    let table = run(133, Until::Acts(240));
    assert!(table.is_clean(), "{table}");
    assert!(table.tasks > 500, "{table}");
    assert!(table.upgrades + table.refused > 0 && table.kills + table.shutdowns > 0, "{table}");
}
