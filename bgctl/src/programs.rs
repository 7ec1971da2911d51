//! What the first words of a command line stand for: a program, as execvp(3) finds it, or something that only a shell
//! understands.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bgd_shared::quote::quoted;

/// Maximum length of a command line in a suggestion, in bytes.
pub const LINE_BYTES: usize = 1024;

/// First words that are shell keywords or builtins, not programs, or that behave differently as programs.
pub const BUILTINS: &[&str] = &[
    ".", "alias", "case", "cd", "eval", "exec", "exit", "export", "for", "if", "popd", "pushd", "read",
    "set", "source", "trap", "ulimit", "umask", "unset", "until", "wait", "while",
];

/// The file found under a program's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Program,
    /// A file that can't be executed.
    NoProgram,
    Folder,
    Nothing,
}

/// Looks a program up in `path`, a value of `$PATH`. Relative names and paths begin in `folder`.
pub fn find(name: &OsStr, path: &OsStr, folder: &Path) -> Found {
    let is_program = |file: &Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
    if name.as_bytes().contains(&b'/') {
        return match folder.join(name).metadata() {
            Ok(file) if is_program(&file) => Found::Program,
            Ok(file) if file.is_dir() => Found::Folder,
            Ok(_) => Found::NoProgram,
            Err(_) => Found::Nothing,
        };
    }
    let is_there = std::env::split_paths(path)
        .any(|place| folder.join(place).join(name).metadata().is_ok_and(|file| is_program(&file)));
    if is_there { Found::Program } else { Found::Nothing }
}

/// Reports whether a word in front of a command sets a variable in a shell, as `FOO=1` does.
pub fn is_variable(word: &[u8]) -> bool {
    let text = std::str::from_utf8(word).ok();
    text.and_then(|text| text.split_once('=')).is_some_and(|(name, _)| is_name(name))
}

/// Returns whether `word` is a valid shell variable name.
fn is_name(word: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || c == '_';
    word.chars().all(is_of_names) && word.starts_with(|c: char| !c.is_ascii_digit())
}

/// Splits a line into the variables in front of the command, and the command.
pub fn split<'a>(line: &'a [&'a [u8]]) -> (&'a [&'a [u8]], &'a [&'a [u8]]) {
    line.split_at(line.iter().take_while(|word| is_variable(word)).count())
}

/// Returns the call of `verb` that runs the line, with the variables in front of the command as options.
pub fn call(verb: &str, line: &[&[u8]]) -> String {
    let (set, command) = split(line);
    let options = set.iter().flat_map(|variable| ["--env".to_owned(), quoted(variable)]);
    let words = options.chain(std::iter::once("--".to_owned())).chain(command.iter().map(quoted));
    let text = words.collect::<Vec<_>>().join(" ");
    let text = if text.len() > LINE_BYTES { "-- CMD" } else { &text };
    format!("`bgctl {verb} {text}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_found_in_path_and_by_its_path() {
        let found = |name: &str, path: &str| find(name.as_ref(), path.as_ref(), Path::new("/"));
        assert_eq!(found("sh", "/nowhere:/bin"), Found::Program);
        assert_eq!(found("sh", "bin"), Found::Program);
        assert_eq!(found("sh", "/nowhere"), Found::Nothing);
        assert_eq!(found("bin/sh", ""), Found::Program);
        assert_eq!(found("/etc", "/bin"), Found::Folder);
        assert_eq!(found("/etc/passwd", "/bin"), Found::NoProgram);
    }

    #[test]
    fn variables_in_front_of_a_command_become_options() {
        for (line, expected) in [
            (&["make", "-j8"][..], "`bgctl submit -- make -j8`"),
            (&["A=1", "_b=x y", "make", "C=2"], "`bgctl submit --env A=1 --env '_b=x y' -- make C=2`"),
            (&["1=a", "b c"], "`bgctl submit -- 1=a 'b c'`"),
            (&["=a"], "`bgctl submit -- '=a'`"),
        ] {
            let line: Vec<&[u8]> = line.iter().map(|word| word.as_bytes()).collect();
            assert_eq!(call("submit", &line), expected);
        }
        let long = [b'x'; LINE_BYTES];
        assert_eq!(call("run", &[&long[..]]), "`bgctl run -- CMD`");
        assert!(!is_variable(b"\xff=1") && !is_variable(b"a-b=1") && !is_variable(b"a"));
    }
}
