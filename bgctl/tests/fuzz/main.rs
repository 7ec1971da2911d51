//! Feeds arbitrary answers to the code that shows a daemon's answers to people (R134): the daemon may be another
//! version, and the contents of the answers come from jobs and agents. `edits` explains what a target is.

#[macro_use]
#[path = "../../../shared/tests/fuzz/edits.rs"]
mod edits;

use std::collections::HashMap;

use bgctl::render::columns::Measured;
use bgctl::render::list_format::ListFormat;
use bgctl::render::table::Listing;
use bgctl::render::wall::{Clock, Zone};
use bgctl::render::{daemon, metrics, page, table, tree};
use bgd_shared::request::DaemonStatus;
use bgd_shared::strict;
use bgd_shared::task::Task;
use bgd_shared::time::Timestamp;

fn clock() -> Clock {
    Clock::of(Timestamp::from_unix_ms(1_700_000_000_000), Zone::UTC)
}

fn format(table: bool, width: Option<u16>) -> ListFormat {
    let columns = bgctl::render::columns::Field::DEFAULT.to_vec();
    let (percents, measured) = (HashMap::new(), Measured::new());
    ListFormat { table, colour: false, is_chosen: false, width, columns, percents, measured, clock: clock() }
}

#[track_caller]
fn is_harmless(text: &str) {
    let harms = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    assert!(!text.chars().any(harms), "{text:?}");
}

/// Shows a task in lists, trees and pages, and checks that no control sequence in it reaches the terminal.
fn task(bytes: &[u8]) {
    let Ok(task) = strict::from_slice::<Task>(bytes) else { return };
    let tasks = [task];
    for (is_table, width) in [(false, None), (true, None), (true, Some(80)), (true, Some(1))] {
        let format = format(is_table, width);
        let list = table::list(&tasks, &format);
        is_harmless(&list);
        assert!(!list.is_empty());
        let listing = Listing { host: None, tasks: Ok(&tasks) };
        is_harmless(&table::listings(&[listing], Some(tree::ASCII), &format).text);
    }
    is_harmless(&page::task(&tasks[0], &clock()));
    is_harmless(&table::summary_line(&tasks[0], &clock()));
}

/// Does the same with a daemon's status, and with its metrics for Prometheus.
fn status(bytes: &[u8]) {
    let Ok(status) = strict::from_slice::<DaemonStatus>(bytes) else { return };
    is_harmless(&daemon::page(&status, clock().now));
    let figures = metrics::text(status);
    is_harmless(&figures);
    assert!(figures.ends_with("# EOF\n"));
}

targets! {
    r134_any_task_of_a_daemon_is_shown_without_control_of_the_terminal: task,
    r134_any_status_of_a_daemon_is_shown_without_control_of_the_terminal: status,
}

/// Otherwise the edits would only be applied to invalid answers, which are not shown.
#[test]
fn seeds_are_valid_daemon_answers() {
    for seed in edits::seeds("r134_any_task_of_a_daemon_is_shown_without_control_of_the_terminal") {
        strict::from_slice::<Task>(&seed).unwrap();
    }
    for seed in edits::seeds("r134_any_status_of_a_daemon_is_shown_without_control_of_the_terminal") {
        strict::from_slice::<DaemonStatus>(&seed).unwrap();
    }
}
