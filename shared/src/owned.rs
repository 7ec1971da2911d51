//! Creates files and folders that their user can use whatever the umask: one that denies rights to the user, such as
//! 377, must not lock the user out of what a program needs again later. The rights of others follow the umask.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, OFlag};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};

/// The rights of the owner in a mode.
const OWNER: u32 = 0o700;

/// Creates a folder with this mode, less the rights that the umask denies to others.
///
/// # Errors
/// The system's, for example that there already is something.
pub fn folder(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)?;
    let created = fs::symlink_metadata(path)?.permissions().mode();
    if let Some(usable) = usable(created, mode) {
        allow(path, usable)?;
    }
    Ok(())
}

/// Sets the permissions of a folder, but not those of what a link leads to: whoever may write to the folder above could
/// replace a new folder by a link to one of its owner's.
fn allow(path: &Path, permissions: Permissions) -> io::Result<()> {
    let mode = Mode::from_bits_truncate(permissions.mode());
    if fchmodat(AT_FDCWD, path, mode, FchmodatFlags::NoFollowSymlink).is_ok() {
        return Ok(());
    }
    // It may be a link, or the system or a sandbox can't do that, such as glibc before 2.32. Opening a folder requires
    // the right to read it, which most umasks leave.
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let folder = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    folder.set_permissions(permissions)
}

/// Creates a folder and those above it as [`folder`] does, unless they are there.
///
/// # Errors
/// The system's.
pub fn folders(path: &Path, mode: u32) -> io::Result<()> {
    // Above a name without a slash.
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let created = match (folder(path, mode), path.parent()) {
        (Err(error), Some(above)) if error.kind() == io::ErrorKind::NotFound => {
            folders(above, mode)?;
            folder(path, mode)
        }
        (created, _) => created,
    };
    if path.is_dir() { Ok(()) } else { created }
}

/// Opens a file with these options. If it is missing, it is created with this mode, less the rights that the umask
/// denies to others.
///
/// # Errors
/// The system's.
pub fn file(options: &OpenOptions, path: &Path, mode: u32) -> io::Result<File> {
    match new_file(options, path, mode) {
        // It may be removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.clone().create(true).mode(mode).open(path)
        }
        created => created,
    }
}

/// Creates a file as [`file`] does.
///
/// # Errors
/// The system's, for example that there already is something.
pub fn new_file(options: &OpenOptions, path: &Path, mode: u32) -> io::Result<File> {
    let file = options.clone().create_new(true).mode(mode).open(path)?;
    if let Some(usable) = usable(file.metadata()?.permissions().mode(), mode) {
        file.set_permissions(usable)?;
    }
    Ok(file)
}

/// Returns the permissions to set if those of a new file or folder lack some of its owner's rights in `mode`.
fn usable(created: u32, mode: u32) -> Option<Permissions> {
    let lacking = mode & OWNER & !created;
    (lacking != 0).then(|| Permissions::from_mode((created | lacking) & 0o7777))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn r01_owner_gets_the_rights_that_a_umask_denies_and_others_do_not() {
        let mode = |created, wanted| usable(created, wanted).map(|permissions| permissions.mode());
        assert_eq!(mode(0o40_700, 0o700), None);
        assert_eq!(mode(0o40_755, 0o777), None);
        assert_eq!(mode(0o40_600, 0o700), Some(0o700), "umask 177");
        assert_eq!(mode(0o40_000, 0o777), Some(0o700), "umask 777");
        assert_eq!(mode(0o100_244, 0o644), Some(0o644), "umask 400");
        assert_eq!(mode(0o100_000, 0o600), Some(0o600));
        assert_eq!(mode(0o42_000, 0o700), Some(0o2700), "the group's bit of the folder above stays");
    }

    #[test]
    fn r01_rights_are_given_to_a_folder_and_not_through_a_link() {
        let home = tempfile::tempdir().unwrap();
        let (folder, link) = (home.path().join("folder"), home.path().join("link"));
        fs::create_dir(&folder).unwrap();
        symlink(&folder, &link).unwrap();
        let mode = || fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
        for wanted in [0, 0o700] {
            allow(&folder, Permissions::from_mode(wanted)).unwrap();
            assert_eq!(mode(), wanted);
            assert!(allow(&link, Permissions::from_mode(0o750)).is_err());
            assert_eq!(mode(), wanted);
        }
    }

    #[test]
    fn missing_folders_are_created_and_others_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let below = home.path().join("a/b");
        folders(&below, 0o700).unwrap();
        assert_eq!((mode(&below), mode(below.parent().unwrap())), (0o700, 0o700));
        fs::set_permissions(&below, Permissions::from_mode(0o750)).unwrap();
        folders(&below, 0o700).unwrap();
        assert_eq!(mode(&below), 0o750);
        assert!(folder(&below, 0o700).is_err());
        let file = below.join("file");
        fs::write(&file, "").unwrap();
        assert!(folders(&file, 0o700).is_err() && folders(&file.join("c"), 0o700).is_err());
    }

    #[test]
    fn file_that_is_there_keeps_its_mode_and_content() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let mut options = OpenOptions::new();
        options.append(true);
        file(&options, &path, 0o600).unwrap();
        assert_eq!(mode(), 0o600);
        fs::write(&path, "text").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        file(&options, &path, 0o600).unwrap();
        assert_eq!((mode(), fs::read(&path).unwrap()), (0o640, b"text".to_vec()));
        assert!(new_file(&options, &path, 0o600).is_err());
    }
}
