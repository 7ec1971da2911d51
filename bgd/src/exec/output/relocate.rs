//! Moves outputs from a folder elsewhere, for instance one shared with a cluster, to this daemon's own folder before
//! the other folder is removed.

use std::fs;
use std::io;
use std::path::Path;

use bgd_shared::replace::replace;

use super::OutputFolder;

impl OutputFolder {
    /// Replaces the links into the folder `from` by their files. A concurrent reader finds either the link or the file.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk. Files not moved stay where they were.
    pub fn move_into_folder(&self, from: &Path) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let Ok(target) = fs::read_link(&path) else { continue };
            if target.starts_with(from) {
                take(&target, &path)?;
            }
        }
        Ok(())
    }
}

/// Moves a file to the place of the link to it; does nothing if the file is gone.
fn take(target: &Path, link: &Path) -> io::Result<()> {
    let moved = match fs::rename(target, link) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => copy(target, link),
        other => other,
    };
    match moved {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn copy(target: &Path, link: &Path) -> io::Result<()> {
    let mut target = fs::File::open(target)?;
    replace(link, 0o600, |new| io::copy(&mut target, new).map(drop))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn r151_outputs_are_moved_home_from_a_removed_folder() {
        let (home, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let other = tempfile::tempdir().unwrap();
        let folder = OutputFolder::open(home.path().to_owned()).unwrap();
        let own = |name: &str| home.path().join(name);
        fs::write(own("own.out"), "own").unwrap();
        for (name, from) in [("far.out", &away), ("other.out", &other), ("gone.out", &away)] {
            fs::write(from.path().join(name), name).unwrap();
            symlink(from.path().join(name), own(name)).unwrap();
        }
        fs::remove_file(away.path().join("gone.out")).unwrap();
        folder.move_into_folder(away.path()).unwrap();
        folder.move_into_folder(away.path()).unwrap();
        assert!(own("far.out").symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_to_string(own("far.out")).unwrap(), "far.out");
        assert!(own("other.out").is_symlink() && other.path().join("other.out").exists());
        assert_eq!(fs::read_to_string(own("own.out")).unwrap(), "own");
        assert_eq!(fs::read_dir(away.path()).unwrap().count(), 0);
        // The copy gives the same result.
        fs::write(other.path().join("new"), "new").unwrap();
        copy(&other.path().join("new"), &own("other.out")).unwrap();
        assert_eq!(fs::read_to_string(own("other.out")).unwrap(), "new");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 4);
    }
}
