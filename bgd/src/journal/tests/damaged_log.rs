//! Tests of a journal whose write-ahead log was damaged, cut or removed after the daemon was killed.

use super::*;

/// A step adds this many tasks.
const OF_STEP: u128 = 2;

/// The database and the log of a daemon that was killed after this many steps.
struct Killed {
    database: Vec<u8>,
    log: Vec<u8>,
}

impl Killed {
    fn after(steps: u128) -> Self {
        Self::after_each(&vec![OF_STEP; usize::try_from(steps).unwrap()])
    }

    /// Each step adds this many tasks.
    fn after_each(steps: &[u128]) -> Self {
        let folder = quick_folder();
        let Opened { mut store, lock, .. } = open(folder.path(), Durability::Written).unwrap();
        let mut core = core();
        let mut added = 0;
        for tasks in steps {
            submit(&mut core, added..added + tasks);
            added += tasks;
            let mut merged = Merged::default();
            merged.add(core.take_changes(now()).unwrap());
            store.write(&head(), &merged).unwrap();
        }
        let journal = folder.path().join("journal");
        let [database, log] = [FILE, LOG].map(|name| fs::read(journal.join(name)).unwrap());
        drop((store, lock));
        Self { database, log }
    }

    /// Puts the journal into a new folder, with another log, and the note of its daemon in the lock.
    fn placed(&self, log: Option<&[u8]>) -> TempDir {
        let folder = placed(&self.database, log);
        note(folder.path());
        folder
    }

    /// Returns the size of a frame, and how many the log has.
    fn frames(&self) -> (usize, usize) {
        let page = u32::from_be_bytes(*self.log[8..].first_chunk().unwrap());
        let frame = 24 + usize::try_from(page).unwrap();
        (frame, (self.log.len() - 32) / frame)
    }

    /// Returns the numbers of the frames that end a transaction.
    fn commits(&self) -> Vec<usize> {
        let (frame, count) = self.frames();
        let is_commit = |number: &usize| self.log[32 + number * frame + 4..][..4] != [0; 4];
        (0..count).filter(is_commit).collect()
    }

    /// Returns the number of the first frame of the last transactions, this many.
    fn first_of_last(&self, transactions: usize) -> usize {
        let commits = self.commits();
        commits[commits.len() - transactions - 1] + 1
    }

    /// Returns the log with a flipped bit.
    fn flipped(&self, at: usize) -> Vec<u8> {
        let mut log = self.log.clone();
        log[at] ^= 0x10;
        log
    }
}

fn note(folder: &Path) {
    let lock = ProcessLock::try_take(&folder.join("journal/lock")).unwrap().unwrap();
    lock.write_note(&Note { instance: INSTANCE.to_owned(), ..Note::default() });
}

#[test]
fn r130_damage_in_the_middle_of_the_log_is_reported_and_what_follows_is_read() {
    let killed = Killed::after(3);
    let (frame, count) = killed.frames();
    let last = killed.first_of_last(1);
    let mut complete = 0;
    for number in 0..count {
        let start = 32 + number * frame;
        // Its page number, salts, checksum, and page.
        for at in [3, 9, 17, 24 + 1000] {
            let log = killed.flipped(start + at);
            let folder = killed.placed(Some(&log));
            let opened = read(folder.path());
            // A crash may have torn the last transaction.
            let is_last = number >= last;
            assert_eq!(opened.damage.is_some(), !is_last, "frame {number}, byte {at}");
            let tasks = opened.kept.tasks.len();
            assert!(tasks <= 6, "frame {number}, byte {at}: {tasks}");
            complete += usize::from(!is_last && tasks == 6);
            if let Some(damage) = &opened.damage {
                assert!(damage.warning.contains("its log is damaged in the middle"), "{}", damage.warning);
                let [aside] = &asides(&folder.path().join("journal"))[..] else { panic!("{number}") };
                assert!(fs::read(aside.join(LOG)).unwrap() == log, "frame {number}: as it was");
                damage.settle();
            }
            drop(opened);
            let again = read(folder.path());
            assert!(again.damage.is_none(), "frame {number}, byte {at}: the new one is whole");
            assert_eq!(again.kept.tasks.len(), tasks, "frame {number}, byte {at}");
        }
    }
    assert!(complete > count, "most frames are followed by another one of the same page: {complete}");
}

