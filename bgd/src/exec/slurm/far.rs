//! What is to be done with files on a login node, as scripts for its shell, and what those print. Each script is for many
//! jobs at once. Nothing here runs one.
//!
//! They need a POSIX shell with the tools of any Linux: `xargs -0`, `wc`, `tail`, `head`, `base64`, `stat`.

use std::path::Path;

use bgd_shared::encoding::Encoding;
use bgd_shared::request::Stream;
use bgd_shared::time::Timestamp;

use super::commands::Words;
use super::folder::{NOTES, Note, WorkFolder};
use super::script::{self, JOB, NoteKind, Noted, quoted};

/// The most bytes of files in one script. The shell over there holds a script several times.
const SCRIPT_BYTES: usize = 512 * 1024;

/// The most bytes of one file that are copied at once.
pub const PART_BYTES: u64 = 1 << 20;

/// The most bytes of all files that are copied at once.
pub const PARTS_BYTES: u64 = 4 << 20;

/// The most bytes that a script of this module prints: parts as text, or notes and sizes of many jobs.
pub const PRINTED_BYTES: u64 = 64 << 20;

/// From this offset on, space over there is freed as soon as it was copied.
const FREE_FROM: u64 = 16 << 20;

/// A script. The shell runs it only if it is complete.
#[derive(Clone, Debug)]
pub struct Script(Vec<u8>);

/// What closes a script.
const END: &[u8] = b"}\n";

impl Script {
    /// Creates one without lines.
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

    /// Its text.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns a script that becomes this command.
pub fn command<'a>(words: &Words, env: impl Iterator<Item = (&'a str, &'a str)>) -> Script {
    let mut script = Script::new();
    // Its messages are read.
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

#[derive(Clone, Debug)]
pub struct JobFile {
    /// Its index in its submission.
    pub index: u32,
    pub text: Vec<u8>,
    /// Whether standard error has a file of its own.
    pub split: bool,
}

/// Returns the scripts that write what the jobs of a submission need, in order. Each may run again.
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
        for stream in streams(*split) {
            script.line(&[b":>>output/", output(key, *index, stream).as_bytes(), b" || exit 1"]);
        }
    }
    scripts.push(script);
    scripts
}

/// Returns the begin of a script that writes into a work folder, which is created unless it is there.
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

/// Returns a script that tries whether a work folder can be written to, and leaves nothing.
pub fn check(folder: &WorkFolder) -> Script {
    let mut script = preparing(folder);
    script.line(&[b"cd / && rm -rf -- ", &quoted(bytes(folder.path()))]);
    script
}

/// The name of a job's output file.
pub fn output(key: &str, index: u32, stream: Stream) -> String {
    let kind = match stream {
        Stream::Stdout => "out",
        Stream::Stderr => "err",
    };
    format!("{key}.{index}.{kind}")
}

/// The streams that have a file of their own.
pub fn streams(split: bool) -> impl Iterator<Item = Stream> {
    [Stream::Stdout].into_iter().chain(split.then_some(Stream::Stderr))
}

/// Returns the files of a job that has ended after so many restarts, within the work folder: everything but the notes that
/// it began, which were removed when they were read.
pub fn files_of(key: &str, index: u32, split: bool, restarts: u32) -> Vec<String> {
    let outputs = streams(split).map(|stream| format!("output/{}", output(key, index, stream)));
    let ends = (0..=restarts).flat_map(|restarts| {
        [NoteKind::Exit, NoteKind::Fail]
            .map(|kind| format!("notes/{}", Noted { batch: key, index, restarts, kind }))
    });
    std::iter::once(format!("jobs/{key}/{index}")).chain(outputs).chain(ends).collect()
}

