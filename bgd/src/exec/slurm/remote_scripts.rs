//! File operations on a login node, as scripts for its shell, and the output of these scripts. Each script handles many
//! jobs at once. This module runs none of them.
//!
//! The scripts need a POSIX shell with the tools of any Linux: `xargs -0`, `wc`, `tail`, `head`, `base64`, `stat`.

use std::path::Path;

use bgd_shared::request::Stream;

use super::commands::Argv;
use super::folder::WorkFolder;
use super::script::{self, JOB, NoteKind, Noted, quoted};

/// The maximum size of files in one script, in bytes. The remote shell holds several copies of a script.
const SCRIPT_BYTES: usize = 512 * 1024;

/// The maximum output of a script, in bytes: parts of outputs as text, or notes and sizes of many jobs.
pub const PRINTED_BYTES: u64 = 64 << 20;

/// The exit code of a script whose folder does not exist. Any other code than 0 means that the folder can't be entered
/// or read.
pub const GONE: i32 = 44;

/// The end of a message of `ls` about a file that does not exist.
pub const WAS_GONE: &str = ": No such file or directory";

/// A script. The shell runs it only if it is complete.
#[derive(Clone, Debug)]
pub struct Script(Vec<u8>);

/// The closing line of a script.
const END: &[u8] = b"}\n";

impl Script {
    /// Creates an empty script.
    pub fn new() -> Self {
        Self([b"{\n", END].concat())
    }

    /// Adds a line.
    pub fn line(&mut self, parts: &[&[u8]]) {
        self.0.truncate(self.0.len() - END.len());
        self.0.extend(parts.iter().copied().flatten());
        self.0.extend(b"\n");
        self.0.extend(END);
    }

