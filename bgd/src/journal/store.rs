//! The journal's file: an `SQLite` database with one row for each task, item, loss of an inbox, notice and batch. A
//! change is one transaction, so that the file always holds the state before or after it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use rusqlite::config::DbConfig;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, params};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::envs::{Envs, RowId};
use super::parse::{integer, parse, parse_all, task_id};
use crate::core::durable::{Changes, Counters, Groups, Kept};
use crate::core::sharing;
use crate::core::{Entering, Ordinal};
use crate::os::clock::Stamp;

/// The name of the file in the journal's folder.
pub const FILE: &str = "journal.db";

/// The name of the file's write-ahead log, in the same folder.
pub const LOG: &str = "journal.db-wal";

/// The format of the rows written by this program. A file in a later format is left alone.
pub const FORMAT: u32 = 2;

/// The formats that this program can read.
pub const READS: &[u32] = &[1, 2];

/// The number of pages after which the write-ahead log is moved into the database.
const CHECKPOINT_PAGES: u32 = 1000;

/// A journal with fewer unused pages than this is not compacted: 4 MiB of usual pages.
const COMPACT_UNUSED_PAGES: u32 = 1024;

/// A journal with more used pages than this is not compacted, as that would delay the start: 64 MiB.
const COMPACT_USED_PAGES: u32 = 16384;

/// Maximum number of tasks that are counted without opening the journal: a large one would delay the start.
pub const COUNTED: u32 = 10_000;

