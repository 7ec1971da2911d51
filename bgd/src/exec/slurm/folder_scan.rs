//! A look at a work folder on a login node: the script that finds notes and the sizes of outputs, and the parser of its
//! output. This module runs nothing. Files that could not be read are distinguished from files that don't exist.

use std::collections::{HashMap, HashSet};

use bgd_shared::time::Timestamp;

use super::folder::{Note, WorkFolder, in_order};
use super::remote_scripts::{self, GONE, Script, WAS_GONE};
use super::script::{Noted, quoted};

/// The maximum number of new notes read by one look. A file server may take some milliseconds for each, and a script
/// has half a minute.
pub const NOTES: usize = 2000;

/// The parameters of a look: files to remove, folders of submissions that may be empty afterwards, output files whose
/// sizes are wanted, and notes that need not be read again.
#[derive(Debug, Default)]
pub struct FolderScan {
    /// Files to remove, by their paths in the work folder.
    pub removed: Vec<String>,
    /// Keys of the submissions.
    pub keys: Vec<String>,
    /// Names of output files.
    pub outputs: Vec<String>,
    /// Names of notes of ends that were read before.
    pub kept: Vec<String>,
}

/// The result of a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// The notes, starts first.
    pub notes: Vec<Note>,
    /// Output files with their sizes in bytes.
    pub sizes: Vec<(String, u64)>,
    /// Output files that don't exist.
    pub missing: Vec<String>,
    /// The names of notes and output files that could not be read.
    pub unread: Vec<String>,
    /// Whether there may be more notes.
    pub has_more: bool,
}

impl Looked {
    /// Returns the result of a look at a work folder that is gone.
    pub fn nothing(look: &FolderScan) -> Self {
        Self { missing: look.outputs.clone(), ..Self::default() }
    }
}

/// Selects notes of the list `$l`, those of starts first, and calls the function `$1` for each. The further arguments
/// name the notes that need not be read, in the order of the list. No step starts a process or copies a list, so many
/// notes take little time.
const PICK: [&[u8]; 5] = [
    b"pick() { d=$1 n=0; shift",
    b"for f in $l; do case $f in *.start) ;; *) continue;; esac",
    b"[ $n -lt $most ] || { m=1; return; }; n=$((n+1)); $d; done",
    b"for f in $l; do case $f in *.exit|*.fail) ;; *) continue;; esac; [ \"$f\" != \"${1-}\" ] || { shift; continue; }",
    b"[ $n -lt $most ] || { m=1; return; }; n=$((n+1)); $d; done; }",
];

/// Prints a note: `n`, or `N` if no newline ends it, or `u` if it can't be read. A note that has disappeared meanwhile
/// is skipped.
const NOTE: [&[u8]; 4] = [
    b"note() { t=; if IFS= read -r t <\"$f\"; then printf 'n %s %s\\n' \"$f\" \"$t\"",
    b"elif [ -n \"$t\" ] || { [ -e \"$f\" ] && [ ! -s \"$f\" ]; }; then printf 'N %s %s\\n' \"$f\" \"$t\"",
    b"else case $(ls -d -- \"$f\" 2>&1) in *': No such file or directory') ;; *) printf 'u %s -\\n' \"$f\";; esac",
    b"fi; }",
];

