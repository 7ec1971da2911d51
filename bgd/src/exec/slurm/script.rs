//! The content of jobs: one script for all of them, and for each task a file that only its user may read, with
//! everything confidential: the command and its environment. Also defines the notes that jobs write about themselves.
//!
//! This module only composes and parses texts; other modules write and find the files.

use std::fmt;

use bgd_shared::task::Exit;

use super::job::number;

/// The script of every job, for any POSIX shell.
pub const JOB: &str = include_str!("job.sh");

/// A task's command.
#[derive(Clone, Debug)]
pub struct Command<'a> {
    /// The program with its arguments; not empty.
    pub argv: Vec<&'a [u8]>,
    /// Its environment, which is added to that of the job.
    pub env: Vec<(&'a str, &'a [u8])>,
    /// Its working directory; `None`: the home folder of the node's user.
    pub folder: Option<&'a [u8]>,
    pub output: &'a [u8],
    /// The file for its standard error; `None` if that goes to `output`.
    pub errors: Option<&'a [u8]>,
    /// File mode creation mask; `None`: the mask of the job, as set by the cluster.
    pub umask: Option<u32>,
}

/// Variables that describe a job or its node. The submitter's values belong to another job, or to the machine that
/// submitted.
const OF_JOB: [&str; 5] =
    ["CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HOSTNAME", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"];

/// Variables that some shell changes or refuses to set, so that `env` has to set them.
const OF_SHELLS: [&str; 22] = [
    "COLUMNS",
    "DIRSTACK",
    "ENV",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "IFS",
    "LINENO",
    "LINES",
    "OLDPWD",
    "OPTARG",
    "OPTIND",
    "PPID",
    "PS4",
    "PWD",
    "RANDOM",
    "SECONDS",
    "SHELLOPTS",
    "SHLVL",
    "UID",
    "_",
];

/// Returns the text of a task's file, which the script sources in a subshell.
pub fn file(command: &Command<'_>) -> Vec<u8> {
    let Command { argv, env, folder, output, errors, umask } = command;
    let mut text = Text::default();
    // Some shells exit if a redirection of `exec` fails, so try the redirection first.
    let files = std::iter::once(output).chain(errors);
    for file in files {
        text.line(&[b"{ :; } >>", &quoted(file), b" || _bgd_fail 'cannot write '", &quoted(file)]);
    }
    text.line(&[b"exec </dev/null >>", &quoted(output), b" 2>", &stderr(*errors)]);
    match folder {
        Some(folder) => text.line(&[
            b"cd -- ",
            &quoted(folder),
            b" 2>/dev/null || _bgd_fail 'cannot change to '",
            &quoted(folder),
        ]),
        None => text.line(&[b"cd 2>/dev/null || _bgd_fail 'cannot change to the home folder'"]),
    }
    match umask {
        Some(umask) => text.line(&[format!("umask {umask:04o}").as_bytes()]),
        None => text.line(&[b"umask \"$_bgd_umask\""]),
    }
    let mut by_env = Vec::new();
    for (name, value) in env.iter().filter(|(name, _)| !is_of_job(name)) {
        if is_safe(name) {
            // A shell may complain about a locale that the node does not have.
            text.line(&[b"export ", name.as_bytes(), b"=", &quoted(value), b" 2>/dev/null"]);
        } else {
            by_env.push([name.as_bytes(), b"=", *value].concat());
        }
    }
    text.line(&[b"exec ", &words(&by_env, argv)]);
    text.0
}

/// Returns the words of the command line, preceded by words that set the variables that the shell can't set.
fn words(variables: &[Vec<u8>], argv: &[&[u8]]) -> Vec<u8> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let is_assignment = argv.first().is_some_and(|program| program.contains(&b'='));
    // `exec` would parse a program that begins with a dash as an option, and some shells know no `--`.
    let is_option = argv.first().is_some_and(|program| program.starts_with(b"-"));
    if is_assignment || is_option || !variables.is_empty() {
        words.extend([&b"/usr/bin/env"[..], b"--"].map(<[u8]>::to_vec));
        words.extend(variables.iter().map(|variable| quoted(variable)));
    }
    // `env` would take such a program for a variable.
    if is_assignment {
        words.extend([&b"/bin/sh"[..], b"-c", b"'exec \"$@\"'", b"sh"].map(<[u8]>::to_vec));
    }
    words.extend(argv.iter().map(|word| quoted(word)));
    words.join(&b' ')
}

