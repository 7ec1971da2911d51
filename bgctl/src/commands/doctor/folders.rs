//! Access to the daemon's socket, its folders and its configuration: all of the user's own programs, and no other user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bgd_shared::request::DaemonStatus;
use nix::unistd::Uid;

use crate::render::doctor::Check;

const PART: &str = "daemon";

/// Mode bits that let others read, write or enter.
const OTHERS: u32 = 0o077;
/// Mode bits that let others write.
const OTHERS_WRITE: u32 = 0o022;

/// Adds the checks of the paths that this daemon uses.
pub fn checks(checks: &mut Vec<Check>, status: &DaemonStatus) {
    let socket = Path::new(&status.socket);
    checks.push(private("socket", socket, OTHERS));
    if let Some(folder) = socket.parent() {
        checks.push(private("socket's folder", folder, OTHERS_WRITE));
    }
    checks.push(private("state folder", Path::new(&status.state_dir), OTHERS));
    // A missing configuration has its own check.
    if Path::new(&status.config).exists() {
        checks.push(private("config's mode", Path::new(&status.config), OTHERS_WRITE));
    }
}

/// Checks that a path is the user's own, and that others have none of these rights.
fn private(name: &'static str, path: &Path, rights: u32) -> Check {
    let shown = path.display();
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) => {
            let hint = "the daemon recreates it within a moment; if not, bgctl daemon restart";
            return Check::fails(PART, name, format!("{shown}: {error}"), hint);
        }
    };
    let mode = meta.mode() & 0o7777;
    if meta.uid() != Uid::effective().as_raw() {
        let found = format!("{shown} belongs to the user with number {}", meta.uid());
        return Check::fails(PART, name, found, "stop the daemon and remove it, or name another path");
    }
    // In a sticky folder such as /tmp, users can't replace each other's files; but they can read them.
    let is_harmless = mode & 0o1000 != 0 && rights == OTHERS_WRITE;
    if mode & rights != 0 && !is_harmless {
        let found = format!("{shown} has mode {mode:03o}: other users can reach it");
        return Check::fails(PART, name, found, format!("chmod {:03o} {shown}", mode & !rights));
    }
    Check::ok(PART, name, format!("{shown}, mode {mode:03o}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::render::doctor::State;

    #[test]
    fn r168_folder_open_to_others_fails_with_chmod_hint() {
        let folder = tempfile::tempdir().unwrap();
        let check = |mode| {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            private("folder", folder.path(), OTHERS)
        };
        assert_eq!(check(0o700).state, State::Ok);
        let open = check(0o755);
        assert_eq!(open.state, State::Fails);
        assert_eq!(open.hint.unwrap(), format!("chmod 700 {}", folder.path().display()));
        assert_eq!(check(0o1777).state, State::Fails);
        assert_eq!(private("folder", folder.path(), OTHERS_WRITE).state, State::Ok, "as /tmp");
        let gone = private("folder", &folder.path().join("no"), OTHERS);
        assert!(gone.state == State::Fails && gone.hint.is_some());
    }
}
