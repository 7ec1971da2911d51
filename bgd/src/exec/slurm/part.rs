//! Parts of outputs on a login node: the script that prints them, and the parser of its output. This module runs
//! nothing. A part that could not be read is distinguished from an output that is shorter or does not exist.

use bgd_shared::encoding::Encoding;

use super::folder::WorkFolder;
use super::remote_scripts::{self, Script};
use super::script::quoted;

/// The maximum number of bytes copied at once from one file.
pub const PART_BYTES: u64 = 1 << 20;

/// The maximum number of bytes copied at once from all files.
pub const PARTS_BYTES: u64 = 4 << 20;

/// From this offset on, the space of copied parts is freed on the login node.
const FREE_FROM: u64 = 16 << 20;

/// A part of an output file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The name of the file.
    pub name: String,
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub count: u64,
}

/// The result of reading a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its bytes. If there are fewer than wanted, the file has no more.
    Bytes(Vec<u8>),
    /// The file does not exist.
    Gone,
    /// The part could not be read completely.
    Unread,
}

/// Prints the size of the file `$1`, and `$3` bytes of it from the byte `$2` on, which is 1 for the first byte. If a
/// program fails or can't be started, there are fewer bytes than the size promises.
const PART: [&[u8]; 4] = [
    b"part() { { s=$(wc -c <\"$1\"); } 2>/dev/null || { case $(ls -d -- \"$1\" 2>&1) in",
    b"*': No such file or directory') echo 'p -';; *) echo 'p ';; esac; return; }",
    b"printf 'p %s ' \"$s\"",
    b"tail -c \"+$2\" -- \"$1\" | head -c \"$3\" | base64 -w 0; echo; }",
];

/// Returns a script that prints these parts. It may free the space of parts that were copied before.
pub fn read(folder: &WorkFolder, wanted: &[Wanted]) -> Script {
    let mut script = Script::new();
    remote_scripts::enter(&mut script, &folder.path().join("output"));
    for line in PART {
        script.line(&[line]);
    }
    for Wanted { name, offset, count } in wanted {
        let name = quoted(name.as_bytes());
        if *offset >= FREE_FROM {
            script.line(&[format!("fallocate -p -o 0 -l {offset} ").as_bytes(), &name, b" 2>/dev/null"]);
        }
        script.line(&[b"part ", &name, format!(" {} {count}", offset + 1).as_bytes()]);
    }
    script.line(&[b"echo end"]);
    script
}

/// Parses the output of the script of [`read`]: the result for each wanted part, in order. `None` if the output is
/// incomplete.
pub fn parts(printed: Vec<u8>, wanted: &[Wanted]) -> Option<Vec<Part>> {
    let text = String::from_utf8(printed).ok()?;
    let lines = text.strip_suffix("end\n")?.lines().filter_map(|line| line.strip_prefix("p "));
    let parts: Vec<Part> = lines.zip(wanted).map(|(line, wanted)| part(line, wanted)).collect();
    (parts.len() == wanted.len()).then_some(parts)
}

fn part(line: &str, wanted: &Wanted) -> Part {
    if line == "-" {
        return Part::Gone;
    }
    let read = || {
        let (size, text) = line.split_once(' ')?;
        let rest = size.parse::<u64>().ok()?.saturating_sub(wanted.offset);
        let bytes = Encoding::Base64.decode(text.to_owned()).ok()?;
        (bytes.len() as u64 >= rest.min(wanted.count)).then_some(Part::Bytes(bytes))
    };
    read().unwrap_or(Part::Unread)
}

#[cfg(test)]
mod tests;
