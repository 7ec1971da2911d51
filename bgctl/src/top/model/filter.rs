//! The filter of the list: words that a task must match.

use std::collections::BTreeSet;
use std::io::Write as _;

use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use memchr::memchr2_iter;

use crate::top::row::{Row, Section};

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// Prefixes of statuses or sections, one of which must match.
    Status(Vec<String>),
    Tag(String),
    Group(String),
    Session(String),
    Batch(String),
    Host(String),
    /// A part of the description, or a prefix of the id.
    Text(String),
}

impl Word {
    /// Reports whether everything that meets this condition is known to meet the other one, too.
    fn is_narrower_than(&self, other: &Self) -> bool {
        match (self, other) {
            // A text that contains or begins with another text also does so with each prefix of that text.
            (Self::Tag(text), Self::Tag(part))
            | (Self::Group(text), Self::Group(part))
            | (Self::Session(text), Self::Session(part))
            | (Self::Batch(text), Self::Batch(part))
            | (Self::Host(text), Self::Host(part))
            | (Self::Text(text), Self::Text(part)) => text.starts_with(part.as_str()),
            (one, other) => one == other,
        }
    }
}

/// The conditions for showing a task, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(Vec<Word>);

impl Filter {
    /// Parses a filter as typed, such as `s:failed tag:nightly make`. Case is ignored. Any text is a valid filter.
    /// `has_hosts`: there are several hosts, which can be filtered by name.
    pub fn parse(text: &str, has_hosts: bool) -> Self {
        let word = |word: &str| {
            let word = word.to_lowercase();
            let Some((name, value)) = word.split_once(':') else { return Word::Text(word) };
            let value = value.to_owned();
            match name {
                "s" | "status" => Word::Status(value.split(',').map(str::to_owned).collect()),
                "t" | "tag" => Word::Tag(value),
                "g" | "group" => Word::Group(value),
                "b" | "batch" => Word::Batch(value),
                "session" => Word::Session(value),
                "host" if has_hosts => Word::Host(value),
                _ => Word::Text(word),
            }
        };
        Self(text.split_whitespace().map(word).collect())
    }

    /// Reports whether all tasks accepted by this filter are known to be accepted by the other one, too.
    pub fn is_narrower_than(&self, other: &Self) -> bool {
        self.0.len() >= other.0.len()
            && self.0.iter().zip(&other.0).all(|(word, other)| word.is_narrower_than(other))
    }

    /// Reports whether tasks of a host may be shown.
    pub fn takes_host(&self, name: &str) -> bool {
        self.0.iter().all(|word| match word {
            Word::Host(host) => has(name, host),
            _ => true,
        })
    }

    /// Reports whether a task of the host with this name is shown.
    pub fn takes(&self, row: &Row, section: Section, host: &str) -> bool {
        self.0.iter().all(|word| match word {
            Word::Status(names) => {
                names.iter().any(|name| [section.name(), row.status.as_str()].iter().any(begins(name)))
            }
            Word::Tag(tag) => row.labels.tags.iter().any(|own| has(own, tag)),
            Word::Group(group) => has(&row.labels.group, group),
            Word::Session(session) => row.labels.session.as_ref().is_some_and(|own| has(own, session)),
            Word::Batch(batch) => row.labels.batch.is_some_and(|own| begins_id(own, batch)),
            Word::Host(name) => has(host, name),
            Word::Text(text) => {
                // Most words can't be a prefix of an id, and need not be compared with 100,000 ids.
                let is_of_id = || text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
                has(&row.description, text) || (is_of_id() && begins_id(row.id, text))
            }
        })
    }
}

/// Returns a check for names that begin with this text.
fn begins(text: &str) -> impl Fn(&&str) -> bool {
    move |name: &&str| name.starts_with(text)
}

/// Returns why a filter shows no task whatever there is: it has a status that none begins with.
pub fn unknown_status(filter: &str) -> Option<String> {
    let all: BTreeSet<&str> =
        Section::ALL.map(Section::name).into_iter().chain(Status::ALL.map(Status::as_str)).collect();
    let is_unknown = |name: &String| !all.iter().any(begins(name));
    let unknown = |word: &Word| match word {
        Word::Status(names) if names.iter().all(is_unknown) => names.first().cloned(),
        _ => None,
    };
    let name = Filter::parse(filter, false).0.iter().find_map(unknown)?;
    let all: Vec<&str> = all.into_iter().collect();
    Some(format!("no status begins with {name:?}; there are {}", all.join(", ")))
}