fn stderr(errors: Option<&[u8]>) -> Vec<u8> {
    errors.map_or_else(|| b"&1".to_vec(), |file| [b">", &*quoted(file)].concat())
}

fn is_of_job(name: &str) -> bool {
    name.starts_with("SLURM") || name.starts_with("SBATCH_") || OF_JOB.contains(&name)
}

/// Returns whether any shell can set this variable unchanged.
pub fn is_safe(name: &str) -> bool {
    let is_identifier = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|other| other.is_ascii_alphanumeric() || other == '_');
    is_identifier && !name.starts_with("BASH") && !name.starts_with("EPOCH") && !OF_SHELLS.contains(&name)
}

/// Returns a word that a shell takes literally, whatever its bytes are, as long as none of them is NUL.
pub fn quoted(word: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(word.len() + 2);
    text.push(b'\'');
    for byte in word {
        match byte {
            b'\'' => text.extend(br"'\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
    text
}

#[derive(Default)]
struct Text(Vec<u8>);

impl Text {
    fn line(&mut self, parts: &[&[u8]]) {
        self.0.extend(parts.iter().copied().flatten());
        self.0.push(b'\n');
    }
}

/// The maximum length of a note that is read, in bytes. The longest notes contain a file's path.
pub const NOTE_BYTES: usize = 8 * 1024;

/// The run of a job that a note is about, and the kind of the note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Noted<'a> {
    /// The key of its submission, which is the name of the folder of its files.
    pub batch: &'a str,
    /// Its index in the array; 0 for a single job.
    pub index: u32,
    /// How often the cluster had restarted it.
    pub restarts: u32,
    pub kind: NoteKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NoteKind {
    Start,
    /// How its program has ended.
    Exit,
    /// Why its program could not be run.
    Fail,
}

impl NoteKind {
    pub const ALL: [Self; 3] = [Self::Start, Self::Exit, Self::Fail];

    const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Exit => "exit",
            Self::Fail => "fail",
        }
    }
}

impl<'a> Noted<'a> {
    /// Parses the name of a note's file; `None` if the file is not a note, for example an unfinished one.
    pub fn parse(name: &'a str) -> Option<Self> {
        let mut parts = name.split('.');
        let (batch, index, restarts, word) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let kind = NoteKind::ALL.into_iter().find(|kind| kind.word() == word)?;
        let is_whole = parts.next().is_none() && !batch.is_empty();
        is_whole.then_some(Self { batch, index: number(index)?, restarts: number(restarts)?, kind })
    }
}

impl fmt::Display for Noted<'_> {
    /// Writes the name of the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, index, restarts, kind } = self;
        write!(f, "{batch}.{index}.{restarts}.{}", kind.word())
    }
}

/// A program's end, as noted by its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedExit {
    pub exit: Exit,
    /// Whether the whole job was sent a signal meanwhile, for example by the cluster at the job's time limit.
    pub is_signalled: bool,
}

impl NotedExit {
    /// Parses the content of an exit note; `None` if it is damaged.
    ///
    /// A shell can't distinguish a program ended by a signal from one that exits with 128 plus the signal's number, so
    /// such a code is interpreted as the signal.
    pub fn parse(note: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(note).ok()?;
        let (code, caught) = text.strip_suffix('\n')?.split_once(' ')?;
        let code = number::<i32>(code).filter(|code| *code <= 255)?;
        let exit = match code - 128 {
            signal @ 1..=64 => Exit::Signal(signal),
            _ => Exit::Code(code),
        };
        Some(Self { exit, is_signalled: number::<u32>(caught)? != 0 })
    }

