//! What the machine offers: the kernel's features, and whether tasks outlive a logout.

use std::path::Path;

use nix::sys::utsname::uname;
use nix::unistd::{Uid, User};

use crate::render::doctor::Check;

const PART: &str = "machine";

/// The oldest kernel that the daemon works on.
const NEEDED: (u32, u32) = (5, 14);

/// The first kernel that tells how a process ended which is no child of the daemon.
const TELLS_EXITS: (u32, u32) = (6, 15);

/// Makes the checks.
pub fn checks() -> Vec<Check> {
    let release = uname().map(|system| system.release().to_string_lossy().into_owned()).unwrap_or_default();
    let mut checks = vec![kernel(&release)];
    // Only logind ends what a user has left running.
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
            Check::fails(PART, "kernel", found).hint(format!("bgd needs Linux {major}.{minor} or newer"))
        }
        Some(version) if version < TELLS_EXITS => Check::note(PART, "kernel", found).hint(
            "before Linux 6.15 the exit code of a handed-over process is only known if its parent reports it",
        ),
        Some(_) => Check::ok(PART, "kernel", found),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn linger(user: &str, folder: &Path) -> Check {
    if folder.join(user).exists() {
        return Check::ok(PART, "logout", "tasks go on after the last logout (lingering is enabled)");
    }
    Check::note(PART, "logout", "the system may end tasks after the last logout")
        .hint("loginctl enable-linger     keeps them running")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::doctor::State;

    #[test]
    fn r168_kernels_are_judged_by_what_they_can_do() {
        let state = |release| kernel(release).state;
        for (release, expected) in [
            ("5.13.0", State::Fails),
            ("5.14.0-427.el9", State::Note),
            ("6.14.9", State::Note),
            ("6.15.0-rc1", State::Ok),
            ("10.0", State::Ok),
            ("unknown", State::Note),
        ] {
            assert_eq!(state(release), expected, "{release}");
        }
    }

    #[test]
    fn r168_lingering_is_a_file_of_logind() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(linger("me", folder.path()).state, State::Note);
        std::fs::write(folder.path().join("me"), "").unwrap();
        assert_eq!(linger("me", folder.path()).state, State::Ok);
    }
}
