//! The daemon that a command line names, and the remote machines that it may name, for its completion. Reads only
//! files.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bgd_shared::dirs;
use bgd_shared::small_file;

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

/// A daemon other than the usual one of this machine.
pub enum Named {
    /// That of another machine.
    Host(Host),
    /// The one at this socket.
    Socket(PathBuf),
}

/// Returns the daemon that the command line, or else the environment, names by its host or socket; `None` for the usual
/// one.
///
/// # Errors
/// They contain an invalid host name, or several hosts.
pub fn of_line() -> Result<Option<Named>, Failure> {
    let words = LINE.get().map_or(&[][..], Vec::as_slice);
    let mut host = value(words, Some("-H"), "--host");
    if host.is_none() {
        // A socket on the command line is on this machine.
        if let Some(socket) = value(words, None, "--socket") {
            return Ok(Some(Named::Socket(socket.into())));
        }
        host = std::env::var_os("BGD_HOST").filter(|host| !host.is_empty());
    }
    let Some(host) = host else { return Ok(None) };
    let mut hosts = Host::several(&host.to_string_lossy())?;
    if hosts.len() > 1 {
        return Err(Failure::usage("several machines have no ids in common"));
    }
    Ok(hosts.pop().map(Named::Host))
}

/// Returns the value of the last option with this name before a command begins.
fn value(words: &[OsString], short: Option<&str>, long: &str) -> Option<OsString> {
    let mut found = None;
    let mut words = words.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word == long || short.is_some_and(|short| word == short) {
            found = words.next().map(|word| expanded(word));
            continue;
        }
        let bytes = word.as_bytes();
        let after_long = bytes.strip_prefix(long.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        let after_short = || bytes.strip_prefix(short?.as_bytes());
        let value = after_long.or_else(|| after_short().map(|rest| rest.strip_prefix(b"=").unwrap_or(rest)));
        found = value.map(|value| OsStr::from_bytes(value).to_owned()).or(found);
    }
    found
}

/// Expands a `~` at the beginning of a word: while a line is completed, the shell passes its words as they were typed.
fn expanded(word: &OsStr) -> OsString {
    let of_home = Path::new(word).strip_prefix("~").ok();
    let path = of_home.and_then(|rest| Some(dirs::known_home()?.join(rest)));
    path.map_or_else(|| word.to_owned(), PathBuf::into_os_string)
}

/// Returns the names in the user's ssh configuration, and those with known keys.
pub fn known() -> BTreeSet<String> {
    let Some(folder) = std::env::home_dir().map(|home| home.join(".ssh")) else { return BTreeSet::new() };
    let (configured, keys) = (text(&folder.join("config")), text(&folder.join("known_hosts")));
    aliases(&configured).chain(connected(&keys)).take(MACHINES).collect()
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok((file, _)) = small_file::open(path) {
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
            value(&words, Some("-H"), "--host").map(|host| host.into_string().unwrap())
        };
        assert_eq!(host("bgctl list"), None);
        assert_eq!(host("bgctl -H far block ").as_deref(), Some("far"));
        assert_eq!(host("bgctl block --host=far ").as_deref(), Some("far"));
        assert_eq!(host("bgctl block -Hfar ").as_deref(), Some("far"));
        assert_eq!(host("bgctl block -H=far ").as_deref(), Some("far"));
        assert_eq!(host("bgctl -H near --host far block ").as_deref(), Some("far"));
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
