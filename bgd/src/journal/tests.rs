//! Tests of the journal on real files.

mod damaged_log;
mod panics;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use bgd_shared::id::TaskId;
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::core::{
    BatchItem, BatchLimits, Command, Core, CoreLimits, Fact, Input, Mono, Now, Part, PlanRequest, ReplyTo,
    Request, Spec,
};

const LIMITS: CoreLimits = CoreLimits {
    max_concurrent_tasks: 1,
    tasks: 1000,
    memory: 1 << 30,
    environments: 1 << 20,
    grace_ms: 1000,
    inbox_items: 10,
    history: None,
};

fn now() -> Now {
    Now { mono: Mono(5), wall: Timestamp::default() }
}

const INSTANCE: &str = "ef3673cc-470a-4390-9d0a-d0330b382430";

fn core() -> Core {
    let mut core = Core::new(LIMITS, [].into());
    core.track();
    core
}

/// Submits tasks that share one environment.
fn submit(core: &mut Core, ids: std::ops::Range<u128>) {
    for id in ids {
        let to = ReplyTo { client: 1, call: 1 };
        let request = Request::Submit(Box::new(command(id)));
        let _ = core.handle(now(), Input::Request { to, request });
    }
}

fn command(id: u128) -> Command {
    Command {
        id: TaskId::from_u128(id),
        spec: Spec::of_daemon(),
        env: [("A".into(), OsText::from("x".repeat(100)))].into_iter().collect(),
        prompt: None,
        key: None,
        foreground: false,
        plan: PlanRequest::default(),
    }
}

fn head() -> Head {
    Head::new(INSTANCE.to_owned(), "boot".to_owned(), crate::os::clock::Stamp::now(), 7)
}

/// Writes the changes, each task separately, and waits until they are written.
fn write(folder: &Path, core: &mut Core, steps: &[std::ops::Range<u128>]) {
    let opened = open(folder, Durability::Written).unwrap();
    let (reports, hears) = mpsc::channel();
    let report = move |recorded| drop(reports.send(recorded));
    let note = Note { instance: INSTANCE.to_owned(), ..Note::default() };
    let journal = Journal::start(opened, head(), &note, || 9, report).unwrap();
    for (number, ids) in (1..).zip(steps) {
        submit(core, ids.clone());
        journal.write(number, core.take_changes(now()).expect("something has changed"));
        assert!(hears.recv().unwrap().trouble.is_none());
    }
}

fn read(folder: &Path) -> Opened {
    open(folder, Durability::Written).unwrap()
}

#[test]
fn r125_written_journal_is_read_back_with_shared_environments() {
    let folder = tempfile::tempdir().unwrap();
    let mut before = core();
    write(folder.path(), &mut before, &[1..4, 4..9]);
    let opened = read(folder.path());
    let head = opened.head.as_ref().unwrap();
    assert_eq!((head.instance.as_str(), head.next_mark), (INSTANCE, 9));
    assert!(opened.damage.is_none());
    let mut again = Core::restore(LIMITS, [].into(), opened.kept);
    assert_eq!((again.summary(), again.seq()), (before.summary(), before.seq()));
    assert_eq!(again.held_by_tasks(), before.held_by_tasks(), "they share their environments");
    again.track();
    assert!(again.take_changes(now()).is_some_and(|changes| changes.tasks.is_empty()), "only the groups");
}

/// Calls `look` for each cut of a file, on all processors.
fn at_each(cuts: std::ops::RangeInclusive<usize>, look: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(*cuts.start());
    let workers = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(cut) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|cut| cuts.contains(cut))
                {
                    look(cut);
                }
            });
        }
    });
}

/// Creates a folder, in memory if the machine supports it: there are thousands.
fn quick_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Puts a journal into a new folder.
fn placed(database: &[u8], log: Option<&[u8]>) -> TempDir {
    let folder = quick_folder();
    let journal = folder.path().join("journal");
    fs::create_dir(&journal).unwrap();
    fs::write(journal.join(FILE), database).unwrap();
    if let Some(log) = log {
        fs::write(journal.join(format!("{FILE}-wal")), log).unwrap();
    }
    folder
}