/// The blocks of a log that is used again reach the disk in any order, over frames of the use before.
#[test]
fn r128_power_cut_during_the_last_transaction_is_no_damage_and_loses_nothing_before() {
    let killed = Killed::after_each(&[2, 2, 30]);
    let (frame, count) = killed.frames();
    let first = killed.first_of_last(1);
    let torn = count - 1 - first;
    assert!(torn >= 2, "a transaction of several frames: {torn}");
    for lost in 1..1_u32 << torn.min(6) {
        let mut log = killed.log.clone();
        for number in (0..torn.min(6)).filter(|number| (lost >> number) & 1 != 0) {
            let mut old = killed.log[32 + number * frame..][..frame].to_vec();
            old[8..16].iter_mut().for_each(|byte| *byte ^= 0xff);
            log[32 + (first + number) * frame..][..frame].copy_from_slice(&old);
        }
        let folder = killed.placed(Some(&log));
        let opened = read(folder.path());
        assert!(opened.damage.is_none(), "lost {lost:b}: {:?}", opened.damage);
        assert_eq!(opened.kept.tasks.len(), 4, "lost {lost:b}");
    }
}

/// The page of such a frame is unknown, so that its older version would be taken for the latest.
#[test]
fn r130_frame_without_header_counts_as_unread_and_costs_no_task_before_it() {
    let killed = Killed::after(4);
    let (frame, _) = killed.frames();
    let commits = killed.commits();
    // Without its header, nothing says that a frame was the end of a transaction.
    for number in 0..killed.first_of_last(2) {
        let mut log = killed.log.clone();
        log[32 + number * frame..][..24].fill(0);
        let folder = killed.placed(Some(&log));
        let opened = read(folder.path());
        let Some(damage) = &opened.damage else { panic!("frame {number}") };
        assert!(!damage.warning.contains(" 0 other parts"), "frame {number}: {}", damage.warning);
        let written = commits.iter().filter(|commit| **commit < number).count();
        let steps = written.saturating_sub(commits.len() - 4);
        assert!(opened.kept.tasks.len() >= 2 * steps, "frame {number}: {}", opened.kept.tasks.len());
    }
}

/// Instead, its daemon would seem to have done nothing, and its tasks would end.
#[test]
fn r130_journal_whose_log_is_gone_or_cut_at_its_beginning_counts_as_damaged() {
    let killed = Killed::after(2);
    let (frame, _) = killed.frames();
    let header = killed.flipped(17);
    let logs =
        [None, Some(&[][..]), Some(&killed.log[..32]), Some(&killed.log[..32 + frame]), Some(&header[..])];
    for (number, log) in logs.into_iter().enumerate() {
        let folder = killed.placed(log);
        let opened = read(folder.path());
        assert!(opened.damage.is_some(), "log {number}");
        assert_eq!(opened.head.map(|head| head.instance).as_deref(), Some(INSTANCE), "log {number}");
        assert_eq!(opened.kept.tasks.len(), 0, "log {number}");
    }
    let folder = quick_folder();
    fs::create_dir(folder.path().join("journal")).unwrap();
    note(folder.path());
    assert!(read(folder.path()).damage.is_some(), "the database is missing, too");
}

#[test]
fn r130_uncommitted_remains_in_the_log_are_no_damage() {
    let killed = Killed::after(2);
    let (frame, count) = killed.frames();
    // A transaction that failed for lack of space, and was longer than the next one.
    let mut log = killed.log.clone();
    let last = log[32 + (count - 1) * frame..].to_vec();
    for number in 1..=3_u8 {
        let mut remains = last.clone();
        remains[4..8].fill(0);
        remains[30] = number;
        log.extend(remains);
    }
    let folder = killed.placed(Some(&log));
    let opened = read(folder.path());
    assert!(opened.damage.is_none(), "{:?}", opened.damage);
    assert_eq!(opened.kept.tasks.len(), 4);
}

#[test]
fn r130_daemon_killed_before_its_first_step_leaves_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &mut core(), &[]);
    let opened = read(folder.path());
    assert_eq!(opened.instance.as_deref(), Some(INSTANCE));
    assert_eq!(opened.head.map(|head| head.instance).as_deref(), Some(INSTANCE));
    assert!(opened.damage.is_none(), "{:?}", opened.damage);
}
