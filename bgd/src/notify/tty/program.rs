//! Identifies the program of a process, as far as needed to decide whether its terminal can be written to.

use std::fs;
use std::path::Path;

use bgd_shared::proc;

/// Programs that count as shells, besides those in `/etc/shells`.
const SHELLS: [&str; 16] = [
    "ash", "bash", "csh", "dash", "elvish", "fish", "ksh", "ksh93", "mksh", "nu", "pwsh", "sh", "tcsh",
    "xonsh", "yash", "zsh",
];

/// Multi-call binaries. The name by which such a process was started selects its program.
const MANY: [&str; 2] = ["busybox", "toybox"];

/// Programs that `/etc/shells` may list but that are not shells.
const NO_SHELLS: [&str; 2] = ["screen", "tmux"];

/// How much of a command line is read to identify its program.
const ARGUMENTS_BYTES: u64 = 4096;

/// Returns the path of a process's program, without the marker for a deleted file.
fn program_of(pid: i32) -> Option<String> {
    let exe = proc::program(pid).ok()?;
    proc::undeleted(&exe).to_str().map(str::to_owned)
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Reports whether a process is a shell.
pub fn is_shell(pid: i32) -> bool {
    let Some(program) = program_of(pid) else { return false };
    let name = name_of(&program);
    if MANY.contains(&name) {
        let [words, name] = [proc::arguments(pid, ARGUMENTS_BYTES), proc::name(pid)];
        return is_shell_of_many(&String::from_utf8_lossy(&words), &String::from_utf8_lossy(&name));
    }
    // Listed names may be symlinks to the program.
    let is_listed = || {
        let list = fs::read_to_string("/etc/shells").unwrap_or_default();
        let mut shells = list.lines().filter(|line| line.starts_with('/'));
        shells.any(|line| fs::canonicalize(line).is_ok_and(|shell| shell == Path::new(&program)))
    };
    !NO_SHELLS.contains(&name) && (SHELLS.contains(&name) || is_listed())
}

/// Reports whether a multi-call process is a shell, from its NUL-terminated arguments and its short name (`comm`).
fn is_shell_of_many(words: &str, comm: &str) -> bool {
    let mut started_by = words.split('\0').map(|word| name_of(word.strip_prefix('-').unwrap_or(word)));
    let applet = match started_by.next() {
        Some(name) if MANY.contains(&name) => started_by.next(),
        name => name,
    };
    // An applet forked by a shell without exec has the shell's arguments but its own short name. That name is `exe` if
    // it was started through /proc/self/exe.
    let is_itself = SHELLS.contains(&comm) || MANY.contains(&comm) || comm == "exe";
    is_itself && applet.is_some_and(|name| SHELLS.contains(&name))
}

/// Reports whether a shell remembers the row of the screen in which its prompt begins, and draws there again even if the
/// terminal has moved it meanwhile.
pub fn remembers_row(shell: i32) -> bool {
    program_of(shell).is_some_and(|program| name_of(&program) == "nu")
}

/// Reports whether a process is a `bgctl`.
pub fn is_bgctl(pid: i32) -> bool {
    program_of(pid).is_some_and(|program| name_of(&program) == "bgctl")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicall_binary_is_a_shell_by_its_name() {
        for (words, comm, expected) in [
            ("sh\0", "sh", true),
            ("-ash\0", "ash", true),
            ("/bin/busybox\0sh\0-i\0", "busybox", true),
            ("/bin/sh\0script\0", "exe", true),
            ("vi\0text\0", "vi", false),
            ("busybox\0less\0text\0", "busybox", false),
            ("vi\0text\0", "exe", false),
            ("sh\0", "top", false),
            ("busybox\0", "busybox", false),
            ("", "", false),
        ] {
            assert_eq!(is_shell_of_many(words, comm), expected, "{words:?}");
        }
    }

    #[test]
    fn non_shell_process_is_not_taken_for_a_shell() {
        let me = std::process::id().cast_signed();
        assert!(!is_shell(me) && !is_bgctl(me));
        assert!(!is_shell(0), "there is none");
    }
}