/// Returns a journal of tasks with the smallest pages that `SQLite` supports, so that every page, and every kind of
/// page, can be cut at every byte.
fn small_pages(steps: &[std::ops::Range<u128>]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    drop(read(folder.path()));
    let file = folder.path().join("journal").join(FILE);
    let database = rusqlite::Connection::open(&file).unwrap();
    database.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM").unwrap();
    drop(database);
    write(folder.path(), &mut core(), steps);
    folder
}

#[test]
fn r130_journal_truncated_anywhere_opens_and_is_set_aside_if_damaged() {
    let whole = small_pages(&[1..2, 2..4]);
    // Its last connection was closed, so everything is in the database now.
    let bytes = fs::read(whole.path().join("journal").join(FILE)).unwrap();
    at_each(0..=bytes.len() - 1, |cut| {
        let folder = placed(&bytes[..cut], None);
        let opened = read(folder.path());
        assert!(opened.kept.tasks.len() <= 3);
        let is_kept = fs::read_dir(folder.path().join("journal"))
            .unwrap()
            .flatten()
            .any(|entry| fs::metadata(entry.path().join(FILE)).is_ok_and(|meta| meta.len() == cut as u64));
        // The end of the last page may be empty.
        let is_damaged = opened.damage.is_some();
        assert!(is_damaged || cut == 0 || opened.kept.tasks.len() == 3, "cut at {cut}");
        assert_eq!(is_kept, is_damaged, "cut at {cut}");
        opened.damage.iter().for_each(Damage::settle);
        drop(opened);
        // The salvaged journal is intact regardless of the cut.
        if cut.is_multiple_of(16) {
            assert!(read(folder.path()).damage.is_none(), "the new one is whole");
        }
    });
}

#[test]
fn r130_log_truncated_anywhere_loses_only_its_last_steps() {
    let whole = small_pages(&[]);
    let opened = open(whole.path(), Durability::Written).unwrap();
    let Opened { mut store, lock, .. } = opened;
    let mut core = core();
    let folder = whole.path().join("journal");
    for step in 0..3_u128 {
        submit(&mut core, step * 2..step * 2 + 2);
        let mut merged = Merged::default();
        merged.add(core.take_changes(now()).unwrap());
        store.write(&head(), &merged).unwrap();
    }
    let log = format!("{FILE}-wal");
    let (database, bytes) = (fs::read(folder.join(FILE)).unwrap(), fs::read(folder.join(&log)).unwrap());
    drop((store, lock));
    let found: Vec<AtomicUsize> = (0..=bytes.len()).map(|_| AtomicUsize::new(0)).collect();
    at_each(0..=bytes.len(), |cut| {
        let folder = placed(&database, Some(&bytes[..cut]));
        let opened = read(folder.path());
        assert!(opened.damage.is_none(), "cut at {cut}: {:?}", opened.damage);
        found[cut].store(opened.kept.tasks.len(), Ordering::Relaxed);
    });
    let found: Vec<usize> = found.into_iter().map(AtomicUsize::into_inner).collect();
    assert!(found.iter().all(|tasks| tasks.is_multiple_of(2)), "a step is there or not: {found:?}");
    assert!(found.is_sorted(), "{found:?}");
    assert_eq!(found.last(), Some(&6));
}

/// Writes a journal of 39 tasks and damages it in the middle of its pages, where the rows are. Returns the content of
/// the damaged file.
fn damaged(folder: &Path) -> Vec<u8> {
    write(folder, &mut core(), &[1..20, 20..40]);
    let file = folder.join("journal").join(FILE);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xa5);
    fs::write(&file, &bytes).unwrap();
    bytes
}

#[test]
fn r130_readable_tasks_of_a_damaged_journal_are_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    damaged(folder.path());
    let opened = read(folder.path());
    let warning = opened.damage.as_ref().expect("it is damaged").warning.clone();
    assert!(warning.contains("damaged") && warning.contains("tasks could be read"), "{warning}");
    let tasks = opened.kept.tasks.len();
    assert!((1..40).contains(&tasks), "{tasks}");
    drop(opened);
    assert_eq!(read(folder.path()).kept.tasks.len(), tasks, "they are in the new one");
}