    /// Returns its text.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns a script that replaces itself with this command.
pub fn command<'a>(words: &Argv, env: impl Iterator<Item = (&'a str, &'a str)>) -> Script {
    let mut script = Script::new();
    // The command's messages are parsed.
    script.line(&[b"export LC_ALL=C"]);
    let mut by_env: Vec<Vec<u8>> = Vec::new();
    for (name, value) in env {
        if script::is_safe(name) {
            script.line(&[b"export ", name.as_bytes(), b"=", &quoted(value.as_bytes())]);
        } else {
            by_env.push(quoted(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
        }
    }
    if !by_env.is_empty() {
        by_env.insert(0, b"env --".to_vec());
    }
    let words = words.iter().map(|word| quoted(word.as_encoded_bytes()));
    script.line(&[
        b"exec ",
        &by_env.into_iter().chain(words).collect::<Vec<_>>().join(&b' '),
        b" </dev/null",
    ]);
    script
}

/// Begins a script that works in this folder. It exits with [`GONE`] if the folder does not exist; `cd` can't tell
/// that.
pub fn enter(script: &mut Script, folder: &Path) {
    // The messages of `ls` are parsed.
    script.line(&[b"export LC_ALL=C QUOTING_STYLE=literal"]);
    script.line(&[b"into() { cd -- \"$1\" 2>/dev/null && return; w=$(ls -- \"$1/\" 2>&1 >/dev/null)"]);
    script.line(&[format!("case $w in *'{WAS_GONE}') return {GONE};; esac").as_bytes()]);
    script.line(&[b"printf '%s\\n' \"$w\" >&2; exit 1; }"]);
    script.line(&[b"into ", &quoted(bytes(folder)), format!(" || exit {GONE}").as_bytes()]);
}

#[derive(Clone, Debug)]
pub struct JobFile {
    /// Its index in its submission.
    pub index: u32,
    pub text: Vec<u8>,
    /// Whether standard error has its own file.
    pub split: bool,
}

/// Returns the scripts that write the files of a submission's jobs, in order. Each of them may be repeated.
pub fn write(folder: &WorkFolder, key: &str, jobs: &[JobFile]) -> Vec<Script> {
    let mut scripts = Vec::new();
    let mut script = writing(folder, key);
    let mut size = 0;
    for JobFile { index, text, split } in jobs {
        if size > 0 && size + text.len() > SCRIPT_BYTES {
            scripts.push(std::mem::replace(&mut script, writing(folder, key)));
            size = 0;
        }
        size += text.len();
        let path = format!("jobs/{key}/{index}");
        script.line(&[b"printf %s ", &quoted(text), b" >", path.as_bytes(), b" || exit 1"]);
        for stream in Stream::of(*split) {
            script.line(&[b":>>output/", output(key, *index, stream).as_bytes(), b" || exit 1"]);
        }
    }
    scripts.push(script);
    scripts
}

/// Returns the beginning of a script that writes into a work folder, which is created if necessary.
fn writing(folder: &WorkFolder, key: &str) -> Script {
    let mut script = preparing(folder);
    script.line(&[b"mkdir -p jobs/", key.as_bytes(), b" || exit 1"]);
    script
}

fn preparing(folder: &WorkFolder) -> Script {
    let path = quoted(bytes(folder.path()));
    let mut script = Script::new();
    script.line(&[b"umask 077; mkdir -p -- ", &path, b" && cd -- ", &path, b" || exit 1"]);
    script.line(&[b"mkdir -p notes jobs output || exit 1"]);
    script.line(&[
        b"[ -e job.sh ] || { printf %s ",
        &quoted(JOB.as_bytes()),
        b" >.job.$$ && mv -f .job.$$ job.sh; } || exit 1",
    ]);
    script
}

/// Returns a script that tests whether a work folder can be written to, and leaves no files behind.
pub fn check(folder: &WorkFolder) -> Script {
    let mut script = preparing(folder);
    script.line(&[b"cd / && rm -rf -- ", &quoted(bytes(folder.path()))]);
    script
}

/// Returns the name of a job's output file.
pub fn output(key: &str, index: u32, stream: Stream) -> String {
    format!("{key}.{index}.{}", stream.suffix())
}

/// Returns the files of a job that has ended after this many restarts, relative to the work folder: all except the
/// notes of its starts, which were removed once they were read.
pub fn files_of(key: &str, index: u32, split: bool, restarts: u32) -> Vec<String> {
    let outputs = Stream::of(split).map(|stream| format!("output/{}", output(key, index, stream)));
    let ends = (0..=restarts).flat_map(|restarts| {
        [NoteKind::Exit, NoteKind::Fail]
            .map(|kind| format!("notes/{}", Noted { batch: key, index, restarts, kind }))
    });
    std::iter::once(format!("jobs/{key}/{index}")).chain(outputs).chain(ends).collect()
}

/// Returns a script that removes a work folder with everything in it, also if a job that is just ending writes its note
/// there meanwhile.
pub fn remove(folder: &Path) -> Script {
    let mut script = Script::new();
    let remove = [b"rm -rf -- ".as_slice(), &quoted(bytes(folder))].concat();
    script.line(&[&remove, b" || { sleep 1; ", &remove, b" || { sleep 1; ", &remove, b"; }; }"]);
    script
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

#[cfg(test)]
pub mod testing {
    //! Runs scripts with real shells.

    use super::Script;
    use std::io::Write as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// The shells that login nodes use as `/bin/sh`.
    pub const SHELLS: [&str; 2] = ["/bin/dash", "/bin/bash"];

    /// Runs a script as a session does. Returns its exit code, or -1 for a signal, with its output.
    pub fn run(shell: &str, script: &Script) -> (i32, Vec<u8>) {
        run_with(shell, "/usr/bin:/bin", script)
    }

    /// The same, with this `PATH`.
    pub fn run_with(shell: &str, path: &str, script: &Script) -> (i32, Vec<u8>) {
        run_bytes(shell, path, script.bytes())
    }

    /// The same, with the text of a script.
    pub fn run_bytes(shell: &str, path: &str, script: &[u8]) -> (i32, Vec<u8>) {
        let mut command = Command::new(shell);
        command.args(["-c", "eval \"$(cat)\""]).env("PATH", path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(script).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code().unwrap_or(-1), output.stdout)
    }

    /// Writes a program with this text, by another process: a child that another test starts meanwhile inherits what
    /// this one has open for writing, and such a program can't be executed.
    pub fn program(path: &Path, text: &str) {
        let mut write = Command::new("sh");
        write.args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\""]);
        assert!(write.arg(path).arg(text).status().unwrap().success());
    }

    /// Writes programs with these texts, and returns a `PATH` on which they come first.
    pub fn programs(home: &tempfile::TempDir, programs: &[(&str, &str)]) -> String {
        let folder = home.path().join("bin");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in programs {
            program(&folder.join(name), text);
        }
        format!("{}:/usr/bin:/bin", folder.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn run(script: &Script) -> (i32, Vec<u8>) {
        testing::run("/bin/sh", script)
    }

    fn job(index: u32, text: &[u8], split: bool) -> JobFile {
        JobFile { index, text: text.to_vec(), split }
    }

    #[test]
    fn r147_job_files_arrive_unchanged_and_private() {
        let home = tempfile::tempdir().unwrap();
        let folder = WorkFolder::new(home.path().join("it's\nhere"));
        let long = vec![b'x'; SCRIPT_BYTES];
        let jobs = [job(0, b"a'b\n\xff$HOME`id`\\\n", true), job(1, &long, false)];
        let scripts = write(&folder, "k1", &jobs);
        assert_eq!(scripts.len(), 2);
        for script in scripts.iter().chain(&scripts) {
            assert_eq!(run(script).0, 0);
        }
        for JobFile { index, text, split } in &jobs {
            let path = folder.jobs("k1").join(index.to_string());
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(fs::read(path).unwrap() == *text);
            for name in files_of("k1", *index, *split, 0).iter().filter(|name| !name.starts_with("notes/")) {
                assert!(folder.path().join(name).exists(), "{name}");
            }
        }
        assert_eq!(fs::read_to_string(folder.script()).unwrap(), JOB);
        // A check does not touch files in use.
        assert_eq!(run(&check(&folder.for_check())).0, 0);
        assert!(folder.path().join("jobs/k1/0").exists() && !folder.for_check().path().exists());
        assert_eq!(run(&remove(folder.path())).0, 0);
        assert!(!folder.path().exists());
        let nowhere = WorkFolder::new("/proc/nowhere".into());
        assert_eq!(run(&write(&nowhere, "k1", &jobs)[0]).0, 1);
    }

    /// A job that is just ending writes its note there meanwhile.
    #[test]
    fn r151_folder_that_is_not_empty_at_first_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let (folder, once) = (home.path().join("work"), home.path().join("once"));
        fs::create_dir_all(folder.join("notes")).unwrap();
        let rm = format!("[ -e {0} ] || {{ touch {0}; exit 1; }}; exec /bin/rm \"$@\"", once.display());
        let path = testing::programs(&home, &[("rm", &rm)]);
        assert_eq!(testing::run_with("/bin/sh", &path, &remove(&folder)).0, 0);
        assert!(once.exists() && !folder.exists());
    }

    #[test]
    fn r146_command_words_and_variables_arrive_unchanged() {
        let words: Argv = ["sh", "-c", "printf '%s|' \"$@\" \"$A\" \"$LC_ALL\"", "sh", "it's", "", "$HOME\n"]
            .map(Into::into)
            .to_vec();
        let env = [("A", "1 '\n2"), ("with-dash", "x")];
        let (code, printed) = run(&command(&words, env.into_iter()));
        assert_eq!((code, &*String::from_utf8_lossy(&printed)), (0, "it's||$HOME\n|1 '\n2|C|"));
        let (_, printed) = run(&command(&vec!["env".into()], env.into_iter()));
        assert!(String::from_utf8_lossy(&printed).contains("\nwith-dash=x\n"));
        assert_eq!(run(&command(&vec!["/nowhere/sbatch".into()], std::iter::empty())).0, 127);
    }
}
