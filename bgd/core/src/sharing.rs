//! Environments in a serialised core: many tasks have the same one, which is then written once. That applies while
//! [`written_once`] or [`read_once`] is running, and with numbers while [`written_by_name`] or [`read_by_name`] is
//! running. Otherwise, the environment of each task is written in full.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bgd_shared::text::Env;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ordinal::Ordinal;

thread_local! {
    /// The numbers of the environments written so far, by their addresses.
    static WRITTEN: RefCell<Option<HashMap<usize, u32>>> = const { RefCell::new(None) };
    /// The environments read so far.
    static READ: RefCell<Option<Vec<Arc<Env>>>> = const { RefCell::new(None) };
    /// Assigns each environment its number in the written form.
    static NAMES: RefCell<Option<Names>> = const { RefCell::new(None) };
    /// The environments that can be read by number.
    static KNOWN: RefCell<Option<Known>> = const { RefCell::new(None) };
}

/// Assigns each environment its number in the written form.
pub type Names = Box<dyn FnMut(&Arc<Env>) -> u32>;

/// Environments by their numbers.
pub type Known = HashMap<u32, Arc<Env>>;

/// While `write` runs, writes the number assigned by `names` in place of each environment. Returns `names` with the
/// result of `write`.
pub fn written_by_name<T>(names: Names, write: impl FnOnce() -> T) -> (Option<Names>, T) {
    NAMES.set(Some(names));
    let written = write();
    (NAMES.take(), written)
}

/// Reads environments by their numbers while `read` runs. Returns `known` with the result of `read`.
pub fn read_by_name<T>(known: Known, read: impl FnOnce() -> T) -> (Known, T) {
    KNOWN.set(Some(known));
    let result = read();
    (KNOWN.take().unwrap_or_default(), result)
}

/// Writes each environment once while `write` runs.
pub fn written_once<T>(write: impl FnOnce() -> T) -> T {
    WRITTEN.set(Some(HashMap::new()));
    let written = write();
    WRITTEN.set(None);
    written
}

/// Reads the output of [`written_once`] while `read` runs.
pub fn read_once<T>(read: impl FnOnce() -> T) -> T {
    READ.set(Some(Vec::new()));
    let result = read();
    READ.set(None);
    result
}

/// An environment, or the number of one written earlier.
#[derive(Deserialize)]
#[serde(untagged)]
enum Shared {
    Same(u32),
    Own(Env),
}

/// One environment, for `#[serde(with)]`.
pub mod env {
    use super::{
        Arc, Deserialize as _, Deserializer, Env, KNOWN, NAMES, READ, Serialize as _, Serializer, Shared,
        WRITTEN,
    };

    /// Writes an environment, or its number if it was written earlier.
    pub fn serialize<S: Serializer>(env: &Arc<Env>, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(number) = NAMES.with_borrow_mut(|names| names.as_mut().map(|names| names(env))) {
            return serializer.serialize_u32(number);
        }
        let before = WRITTEN.with_borrow_mut(|written| {
            let written = written.as_mut()?;
            let next = u32::try_from(written.len()).unwrap_or(u32::MAX);
            let number = *written.entry(Arc::as_ptr(env).addr()).or_insert(next);
            (number != next).then_some(number)
        });
        match before {
            Some(number) => serializer.serialize_u32(number),
            None => env.serialize(serializer),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Env>, D::Error> {
        let shared = Shared::deserialize(deserializer)?;
        if let Shared::Same(number) = &shared
            && let Some(found) =
                KNOWN.with_borrow(|known| known.as_ref().map(|known| known.get(number).cloned()))
        {
            return found.ok_or_else(|| serde::de::Error::custom("an environment is missing"));
        }
        READ.with_borrow_mut(|read| match (shared, read) {
            (Shared::Own(env), read) => {
                let env = Arc::new(env);
                if let Some(read) = read {
                    read.push(Arc::clone(&env));
                }
                Ok(env)
            }
            (Shared::Same(number), read) => {
                let known = read.as_ref().and_then(|read| read.get(usize::try_from(number).ok()?));
                known.cloned().ok_or_else(|| serde::de::Error::custom("an environment is missing"))
            }
        })
    }
}

/// An environment, serialised like all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptEnv(pub Arc<Env>);

impl Serialize for KeptEnv {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        env::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for KeptEnv {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        env::deserialize(deserializer).map(Self)
    }
}

/// Environments by task, for `#[serde(with)]`.
pub mod envs {
    use super::{Arc, BTreeMap, Deserialize, Deserializer, Env, Ordinal, Serialize, Serializer};

    #[derive(Serialize)]
    struct Ref<'a>(#[serde(with = "super::env")] &'a Arc<Env>);

    #[derive(Deserialize)]
    struct Own(#[serde(with = "super::env")] Arc<Env>);

    pub fn serialize<S: Serializer>(
        envs: &BTreeMap<Ordinal, Arc<Env>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(envs.iter().map(|(ordinal, env)| (ordinal, Ref(env))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Ordinal, Arc<Env>>, D::Error> {
        let envs = BTreeMap::<Ordinal, Own>::deserialize(deserializer)?;
        Ok(envs.into_iter().map(|(ordinal, Own(env))| (ordinal, env)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Two(#[serde(with = "env")] Arc<Env>, #[serde(with = "env")] Arc<Env>);

    #[test]
    fn r121_environment_is_written_once_and_shared_on_reading() {
        let one = Arc::new(Env([("A".into(), "1".to_owned().into())].into()));
        let two = Two(Arc::clone(&one), Arc::clone(&one));
        let full = serde_json::to_string(&two).unwrap();
        let short = written_once(|| serde_json::to_string(&two)).unwrap();
        assert!(short.len() < full.len() && short.ends_with(",0]"), "{short}");
        let read: Two = read_once(|| serde_json::from_str(&short)).unwrap();
        assert_eq!(read, two);
        assert!(Arc::ptr_eq(&read.0, &read.1), "they share it");
        assert_eq!(serde_json::from_str::<Two>(&full).unwrap(), two);
        assert!(serde_json::from_str::<Two>(&short).is_err(), "its number means nothing by itself");
    }
}