    /// Returns whether the cluster may know more about this end than the program: it may have ended the program, or may
    /// start it again.
    pub fn is_explained_by_cluster(&self) -> bool {
        self.is_signalled || self.exit != Exit::Code(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::Path;
    use std::process;

    /// Prints its arguments, each followed by a NUL.
    const TELL: &[u8] = b"printf '%s\\0' \"$@\"; printf err >&2";

    /// Returns a command whose output goes to this file.
    fn command<'a>(output: &'a Path, argv: &[&'a [u8]]) -> Command<'a> {
        let output = output.as_os_str().as_bytes();
        Command {
            argv: argv.to_vec(),
            env: Vec::new(),
            folder: Some(b"/"),
            output,
            errors: None,
            umask: Some(0o022),
        }
    }

    struct Work(tempfile::TempDir);

    impl Work {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("jobs/b")).unwrap();
            fs::create_dir(folder.path().join("notes")).unwrap();
            fs::write(folder.path().join("job.sh"), JOB).unwrap();
            Self(folder)
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.0.path().join(name)
        }

        /// Prepares the job of this command, as an element of an array.
        fn job(&self, shell: &str, command: &Command<'_>) -> process::Command {
            fs::write(self.path("jobs/b/7"), file(command)).unwrap();
            let mut job = process::Command::new(shell);
            job.args([self.path("job.sh"), self.path("jobs/b"), self.path("notes")]);
            job.env_clear().env("PATH", "/usr/bin:/bin").env("SLURM_ARRAY_TASK_ID", "7");
            job.env("SLURMD_NODENAME", "n1").env("SLURM_JOB_ID", "42").env("HOSTNAME", "n1");
            // As the cluster does.
            job.stdout(process::Stdio::null()).stderr(process::Stdio::null());
            job
        }

        /// Runs a job to its end. Returns its last note.
        fn run(&self, shell: &str, command: &Command<'_>) -> (NoteKind, String) {
            self.job(shell, command).status().unwrap();
            self.last_note()
        }

        fn last_note(&self) -> (NoteKind, String) {
            let mut files: Vec<_> = fs::read_dir(self.path("notes")).unwrap().map(Result::unwrap).collect();
            files.retain(|file| !file.file_name().as_bytes().ends_with(b".start"));
            let [file] = &files[..] else { panic!("{files:?}") };
            let name = file.file_name().into_string().unwrap();
            let noted = Noted::parse(&name).unwrap();
            assert_eq!((noted.batch, noted.index, noted.restarts), ("b", 7, 0));
            (noted.kind, fs::read_to_string(file.path()).unwrap())
        }
    }

    const SHELLS: [&str; 2] = ["/bin/sh", "/bin/bash"];

    #[test]
    fn r147_job_script_notes_start_and_exit() {
        for shell in SHELLS {
            for (script, exit) in [
                ("exit 0", Exit::Code(0)),
                ("exit 4", Exit::Code(4)),
                ("kill -9 $$", Exit::Signal(9)),
                ("kill -15 $$", Exit::Signal(15)),
                ("exit 255", Exit::Code(255)),
            ] {
                let work = Work::new();
                let out = work.path("out");
                let (kind, note) = work.run(shell, &command(&out, &[b"sh", b"-c", script.as_bytes()]));
                let noted = NotedExit::parse(note.as_bytes()).unwrap();
                assert_eq!((kind, &noted.exit), (NoteKind::Exit, &exit), "{shell} {script}");
                assert!(!noted.is_signalled);
                assert_eq!(noted.is_explained_by_cluster(), exit != Exit::Code(0));
                assert_eq!(fs::read_to_string(work.path("notes/b.7.0.start")).unwrap(), "n1 42\n");
                // The output contains nothing from the shell itself.
                assert_eq!(fs::read_to_string(out).unwrap(), "");
            }
        }
    }

    #[test]
    fn r146_job_does_not_get_the_locale_of_the_command_that_submitted_it() {
        let argv: [&[u8]; 3] = [b"sh", b"-c", b"printf %s \"${LC_ALL-none}\""];
        for shell in SHELLS {
            for (own, found) in [(vec![], "none"), (vec![("LC_ALL", &b"C"[..])], "C")] {
                let work = Work::new();
                let out = work.path("out");
                let own = Command { env: own, ..command(&out, &argv) };
                work.job(shell, &own).env("LC_ALL", "C").status().unwrap();
                assert_eq!(work.last_note(), (NoteKind::Exit, "0 0\n".to_owned()), "{shell}");
                assert_eq!(fs::read_to_string(out).unwrap(), found, "{shell}");
            }
        }
    }

    #[test]
    fn r147_arguments_arrive_unchanged() {
        let argv: Vec<&[u8]> =
            vec![b"sh", b"-c", TELL, b"sh", b"it's", b"", b"-n", b"a\nb\\", b"\xff$HOME`id`"];
        for shell in SHELLS {
            let work = Work::new();
            let (out, err) = (work.path("out it's"), work.path("err"));
            let errors = Some(err.as_os_str().as_bytes());
            work.run(shell, &Command { errors, ..command(&out, &argv) });
            let output = fs::read(&out).unwrap();
            let words: Vec<&[u8]> = output.split(|byte| *byte == 0).collect();
            assert_eq!(words, [&argv[4..], &[b""]].concat(), "{shell}");
            assert_eq!(fs::read_to_string(err).unwrap(), "err");
            let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(out).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600, "the output is nobody else's");
        }
    }

