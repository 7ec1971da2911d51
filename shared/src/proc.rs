//! Reads process information from `/proc`, as described in proc(5). No other module parses these files; some
//! open the links in `/proc/self`. This module draws no conclusions.
//!
//! A process is named by its pid, or by `self`. It may exit at any moment or be hidden, so most functions return an
//! empty value or `None` instead of an error.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum number of environment bytes to read.
const ENVIRONMENT_BYTES: u64 = 4 << 20;

/// Initial capacity of a read buffer, in bytes.
const USUAL_BYTES: usize = 1024;

/// Returns the pids of all visible processes.
pub fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the uid of the owner of a process.
///
/// # Errors
/// The process has exited or is hidden.
pub fn owner(pid: impl Display) -> io::Result<u32> {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(format!("/proc/{pid}")).map(|meta| meta.uid())
}

/// Returns the name of a process: that of its program, truncated to 15 bytes, unless the process has set another.
/// Empty if the process has exited.
pub fn name(pid: impl Display) -> Vec<u8> {
    let mut name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.retain(|byte| *byte != b'\n');
    name
}

/// Returns the path of the program, with ` (deleted)` appended if the file is gone.
///
/// # Errors
/// The process has exited, or this process may not inspect it.
pub fn program(pid: impl Display) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe"))
}

/// Suffix that the kernel appends to the path of a program whose file is gone, as after an installation.
const DELETED: &[u8] = b" (deleted)";

/// Strips the mark that [`program`] appends for a file that is gone.
pub fn undeleted(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    Path::new(OsStr::from_bytes(bytes.strip_suffix(DELETED).unwrap_or(bytes)))
}

/// Returns the working directory of a process.
///
/// # Errors
/// As for [`program`].
pub fn folder(pid: impl Display) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd"))
}

/// Returns the arguments, each NUL-terminated, truncated to `most` bytes. The process may have changed them. Empty
/// for a kernel thread and for a process that has exited.
pub fn arguments(pid: impl Display, most: u64) -> Vec<u8> {
    read(&format!("/proc/{pid}/cmdline"), most)
}

/// Returns the environment that the process was started with, as NUL-separated `NAME=value` entries; empty if it
/// can't be read. Beyond 4 MiB, only the first complete entries.
pub fn environment(pid: impl Display) -> Vec<u8> {
    let mut pairs = read(&format!("/proc/{pid}/environ"), ENVIRONMENT_BYTES);
    if pairs.is_empty() {
        // If the first thread has ended, another one still shows the environment.
        let of_thread = |thread: PathBuf| Some(read(thread.join("environ").to_str()?, ENVIRONMENT_BYTES));
        pairs = threads(pid).filter_map(of_thread).find(|pairs| !pairs.is_empty()).unwrap_or_default();
    }
    if pairs.len() as u64 == ENVIRONMENT_BYTES {
        pairs.truncate(pairs.iter().rposition(|byte| *byte == 0).unwrap_or(0));
    }
    pairs
}

fn read(path: &str, most: u64) -> Vec<u8> {
    // Most of these files are shorter and need a single read.
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    match File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)) {
        Ok(_) => bytes,
        Err(_) => Vec::new(),
    }
}

/// Returns a value of `/proc/PID/status`, such as `Uid`.
pub fn status(pid: impl Display, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Returns the mask of ignored signals; the lowest bit is signal 1. 0 if it can't be read.
pub fn ignored_signals(pid: impl Display) -> u64 {
    status(pid, "SigIgn").and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0)
}

/// Returns a soft limit by its name in `/proc/PID/limits`. `None` if it is unlimited or can't be read.
pub fn soft_limit(pid: impl Display, name: &str) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the open descriptors of a process: each one's number as a string, and the file it refers to.
pub fn open_files(pid: impl Display) -> impl Iterator<Item = (std::ffi::OsString, PathBuf)> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok);
    descriptors.filter_map(|entry| Some((entry.file_name(), fs::read_link(entry.path()).ok()?)))
}

/// Returns the flags that a descriptor was opened with.
pub fn open_flags(pid: impl Display, descriptor: &OsStr) -> Option<i32> {
    descriptor_info(pid, descriptor).ok()?.flags()
}

/// Reads the fields of `/proc/PID/fdinfo` of a descriptor.
///
/// # Errors
/// The process has exited or is hidden, or the descriptor is closed.
pub fn descriptor_info(pid: impl Display, descriptor: &OsStr) -> io::Result<DescriptorInfo> {
    fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(descriptor)).map(DescriptorInfo)
}

/// The fields of `/proc/PID/fdinfo` of a descriptor, at one moment.
#[derive(Clone, Debug)]
pub struct DescriptorInfo(String);

impl DescriptorInfo {
    /// Returns a field by its name, such as `Pid`.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Returns the flags that the descriptor was opened with.
    pub fn flags(&self) -> Option<i32> {
        i32::from_str_radix(self.field("flags")?, 8).ok()
    }
}