/// Returns a script that removes files in the work folder, then empty folders of submissions, and prints the notes and
/// the sizes of the output files. Names are those of [`far`] and of notes.
pub fn look(folder: &WorkFolder, look: &FolderScan) -> Script {
    let FolderScan { removed, keys, outputs, kept } = look;
    let mut script = Script::new();
    remote_scripts::enter(&mut script, folder.path());
    let all = |names: &[String], command: &str| {
        [b"printf '%s\\0' ", &*words(names), b" | xargs -0 ", command.as_bytes()].concat()
    };
    if !removed.is_empty() {
        script.line(&[&all(removed, "rm -f --")]);
    }
    if !keys.is_empty() {
        let folders: Vec<String> = keys.iter().map(|key| format!("jobs/{key}")).collect();
        script.line(&[&all(&folders, "rmdir -- 2>/dev/null")]);
    }
    script.line(&[format!("into ./notes || exit {GONE}; l=$(ls) || exit 1").as_bytes()]);
    for line in PICK.into_iter().chain(NOTE).chain([&b"name() { printf '%s\\0' \"$f\"; }"[..]]) {
        script.line(&[line]);
    }
    let mut kept = kept.clone();
    kept.sort_unstable();
    // A kept note that no longer exists hides none that comes after it.
    let most = NOTES.saturating_add(kept.len());
    script.line(&[b"set -f; IFS='\n'; m=; most=", most.to_string().as_bytes(), b"; set -- ", &words(&kept)]);
    // The times first, so that each note is older than its time implies.
    script
        .line(&[b"pick name \"$@\" | xargs -0 stat -c 't %Y %n' 2>/dev/null; pick note \"$@\" 2>/dev/null"]);
    script.line(&[b"[ -z \"$m\" ] || echo 'm - -'"]);
    if !outputs.is_empty() {
        script.line(&[b"set -- ", &words(outputs)]);
        // `wc` opens the files: some file systems update the size only when a file is opened.
        script.line(&[b"if into ../output; then printf '%s\\0' \"$@\" | xargs -0 wc -c 2>/dev/null |"]);
        script.line(&[b"while IFS=' ' read -r s f; do printf 's %s %s\\n' \"$s\" \"$f\"; done"]);
        script.line(&[b"for f in \"$@\"; do [ -e \"$f\" ] || printf '%s\\0' \"$f\"; done |"]);
        script.line(&[
            b"xargs -0 ls -d -- 2>&1 >/dev/null | while IFS= read -r s; do printf 'l - %s\\n' \"$s\"; done",
        ]);
        script.line(&[b"else for f in \"$@\"; do printf 'g - %s\\n' \"$f\"; done; fi"]);
    }
    script.line(&[b"echo end"]);
    script
}

fn words(names: &[String]) -> Vec<u8> {
    names.iter().map(|name| quoted(name.as_bytes())).collect::<Vec<_>>().join(&b' ')
}

/// Parses the output of the script of [`look`] for these output files; `None` if its end is missing.
pub fn looked(printed: &[u8], outputs: &[String]) -> Option<Looked> {
    let mut looked = Looked::default();
    let mut times = HashMap::new();
    for line in printed.strip_suffix(b"end\n")?.split(|byte| *byte == b'\n') {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let (Some(kind), Some(one), Some(other)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let one = String::from_utf8_lossy(one).into_owned();
        let name = || String::from_utf8_lossy(other).into_owned();
        match kind {
            b"t" => {
                let at = one.parse::<i64>().ok().and_then(|seconds| seconds.checked_mul(1000));
                times.insert(name(), at.map(Timestamp::from_unix_ms));
            }
            b"n" | b"N" if Noted::parse(&one).is_some() => {
                let end: &[u8] = if kind == b"n" { b"\n" } else { b"" };
                let at = times.get(&one).copied().flatten();
                looked.notes.push(Note { name: one, text: [other, end].concat(), at });
            }
            b"u" if Noted::parse(&one).is_some() => looked.unread.push(one),
            b"m" => looked.has_more = true,
            b"s" => looked.sizes.extend(one.parse().ok().map(|size| (name(), size))),
            b"g" => looked.missing.push(name()),
            b"l" => looked.missing.extend(not_there(&name())),
            _ => {}
        }
    }
    in_order(&mut looked.notes);
    let sizes = looked.sizes.iter().map(|(name, _)| name);
    let known: HashSet<&String> = sizes.chain(&looked.missing).collect();
    let unread: Vec<String> = outputs.iter().filter(|name| !known.contains(name)).cloned().collect();
    looked.unread.extend(unread);
    Some(looked)
}

/// Returns the file's name from a message of `ls` about a file that does not exist.
fn not_there(message: &str) -> Option<String> {
    let (_, name) = message.strip_suffix(WAS_GONE)?.rsplit_once(' ')?;
    Some(name.trim_matches('\'').to_owned())
}

#[cfg(test)]
mod tests;