/// Leaves a journal's folder in the state after a kill of the daemon.
type Kill<'a> = &'a dyn Fn(&Path);

#[test]
fn r130_salvage_that_cannot_copy_the_whole_journal_is_refused_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &mut core(), std::slice::from_ref(&(1..4)));
    let journal = folder.path().join("journal");
    let before = fs::read(journal.join(FILE)).unwrap();
    // A file that can't be copied, as on a disk that is full or broken.
    let obstacle = journal.join(format!("{FILE}-shm"));
    fs::create_dir(&obstacle).unwrap();
    let refused = salvage::salvage(&journal, "a test", None, false);
    assert!(matches!(refused, Err(Fault::Unusable(_))));
    assert_eq!(fs::read(journal.join(FILE)).unwrap(), before);
    fs::remove_dir(&obstacle).unwrap();
    assert_eq!(read(folder.path()).kept.tasks.len(), 3);
    let left: Vec<_> = fs::read_dir(&journal).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == FILE || name == LOG || name == "lock"), "{left:?}");
}

/// Kills while the new journal is written or complete, while the damaged one is moved aside, and after that.
#[test]
fn r130_salvage_killed_at_any_stage_is_continued() {
    let salvage = |journal: &Path| assert!(salvage::salvage(journal, "why", None, false).is_ok());
    let moments: [(&str, Kill<'_>); 4] = [
        ("begun", &|journal| {
            fs::create_dir(journal.join("salvaged.new")).unwrap();
            fs::write(journal.join("salvaged.new").join(FILE), "").unwrap();
        }),
        ("complete", &salvage),
        ("moving", &|journal| {
            salvage(journal);
            let note = fs::read(journal.join("salvaged/note")).unwrap();
            let note: serde_json::Value = serde_json::from_slice(&note).unwrap();
            let aside = journal.join(note["aside"].as_str().unwrap());
            fs::create_dir(&aside).unwrap();
            fs::rename(journal.join(FILE), aside.join(FILE)).unwrap();
        }),
        ("moved", &|journal| {
            salvage(journal);
            assert!(salvage::finish(journal).unwrap().is_some());
        }),
    ];
    let mut found = Vec::new();
    for (moment, kill) in moments {
        let folder = tempfile::tempdir().unwrap();
        let bytes = damaged(folder.path());
        let journal = folder.path().join("journal");
        kill(&journal);
        // Twice, as the first daemon may be killed before it can use the salvaged journal.
        for _ in 0..2 {
            let opened = read(folder.path());
            assert!(opened.damage.is_some(), "{moment}");
            assert_eq!(opened.head.map(|head| head.instance).as_deref(), Some(INSTANCE), "{moment}");
            found.push(opened.kept.tasks.len());
        }
        let opened = read(folder.path());
        let output = folder.path().join("output");
        fs::write(&output, "said").unwrap();
        let damage = opened.damage.as_ref().unwrap();
        damage.keep_outputs([output].into_iter()).unwrap();
        damage.settle();
        drop(opened);
        let opened = read(folder.path());
        assert!(opened.damage.is_none(), "{moment}");
        found.push(opened.kept.tasks.len());
        let [aside] = &asides(&journal)[..] else { panic!("{moment}: {:?}", asides(&journal)) };
        assert!(fs::read(aside.join(FILE)).unwrap() == bytes, "{moment}: as it was");
        assert_eq!(fs::read(aside.join("output/output")).unwrap(), b"said", "{moment}");
    }
    assert!(found[0] > 0 && found.iter().all(|tasks| *tasks == found[0]), "{found:?}");
}

/// Returns the folders of damaged journals.
fn asides(journal: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(journal).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("damaged-")).collect()
}

#[test]
fn r130_journal_locked_by_another_process_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print('has', flush=True); sys.stdin.read()";
    let journal = folder.path().join("journal");
    fs::create_dir(&journal).unwrap();
    let mut other = std::process::Command::new("python3");
    other.args(["-c", code]).arg(journal.join("lock"));
    other.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut other = other.spawn().unwrap();
    let mut word = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(other.stdout.take().unwrap()), &mut word)
        .unwrap();
    let error = open(folder.path(), Durability::Written).err().expect("it is in use");
    assert!(
        matches!(&error, OpenError::Busy { pid, .. } if *pid == Some(other.id().cast_signed())),
        "{error}"
    );
    drop(other.stdin.take());
    other.wait().unwrap();
    assert!(open(folder.path(), Durability::Written).is_ok());
}

