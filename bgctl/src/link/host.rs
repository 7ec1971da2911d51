//! The names of remote machines.

use std::fmt;

use crate::failure::Failure;

/// Maximum length of a host name, in bytes.
const HOST_BYTES: usize = 255;

/// Maximum number of hosts to ask at once.
const HOSTS: usize = 64;

/// A machine as known to ssh: `[user@]host`, or an alias in the user's ssh configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(String);

impl Host {
    /// # Errors
    /// The text is not a valid host name.
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

    /// Parses comma-separated names. Repeated names count once.
    ///
    /// # Errors
    /// One of them is not a valid host name, or there are more than [`HOSTS`].
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

    /// Returns the name, as passed to ssh.
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
    fn r140_invalid_host_names_are_refused() {
        for name in ["", "-oProxyCommand=x", "a b", "a\n", &"a".repeat(256)] {
            assert_eq!(Host::new(name).unwrap_err().code, Code::USAGE, "{name:?}");
        }
        for name in ["far", "me@far", "ssh://me@far:2222", "fe80::1%eth0", "me@[::1]"] {
            assert_eq!(Host::new(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn r144_host_lists_are_comma_separated_deduplicated_and_limited() {
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
