//! The names of other machines.

use std::fmt;

use crate::failure::Failure;

/// The longest name of a host, in bytes.
const HOST_BYTES: usize = 255;

/// The most hosts to ask at once.
const HOSTS: usize = 64;

/// A machine as ssh knows it: `[user@]host`, or an alias of the user's ssh configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(String);

impl Host {
    /// # Errors
    /// The text can't name a host.
    pub fn new(name: impl Into<String>) -> Result<Self, Failure> {
        let name = name.into();
        let is_plain = |character: char| !character.is_whitespace() && !character.is_control();
        if name.is_empty() || name.starts_with('-') || name.len() > HOST_BYTES || !name.chars().all(is_plain)
        {
            return Err(Failure::usage(format!("{name:?} is not a host"))
                .hint("give [user@]host, or an alias of your ssh configuration"));
        }
        Ok(Self(name))
    }

    /// Reads names with commas between them. A name that is repeated counts once.
    ///
    /// # Errors
    /// One of them can't name a host, or there are more than [`HOSTS`].
    pub fn several(names: &str) -> Result<Vec<Self>, Failure> {
        let mut hosts = Vec::new();
        for name in names.split(',') {
            let host = Self::new(name)?;
            if !hosts.contains(&host) {
                hosts.push(host);
            }
            if hosts.len() > HOSTS {
                return Err(Failure::usage(format!("more than {HOSTS} hosts: give fewer with -H")));
            }
        }
        Ok(hosts)
    }

    /// The name, as ssh takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    #[test]
    fn r140_what_is_no_host_is_refused() {
        for name in ["", "-oProxyCommand=x", "a b", "a\n", &"a".repeat(256)] {
            assert_eq!(Host::new(name).unwrap_err().code, Code::USAGE, "{name:?}");
        }
        for name in ["far", "me@far", "ssh://me@far:2222", "fe80::1%eth0", "me@[::1]"] {
            assert_eq!(Host::new(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn r144_hosts_come_with_commas_and_count_once() {
        let names =
            |text: &str| Host::several(text).map(|all| all.iter().map(Host::to_string).collect::<Vec<_>>());
        assert_eq!(names("a,me@b,a").unwrap(), ["a", "me@b"]);
        for wrong in ["a,", ",a", "a,,b", "a, b"] {
            assert_eq!(names(wrong).unwrap_err().code, Code::USAGE, "{wrong}");
        }
        let many = |count: usize| (0..count).map(|number| format!("h{number}")).collect::<Vec<_>>().join(",");
        assert_eq!(names(&many(64)).unwrap().len(), 64);
        assert_eq!(names(&many(65)).unwrap_err().code, Code::USAGE);
    }
}
