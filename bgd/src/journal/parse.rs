//! Parses the rows of a journal's file. Rows of tasks are parsed on several threads, because a restarted daemon is
//! unavailable until then.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread::{self, Builder};

use bgd_shared::id::TaskId;
use bgd_shared::mutex::Mutex;
use rusqlite::types::Value;
use serde::de::DeserializeOwned;

use crate::core::sharing::{self, Known};

/// Maximum number of parsing threads.
const THREADS: usize = 4;

/// How many rows a thread takes at a time.
const PART: usize = 256;

pub(super) fn parse<T: DeserializeOwned>(value: &Value) -> Option<T> {
    let Value::Blob(bytes) = value else { return None };
    serde_json::from_slice(bytes).ok()
}

/// Parses values in order; one that can't be parsed becomes `None`. `envs` are the environments that they refer to.
pub(super) fn parse_all<T: DeserializeOwned + Send>(values: Vec<Value>, envs: &Known) -> Vec<Option<T>> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    parse_on(processors.min(THREADS), values, envs)
}

fn parse_on<T: DeserializeOwned + Send>(threads: usize, values: Vec<Value>, envs: &Known) -> Vec<Option<T>> {
    let others = threads.min(values.len().div_ceil(PART)).saturating_sub(1);
    let mut values = values.into_iter();
    let parts = std::iter::from_fn(|| {
        Some(values.by_ref().take(PART).collect::<Vec<_>>()).filter(|part| !part.is_empty())
    });
    let parts = Mutex::new(parts.enumerate());
    let next = || parts.lock().next();
    let work = || {
        let mut done = Vec::new();
        let parse_parts = || {
            while let Some((number, part)) = next() {
                // Each value is dropped as soon as it is parsed.
                done.push((number, part.into_iter().map(|value| parse(&value)).collect::<Vec<_>>()));
            }
        };
        sharing::read_by_name(envs.clone(), parse_parts);
        done
    };
    thread::scope(|scope| {
        // If the system allows no more threads, this one does the rest.
        let others: Vec<_> =
            (0..others).filter_map(|_| Builder::new().spawn_scoped(scope, work).ok()).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done.sort_unstable_by_key(|(number, _)| *number);
        done.into_iter().flat_map(|(_, rows)| rows).collect()
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
    use std::sync::Arc;

    use bgd_shared::text::Env;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Row(usize, #[serde(with = "sharing::env")] Arc<Env>);

    #[test]
    fn r126_parallel_parsing_keeps_row_order_and_shares_environments() {
        let env = Arc::new(Env::default());
        let envs = Known::from([(7, Arc::clone(&env))]);
        for threads in 0..=THREADS {
            for count in [0, 1, PART, PART + 1, 5 * PART] {
                let text = |row| if row % 7 == 3 { "}".to_owned() } else { format!("[{row}, 7]") };
                let values = (0..count).map(|row| Value::Blob(text(row).into())).collect();
                let parsed = parse_on::<Row>(threads, values, &envs);
                assert!(parsed.iter().flatten().all(|Row(_, found)| Arc::ptr_eq(found, &env)));
                let numbers: Vec<_> =
                    parsed.iter().map(|row| row.as_ref().map(|Row(number, _)| *number)).collect();
                let expected: Vec<_> = (0..count).map(|row| (row % 7 != 3).then_some(row)).collect();
                assert_eq!(numbers, expected, "{threads} threads");
            }
        }
    }
}