#[test]
fn r125_journal_of_mostly_cleared_tasks_shrinks_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &mut core(), std::slice::from_ref(&(1..4)));
    let file = folder.path().join("journal").join(FILE);
    let size = || fs::metadata(&file).unwrap().len();
    let before = size();
    let database = rusqlite::Connection::open(&file).unwrap();
    let cleared = "INSERT INTO item VALUES (1, zeroblob(9000000)); DELETE FROM item";
    database.execute_batch(cleared).unwrap();
    drop(database);
    assert!(size() > 9_000_000);
    let opened = read(folder.path());
    assert_eq!(opened.kept.tasks.len(), 3);
    assert_eq!(size(), before);
}

#[test]
fn r125_reopen_refuses_the_journal_of_another_instance() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |instance: &str| reopen(folder.path(), Durability::Written, instance).err();
    assert!(refused(INSTANCE).is_some(), "there is none");
    assert!(!folder.path().join("journal").join(FILE).exists(), "and none is created");
    write(folder.path(), &mut core(), std::slice::from_ref(&(1..4)));
    assert!(refused("another").is_some_and(|error| error.to_string().contains("not this daemon's")));
    assert!(refused(INSTANCE).is_none());
}

#[test]
fn r125_event_number_alone_is_a_change() {
    let mut core = core();
    submit(&mut core, 1..2);
    let run = core.get(&TaskId::from_u128(1).into()).unwrap().run;
    let fact = |fact| Input::Fact { task: TaskId::from_u128(1), run, fact };
    let _ = core.handle(now(), fact(Fact::Started { pid: None }));
    assert!(core.take_changes(now()).is_some_and(|changes| !changes.tasks.is_empty()));
    let output = |bytes| Fact::Output { bytes: [bytes, 0], dropped: [0; 2], publish: true };
    let _ = core.handle(now(), fact(output(1)));
    let seq = core.seq();
    assert_eq!(core.take_changes(now()).map(|changes| changes.counters.seq), Some(seq));
    let _ = core.handle(now(), fact(output(2)));
    assert!(core.seq() > seq, "an event of output");
    let changes = core.take_changes(now()).expect("its number is written down");
    assert!(changes.tasks.is_empty(), "the size of an output may be lost: its file has it");
    assert_eq!(changes.counters.seq, core.seq());
    let _ = core.handle(now(), fact(Fact::Output { bytes: [3, 0], dropped: [1, 0], publish: false }));
    assert!(core.take_changes(now()).is_some_and(|changes| !changes.tasks.is_empty()), "no file shows this");
}

#[test]
fn r130_tasks_of_a_journal_with_damaged_head_are_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &mut core(), std::slice::from_ref(&(1..4)));
    let file = folder.path().join("journal").join(FILE);
    let database = rusqlite::Connection::open(&file).unwrap();
    database.execute("UPDATE entry SET value = x'00' WHERE name = 'head'", []).unwrap();
    drop(database);
    let opened = read(folder.path());
    let damage = opened.damage.as_ref().expect("its head can't be read");
    // The new head contains what is known about the daemon from elsewhere.
    assert_eq!(
        opened.head.as_ref().map(|head| (head.instance.as_str(), head.boot.as_str())),
        Some((INSTANCE, ""))
    );
    assert_eq!(opened.kept.tasks.len(), 3);
    damage.settle();
    drop(opened);
    let again = read(folder.path());
    assert!(again.damage.is_none());
    assert_eq!(again.kept.tasks.len(), 3);
}

#[test]
fn r130_damaged_environment_reference_loses_no_task() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &mut core(), std::slice::from_ref(&(1..6)));
    let file = folder.path().join("journal").join(FILE);
    let damage = "UPDATE task SET envs = CAST(x'ff' AS TEXT) WHERE ordinal IN (2, 4)";
    rusqlite::Connection::open(&file).unwrap().execute_batch(damage).unwrap();
    let opened = read(folder.path());
    assert!(opened.damage.is_some(), "an environment would be removed that is still needed");
    assert_eq!(opened.kept.tasks.len(), 5);
}

