//! The next program: checks that it may take over, and that it can. It is opened once and executed through that
//! descriptor, so that the program tested is the one that runs. Blocks for some seconds: call this on a worker.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::mutex::Mutex;
use nix::fcntl::OFlag;
use rustix::io::ioctl_fionbio;
use serde::{Deserialize, Serialize};

use crate::os::pidfd::{PidFd, SIGKILL, wait_for_all};

/// The option by which a program prints the formats it reads.
pub const FORMATS: &str = "--carried-formats";

/// The option by which a program reads a state from its standard input and prints a summary.
pub const TRY: &str = "--try-carried";

/// The option by which a program takes over; its value is the descriptor number of the state.
pub const CARRIED: &str = "--carried";

/// The option with the reason why the next program could not take over.
pub const REFUSED: &str = "--refused";

/// How long a program may take to print its formats.
const FORMATS_PATIENCE: Duration = Duration::from_secs(5);

/// How long a program may take to read the state.
const TRY_PATIENCE: Duration = Duration::from_mins(1);

/// The maximum size of a program's output or error message that is read.
const ANSWER_BYTES: u64 = 64 * 1024;

/// A program's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formats {
    /// The program's version.
    pub bgd: String,
    /// The state format that it writes.
    pub writes: u32,
    /// The state formats that it reads.
    pub reads: Vec<u32>,
    /// The journal formats that it reads.
    #[serde(default = "first_journal")]
    pub reads_journals: Vec<u32>,
}

/// The journal formats of programs that do not print this field.
fn first_journal() -> Vec<u32> {
    vec![1]
}

impl Formats {
    /// Returns the description of this program, with these journal formats.
    pub fn own(reads_journals: &[u32]) -> Self {
        Self {
            bgd: env!("CARGO_PKG_VERSION").to_owned(),
            writes: super::image::FORMAT,
            reads: super::image::READS.to_vec(),
            reads_journals: reads_journals.to_vec(),
        }
    }
}

/// A program's summary of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The digest of all bytes of the state.
    pub digest: String,
    pub tasks: u64,
    pub connections: u64,
}

/// The process being tested, for cancelling the upgrade: the process may hang.
#[derive(Clone, Debug, Default)]
pub struct Trial(Arc<Mutex<Tried>>);

#[derive(Debug, Default)]
struct Tried {
    is_given_up: bool,
    process: Option<PidFd>,
}

impl Trial {
    /// Kills the current process and any later one.
    pub fn give_up(&self) {
        let mut tried = self.0.lock();
        tried.is_given_up = true;
        tried.kill();
    }

    /// Records the current process. It must not be reaped before [`Self::end`].
    fn begin(&self, process: PidFd) {
        let mut tried = self.0.lock();
        tried.process = Some(process);
        if tried.is_given_up {
            tried.kill();
        }
    }

    fn end(&self) {
        self.0.lock().process = None;
    }
}

impl Tried {
    fn kill(&self) {
        if let Some(process) = &self.process {
            // It may have ended already.
            let _ = process.signal(SIGKILL);
        }
    }
}

/// A program that may take over.
#[derive(Debug)]
pub struct Candidate {
    file: OwnedFd,
    /// The program's path, without symbolic links.
    pub path: PathBuf,
    /// This process's program, which the next one may have to go back to.
    pub(super) own: File,
    trial: Trial,
    pub formats: Formats,
}

impl Candidate {
    /// Opens a program and queries its formats. `journal` is the format of the journal that it would have to continue,
    /// if there is one.
    ///
    /// # Errors
    /// Returns why the program can't take over, as a sentence about it.
    pub fn open(path: &Path, journal: Option<u32>, trial: Trial) -> Result<Self, String> {
        let flags = (OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| format!("it can't be opened: {error}"))?;
        may_take_over(&file)?;
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let file = OwnedFd::from(file);
        let own = File::open("/proc/self/exe");
        let own = own.map_err(|error| format!("the daemon's own program can't be opened: {error}"))?;
        let said = run(&file, FORMATS, Stdio::null(), FORMATS_PATIENCE, &trial)?;
        let formats: Formats = serde_json::from_slice(&said).map_err(|_| "it is not a bgd".to_owned())?;
        let (its, ours) = (&formats.bgd, super::image::FORMAT);
        if !formats.reads.contains(&ours) {
            return Err(format!("it is bgd {its}, which can't read the state of this one (format {ours})"));
        }
        if let Some(ours) = journal.filter(|format| !formats.reads_journals.contains(format)) {
            return Err(format!("it is bgd {its}, which can't read the journal of this one (format {ours})"));
        }
        Ok(Self { file, path, own, trial, formats })
    }