/// Returns a script that removes files within the work folder, then folders of submissions if they are empty, and prints
/// the notes and the sizes of these output files. Names are those of this module and of notes.
pub fn look(folder: &WorkFolder, removed: &[String], keys: &[String], outputs: &[String]) -> Script {
    let mut script = Script::new();
    script.line(&[b"cd -- ", &quoted(bytes(folder.path())), b" || exit 1"]);
    let all = |names: &[String], command: &str| {
        let names: Vec<Vec<u8>> = names.iter().map(|name| quoted(name.as_bytes())).collect();
        [b"printf '%s\\0' ", &*names.join(&b' '), b" | xargs -0 ", command.as_bytes()].concat()
    };
    if !removed.is_empty() {
        script.line(&[&all(removed, "rm -f --")]);
    }
    if !keys.is_empty() {
        let folders: Vec<String> = keys.iter().map(|key| format!("jobs/{key}")).collect();
        script.line(&[&all(&folders, "rmdir -- 2>/dev/null")]);
    }
    script.line(&[b"cd notes || exit 1"]);
    script.line(&[b"set --; n=0; for f in *.start *.exit *.fail; do [ -f \"$f\" ] || continue"]);
    script.line(&[
        b"set -- \"$@\" \"$f\"; n=$((n+1)); [ $n -lt ",
        NOTES.to_string().as_bytes(),
        b" ] || break; done",
    ]);
    // The times first, so that each note is older than its time says.
    script.line(&[b"[ $n -eq 0 ] || printf '%s\\0' \"$@\" | xargs -0 stat -c 't %Y %n' 2>/dev/null"]);
    script.line(&[b"for f in \"$@\"; do if IFS= read -r l <\"$f\"; then printf 'n %s %s\\n' \"$f\" \"$l\""]);
    script.line(&[b"else printf 'N %s %s\\n' \"$f\" \"$l\"; fi; done 2>/dev/null"]);
    if !outputs.is_empty() {
        script.line(&[b"cd ../output || exit 1"]);
        // It opens them, after which their sizes are known: some file systems look only then.
        let sizes =
            all(outputs, "wc -c 2>/dev/null | while read -r s f; do printf 's %s %s\\n' \"$s\" \"$f\"; done");
        script.line(&[&sizes]);
    }
    script.line(&[b"echo end"]);
    script
}

/// What a look has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// The notes, starts first.
    pub notes: Vec<Note>,
    /// Output files with their sizes in bytes.
    pub sizes: Vec<(String, u64)>,
}

/// Reads what the script of [`look`] printed; `None` if its end is missing.
pub fn looked(printed: &[u8]) -> Option<Looked> {
    let mut looked = Looked::default();
    let mut times = std::collections::HashMap::new();
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
            b"s" => looked.sizes.extend(one.parse().ok().map(|size| (name(), size))),
            _ => {}
        }
    }
    looked.notes.sort_by_cached_key(|note| {
        Noted::parse(&note.name).map(|noted| (noted.restarts, noted.kind != NoteKind::Start))
    });
    Some(looked)
}

/// A part of an output file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The name of the file.
    pub name: String,
    /// The offset of its first byte.
    pub offset: u64,
    /// How many bytes it has.
    pub count: u64,
}

/// Returns a script that prints these parts. What was copied before may be freed.
pub fn read(folder: &WorkFolder, wanted: &[Wanted]) -> Script {
    let mut script = Script::new();
    script.line(&[b"cd -- ", &quoted(bytes(folder.path())), b"/output || exit 1"]);
    for Wanted { name, offset, count } in wanted {
        if *offset >= FREE_FROM {
            script.line(&[format!("fallocate -p -o 0 -l {offset} {name} 2>/dev/null").as_bytes()]);
        }
        let part = format!("tail -c +{} -- {name} | head -c {count} | base64 -w 0", offset + 1);
        script.line(&[b"printf 'p '; ", part.as_bytes(), b"; echo"]);
    }
    script.line(&[b"echo end"]);
    script
}

/// Reads what the script of [`read`] printed: a part for each wanted one, in order. `None` if its end is missing.
pub fn parts(printed: Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let text = String::from_utf8(printed).ok()?;
    let lines = text.strip_suffix("end\n")?.lines().filter_map(|line| line.strip_prefix("p "));
    lines.map(|line| Encoding::Base64.decode(line.to_owned()).ok()).collect()
}