/// The memory for cached pages of the database, in KiB.
const CACHE_KIB: u32 = 512;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS entry (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS env (number INTEGER PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS task (ordinal INTEGER PRIMARY KEY, envs TEXT NOT NULL, value BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS item (number INTEGER PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS loss (number INTEGER PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS notice (number INTEGER PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS batch (id TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS entering (id TEXT PRIMARY KEY, envs TEXT NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
";

/// The daemon that a journal belongs to, and the start of its clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub format: u32,
    pub instance: String,
    /// The boot ID of the machine.
    pub boot: String,
    /// When the core's clock started, on the clock of that boot.
    pub epoch: Stamp,
    /// The number of the next mark of a process tree when this was written. Later ones may have been used since.
    pub next_mark: u32,
    /// Whether the daemon was stopped on request.
    #[serde(default)]
    pub is_stopped: bool,
}

/// The part of the head that every version has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Head {
    /// Creates the head of a journal for this instance, in this program's format.
    pub fn new(instance: String, boot: String, epoch: Stamp, next_mark: u32) -> Self {
        Self { format: FORMAT, instance, boot, epoch, next_mark, is_stopped: false }
    }
}

/// An open journal.
pub struct Store {
    database: Connection,
    envs: Envs,
    /// Whether `envs` may differ from the file, as a write has failed.
    is_stale: bool,
}

/// The content of a journal.
#[derive(Debug, Default)]
pub struct Read {
    /// The head; `None` if it can't be read.
    pub head: Option<Head>,
    pub kept: Kept,
    /// Whether the counters that only grow were read. Otherwise they restart.
    pub has_counters: bool,
    /// Whether the groups were read. Otherwise their slots and pauses are unknown.
    pub has_groups: bool,
    /// How many rows could not be read.
    pub unread: usize,
}

/// The environments that tasks need.
const HOLDING_TASKS: &str = "SELECT ordinal, envs FROM task";

/// The environments that batches need while their tasks are being added.
const HOLDING_ENTERING: &str = "SELECT id, envs FROM entering";

impl Store {
    /// Opens the journal in this file, which must exist. With `sync`, a finished transaction is on the disk; otherwise
    /// it is only in the file.
    ///
    /// # Errors
    /// The journal is damaged, another process has it, or the disk can't be written.
    pub fn open(file: &Path, sync: bool) -> rusqlite::Result<Self> {
        let database = Connection::open_with_flags(file, existing())?;
        // A damaged log must not get into the database.
        database.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        database.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        database.pragma_update(None, "journal_mode", "WAL")?;
        database.pragma_update(None, "synchronous", if sync { "FULL" } else { "NORMAL" })?;
        database.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        database.pragma_update(None, "cache_size", -i64::from(CACHE_KIB))?;
        database.pragma_update(None, "cell_size_check", true)?;
        // Deleted rows contain environments, which may be secret.
        database.pragma_update(None, "secure_delete", true)?;
        database.set_prepared_statement_cache_capacity(32);
        let store = Self { database, envs: Envs::default(), is_stale: false };
        if store.later_format().is_none() {
            store.add_tables()?;
        }
        Ok(store)
    }

    /// Returns the format of the rows if only a later program can read it. In that case the file has not been changed.
    pub fn later_format(&self) -> Option<u32> {
        let format = parse::<Format>(&self.entry("head")?)?.format;
        (format > FORMAT).then_some(format)
    }

    /// Allows the log to be moved into the database when it is closed, as both were found intact.
    pub fn trust(&self) -> rusqlite::Result<()> {
        self.database.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map(drop)
    }

    /// Returns unused space to the disk if it is most of the file. The rest is copied for that, so this does nothing if
    /// there is much of it, or if the disk has no room.
    pub fn compact(&self) {
        let pages = |name: &str| {
            let query = format!("PRAGMA {name}");
            self.database.query_row(&query, [], |row| row.get::<_, u32>(0)).unwrap_or(0)
        };
        let (all, unused) = (pages("page_count"), pages("freelist_count"));
        let used = all.saturating_sub(unused);
        if unused > used && unused >= COMPACT_UNUSED_PAGES && used <= COMPACT_USED_PAGES {
            let compacted = self.database.execute_batch("VACUUM").and_then(|()| self.move_log());
            let _ = compacted.inspect_err(|error| tracing::info!(%error, "the journal is not compacted"));
        }
    }

    /// Keeps the log with its reserved blocks when the database is closed: the next daemon may need them.
    pub fn keep_log(&self) {
        // On failure, only the reserve is lost.
        let _ = self.database.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    }

    /// Changes the file behind the daemon's back.
    #[cfg(test)]
    pub fn run(&self, query: &str) {
        self.database.execute_batch(query).expect("a query of a test");
    }

    /// Returns the head, if it can be read.
    pub fn head(&self) -> Option<Head> {
        self.entry("head").as_ref().and_then(parse::<Head>).filter(|head| READS.contains(&head.format))
    }

    /// Moves the log into the database.
    ///
    /// # Errors
    /// The disk is full or can't be written.
    pub fn move_log(&self) -> rusqlite::Result<()> {
        self.database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    }

    /// Opens a journal that may be damaged, only to read it.
    ///
    /// # Errors
    /// The file can't be opened.
    pub fn open_damaged(file: &Path) -> rusqlite::Result<Self> {
        let database = Connection::open_with_flags(file, existing())?;
        Ok(Self { database, envs: Envs::default(), is_stale: false })
    }

    /// Adds the tables that an earlier format lacks.
    ///
    /// # Errors
    /// The file is damaged or not a database, or the disk is full or can't be written.
    pub fn add_tables(&self) -> rusqlite::Result<()> {
        self.database.execute_batch(SCHEMA)
    }

    /// Checks the integrity of the file.
    ///
    /// # Errors
    /// The file is damaged or can't be read.
    pub fn check(&self) -> rusqlite::Result<bool> {
        self.database.query_row("PRAGMA quick_check(1)", [], |row| Ok(row.get::<_, String>(0)? == "ok"))
    }

    /// Reads all that can be read.
    pub fn read(&mut self) -> Read {
        let mut read = Read::default();
        let mut unread = 0;
        let mut envs = HashMap::new();
        for [number, value] in self.rows("SELECT number, value FROM env", &mut unread) {
            let Some(number) = integer(&number).and_then(|number| u32::try_from(number).ok()) else {
                continue;
            };
            match parse::<Env>(&value) {
                Some(env) => _ = envs.insert(number, Arc::new(env)),
                None => unread += 1,
            }
            self.envs.insert(number, &value);
        }
        read.head = self.head();
        let (counters, groups) = (self.parsed("counters", &mut unread), self.parsed("groups", &mut unread));
        (read.has_counters, read.has_groups) = (counters.is_some(), groups.is_some());
        read.kept.counters = counters.unwrap_or_default();
        read.kept.groups = groups.unwrap_or_default();
        read.kept.items = self.numbered("item", &mut unread);
        read.kept.losses = self.numbered("loss", &mut unread);
        read.kept.notices = self.numbered("notice", &mut unread);
        for [id, value] in self.rows("SELECT id, value FROM batch", &mut unread) {
            match (task_id(&id), parse(&value)) {
                (Some(id), Some(batch)) => _ = read.kept.batches.insert(id, batch),
                _ => unread += 1,
            }
        }
        let query = "SELECT ordinal, value, envs FROM task ORDER BY ordinal";
        let (holding_tasks, values) = self.rows_with_envs(query, &mut unread);
        for ((ordinal, _), row) in holding_tasks.iter().zip(parse_all(values, &envs)) {
            match (integer(ordinal), row) {
                (Some(ordinal), Some(row)) => read.kept.tasks.push((Ordinal(ordinal), row)),
                _ => unread += 1,
            }
        }
        let (holding_entering, values) =
            self.rows_with_envs("SELECT id, value, envs FROM entering", &mut unread);
        for ((id, _), row) in holding_entering.iter().zip(parse_all::<Entering>(values, &envs)) {
            // Without its ID, the row could not be removed once the batch has entered.
            let is_whole = row.as_ref().is_some_and(|entering| task_id(id) == Some(entering.batch));
            unread += usize::from(!is_whole);
            read.kept.entering.extend(row);
        }
        drop(envs);
        self.count_holders(holding_tasks, holding_entering);
        read.unread = unread;
        read
    }

    /// Returns the rows of a table by their numbers.
    fn numbered<T: DeserializeOwned>(&self, table: &str, unread: &mut usize) -> Vec<(u64, T)> {
        let mut found = Vec::new();
        let query = format!("SELECT number, value FROM {table} ORDER BY number");
        for [number, value] in self.rows(&query, unread) {
            match (integer(&number), parse(&value)) {
                (Some(number), Some(row)) => found.push((number, row)),
                _ => *unread += 1,
            }
        }
        found
    }

    /// Reads the environments in the file, and which rows need them. Only needed if the rows themselves were not read.
    ///
    /// # Errors
    /// Some can't be read. Nothing may be written then: unknown environments would be removed, or their numbers used
    /// twice.
    pub fn read_envs(&mut self) -> rusqlite::Result<()> {
        self.is_stale = true;
        self.envs = Envs::default();
        for (number, value) in self.all("SELECT number, value FROM env")? {
            if let Some(number) = integer(&number).and_then(|number| u32::try_from(number).ok()) {
                self.envs.insert(number, &value);
            }
        }
        let (tasks, entering) = (self.all(HOLDING_TASKS)?, self.all(HOLDING_ENTERING)?);
        self.count_holders(tasks, entering);
        self.is_stale = false;
        Ok(())
    }

    fn count_holders(&mut self, tasks: Vec<(Value, Value)>, entering: Vec<(Value, Value)>) {
        let numbers = |text: &Value| -> Vec<u32> {
            let Value::Text(text) = text else { return Vec::new() };
            text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        for (ordinal, envs) in tasks {
            if let Some(ordinal) = integer(&ordinal) {
                let numbers = numbers(&envs);
                self.envs.hold(RowId::Task(ordinal), numbers);
            }
        }
        for (id, envs) in entering {
            if let Some(id) = task_id(&id) {
                let numbers = numbers(&envs);
                self.envs.hold(RowId::Entering(id), numbers);
            }
        }
    }

    /// Returns the first two columns of every row.
    fn all(&self, query: &str) -> rusqlite::Result<Vec<(Value, Value)>> {
        self.database.prepare(query)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }

    /// Returns the key of each row with the environments that it needs, and in the same order the values of the rows. A
    /// row counts as unread if its environments can't be read.
    fn rows_with_envs(&self, query: &str, unread: &mut usize) -> (Vec<(Value, Value)>, Vec<Value>) {
        let rows = self.rows(query, unread).into_iter();
        rows.map(|[key, value, needed]| {
            *unread += usize::from(!matches!(needed, Value::Text(_)));
            ((key, needed), value)
        })
        .unzip()
    }

    /// Returns the columns of every readable row: reads from the first row on, and after damage also backwards from the
    /// last one.
    fn rows<const N: usize>(&self, query: &str, unread: &mut usize) -> Vec<[Value; N]> {
        let mut found = Vec::new();
        let mut is_whole = true;
        let read = |query: &str, found: &mut Vec<[Value; N]>| -> rusqlite::Result<()> {
            let mut statement = self.database.prepare(query)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let mut columns = [const { Value::Null }; N];
                for (number, column) in columns.iter_mut().enumerate() {
                    // A damaged column does not affect the others.
                    *column = row.get(number).unwrap_or(Value::Null);
                }
                found.push(columns);
            }
            Ok(())
        };
        if read(query, &mut found).is_err() {
            is_whole = false;
            let table = query.split(" ORDER BY").next().unwrap_or(query);
            let key = table.trim_start_matches("SELECT ").split(',').next().unwrap_or("1");
            let mut last = Vec::new();
            let _ = read(&format!("{table} ORDER BY {key} DESC"), &mut last);
            let known: HashSet<String> = found.iter().map(|row| format!("{:?}", row[0])).collect();
            last.retain(|row: &[Value; N]| !known.contains(&format!("{:?}", row[0])));
            found.extend(last.into_iter().rev());
        }
        *unread += usize::from(!is_whole);
        found
    }

    /// Returns an entry; `None` if there is none. If it can't be read, also counts it.
    fn parsed<T: DeserializeOwned>(&self, name: &str, unread: &mut usize) -> Option<T> {
        let parsed = parse(&self.entry(name)?);
        *unread += usize::from(parsed.is_none());
        parsed
    }

    fn entry(&self, name: &str) -> Option<Value> {
        let query = "SELECT value FROM entry WHERE name = ?1";
        self.database.query_row(query, [name], |row| row.get(0)).ok()
    }

    /// Writes changes, all or none, under this head with the format of this program's rows.
    ///
    /// # Errors
    /// The disk is full or can't be written. Nothing has changed in this case.
    pub fn write(&mut self, head: &Head, changes: &Merged) -> rusqlite::Result<()> {
        if self.is_stale {
            self.read_envs()?;
        }
        let written = self.try_write(head, changes);
        if written.is_err() {
            let _ = self.database.execute_batch("ROLLBACK");
            // Discards the environment numbers assigned in vain.
            self.is_stale = true;
        }
        written
    }

    fn try_write(&mut self, head: &Head, changes: &Merged) -> rusqlite::Result<()> {
        self.database.execute_batch("BEGIN IMMEDIATE")?;
        self.put_entry("head", &Head { format: FORMAT, ..head.clone() })?;
        if let Some(counters) = &changes.counters {
            self.put_entry("counters", counters)?;
        }
        if let Some(groups) = &changes.groups {
            self.put_entry("groups", groups)?;
        }
        for (ordinal, row) in &changes.tasks {
            let ordinal = ordinal.0;
            if let Some(row) = row {
                let (envs, value) = self.with_envs(RowId::Task(ordinal), row)?;
                let query = "INSERT OR REPLACE INTO task VALUES (?1, ?2, ?3)";
                self.database.prepare_cached(query)?.execute(params![ordinal.cast_signed(), envs, value])?;
            } else {
                self.envs.let_go(&RowId::Task(ordinal));
                let query = "DELETE FROM task WHERE ordinal = ?1";
                self.database.prepare_cached(query)?.execute([ordinal.cast_signed()])?;
            }
        }
        self.write_numbered("item", &changes.items)?;
        self.write_numbered("loss", &changes.losses)?;
        self.write_numbered("notice", &changes.notices)?;
        self.write_batches(changes)?;
        self.remove_envs()?;
        self.database.execute_batch("COMMIT")
    }

    fn write_numbered(
        &mut self,
        table: &str,
        rows: &BTreeMap<u64, Option<impl Serialize>>,
    ) -> rusqlite::Result<()> {
        for (number, row) in rows {
            let number = number.cast_signed();
            if let Some(row) = row {
                let query = format!("INSERT OR REPLACE INTO {table} VALUES (?1, ?2)");
                self.database.prepare_cached(&query)?.execute(params![number, text(row)?])?;
            } else {
                let query = format!("DELETE FROM {table} WHERE number = ?1");
                self.database.prepare_cached(&query)?.execute([number])?;
            }
        }
        Ok(())
    }

    fn write_batches(&mut self, changes: &Merged) -> rusqlite::Result<()> {
        for (id, batch) in &changes.batches {
            let id = id.to_string();
            if let Some(batch) = batch {
                let value = text(batch)?;
                let query = "INSERT OR REPLACE INTO batch VALUES (?1, ?2)";
                self.database.prepare_cached(query)?.execute(params![id, value])?;
            } else {
                self.database.prepare_cached("DELETE FROM batch WHERE id = ?1")?.execute([id])?;
            }
        }
        for (id, entering) in &changes.entering {
            if let Some(entering) = entering {
                let (envs, value) = self.with_envs(RowId::Entering(*id), entering)?;
                let query = "INSERT OR REPLACE INTO entering VALUES (?1, ?2, ?3)";
                self.database.prepare_cached(query)?.execute(params![id.to_string(), envs, value])?;
            } else {
                self.envs.let_go(&RowId::Entering(*id));
                let query = "DELETE FROM entering WHERE id = ?1";
                self.database.prepare_cached(query)?.execute([id.to_string()])?;
            }
        }
        Ok(())
    }

    fn put_entry(&mut self, name: &str, value: &impl Serialize) -> rusqlite::Result<()> {
        let query = "INSERT OR REPLACE INTO entry VALUES (?1, ?2)";
        self.database.prepare_cached(query)?.execute(params![name, text(value)?])?;
        Ok(())
    }

    /// Returns the text of a row and the numbers of its environments. Writes new environments.
    fn with_envs(&mut self, id: RowId, row: &impl Serialize) -> rusqlite::Result<(String, Vec<u8>)> {
        let shared = Arc::new(Mutex::new((std::mem::take(&mut self.envs), Vec::new())));
        let numbering = Arc::clone(&shared);
        let names: sharing::Names = Box::new(move |env| {
            let Ok(mut numbering) = numbering.lock() else { return 0 };
            let (envs, used) = &mut *numbering;
            let (number, is_new) = envs.number(env);
            used.push((Arc::clone(env), number, is_new));
            number
        });
        let (names, value) = sharing::written_by_name(names, || text(row));
        drop(names);
        let shared = Arc::into_inner(shared).and_then(|shared| shared.into_inner().ok());
        let (envs, used) = shared.unwrap_or_default();
        self.envs = envs;
        for (env, number, _) in used.iter().filter(|(_, _, is_new)| *is_new) {
            let query = "INSERT OR REPLACE INTO env VALUES (?1, ?2)";
            self.database.prepare_cached(query)?.execute(params![number, text(&**env)?])?;
        }
        let numbers: Vec<u32> = used.iter().map(|(_, number, _)| *number).collect();
        let names = numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        self.envs.hold(id, numbers);
        Ok((names, value?))
    }

    /// Removes the environments that no row needs any more.
    fn remove_envs(&mut self) -> rusqlite::Result<()> {
        for number in self.envs.unneeded() {
            self.database.prepare_cached("DELETE FROM env WHERE number = ?1")?.execute([number])?;
        }
        Ok(())
    }
}

/// The merged changes of several steps: the latest state of each row.
#[derive(Debug, Default)]
pub struct Merged {
    tasks: BTreeMap<Ordinal, Option<crate::core::durable::TaskRow>>,
    items: BTreeMap<u64, Option<crate::core::durable::ItemRow>>,
    losses: BTreeMap<u64, Option<crate::core::durable::LossRow>>,
    notices: BTreeMap<u64, Option<crate::core::durable::NoticeRow>>,
    batches: BTreeMap<TaskId, Option<crate::core::Batch>>,
    entering: BTreeMap<TaskId, Option<Box<Entering>>>,
    groups: Option<Groups>,
    /// `None` if no step has changed anything, as at the end; the counters in the file stay.
    counters: Option<Counters>,
}

impl Merged {
    /// Returns the whole state as changes.
    pub fn of(kept: &Kept) -> Self {
        let Kept { tasks, items, losses, notices, batches, entering, groups, counters, is_rebased: _ } = kept;
        Self {
            tasks: tasks.iter().map(|(ordinal, row)| (*ordinal, Some(row.clone()))).collect(),
            items: items.iter().map(|(number, row)| (*number, Some(row.clone()))).collect(),
            losses: losses.iter().map(|(number, row)| (*number, Some(row.clone()))).collect(),
            notices: notices.iter().map(|(number, row)| (*number, Some(row.clone()))).collect(),
            batches: batches.iter().map(|(id, batch)| (*id, Some(batch.clone()))).collect(),
            entering: entering.iter().map(|one| (one.batch, Some(Box::new(one.clone())))).collect(),
            groups: Some(groups.clone()),
            counters: Some(counters.clone()),
        }
    }

    /// Adds the changes of a later step.
    pub fn add(&mut self, changes: Changes) {
        let Changes { tasks, items, losses, notices, batches, entering, groups, counters, added: _ } =
            changes;
        self.tasks.extend(tasks);
        self.items.extend(items);
        self.losses.extend(losses);
        self.notices.extend(notices);
        self.batches.extend(batches);
        self.entering.extend(entering);
        self.counters = Some(counters);
        if groups.is_some() {
            self.groups = groups;
        }
    }
}

/// Counts the tasks in this file, up to [`COUNTED`], without changing it.
///
/// # Errors
/// There is no such file, or it can't be read.
pub fn count_tasks(file: &Path) -> rusqlite::Result<u32> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(file, flags)?;
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let some = "SELECT count(*) FROM (SELECT 1 FROM task LIMIT ?1)";
    database.query_row(some, [COUNTED], |row| row.get(0))
}

/// Returns the flags to open an existing file.
fn existing() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

fn text(value: &impl Serialize) -> rusqlite::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}