    /// Makes the program read a state, as it would after taking over.
    ///
    /// # Errors
    /// Returns why the program can't, as a sentence about it.
    pub fn try_with(&self, state: &OwnedFd, expected: &Found) -> Result<(), String> {
        // Reopened, as a duplicate would share the file position.
        let state = File::open(format!("/proc/self/fd/{}", state.as_raw_fd()));
        let state = state.map_err(|error| format!("it can't be given the state: {error}"))?;
        let said = run(&self.file, TRY, state.into(), TRY_PATIENCE, &self.trial)?;
        let found: Found =
            serde_json::from_slice(&said).map_err(|_| "it describes the state differently".to_owned())?;
        if found == *expected {
            Ok(())
        } else {
            Err("it read a different state from the one it was given".to_owned())
        }
    }

    /// Executes the program in place of this one. Returns only on failure.
    pub fn execute(&self, argv: &[CString]) -> io::Error {
        execute(&self.file, argv)
    }
}

/// Executes an open program in place of this one, with the same environment. Returns only on failure.
pub fn execute(program: &impl AsFd, argv: &[CString]) -> io::Error {
    let env: Vec<CString> = std::env::vars_os()
        .filter_map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok())
        .collect();
    match nix::unistd::fexecve(program, argv, &env) {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}