/// Reports whether a text contains another one, which must be lower-case. Ignores case.
fn has(text: &str, lower: &str) -> bool {
    if text.is_ascii() && lower.is_ascii() {
        let (text, lower) = (text.as_bytes(), lower.as_bytes());
        let Some(first) = lower.first() else { return true };
        let begins = memchr2_iter(*first, first.to_ascii_uppercase(), text);
        return begins
            .map(|begin| text.get(begin..begin + lower.len()))
            .any(|part| part.is_some_and(|part| part.eq_ignore_ascii_case(lower)));
    }
    text.to_lowercase().contains(lower)
}

/// Reports whether an id as displayed begins with this text.
fn begins_id(id: TaskId, text: &str) -> bool {
    // Avoids an allocation for each of 100,000 tasks.
    let mut written = [0; 36];
    write!(&mut written[..], "{id}").is_ok() && written.starts_with(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;
    use crate::render::wall::Clock;
    use crate::top::row::Texts;
    use crate::top::task_key::HostNo;
    use bgd_shared::task::Task;

    fn takes(filter: &str, task: &Task) -> bool {
        let row = Row::of(HostNo::default(), task, &mut Texts::default(), &Clock::of_tests());
        Filter::parse(filter, true).takes(&row, row.section(false), "me@Build1")
    }

    #[test]
    fn r162_id_prefix_matches_as_written() {
        for id in [TaskId::from_u128(0), TaskId::from_u128(u128::MAX), samples::task().id] {
            let written = id.to_string();
            for end in 0..=written.len() {
                assert!(begins_id(id, &written[..end]), "{}", &written[..end]);
            }
            for no in [format!("{written}0"), format!("-{written}"), written.replace('-', ""), "7g".into()] {
                assert!(!begins_id(id, &no), "{no}");
            }
        }
    }

    #[test]
    fn r162_status_that_does_not_exist_is_explained() {
        for filter in
            ["", "bogus", "s:", "s:f", "status:RUN make", "s:done", "s:bogus,failed", "session:bogus"]
        {
            assert_eq!(unknown_status(filter), None, "{filter}");
        }
        for filter in ["s:bogus", "make status:Bogus", "s:bogus,other"] {
            assert_eq!(
                unknown_status(filter).as_deref(),
                Some(
                    "no status begins with \"bogus\"; there are asks, cancelled, completed, done, failed, pending, \
                     resumed, running"
                ),
                "{filter}"
            );
        }
    }

    #[test]
    fn r162_filter_requires_all_its_words() {
        let task = Task {
            status: Status::Failed,
            description: "Make Ünïts".into(),
            tags: vec!["nightly".into()],
            group: "gpu".into(),
            session: Some("discord:4711".into()),
            ..samples::task()
        };
        for filter in [
            "",
            "s:failed",
            "s:run,fail",
            "tag:night",
            "g:gpu MAKE",
            "ünï",
            "3f2a",
            "session:discord:4711",
            "host:build1",
        ] {
            assert!(takes(filter, &task), "{filter}");
        }
        for filter in
            ["s:run", "tag:x", "make tests", "g:default", "b:3f2a", "f2a9", "session:slack", "host:build2"]
        {
            assert!(!takes(filter, &task), "{filter}");
        }
        assert!(takes("http://x:1", &Task { description: "get http://x:1/".into(), ..samples::task() }));
        assert_eq!(Filter::parse(" \t", false), Filter::default());
        let one = Filter::parse("host:8080", false);
        let (task, texts) =
            (Task { description: "on host:8080".into(), ..samples::task() }, &mut Texts::default());
        let row = Row::of(HostNo::default(), &task, texts, &Clock::of_tests());
        assert!(one.takes(&row, row.section(false), ""), "one host has no name to filter by");
    }

    #[test]
    fn r163_longer_filter_counts_as_narrower_only_if_it_must_be() {
        let is_narrower =
            |one: &str, other: &str| Filter::parse(one, true).is_narrower_than(&Filter::parse(other, true));
        for (one, other) in [("m", ""), ("make", "mak"), ("a b", "a"), ("tag:ab", "t:a")] {
            assert_eq!(
                (is_narrower(one, other), is_narrower(other, one)),
                (true, one == other),
                "{one}, {other}"
            );
        }
        for (one, other) in
            [("s:", "s"), ("s:failed,done", "s:failed"), ("ake", "make"), ("b a", "a b"), ("t:", "t")]
        {
            assert!(!is_narrower(one, other), "{one}, {other}");
        }
    }
}
