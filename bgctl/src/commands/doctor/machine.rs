//! The properties of the machine: the kernel's features, and whether tasks outlive a logout.

use std::path::Path;
use std::process::{Command, Stdio};

use bgd_shared::proc;
use nix::sys::utsname::uname;
use nix::unistd::{Uid, User};
use serde::Deserialize;

use crate::link;
use crate::render::doctor::Check;

const PART: &str = "machine";

/// The oldest supported kernel.
const NEEDED: (u32, u32) = (5, 14);

/// Minimum number of inotify instances and watches that should be free: a daemon uses a few, and each `--ready file:`
/// one more.
const SPARE: u64 = 16;

pub fn checks() -> Vec<Check> {
    let release = uname().map(|system| system.release().to_string_lossy().into_owned()).unwrap_or_default();
    let mut checks = vec![kernel(&release)];
    checks.extend(probed());
    checks.extend(inotify());
    // Only logind ends processes that a user has left running.
    if Path::new("/run/systemd/system").exists() {
        let user = User::from_uid(Uid::current()).ok().flatten().map(|user| user.name);
        checks.extend(user.map(|user| linger(&user, Path::new("/var/lib/systemd/linger"))));
    }
    checks
}

fn kernel(release: &str) -> Check {
    let (major, minor) = NEEDED;
    let found = format!("Linux {release}");
    match version(release) {
        None => Check::note(PART, "kernel", found).hint(format!("bgd needs Linux {major}.{minor} or newer")),
        Some(version) if version < NEEDED => {
            Check::fails(PART, "kernel", found, format!("bgd needs Linux {major}.{minor} or newer"))
        }
        Some(_) => Check::ok(PART, "kernel", found),
    }
}

/// Kernel features as reported by the daemon's program.
#[derive(Clone, Debug, Deserialize)]
struct Probe {
    pidfd: bool,
    exit_codes: bool,
    /// Why neither could be tried.
    #[serde(default)]
    untried: Option<String>,
}

/// Makes the daemon's program probe the kernel. Returns no checks if the program is missing, which is reported
/// elsewhere.
fn probed() -> Vec<Check> {
    let mut command = Command::new(link::program_path());
    let output = command.arg("--probe-kernel").stdin(Stdio::null()).output();
    let probe = output.ok().and_then(|output| serde_json::from_slice::<Probe>(&output.stdout).ok());
    probe.map(|probe| probe.checks()).unwrap_or_default()
}

impl Probe {
    fn checks(&self) -> Vec<Check> {
        if let Some(why) = &self.untried {
            let found = format!("could not be tried: no process can be started ({why})");
            let hint = "bgctl submit -- true     shows whether jobs can be started";
            return vec![Check::note(PART, "process handles", found).hint(hint)];
        }
        let pidfd = if self.pidfd {
            Check::ok(PART, "process handles", "pidfd works")
        } else {
            let hint = "allow the pidfd_* system calls: a seccomp filter of this container may forbid them";
            Check::fails(PART, "process handles", "pidfd does not work, so no job can be started", hint)
        };
        let exits = if self.exit_codes {
            Check::ok(PART, "exit codes", "known for handed-over processes, too (PIDFD_INFO_EXIT)")
        } else {
            Check::note(PART, "exit codes", "the kernel does not report those of handed-over processes").hint(
                "Linux 6.15 does; before, that of a handed-over process is only known if its parent reports it",
            )
        };
        vec![pidfd, exits]
    }
}

/// Checks whether there is room for more inotify instances and watches, which are used to follow output.
fn inotify() -> Option<Check> {
    let limit = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).ok()?.trim().parse::<u64>().ok()
    };
    let uid = Uid::current().as_raw();
    let own = proc::processes().filter(|pid| proc::owner(pid).is_ok_and(|owner| owner == uid));
    let used = own
        .flat_map(proc::open_files)
        .filter(|(_, target)| target.as_os_str() == "anon_inode:inotify")
        .count();
    Some(judge_inotify(used as u64, limit("max_user_instances")?, limit("max_user_watches")?))
}

fn judge_inotify(used: u64, instances: u64, watches: u64) -> Check {
    let found = format!("{used} of {instances} instances in use, up to {watches} watches");
    let more = "sudo sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288";
    // Without inotify the daemon polls outputs instead, so nothing fails.
    if instances.saturating_sub(used) < SPARE || watches < SPARE {
        Check::note(PART, "inotify", found).hint(more)
    } else {
        Check::ok(PART, "inotify", found)
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn linger(user: &str, folder: &Path) -> Check {
    if folder.join(user).exists() {
        return Check::ok(PART, "logout", "tasks keep running after the last logout (lingering is enabled)");
    }
    Check::note(PART, "logout", "the system may end tasks after the last logout")
        .hint("loginctl enable-linger     keeps them running")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::doctor::State;

    #[test]
    fn r168_kernels_older_than_5_14_fail() {
        let state = |release| kernel(release).state;
        for (release, expected) in [
            ("5.13.0", State::Fails),
            ("5.14.0-427.el9", State::Ok),
            ("6.15.0-rc1", State::Ok),
            ("10.0", State::Ok),
            ("unknown", State::Note),
        ] {
            assert_eq!(state(release), expected, "{release}");
        }
    }

    #[test]
    fn r168_missing_kernel_features_are_reported_with_hint() {
        let states = |json: &str| {
            let checks = serde_json::from_str::<Probe>(json).unwrap().checks();
            checks.iter().map(|check| (check.state, check.hint.is_some())).collect::<Vec<_>>()
        };
        let all = states(r#"{"pidfd":true,"exit_codes":true,"untried":null}"#);
        assert_eq!(all, [(State::Ok, false), (State::Ok, false)]);
        // An older program does not say whether it could try.
        assert_eq!(states(r#"{"pidfd":true,"exit_codes":false}"#)[1], (State::Note, true));
        assert_eq!(states(r#"{"pidfd":false,"exit_codes":false}"#)[0], (State::Fails, true));
        let untried = states(r#"{"pidfd":false,"exit_codes":false,"untried":"Out of memory"}"#);
        assert_eq!(untried, [(State::Note, true)], "nothing is known to fail");
    }

    #[test]
    fn r168_inotify_note_appears_when_few_instances_or_watches_remain() {
        let state = |used, most, watches| judge_inotify(used, most, watches).state;
        assert_eq!(state(3, 128, 65536), State::Ok);
        assert_eq!(state(120, 128, 65536), State::Note);
        assert_eq!(state(128, 128, 65536), State::Note);
        assert_eq!(state(3, 128, 8), State::Note);
    }

    #[test]
    fn r168_lingering_is_detected_by_logind_file() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(linger("me", folder.path()).state, State::Note);
        std::fs::write(folder.path().join("me"), "").unwrap();
        assert_eq!(linger("me", folder.path()).state, State::Ok);
    }
}
