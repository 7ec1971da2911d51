//! The programs that a bootstrap copies to a remote machine (R143), namely this program and its daemon, their place on
//! that machine, and the shell lines that find, receive and check them. Each shell line is a single line in single
//! quotes, without a backslash or an exclamation mark, so that it means the same to every login shell, csh and fish
//! included. Independent of ssh.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::OnceLock;

use bgd_shared::text::hex;
use sha2::{Digest as _, Sha256};

use super::connect::program_path;
use crate::exit::Code;
use crate::failure::Failure;

/// How many versions are kept on the remote machine.
const KEPT: u32 = 4;

/// Number of bytes read at once.
const PIECE: usize = 64 * 1024;

/// Exit codes of [`Program::take`].
pub mod refusals {
    /// The folder can't be written.
    pub const FOLDER: i32 = 73;
    /// The copy can't be written.
    pub const COPY: i32 = 74;
    /// The received bytes differ from those that were sent.
    pub const DIGEST: i32 = 65;
    /// There is no program to compute a digest.
    pub const NO_DIGEST: i32 = 72;
    /// The copy does not run.
    pub const DOES_NOT_RUN: i32 = 71;
}

/// A program on this machine.
#[derive(Debug)]
pub struct Program {
    /// The file name on both machines.
    pub name: &'static str,
    pub file: File,
    /// SHA-256 of the contents, in hexadecimal digits.
    pub digest: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// This program and its daemon.
#[derive(Debug)]
pub struct Programs {
    /// In the order in which they are copied: once `bgctl` is there, all of them are.
    pub all: [Program; 2],
    /// The name of their folder, unique to one version with one content.
    pub folder: String,
}

/// Returns the programs of this process, which don't change.
///
/// # Errors
/// The daemon's program is not found, or one of the two can't be read.
pub fn own() -> Result<&'static Programs, Failure> {
    static OWN: OnceLock<Programs> = OnceLock::new();
    if let Some(programs) = OWN.get() {
        return Ok(programs);
    }
    let daemon = program_path();
    // Use the running file, even if another version has been installed in its place.
    let all = [read("bgd", &daemon)?, read("bgctl", Path::new("/proc/self/exe"))?];
    let both = Sha256::digest(format!("{} {}", all[0].digest, all[1].digest));
    let folder = format!("{}-{}", env!("CARGO_PKG_VERSION"), &hex(&both)[..16]);
    Ok(OWN.get_or_init(|| Programs { all, folder }))
}

fn read(name: &'static str, path: &Path) -> Result<Program, Failure> {
    let digested = File::open(path).and_then(|file| {
        let (digest, bytes) = digest(&file)?;
        Ok(Program { name, file, digest, bytes })
    });
    digested.map_err(|error| {
        let message = format!("can't read {}, to copy it: {error}", path.display());
        Failure::new(Code::NO_DAEMON, "bootstrap_failed", message)
            .hint("put bgd next to bgctl or in PATH, or set BGD_DAEMON to its path")
    })
}

/// Returns the digest of a file, and its size in bytes.
fn digest(mut file: &File) -> io::Result<(String, u64)> {
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; PIECE];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((hex(&hasher.finalize()), bytes)),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                bytes += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The folder of all versions, in shell notation.
const ROOT: &str = "${XDG_CACHE_HOME:-$HOME/.cache}/bgd/programs";

/// Prefix of the lines printed by [`PROBE`]; other output of the shell is skipped.
const ANSWER: &str = "bgctl-bootstrap:";

/// Prints the kind of the machine, and whether `bgctl` is installed there.
pub const PROBE: &str = "exec sh -c 'echo; echo bgctl-bootstrap: $(uname -sm); \
     command -v bgctl >/dev/null && echo bgctl-bootstrap: installed; exit 0'";

/// The result of [`PROBE`].
#[derive(Debug, PartialEq, Eq)]
pub struct Probed {
    /// System and architecture, as printed by `uname -sm`.
    pub machine: String,
    /// Whether `bgctl` is in `PATH`.
    pub has_bgctl: bool,
}

/// Parses the output of [`PROBE`]; `None` if it did not run.
pub fn probed(output: &str) -> Option<Probed> {
    let mut answers = output.lines().filter_map(|line| line.strip_prefix(ANSWER)).map(str::trim);
    Some(Probed { machine: answers.next()?.to_owned(), has_bgctl: answers.next().is_some() })
}

impl Programs {
    /// Returns the line that runs `bgctl` with these words: the installed one, else the copy, else it exits with 127.
    /// If one of the two copies does not run, such as a damaged or an empty one, which a shell takes for a script,
    /// both count as missing, and are replaced.
    pub fn line(&self, words: &str) -> String {
        let folder = &self.folder;
        format!(
            "exec sh -c 'command -v bgctl >/dev/null && exec bgctl {words}; d=\"{ROOT}/{folder}\"; \
             for p in bgd bgctl; do v=$(\"$d/$p\" --version </dev/null 2>/dev/null) && [ -n \"$v\" ] || exit 127; \
             done; exec \"$d/bgctl\" {words}; exit 127'"
        )
    }

