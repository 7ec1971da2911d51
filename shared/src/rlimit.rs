//! Resource limits by the names that `prlimit` uses.

use std::collections::BTreeMap;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde::{Deserialize, Serialize};

/// A resource limit of a process, as in `setrlimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rlimit {
    /// Limit in effect; null for no limit.
    pub soft: Option<u64>,
    /// Upper limit for `soft`; null for no limit.
    pub hard: Option<u64>,
}

/// Resource limits by name: `nofile`, `core`, `stack`, …
pub type Rlimits = BTreeMap<String, Rlimit>;

/// All resources with their names.
pub const RESOURCES: &[(&str, Resource)] = &[
    ("as", Resource::RLIMIT_AS),
    ("core", Resource::RLIMIT_CORE),
    ("cpu", Resource::RLIMIT_CPU),
    ("data", Resource::RLIMIT_DATA),
    ("fsize", Resource::RLIMIT_FSIZE),
    ("locks", Resource::RLIMIT_LOCKS),
    ("memlock", Resource::RLIMIT_MEMLOCK),
    ("msgqueue", Resource::RLIMIT_MSGQUEUE),
    ("nice", Resource::RLIMIT_NICE),
    ("nofile", Resource::RLIMIT_NOFILE),
    ("nproc", Resource::RLIMIT_NPROC),
    ("rss", Resource::RLIMIT_RSS),
    ("rtprio", Resource::RLIMIT_RTPRIO),
    ("rttime", Resource::RLIMIT_RTTIME),
    ("sigpending", Resource::RLIMIT_SIGPENDING),
    ("stack", Resource::RLIMIT_STACK),
];

/// Returns the limits of this process.
pub fn of_this_process() -> Rlimits {
    let finite = |value| (value != RLIM_INFINITY).then_some(value);
    let limit = |(name, resource): &(&str, Resource)| {
        let (soft, hard) = getrlimit(*resource).ok()?;
        Some(((*name).to_owned(), Rlimit { soft: finite(soft), hard: finite(hard) }))
    };
    RESOURCES.iter().filter_map(limit).collect()
}
