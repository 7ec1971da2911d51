//! The rows of a journal's file, as what they mean. Those of tasks are parsed on all processors: a daemon that was killed
//! is back only after them.

use std::io;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread::{self, Builder};

use bgd_shared::id::TaskId;
use rusqlite::types::Value;
use serde::de::DeserializeOwned;

use crate::core::sharing::{self, Known};

/// How many threads parse at most.
const THREADS: usize = 4;

/// A thread is worth its start only for this many rows.
const ROWS_EACH: usize = 256;

pub(super) fn parse<T: DeserializeOwned>(value: &Value) -> Option<T> {
    let Value::Blob(bytes) = value else { return None };
    serde_json::from_slice(bytes).ok()
}

/// Parses values, each `None` that can't be read, in their order. They name these environments.
pub(super) fn parse_all<T: DeserializeOwned + Send>(values: &[&Value], envs: &Known) -> Vec<Option<T>> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS);
    let each = values.len().div_ceil(threads).max(ROWS_EACH);
    let parse_here = |part: &[&Value]| {
        sharing::read_by_name(envs.clone(), || part.iter().map(|value| parse(value)).collect()).1
    };
    let (first, rest) = values.split_at(each.min(values.len()));
    thread::scope(|scope| {
        let spawn = |part| -> io::Result<_> { Builder::new().spawn_scoped(scope, move || parse_here(part)) };
        let begun: Vec<_> = rest.chunks(each).map(|part| (part, spawn(part))).collect();
        let mut all: Vec<Option<T>> = parse_here(first);
        for (part, parsed) in begun {
            all.extend(match parsed {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // The system allows no more threads.
                Err(_) => parse_here(part),
            });
        }
        all
    })
}

pub(super) fn integer(value: &Value) -> Option<u64> {
    let Value::Integer(number) = value else { return None };
    u64::try_from(*number).ok()
}

pub(super) fn task_id(value: &Value) -> Option<TaskId> {
    let Value::Text(text) = value else { return None };
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r126_rows_keep_their_order_however_many_threads_parse_them() {
        for count in [0, 1, ROWS_EACH, ROWS_EACH + 1, 5 * ROWS_EACH] {
            let values: Vec<Value> = (0..count)
                .map(|row| Value::Blob(if row % 7 == 3 { "}".into() } else { row.to_string().into() }))
                .collect();
            let parsed = parse_all::<usize>(&values.iter().collect::<Vec<_>>(), &Known::new());
            let expected = (0..count).map(|row| (row % 7 != 3).then_some(row));
            assert_eq!(parsed, expected.collect::<Vec<_>>());
        }
    }
}