/// Returns a script that removes a work folder with everything in it.
pub fn remove(folder: &Path) -> Script {
    let mut script = Script::new();
    script.line(&[b"rm -rf -- ", &quoted(bytes(folder))]);
    script
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    /// Runs a script as a session does, and returns its exit code with what it printed.
    fn run(script: &Script) -> (i32, Vec<u8>) {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "eval \"$(cat)\""])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code().unwrap(), output.stdout)
    }

    fn job(index: u32, text: &[u8], split: bool) -> JobFile {
        JobFile { index, text: text.to_vec(), split }
    }

    #[test]
    fn r147_files_arrive_as_they_are_and_are_nobody_elses() {
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
        // What is in use is not touched by a check.
        assert_eq!(run(&check(&folder.for_check())).0, 0);
        assert!(folder.path().join("jobs/k1/0").exists() && !folder.for_check().path().exists());
        assert_eq!(run(&remove(folder.path())).0, 0);
        assert!(!folder.path().exists());
        let nowhere = WorkFolder::new("/proc/nowhere".into());
        assert_eq!(run(&write(&nowhere, "k1", &jobs)[0]).0, 1);
    }

    #[test]
    fn r147_notes_and_sizes_are_found_and_what_is_over_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let folder = WorkFolder::new(home.path().join("w"));
        run(&write(&folder, "k1", &[job(0, b"x", false), job(1, b"y", false)])[0]);
        let empty = run(&look(&folder, &[], &[], &[]));
        assert_eq!(looked(&empty.1), Some(Looked::default()));
        for (name, text) in
            [("k1.0.0.start", "n1 7\n"), ("k1.0.0.exit", "0 0\n"), ("k1.1.0.fail", "cut"), (".k1", "x")]
        {
            fs::write(folder.notes().join(name), text).unwrap();
        }
        fs::write(folder.path().join("output/k1.0.out"), "twelve bytes").unwrap();
        let outputs =
            [output("k1", 0, Stream::Stdout), output("k1", 1, Stream::Stdout), "missing".to_owned()];
        let (code, printed) = run(&look(&folder, &[], &[], &outputs));
        let found = looked(&printed).unwrap();
        let notes: Vec<(&str, &[u8])> = found.notes.iter().map(|note| (&*note.name, &*note.text)).collect();
        let expected: [(&str, &[u8]); 3] =
            [("k1.0.0.start", b"n1 7\n"), ("k1.0.0.exit", b"0 0\n"), ("k1.1.0.fail", b"cut")];
        assert_eq!((code, &notes[..]), (0, &expected[..]));
        assert!(found.notes.iter().all(|note| note.at.is_some()));
        assert!(
            found.sizes.contains(&("k1.0.out".into(), 12)) && found.sizes.contains(&("k1.1.out".into(), 0))
        );
        assert!(!found.sizes.iter().any(|(name, _)| name == "missing"));
        assert_eq!(looked(&printed[..printed.len() - 1]), None);
        let mut removed = files_of("k1", 0, false, 0);
        removed.push("notes/k1.0.0.start".to_owned());
        let (_, printed) = run(&look(&folder, &removed, &["k1".to_owned()], &[]));
        let left = looked(&printed).unwrap().notes;
        assert_eq!(left.iter().map(|note| &*note.name).collect::<Vec<_>>(), ["k1.1.0.fail"]);
        assert!(folder.jobs("k1").exists() && !folder.path().join("output/k1.0.out").exists());
        run(&look(&folder, &files_of("k1", 1, false, 0), &["k1".to_owned()], &[]));
        assert!(!folder.jobs("k1").exists());
        run(&remove(folder.path()));
        assert_eq!(run(&look(&folder, &[], &[], &[])).0, 1);
    }

    #[test]
    fn r150_parts_of_outputs_are_read_from_their_offsets() {
        let home = tempfile::tempdir().unwrap();
        let folder = WorkFolder::new(home.path().join("w"));
        run(&write(&folder, "k1", &[job(0, b"x", true)])[0]);
        let bytes: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
        fs::write(folder.path().join("output/k1.0.out"), &bytes).unwrap();
        let wanted = |stream, offset, count| Wanted { name: output("k1", 0, stream), offset, count };
        let all = [
            wanted(Stream::Stdout, 0, 5),
            wanted(Stream::Stdout, 100_000, 100_000),
            wanted(Stream::Stdout, 199_999, 5),
            wanted(Stream::Stderr, 0, 5),
        ];
        let (_, printed) = run(&read(&folder, &all));
        let found = parts(printed.clone()).unwrap();
        let expected = [&bytes[..5], &bytes[100_000..], &bytes[199_999..], b""];
        assert!(found == expected, "{:?}", found.iter().map(Vec::len).collect::<Vec<_>>());
        assert_eq!(parts(printed[..100].to_vec()), None);
    }

    #[test]
    fn r146_a_command_gets_its_words_and_variables_as_they_are() {
        let words: Words =
            ["sh", "-c", "printf '%s|' \"$@\" \"$A\" \"$LC_ALL\"", "sh", "it's", "", "$HOME\n"]
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