    #[test]
    fn r147_environment_arrives_unchanged_except_job_variables() {
        let own: [(&str, &[u8]); 9] = [
            ("PATH", b"/usr/bin:/bin"),
            ("A", b"1\n2'\""),
            ("BASH_FUNC_f%%", b"() { :; }"),
            ("IFS", b"x"),
            ("UID", b"12"),
            ("PWD", b"/elsewhere"),
            ("with-dash", b"\xfe"),
            ("LC_ALL", b"nowhere.UTF-8"),
            ("code", b"3"),
        ];
        let of_others: [(&str, &[u8]); 4] = [
            ("SLURM_JOB_ID", b"1"),
            ("SBATCH_PARTITION", b"x"),
            ("CUDA_VISIBLE_DEVICES", b"0"),
            ("HOSTNAME", b"x"),
        ];
        for shell in SHELLS {
            let work = Work::new();
            let out = work.path("out");
            let env = own.iter().chain(&of_others).copied().collect();
            work.run(shell, &Command { env, ..command(&out, &[b"cat", b"/proc/self/environ"]) });
            let output = fs::read(&out).unwrap();
            let variables: Vec<&[u8]> = output.split(|byte| *byte == 0).collect();
            for (name, value) in own {
                let variable = [name.as_bytes(), b"=", value].concat();
                assert!(
                    variables.contains(&&*variable),
                    "{shell} {name}: {}",
                    String::from_utf8_lossy(&output)
                );
            }
            assert!(variables.contains(&&b"SLURM_JOB_ID=42"[..]) && variables.contains(&&b"HOSTNAME=n1"[..]));
            let foreign =
                |variable: &&&[u8]| variable.starts_with(b"SBATCH_") || variable.starts_with(b"CUDA_");
            assert_eq!(variables.iter().find(foreign), None);
        }
    }

    #[test]
    fn programs_with_odd_names_are_run() {
        for shell in SHELLS {
            for name in ["a=b", "-x", "it's", "cd"] {
                let work = Work::new();
                let (out, program) = (work.path("out"), work.path(name));
                crate::exec::slurm::remote_scripts::testing::program(&program, "echo ran");
                let path = format!("{}:/usr/bin:/bin", work.0.path().display());
                let env = vec![("PATH", path.as_bytes())];
                work.run(shell, &Command { env, ..command(&out, &[name.as_bytes()]) });
                assert_eq!(fs::read_to_string(out).unwrap(), "ran\n", "{shell} {name}");
            }
        }
    }

