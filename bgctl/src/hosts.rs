//! The remote machines that a command line may name, for its completion. Reads only files.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

use crate::failure::Failure;
use crate::link::Host;

/// Maximum number of bytes read from each file.
const FILE_BYTES: u64 = 1024 * 1024;

/// Maximum number of machines to offer.
const MACHINES: usize = 500;

/// The words of the command line that is being completed.
static LINE: OnceLock<Vec<OsString>> = OnceLock::new();

/// Stores the command line that is being completed: the words after its `--`.
pub fn take_line(words: &[OsString]) {
    let words = words.iter().skip_while(|word| *word != "--").skip(1);
    // Only the first value counts: a process completes one line.
    let _ = LINE.set(words.cloned().collect());
}

/// Returns the machine that the command line or the environment names; `None` for this one.
///
/// # Errors
/// They contain an invalid host name, or several hosts.
pub fn of_line() -> Result<Option<Host>, Failure> {
    let named = LINE.get().and_then(|words| named(words));
    let named = named.or_else(|| std::env::var_os("BGD_HOST").filter(|host| !host.is_empty()));
    let Some(named) = named else { return Ok(None) };
    let mut hosts = Host::several(&named.to_string_lossy())?;
    if hosts.len() > 1 {
        return Err(Failure::usage("several machines have no ids in common"));
    }
    Ok(hosts.pop())
}

/// Returns the value of the last `-H` or `--host` before a command begins.
fn named(words: &[OsString]) -> Option<OsString> {
    let mut found = None;
    let mut words = words.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "-H" || text == "--host" {
            found = words.next().cloned();
        } else if let Some(host) = text.strip_prefix("--host=").or_else(|| text.strip_prefix("-H")) {
            found = Some(OsStr::new(host).to_owned());
        }
    }
    found
}

/// Returns the names in the user's ssh configuration, and those with known keys.
pub fn known() -> BTreeSet<String> {
    let Some(folder) = std::env::home_dir().map(|home| home.join(".ssh")) else { return BTreeSet::new() };
    let (configured, keys) = (text(&folder.join("config")), text(&folder.join("known_hosts")));
    aliases(&configured).chain(connected(&keys)).take(MACHINES).collect()
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(FILE_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the names after `Host` that are not patterns.
fn aliases(configuration: &str) -> impl Iterator<Item = String> {
    let lines = configuration.lines().filter_map(|line| {
        let (key, names) = line.trim().split_once([' ', '\t', '='])?;
        key.eq_ignore_ascii_case("host").then_some(names)
    });
    let names = lines.flat_map(|names| names.split([' ', '\t', '=', '"']));
    names.filter(|name| !name.is_empty() && !name.contains(['*', '?', '!'])).map(str::to_owned)
}

/// Returns the names of known keys that are neither hashed nor have a port.
fn connected(keys: &str) -> impl Iterator<Item = String> {
    let lines = keys.lines().filter(|line| !line.starts_with(['#', '|', '@']));
    let names = lines.filter_map(|line| line.split_whitespace().next()).flat_map(|names| names.split(','));
    names.filter(|name| !name.contains(['[', '*', '?', '!'])).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r140_completion_finds_host_option_before_the_command() {
        let host = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            named(&words).map(|host| host.into_string().unwrap())
        };
        assert_eq!(host("bgctl list"), None);
        assert_eq!(host("bgctl -H far block ").as_deref(), Some("far"));
        assert_eq!(host("bgctl block --host=far ").as_deref(), Some("far"));
        assert_eq!(host("bgctl block -Hfar ").as_deref(), Some("far"));
        assert_eq!(host("bgctl run -- ssh -H far"), None);
    }

    #[test]
    fn r140_hosts_come_from_ssh_config_and_known_hosts() {
        let text = "Host one two *.lan !no\n  HostName x\nhost=three\nMatch host y\n";
        assert_eq!(aliases(text).collect::<Vec<_>>(), ["one", "two", "three"]);
        let keys = "# a comment\nfour,192.0.2.1 ssh-ed25519 k\n|1|hash= ssh-rsa k\n[five]:22 ssh-rsa k\n";
        assert_eq!(connected(keys).collect::<Vec<_>>(), ["four", "192.0.2.1"]);
    }
}