/// Returns the resident memory of a process in bytes; 0 if unknown.
pub fn resident_bytes(pid: impl Display) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages =
        statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    pages * page.and_then(|page| u64::try_from(page).ok()).unwrap_or(4096)
}

/// Returns the folders of the threads of a process.
fn threads(pid: impl Display) -> impl Iterator<Item = PathBuf> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok);
    threads.map(|thread| thread.path())
}

/// Returns the children of a process, across all its threads.
pub fn children(pid: impl Display) -> Vec<i32> {
    threads(pid).flat_map(|thread| pids_in(&thread.join("children"))).collect()
}

/// Returns the children of one thread of a process.
pub fn children_of_thread(pid: impl Display, thread: u32) -> Vec<i32> {
    pids_in(Path::new(&format!("/proc/{pid}/task/{thread}/children")))
}

/// Returns the pids in a file that holds only pids, such as `cgroup.procs`.
pub fn pids_in(path: &Path) -> Vec<i32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns the path of a process in the cgroup v2 hierarchy.
pub fn cgroup(pid: impl Display) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Returns the folder of a process's cgroup. `None` if no cgroup v2 is mounted for this process, or if there is no such
/// process.
pub fn cgroup_folder(pid: impl Display) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| fields.split(' ').nth(4))?
    })?;
    Some(Path::new(mount).join(cgroup(pid)?.strip_prefix('/')?))
}

/// Reports whether a process has ended, or is exiting and no longer runs code of its own.
pub fn has_ended(pid: i32) -> bool {
    ProcessStat::of(pid).is_none_or(|stat| stat.has_ended() && stat.living(pid).is_none())
}

/// Returns the state of a process, a letter of proc(5); if its first thread has ended, the state of a living thread.
/// `None` if the process does not exist or is hidden.
pub fn state(pid: i32) -> Option<char> {
    let first = ProcessStat::of(pid)?;
    first.living(pid).unwrap_or(first).state()
}

/// Returns the CPU time that a process has used, in clock ticks. `None` if it does not exist or is hidden.
pub fn cpu_ticks(pid: i32) -> Option<u64> {
    let stat = ProcessStat::of(pid)?;
    Some(stat.field::<u64>(14)? + stat.field::<u64>(15)?)
}

/// Flag of an exiting thread (`PF_EXITING`): its descriptors may be closed already.
const EXITING: u64 = 4;

/// Upper bound for the size of `/proc/PID/stat`: about 50 numbers and a short name.
const STAT_BYTES: u64 = 4096;

/// The fields of `/proc/PID/stat`, at one moment.
#[derive(Clone, Debug)]
pub struct ProcessStat(Box<str>);