/// Without its ID, the row of a batch could never be removed, but its environment would be.
#[test]
fn r130_damaged_id_of_an_entering_batch_is_detected_and_repaired() {
    for damaged in ["x'ff'", "'another'"] {
        let folder = tempfile::tempdir().unwrap();
        let mut core = core();
        let items =
            (1..900).map(|id| BatchItem { id: TaskId::from_u128(id), argv: Box::default() }).collect();
        let first = Some((Box::new(command(0)), BatchLimits::default()));
        let batch = TaskId::from_u128(1000);
        let part = Part { batch, first, items, more: false };
        let to = ReplyTo { client: 1, call: 1 };
        let request = Request::SubmitMany(Box::new(part));
        let _ = core.handle(now(), Input::Request { to, request });
        write(folder.path(), &mut core, std::slice::from_ref(&(1001..1002)));
        let file = folder.path().join("journal").join(FILE);
        let damage = format!("UPDATE entering SET id = CAST({damaged} AS TEXT)");
        assert_eq!(rusqlite::Connection::open(&file).unwrap().execute(&damage, []).unwrap(), 1);
        let opened = read(folder.path());
        assert!(opened.damage.is_some(), "{damaged}");
        assert_eq!(opened.kept.entering.len(), 1, "{damaged}");
        drop(opened);
        let known = "SELECT count(*) FROM entering WHERE id = ?1";
        let database = rusqlite::Connection::open(&file).unwrap();
        let count: i64 = database.query_row(known, [batch.to_string()], |row| row.get(0)).unwrap();
        assert_eq!(count, 1, "{damaged}: the new journal has its id");
    }
}

#[test]
fn r123_journal_without_a_newer_table_is_read() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &mut core(), std::slice::from_ref(&(1..4)));
    let file = folder.path().join("journal").join(FILE);
    rusqlite::Connection::open(&file).unwrap().execute_batch("DROP TABLE notice").unwrap();
    let opened = read(folder.path());
    assert!(opened.damage.is_none() && opened.kept.notices.is_empty());
    assert_eq!(opened.kept.tasks.len(), 3);
}

/// Rows that an earlier program can't read must not be labelled with its format.
#[test]
fn r123_written_head_always_has_the_current_format() {
    let folder = tempfile::tempdir().unwrap();
    let mut core = core();
    submit(&mut core, 1..4);
    let mut merged = Merged::default();
    merged.add(core.take_changes(now()).unwrap());
    let (mut store, _) =
        begin::begin(folder.path(), false, None).unwrap_or_else(|fault| panic!("{}", fault.words()));
    store.write(&Head { format: 1, ..head() }, &merged).unwrap();
    assert_eq!(store.read().head.map(|head| head.format), Some(FORMAT));
}

#[test]
fn r130_failed_write_loses_no_environment() {
    let folder = tempfile::tempdir().unwrap();
    let mut core = core();
    write(folder.path(), &mut core, std::slice::from_ref(&(1..4)));
    let file = folder.path().join("journal").join(FILE);
    let mut store = reopen(folder.path(), Durability::Written, INSTANCE).unwrap().store;
    submit(&mut core, 4..6);
    let mut merged = Merged::default();
    merged.add(core.take_changes(now()).unwrap());
    store.run("ALTER TABLE task RENAME TO gone");
    assert!(store.write(&head(), &merged).is_err());
    assert!(store.write(&head(), &merged).is_err(), "nor without knowing which environments there are");
    store.run("ALTER TABLE gone RENAME TO task");
    store.write(&head(), &merged).unwrap();
    drop(store);
    let database = rusqlite::Connection::open(&file).unwrap();
    let envs: u32 = database.query_row("SELECT count(*) FROM env", [], |row| row.get(0)).unwrap();
    drop(database);
    assert_eq!(envs, 1, "they share it");
    let opened = read(folder.path());
    assert!(opened.damage.is_none(), "every environment is there");
    assert_eq!(opened.kept.tasks.len(), 5);
}

