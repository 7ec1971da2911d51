//! Reads variables from the environments of ancestor processes: some agents pass almost no environment to their
//! servers. Read-only, and limited to processes of the same user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bgd_shared::proc::{self, ProcessStat};
use bgd_shared::socket::{SocketError, SocketPath};
use nix::unistd::Uid;

/// Maximum number of ancestors to look at.
const ANCESTORS: usize = 64;

/// The variables that locate the daemon's socket.
const PLACES: [&str; 2] = ["BGD_SOCKET", "XDG_RUNTIME_DIR"];

/// Returns these variables from the nearest ancestor that has any of them. Empty values and values that are not UTF-8
/// count as unset.
pub fn nearest(names: &[&str]) -> Vec<(String, String)> {
    nearest_from(std::os::unix::process::parent_id(), names)
}

/// Returns the daemon's socket as located by the environment of the nearest ancestor that has these variables, and the
/// variables. `None` if the environment of this process locates the socket, if no ancestor's does, or if this user may
/// not use that path: under `sudo`, an ancestor names the socket of the calling user.
pub fn socket() -> Option<(SocketPath, Vec<(String, String)>)> {
    if PLACES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        return None;
    }
    let variables = nearest(&PLACES);
    let value = |wanted: &str| {
        variables.iter().find(|(name, _)| name == wanted).map(|(_, value)| PathBuf::from(value))
    };
    let runtime = value(PLACES[1]).filter(|folder| is_own(folder));
    let path = SocketPath::of(value(PLACES[0]), runtime)?.ok()?;
    let is_usable = matches!(path.check_folder(), Ok(()) | Err(SocketError::Missing(_)));
    is_usable.then_some((path, variables))
}

fn is_own(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.uid() == Uid::effective().as_raw())
}

fn nearest_from(mut pid: u32, names: &[&str]) -> Vec<(String, String)> {
    for _ in 0..ANCESTORS {
        let found = variables(pid, names);
        if !found.is_empty() {
            return found;
        }
        match parent(pid) {
            Some(parent) => pid = parent,
            None => break,
        }
    }
    Vec::new()
}

/// Returns those of the given variables that a process was started with.
fn variables(pid: u32, names: &[&str]) -> Vec<(String, String)> {
    if proc::owner(pid).ok() != Some(Uid::effective().as_raw()) {
        return Vec::new();
    }
    // An unreadable environment, or that of a process that has ended meanwhile, is empty.
    let environment = proc::environment(pid);
    let pairs = environment.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, value)| names.contains(name) && !value.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn parent(pid: u32) -> Option<u32> {
    let parent = ProcessStat::of(pid.try_into().ok()?)?.parent()?;
    u32::try_from(parent).ok().filter(|parent| *parent > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn variable_is_taken_from_nearest_ancestor_that_sets_it() {
        // The shell has both variables, its child has only one of them, which is empty, and its grandchild has neither.
        let line = "env -i PATH=\"$PATH\" INNER= sh -c 'env -i PATH=\"$PATH\" sh -c \"echo \\$\\$; read end\"; true'; true";
        let mut shell = Command::new("sh")
            .args(["-c", line])
            .envs([("OUTER", "from outside"), ("INNER", "1=2")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pid = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        let pid = pid.trim().parse().unwrap();
        let found = |names: &[&str]| {
            let mut found = nearest_from(pid, names);
            found.sort();
            found.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(found(&["OUTER"]), ["OUTER=from outside"]);
        assert_eq!(found(&["OUTER", "INNER"]), ["INNER=1=2", "OUTER=from outside"]);
        assert_eq!(found(&["BGD_NOBODY_HAS_THIS"]), [""; 0]);
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
        assert_eq!(found(&["OUTER"]), [""; 0], "it has ended");
    }
}
