//! The ids that a cluster gives to jobs.

use std::fmt;
use std::str::FromStr;

/// The id of a job, or of an element of a job array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId {
    /// The number of the job, or of the whole array.
    pub job: u64,
    /// The index in the array; `None` for a single job.
    pub index: Option<u32>,
}

impl JobId {
    /// Parses an id as printed by Slurm: `12`, or `12_3` for an element of an array. `None` for anything else, such as
    /// a step or a part of a heterogeneous job.
    pub fn parse(text: &str) -> Option<Self> {
        let Some((job, index)) = text.split_once('_') else {
            return Some(Self { job: number(text)?, index: None });
        };
        Some(Self { job: number(job)?, index: Some(number(index)?) })
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}_{index}", self.job),
            None => write!(f, "{}", self.job),
        }
    }
}

/// Returns whether a text looks like the key of a submission.
pub fn is_key(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Parses a number without a sign.
pub fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The maximum length of a word that [`words`] returns for an array, in bytes, apart from its last range.
const WORD_BYTES: usize = 4000;

/// Returns the shortest words that name these jobs, as accepted by `scancel` and `scontrol`: `7`, and `12_[0-3,5]` for
/// elements of an array. An array with many gaps takes several words.
pub fn words(mut jobs: Vec<JobId>) -> Vec<String> {
    jobs.sort_unstable();
    jobs.dedup();
    let mut words: Vec<String> = Vec::new();
    for array in jobs.chunk_by(|one, next| one.job == next.job) {
        words.extend(array.iter().filter(|id| id.index.is_none()).map(ToString::to_string));
        let indexes: Vec<u32> = array.iter().filter_map(|id| id.index).collect();
        let mut ranges = String::new();
        for range in indexes.chunk_by(|one, next| one.checked_add(1) == Some(*next)) {
            match range {
                [first, .., last] => push(&mut ranges, &format!("{first}-{last}")),
                [] | [_] => push(&mut ranges, &range.iter().map(ToString::to_string).collect::<String>()),
            }
            if ranges.len() > WORD_BYTES {
                words.push(format!("{}_[{}]", array[0].job, std::mem::take(&mut ranges)));
            }
        }
        if !ranges.is_empty() {
            words.push(format!("{}_[{ranges}]", array[0].job));
        }
    }
    words
}

fn push(ranges: &mut String, range: &str) {
    if !ranges.is_empty() {
        ranges.push(',');
    }
    ranges.push_str(range);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> JobId {
        JobId::parse(text).unwrap()
    }

    #[test]
    fn job_ids_are_parsed_strictly() {
        for text in ["1", "6_0", "4294967295_20000"] {
            assert_eq!(id(text).to_string(), text);
        }
        for text in ["", "x", "1.batch", "1_", "_1", "6_[1-4]", "7+0", "-1", "1_2_3", "99999999999999999999"]
        {
            assert_eq!(JobId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn many_job_ids_are_compressed_into_few_words() {
        let ids = |texts: &[&str]| words(texts.iter().map(|text| id(text)).collect());
        assert_eq!(ids(&["9", "6_3", "6_1", "6_2", "6_2", "6_7"]), ["6_[1-3,7]", "9"]);
        assert_eq!(ids(&["6", "6_0", "6_1"]), ["6", "6_[0-1]"]);
        assert_eq!(ids(&[]), [""; 0]);
        let all = |step| words((0..10_000).step_by(step).map(|n| JobId { job: 6, index: Some(n) }).collect());
        assert_eq!(all(1), ["6_[0-9999]"]);
        let some = all(2);
        assert!(some.len() > 1 && some.iter().all(|word| word.len() < WORD_BYTES + 30), "{}", some.len());
        let named: usize = some.iter().map(|word| word.matches(',').count() + 1).sum();
        assert_eq!(named, 5_000);
    }
}