    /// Returns the line that removes files left by interrupted copies more than an hour ago, and all but the latest
    /// versions.
    pub fn tidy() -> String {
        let from = KEPT + 1;
        format!(
            "exec sh -c 'cd \"{ROOT}\" || exit 0; find . -name \".*.??????\" -mmin +60 -exec rm -f {{}} +; \
             ls -1t | tail -n +{from} | while read -r old; do rm -rf \"./$old\"; done'"
        )
    }
}

impl Program {
    /// Returns the line that receives this program on standard input, checks the digest and that the program runs, and
    /// only then renames it to its final name. Several of them may run at the same time.
    pub fn take(&self, folder: &str) -> String {
        let Self { name, digest, .. } = self;
        let (no_folder, no_copy) = (refusals::FOLDER, refusals::COPY);
        let (wrong, no_digest, no_run) = (refusals::DIGEST, refusals::NO_DIGEST, refusals::DOES_NOT_RUN);
        format!(
            "exec sh -c 'umask 077; d=\"{ROOT}/{folder}\"; mkdir -p \"$d\" && t=$(mktemp \"$d/.{name}.XXXXXX\") \
             || exit {no_folder}; fail() {{ rm -f \"$t\"; exit $1; }}; cat >\"$t\" || fail {no_copy}; \
             s=$(sha256sum <\"$t\" 2>/dev/null || shasum -a 256 <\"$t\") || fail {no_digest}; \
             case \"$s\" in {digest}*) ;; *) fail {wrong};; esac; \
             chmod 700 \"$t\" && \"$t\" --version >/dev/null || fail {no_run}; \
             mv -f \"$t\" \"$d/{name}\" || fail {no_folder}'"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn programs() -> [Program; 2] {
        [("bgd", "0"), ("bgctl", "1")].map(|(name, digit)| {
            let file = File::open("/dev/null").unwrap();
            Program { name, file, digest: digit.repeat(64), bytes: 0 }
        })
    }

    #[test]
    fn r143_remote_command_lines_are_safe_for_every_login_shell() {
        let programs = Programs { all: programs(), folder: "1.0-0".to_owned() };
        let take = programs.all[0].take(&programs.folder);
        for line in [&*programs.line("--json dial"), &Programs::tidy(), &take, PROBE] {
            assert_eq!(line.matches('\'').count(), 2, "{line}");
            assert!(!line.contains(['\\', '!', '\n']) && !line.contains("  "), "{line}");
            assert!(line.starts_with("exec sh -c '") && line.ends_with('\''), "{line}");
        }
    }

    #[test]
    fn r143_copies_count_only_if_both_run() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("bgd/programs/1.0-0");
        std::fs::create_dir_all(&folder).unwrap();
        let [bgd, bgctl] = ["bgd", "bgctl"].map(|name| folder.join(name));
        let whole = "#!/bin/sh\necho \"ran $*\"\n";
        let line = Programs { all: programs(), folder: "1.0-0".to_owned() }.line("--json dial");
        // Written by another process: a child of another test could inherit a file that this one has open for writing.
        let put = |path: &Path, text: Option<&str>| {
            let _ = std::fs::remove_file(path);
            if let Some(text) = text {
                let mut sh = Command::new("sh");
                let words = ["-c", "cat >\"$1\" && chmod 700 \"$1\"", "sh"];
                let sh = sh.args(words).arg(path).stdin(Stdio::piped());
                let mut child = sh.spawn().unwrap();
                child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
                assert!(child.wait().unwrap().success());
            }
        };
        let ran = || {
            let mut sh = Command::new("/bin/sh");
            sh.args(["-c", &line]).env("PATH", "/nonexistent:/bin").env("XDG_CACHE_HOME", home.path());
            let output = sh.output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        for (daemon, client, is_whole) in [
            (Some(whole), Some(whole), true),
            (Some(""), Some(whole), false),
            (Some("#!/bin/sh\necho a; kill -KILL $$\n"), Some(whole), false),
            (None, Some(whole), false),
            (Some(whole), Some(""), false),
            (Some(whole), Some("#!/bin/sh\nexit 1\n"), false),
            (Some(whole), None, false),
        ] {
            put(&bgd, daemon);
            put(&bgctl, client);
            let expected = if is_whole { (Some(0), "ran --json dial\n") } else { (Some(127), "") };
            let (code, text) = ran();
            assert_eq!((code, &*text), expected, "{daemon:?}, {client:?}");
        }
    }

    #[test]
    fn r143_probe_result_is_found_amid_shell_output() {
        let text = "Welcome\nbgctl-bootstrap: Linux x86_64\nbgctl-bootstrap: installed\n";
        let probed = super::probed(text).unwrap();
        assert_eq!((&*probed.machine, probed.has_bgctl), ("Linux x86_64", true));
        assert_eq!(super::probed("This account is not available.\n"), None);
    }
}