    #[test]
    fn start_failure_is_noted_with_its_reason() {
        for shell in SHELLS {
            let work = Work::new();
            let out = work.path("out");
            let missing = Command { folder: Some(b"/no such/folder"), ..command(&out, &[b"true"]) };
            let expected = (NoteKind::Fail, "cannot change to /no such/folder on n1\n".to_owned());
            assert_eq!(work.run(shell, &missing), expected);
            let work = Work::new();
            let nowhere = work.path("nowhere/out");
            let (kind, why) = work.run(shell, &command(&nowhere, &[b"true"]));
            assert_eq!(kind, NoteKind::Fail);
            assert!(why.starts_with("cannot write ") && why.ends_with("/nowhere/out on n1\n"), "{why}");
            let work = Work::new();
            let (out, gone) = (work.path("out"), work.path("jobs/b/7"));
            let mut job = work.job(shell, &command(&out, &[b"true"]));
            fs::remove_file(&gone).unwrap();
            assert_eq!(job.status().unwrap().code(), Some(125));
            assert_eq!(work.last_note(), (NoteKind::Fail, format!("cannot read {} on n1\n", gone.display())));
        }
    }

    #[test]
    fn signal_to_the_whole_job_is_passed_on_and_noted() {
        for shell in SHELLS {
            let work = Work::new();
            let out = work.path("out");
            // The group is the whole job, as on the cluster.
            let script = b"trap 'exit 3' TERM; kill -TERM 0; while :; do sleep 0.01; done";
            let mut job = work.job(shell, &command(&out, &[b"sh", b"-c", script]));
            let status = std::os::unix::process::CommandExt::process_group(&mut job, 0).status().unwrap();
            assert_eq!((status.code(), status.signal()), (Some(3), None));
            let (_, note) = work.last_note();
            let noted = NotedExit::parse(note.as_bytes()).unwrap();
            assert_eq!(noted, NotedExit { exit: Exit::Code(3), is_signalled: true });
            assert!(noted.is_explained_by_cluster());
        }
    }

    #[test]
    fn note_names_and_contents_are_parsed_strictly() {
        let noted = Noted { batch: "k-1", index: 0, restarts: 2, kind: NoteKind::Exit };
        assert_eq!(noted.to_string(), "k-1.0.2.exit");
        assert_eq!(Noted::parse("k-1.0.2.exit"), Some(noted));
        for name in [
            ".k.0.0.exit",
            "k.0.0",
            "k.0.0.exit.x",
            "k.0.0.stop",
            "k.a.0.exit",
            "",
            ".0.0.exit",
            "k.+1.0.exit",
        ] {
            let parsed = Noted::parse(name);
            assert_eq!(parsed, None, "{name}");
        }
        for note in ["", "0", "0 0", "x 0\n", "256 0\n", "-1 0\n", "0 0 0\n"] {
            assert_eq!(NotedExit::parse(note.as_bytes()), None, "{note:?}");
        }
        assert_eq!(NotedExit::parse(b"200 0\n").unwrap().exit, Exit::Code(200));
    }

    proptest! {
        #[test]
        fn quoted_text_is_one_shell_word(word in proptest::collection::vec(1_u8.., 0..200)) {
            let text = quoted(&word);
            prop_assert!(text.starts_with(b"'") && text.ends_with(b"'"));
            // Inside the quotes, only `'\''` interrupts them, for one escaped quote.
            let inside = String::from_utf8_lossy(&text[1..text.len() - 1]).replace(r"'\''", "");
            prop_assert!(!inside.contains('\''));
        }

        #[test]
        fn parsed_note_names_survive_a_round_trip(name in "\\PC{0,40}", note in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Some(noted) = Noted::parse(&name) {
                let again = noted.to_string();
                prop_assert_eq!(Noted::parse(&again), Some(noted));
            }
            let _ = NotedExit::parse(&note);
        }
    }
}
