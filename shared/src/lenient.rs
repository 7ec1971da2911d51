//! Reads objects of answers whose type is also part of requests. There, a field that the type does not have is an
//! error, as it may be mistyped; in an answer it is from a newer daemon, and skipped. This module knows none of the
//! types.

use serde::de::{Deserialize as _, DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// Deserializes an object without the fields that its type does not have.
pub(crate) fn known_fields<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    T::deserialize(Known(value)).map_err(D::Error::custom)
}

/// An object from which a struct takes the fields that it has.
struct Known(Value);

impl<'de> Deserializer<'de> for Known {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        if let Value::Object(object) = &mut self.0 {
            object.retain(|name, _| fields.contains(&name.as_str()));
        }
        // Not as a struct, which could also be an array of its fields.
        self.0.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{EventParams, News};
    use crate::request::SubmitParams;
    use crate::strict;
    use crate::task::{Task, json_of_tests};

    /// Members that both a task and its submission have, each with a field that nobody knows.
    const NEWER: [&str; 3] = [
        r#""settings":{"model":"m","effort":"high"}"#,
        r#""resources":{"cpus":2,"nodes":3}"#,
        r#""retry":{"times":4,"jitter":true}"#,
    ];

    fn known(task: Task) -> (Option<String>, Option<u32>, Option<u32>) {
        (task.settings.model, task.resources.cpus, task.retry.map(|retry| retry.times))
    }

    #[test]
    fn new_field_within_a_task_is_skipped() {
        let task = json_of_tests(&NEWER.join(","));
        let expected = (Some("m".to_owned()), Some(2), Some(4));
        assert_eq!(known(strict::from_str(&task).unwrap()), expected);
        let event = format!(
            r#"{{"subscription":1,"seq":1,"at":"2026-01-01T00:00:00Z","kind":"started","task":{task}}}"#
        );
        let News::Event(event) = strict::from_str::<EventParams>(&event).unwrap().news else {
            panic!("it is no gap")
        };
        assert_eq!(known(event.task), expected);
    }

    #[test]
    fn new_field_within_a_submission_is_refused() {
        for member in NEWER {
            let error = strict::from_str::<SubmitParams>(&format!("{{{member}}}")).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{member}: {error}");
        }
    }

    #[test]
    fn damaged_object_within_a_task_is_refused() {
        for member in [r#""retry":[4]"#, r#""retry":{"times":"x"}"#, r#""resources":null"#] {
            assert!(strict::from_str::<Task>(&json_of_tests(member)).unwrap_err().is_data(), "{member}");
        }
        let none = strict::from_str(&json_of_tests(r#""retry":null"#)).unwrap();
        assert_eq!(known(none), (None, None, None));
    }
}
