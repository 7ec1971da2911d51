//! A panic on the journal's thread.

use super::*;

/// Answers would wait forever for a report.
#[test]
fn r125_panic_while_writing_makes_the_journal_unwritable() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path(), Durability::Written).unwrap();
    let (reports, hears) = mpsc::channel();
    let report = move |recorded| drop(reports.send(recorded));
    // The number is asked for in each write.
    let next_mark = || -> u32 { panic!("a test") };
    let journal = Journal::start(opened, head(), &Note::default(), next_mark, report).unwrap();
    let mut core = core();
    for (number, ids) in (1..).zip([1..2, 2..3]) {
        submit(&mut core, ids);
        journal.write(number, core.take_changes(now()).expect("something has changed"));
        // The disk of the test may be short of room, which is reported first.
        let recorded = hears.iter().find(|recorded| !recorded.is_written).unwrap();
        let is_refused = !recorded.is_written && recorded.trouble == Some(Trouble::Panicked);
        assert!(is_refused && recorded.upto >= number, "{recorded:?}");
    }
}