impl ProcessStat {
    /// Reads the fields of the process with this pid. `None` if it does not exist or is hidden.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&read(&format!("/proc/{pid}/stat"), STAT_BYTES))
    }

    /// Reads the fields of a living thread of the process `pid`, if this first thread has ended; otherwise `None`. A
    /// process is shown as ended, and without its memory, as soon as its first thread has ended: after `pthread_exit` in
    /// `main`, and for a moment while another thread executes a program.
    pub fn living(&self, pid: i32) -> Option<Self> {
        if !self.has_ended() {
            return None;
        }
        let mut stats = threads(pid).filter_map(|thread| {
            let path = thread.join("stat");
            Self::parse(&read(path.to_str()?, STAT_BYTES))
        });
        stats.find(|stat| !stat.has_ended())
    }

    /// Reads the fields of this process.
    pub fn own() -> Option<Self> {
        Self::parse(&read("/proc/self/stat", STAT_BYTES))
    }

    /// Parses the contents of `/proc/PID/stat`. The name, in parentheses, may contain anything, so the fields begin
    /// after the last closing parenthesis.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let fields = &text[text.iter().rposition(|byte| *byte == b')')? + 1..];
        std::str::from_utf8(fields).ok().map(|fields| Self(fields.into()))
    }

    /// Returns a field by its number in proc(5). The first one available is 3, the state.
    pub fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.0.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
    }

    /// Returns the state of the thread, a letter of proc(5).
    pub fn state(&self) -> Option<char> {
        self.field(3)
    }

    /// Returns the pid of the process that started it, or that adopted it. 0 if the parent is not visible from here.
    pub fn parent(&self) -> Option<i32> {
        self.field(4)
    }

    /// Returns the path of the controlling terminal, such as `/dev/pts/4`; `None` if there is none, or of another kind.
    pub fn terminal(&self) -> Option<String> {
        // The kernel prints the device as a signed number; the minor number is in bits 0 to 7 and 20 to 31.
        let device = self.field::<i32>(7)?.cast_unsigned();
        let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00);
        match major {
            // Unix98 pseudo-terminals: 256 per major number.
            136..=143 => Some(format!("/dev/pts/{}", (major - 136) * 256 + minor)),
            4 if minor < 64 => Some(format!("/dev/tty{minor}")),
            4 => Some(format!("/dev/ttyS{}", minor - 64)),
            _ => None,
        }
    }

    /// Reports whether the thread has ended, or is exiting. The fields of a process are those of its first thread: see
    /// [`has_ended`].
    pub fn has_ended(&self) -> bool {
        self.field::<u64>(9).is_some_and(|flags| flags & EXITING != 0)
            || matches!(self.state(), Some('Z' | 'X'))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn deleted_suffix_is_removed_from_the_program_path() {
        for path in ["/usr/bin/bash (deleted)", "/usr/bin/bash"] {
            assert_eq!(undeleted(Path::new(path)), Path::new("/usr/bin/bash"));
        }
    }

    #[test]
    fn stat_is_parsed_whatever_the_process_name() {
        let stat = ProcessStat::parse(b"7 (a) S 1 \xff\n) R 42 7 7 34816 9 4194560 0").unwrap();
        assert_eq!((stat.state(), stat.parent(), stat.field(7)), (Some('R'), Some(42), Some(34816)));
        assert_eq!(stat.field::<i32>(2), None);
        assert_eq!(stat.field::<i32>(11), None);
        assert!(!stat.has_ended());
        for ended in ["7 (a) Z 1 7 7 0 -1 0", "7 (a) R 1 7 7 0 -1 4194564"] {
            assert!(ProcessStat::parse(ended.as_bytes()).unwrap().has_ended(), "{ended}");
        }
        assert!(ProcessStat::parse(b"").is_none());
    }

    #[test]
    fn terminal_path_is_derived_from_its_device_number() {
        let of = |device: i32| {
            let stat = ProcessStat::parse(format!("10 (a) b) S 1 10 7 {device} 10 0").as_bytes());
            stat.unwrap().terminal()
        };
        assert_eq!(of(34816 + 4).as_deref(), Some("/dev/pts/4"));
        assert_eq!(of((136 << 8) | 0xff | (1 << 20)).as_deref(), Some("/dev/pts/511"));
        assert_eq!(of((136 << 8) | i32::MIN).as_deref(), Some("/dev/pts/524288"));
        assert_eq!(of(1025).as_deref(), Some("/dev/tty1"));
        assert_eq!(of(1088).as_deref(), Some("/dev/ttyS0"));
        assert_eq!(of(0), None);
    }

    #[test]
    fn proc_facts_of_this_process_are_correct() {
        let me = std::process::id().cast_signed();
        assert!(processes().any(|pid| pid == me));
        assert_eq!(program("self").unwrap(), std::env::current_exe().unwrap());
        assert_eq!(folder(me).unwrap(), std::env::current_dir().unwrap());
        assert_eq!(owner(me).unwrap(), nix::unistd::Uid::effective().as_raw());
        assert!(program(me).unwrap().file_name().unwrap().as_encoded_bytes().starts_with(&name(me)));
        assert_eq!(arguments("self", 3).len(), 3, "no more than was asked for");
        let value = std::env::var("PATH").unwrap();
        assert!(
            environment(me).split(|byte| *byte == 0).any(|pair| pair == format!("PATH={value}").as_bytes())
        );
        // Rust ignores SIGPIPE.
        assert!(ignored_signals("self") & 1 << 12 != 0);
        assert_eq!(status(me, "Pid").unwrap(), me.to_string());
        let opened = File::open("/dev/null").unwrap();
        let number = opened.as_raw_fd().to_string();
        let (descriptor, file) = open_files(me).find(|(one, _)| *one == *number).expect("an open file");
        assert_eq!(file, Path::new("/dev/null"));
        assert!(open_flags(me, &descriptor).is_some());
        assert!(descriptor_info(me, &descriptor).unwrap().field("pos").is_some());
        assert!(resident_bytes("self") >= 4096);
        assert!(cgroup(me).is_none_or(|path| path.starts_with('/')));
        assert!(cgroup_folder(me).is_none_or(|folder| pids_in(&folder.join("cgroup.procs")).contains(&me)));
    }

    #[test]
    fn missing_process_yields_no_facts() {
        assert!(program(-1).is_err() && folder(-1).is_err() && owner(-1).is_err());
        assert!(name(-1).is_empty() && arguments(-1, 10).is_empty() && environment(-1).is_empty());
        assert!(children(-1).is_empty() && open_files(-1).next().is_none() && status(-1, "Pid").is_none());
        assert!(cgroup_folder(-1).is_none() && descriptor_info(-1, OsStr::new("0")).is_err());
        assert_eq!(resident_bytes(-1), 0);
        assert_eq!((ignored_signals(-1), soft_limit(-1, "Max open files"), cgroup(-1)), (0, None, None));
    }

    #[test]
    fn own_stat_matches_stat_by_pid() {
        let own = ProcessStat::own().unwrap();
        let same = ProcessStat::of(std::process::id().cast_signed()).unwrap();
        assert_eq!(own.parent(), same.parent());
        assert!(!own.has_ended() && ProcessStat::of(-1).is_none());
    }
}