#[test]
fn r130_unknown_sqlite_format_counts_as_damage() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &mut core(), std::slice::from_ref(&(1..4)));
    let file = folder.path().join("journal").join(FILE);
    let mut bytes = fs::read(&file).unwrap();
    // The schema format in the file's header.
    bytes[47] = 9;
    fs::write(&file, &bytes).unwrap();
    read(folder.path()).damage.expect("it is damaged").settle();
    assert!(read(folder.path()).damage.is_none(), "the new one is whole");
}

/// While the disk is full, the writer checks once a second whether there is room again.
#[test]
fn r130_step_arriving_during_a_space_check_is_written_before_it_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut core = core();
    submit(&mut core, 1..4);
    let Opened { store, lock, folder: journal, .. } = read(folder.path());
    let (reports, hears) = mpsc::channel();
    let mut writer = Writer {
        store,
        file: JournalFile::in_folder(&journal),
        room: None,
        folder: journal,
        head: head(),
        next_mark: Box::new(|| 9),
        report: Box::new(move |recorded| drop(reports.send(recorded))),
        is_stopped: Arc::default(),
        _lock: lock,
    };
    let trouble = Some(Trouble::of_disk(FULL));
    let mut taken = Taken { unwritten: Merged::default(), upto: 0, is_written: true, trouble };
    let (orders, ordered) = mpsc::channel();
    orders.send((1, core.take_changes(now()).unwrap())).unwrap();

    assert!(writer.turn(&mut taken, Err(RecvTimeoutError::Timeout), &ordered));
    let Recorded { upto, is_written, .. } = hears.recv().unwrap();
    assert_eq!((upto, is_written), (1, true));
    // As after a kill: nothing else is written.
    drop(writer);
    assert_eq!(read(folder.path()).kept.tasks.len(), 3);
}

/// Readers of events and inboxes know these numbers and would never see new events under reused ones.
#[test]
fn r130_unreadable_counters_never_reuse_numbers() {
    for damage in [
        "UPDATE entry SET value = x'00' WHERE name = 'counters'",
        "DELETE FROM entry WHERE name = 'counters'",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("journal").join(FILE);
        write(folder.path(), &mut core(), std::slice::from_ref(&(1..4)));
        let mut published = [1 << 32; 3];
        // Even if the counters are lost again at once, the numbers must grow.
        for _ in 0..2 {
            rusqlite::Connection::open(&file).unwrap().execute_batch(damage).unwrap();
            let numbers = |opened: &Opened| {
                let counters = &opened.kept.counters;
                [counters.seq, counters.inboxes.last, counters.notices]
            };
            let opened = read(folder.path());
            let found = numbers(&opened);
            assert!(
                found.iter().zip(published).all(|(found, published)| *found > published),
                "{damage}: {found:?}, {published:?}"
            );
            drop(opened);
            let opened = read(folder.path());
            assert_eq!(
                numbers(&opened),
                found,
                "{damage}: also for the daemon after one that was killed at once"
            );
            opened.damage.as_ref().unwrap().settle();
            let mut again = Core::restore(LIMITS, [].into(), opened.kept);
            // As the daemon before was stopped, it seems to have reported nothing.
            assert!(!again.number_after(now(), Some(0)));
            assert_eq!(again.seq(), found[0], "{damage}");
            published = found;
        }
    }
}

#[test]
fn r130_numbers_skip_ahead_if_more_was_reported_than_written() {
    let before = core();
    let counters = |core: &Core| core.counters(now());
    let again = |sent_seq| {
        let kept = Kept { counters: counters(&before), ..Kept::default() };
        let mut again = Core::restore(LIMITS, [].into(), kept);
        let did_more =
            again.number_after(Now { wall: Timestamp::from_unix_ms(1_000_000_000), ..now() }, sent_seq);
        assert_eq!(did_more, sent_seq != Some(before.seq()));
        counters(&again)
    };
    let seq = before.seq();
    assert_eq!(again(Some(seq)), counters(&before), "everything was written");
    let more = again(Some(seq + 5));
    assert_eq!(more.seq, seq + 5);
    for number in [more.inboxes.last, more.notices, again(None).seq, again(None).inboxes.last] {
        assert_eq!(number, 1_000_000_000_000, "beyond all that was reported");
    }
}
