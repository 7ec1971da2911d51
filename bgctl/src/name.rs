//! How the command line names tasks: by id, or by `@` followed by a number or a batch id.

use std::str::FromStr;

use bgd_shared::id::{TaskRef, TaskRefError};

/// Maximum number of digits after `@`; longer numbers are batch ids.
const COUNT_DIGITS: usize = 3;

/// One or more tasks as typed by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// An id, or a prefix of one.
    Id(TaskRef),
    /// `@`, `@2`: the latest task of this session, the one before it, and so on, counted from 1.
    Latest(usize),
    /// `@9c1e`: all tasks of a batch.
    Batch(TaskRef),
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(rest) = text.strip_prefix('@') else {
            return text.parse().map(Self::Id).map_err(|error: TaskRefError| error.to_string());
        };
        if rest.is_empty() {
            return Ok(Self::Latest(1));
        }
        if rest.len() <= COUNT_DIGITS && rest.bytes().all(|byte| byte.is_ascii_digit()) {
            return match rest.parse() {
                Ok(count @ 1..) => Ok(Self::Latest(count)),
                _ => Err("@1, or @, is the latest task of this session; counting starts at 1".to_owned()),
            };
        }
        rest.parse().map(Self::Batch).map_err(|_: TaskRefError| {
            format!(
                "{text:?} is not a task: @ is the latest of this session, @2 the one before it, and @9c1e a batch, \
                 by at least 4 characters of its id"
            )
        })
    }
}

/// Parses a batch id, with or without the `@` that marks it among task ids.
///
/// # Errors
/// The text is not an id.
pub fn parse_batch(text: &str) -> Result<TaskRef, String> {
    let id = text.strip_prefix('@').unwrap_or(text);
    id.parse().map_err(|error: TaskRefError| error.to_string().replacen("task id", "batch id", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r113_name_is_task_id_position_or_batch() {
        let id: TaskRef = "3f2a".parse().unwrap();
        assert_eq!("3f2a".parse(), Ok(Name::Id(id.clone())));
        assert_eq!("@".parse(), Ok(Name::Latest(1)));
        assert_eq!("@1".parse(), Ok(Name::Latest(1)));
        assert_eq!("@999".parse(), Ok(Name::Latest(999)));
        assert_eq!("@3f2a".parse(), Ok(Name::Batch(id.clone())));
        assert_eq!("@1234".parse(), Ok(Name::Batch("1234".parse().unwrap())));
        assert_eq!(parse_batch("@3f2a"), Ok(id.clone()));
        assert_eq!(parse_batch("3f2a"), Ok(id));
    }

    #[test]
    fn r113_invalid_names_get_specific_errors() {
        for text in ["@0", "@00", "@000"] {
            assert!(text.parse::<Name>().unwrap_err().contains("counting starts at 1"), "{text}");
        }
        for text in ["@abc", "@last", "@-1", "@@", "@3f2a:", "@ "] {
            assert!(text.parse::<Name>().unwrap_err().contains("is not a task"), "{text}");
        }
        assert!(parse_batch("zz").unwrap_err().starts_with("\"zz\" is not a batch id"));
        assert!("abc".parse::<Name>().unwrap_err().contains("too short"));
        assert!("".parse::<Name>().unwrap_err().contains("id is empty"));
    }
}
