//! Access to the daemon's socket, its folders and its configuration: all of the user's own programs, and no other user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bgd_shared::request::DaemonStatus;
use nix::unistd::Uid;

use crate::render::doctor::{Check, State};

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
    let (config, others): (Vec<&String>, Vec<&String>) =
        status.private_files.iter().partition(|path| **path == status.config);
    // A missing configuration has its own check, and a device such as /dev/null is nobody's to change.
    if Path::new(&status.config).is_file() {
        let check = if config.is_empty() { private } else { secret };
        checks.push(check("config's mode", Path::new(&status.config), OTHERS_WRITE));
    }
    // A missing file is the channel's problem.
    let others = others.into_iter().map(Path::new).filter(|path| path.exists());
    checks.extend(others.map(|path| secret("token's file", path, OTHERS_WRITE)));
}

/// Checks, besides these rights, that others can't read a file with secrets. If that is all they can do, the check does
/// not fail: most machines have only one user.
fn secret(name: &'static str, path: &Path, rights: u32) -> Check {
    if let Ok(meta) = fs::metadata(path)
        && is_provided_by_root(meta.uid(), meta.mode(), Uid::effective())
    {
        return Check::ok(
            PART,
            name,
            format!("{}, mode {:03o}, root's", path.display(), meta.mode() & 0o7777),
        );
    }
    let check = private(name, path, OTHERS);
    let is_read_only = private(name, path, rights).state == State::Ok;
    if check.state == State::Fails && is_read_only {
        let found = format!("{} may contain secrets, and other users can read it", path.display());
        return Check::note(PART, name, found).hint(check.hint.unwrap_or_default());
    }
    check
}

/// Whether root gave this file to the user's group to read, as service managers and containers provide secrets.
fn is_provided_by_root(owner: u32, mode: u32, user: Uid) -> bool {
    !user.is_root() && owner == 0 && mode & (OTHERS_WRITE | 0o007) == 0
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

    #[test]
    fn r168_secret_file_readable_by_others_is_noted_with_chmod_hint() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let check = |mode| {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            secret("file", file.path(), OTHERS_WRITE)
        };
        let hint = |mask: &str| Some(format!("chmod {mask} {}", file.path().display()));
        assert_eq!(check(0o600).state, State::Ok);
        let readable = check(0o644);
        assert_eq!((readable.state, readable.hint), (State::Note, hint("600")));
        let writable = check(0o666);
        assert_eq!((writable.state, writable.hint), (State::Fails, hint("600")), "not 644");
    }

    #[test]
    fn r168_secret_provided_by_root_is_accepted() {
        let (user, root) = (Uid::from_raw(1000), Uid::from_raw(0));
        assert!(is_provided_by_root(0, 0o100_440, user));
        assert!(!is_provided_by_root(0, 0o100_444, user), "everybody can read it");
        assert!(!is_provided_by_root(0, 0o100_460, user), "the group can write it");
        assert!(!is_provided_by_root(1000, 0o100_440, user) && !is_provided_by_root(0, 0o100_440, root));
    }

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