/// Checks that no other user can have modified the file, and that it is a program.
fn may_take_over(file: &File) -> Result<(), String> {
    let meta = file.metadata().map_err(|error| format!("it can't be examined: {error}"))?;
    let me = nix::unistd::Uid::effective().as_raw();
    if !meta.is_file() {
        return Err("it is not a file".to_owned());
    }
    if ![me, 0].contains(&meta.uid()) {
        return Err(format!("it belongs to uid {}, which is neither you (uid {me}) nor root", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(format!("other users may write to it (mode {:o})", meta.mode() & 0o7777));
    }
    if meta.mode() & 0o6000 != 0 {
        return Err(format!("it runs as another user or group (mode {:o})", meta.mode() & 0o7777));
    }
    let mut start = [0; 4];
    if file.read_exact_at(&mut start, 0).is_err() || start != *b"\x7fELF" {
        return Err("it is not an ELF executable".to_owned());
    }
    Ok(())
}

/// Runs an open program with one option. Returns its standard output.
fn run(
    program: &OwnedFd,
    option: &str,
    stdin: Stdio,
    patience: Duration,
    trial: &Trial,
) -> Result<Vec<u8>, String> {
    let mut child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        .arg(option)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("it can't be executed: {error}"))?;
    // The copy is for ending the process early.
    let opened =
        PidFd::open(child.id().cast_signed()).and_then(|process| Ok((process.try_clone()?, process)));
    let has_ended =
        opened.map_err(|error| format!("it can't be watched: {error}")).and_then(|(copy, process)| {
            trial.begin(copy);
            let has_ended = wait_for_all([&process], Instant::now() + patience);
            trial.end();
            has_ended
                .then_some(())
                .ok_or_else(|| format!("it does not answer within {} s", patience.as_secs()))
        });
    if let Err(why) = has_ended {
        let _ = child.kill();
        let _ = child.wait();
        return Err(why);
    }
    let status = child.wait().map_err(|error| format!("its end can't be detected: {error}"))?;
    if status.success() {
        return Ok(read(child.stdout.take()));
    }
    Err(failure(&mut child, status))
}

/// The error for a program that does not support the option.
const NOT_ABLE: &str = "it is not a bgd, or its version can't take over from another one";

/// Describes why a program failed.
fn failure(child: &mut Child, status: std::process::ExitStatus) -> String {
    let said = read(child.stderr.take());
    let said = String::from_utf8_lossy(&said);
    match (status.code(), said.lines().next()) {
        // Either a bgd without this option, or another program that rejects unknown options.
        (Some(2), _) => NOT_ABLE.to_owned(),
        // The same, with another exit status.
        (_, Some(line)) if line.contains(FORMATS) => NOT_ABLE.to_owned(),
        (_, Some(line)) => format!("it failed: {}", bgd_shared::show::line(line)),
        (_, None) => format!("it failed ({status})"),
    }
}

/// Reads the remaining output of an ended program, all of which is in the pipe. Does not wait for the end of the pipe: a
/// process that the program left in the background may have it open.
fn read(pipe: Option<impl io::Read + AsFd>) -> Vec<u8> {
    let mut said = Vec::new();
    // Incomplete or unreadable output is not a valid answer.
    if let Some(pipe) = pipe.filter(|pipe| ioctl_fionbio(pipe, true).is_ok()) {
        let _ = pipe.take(ANSWER_BYTES).read_to_end(&mut said);
    }
    said
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn refused(path: &Path) -> String {
        Candidate::open(path, None, Trial::default()).unwrap_err()
    }

    #[test]
    fn r123_unsuitable_or_writable_program_may_not_take_over() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("program");
        assert!(refused(&path).starts_with("it can't be opened"), "{}", refused(&path));
        assert_eq!(refused(home.path()), "it is not a file");
        fs::write(&path, "#!/bin/sh\nexit 0\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(refused(&path), "it is not an ELF executable");
        // By another process, as a child that another test starts meanwhile inherits what this one has open for writing,
        // and such a program can't be executed.
        let mut copy = Command::new("cp");
        copy.args(["--remove-destination", "/bin/true"]).arg(&path);
        assert!(copy.status().unwrap().success());
        for (mode, why) in [(0o777, "other users may write to it (mode 777)"), (0o4755, "it runs as another")]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(refused(&path).starts_with(why), "{}", refused(&path));
        }
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(refused(&path), "it is not a bgd");
        assert_eq!(refused(Path::new("/bin/false")), "it failed (exit status: 1)");
        assert_eq!(refused(Path::new("/bin/sleep")), NOT_ABLE);
        let trial = Trial::default();
        trial.give_up();
        let given_up = Candidate::open(Path::new("/bin/cat"), None, trial).unwrap_err();
        // It may already have ended by itself, because it does not support the option.
        assert!(given_up.starts_with("it failed") || given_up == NOT_ABLE, "{given_up}");
    }

    #[test]
    fn r122_hanging_program_is_killed_after_timeout() {
        let sleep = OwnedFd::from(File::open("/bin/sleep").unwrap());
        let trial = Trial::default();
        let started = Instant::now();
        let late = run(&sleep, "600", Stdio::null(), Duration::from_millis(1), &trial).unwrap_err();
        assert_eq!(late, "it does not answer within 0 s");
        assert!(started.elapsed() < Duration::from_mins(5), "its own end was waited for");
        assert!(trial.0.lock().process.is_none());
    }

    #[test]
    fn r122_process_that_a_program_left_in_the_background_is_not_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let script = home.path().join("script");
        fs::write(&script, "sleep 100 & echo $!").unwrap();
        let sh = OwnedFd::from(File::open("/bin/sh").unwrap());
        let input = File::open(script).unwrap().into();
        let said = run(&sh, "-s", input, Duration::from_mins(1), &Trial::default()).unwrap();
        let left: i32 = String::from_utf8(said).unwrap().trim().parse().unwrap();
        let left = PidFd::open(left).unwrap();
        let has_ended = left.has_ended();
        left.signal(SIGKILL).unwrap();
        assert!(!has_ended, "its end was waited for");
    }
}
