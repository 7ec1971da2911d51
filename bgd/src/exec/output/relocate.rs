//! Moves outputs between this daemon's own folder and one elsewhere, for instance one shared with a cluster: home before
//! the other folder is removed, and out again when a later run writes there.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use bgd_shared::id::TaskId;
use bgd_shared::replace::replace;
use bgd_shared::request::Stream;

use super::{OutputFolder, name};
use crate::os::files::remove_if_there;

impl OutputFolder {
    /// Makes a task's output file a link to a file elsewhere, unless an earlier run has done so. Output of an earlier
    /// run that is not in that file is moved there first. [`Self::remove`] leaves that file alone.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn link(&self, task: TaskId, stream: Stream, target: &Path) -> io::Result<()> {
        self.ensure()?;
        match nix::unistd::symlinkat(target, &*self.kept.handle(), name(task, stream).as_str()) {
            Err(nix::Error::EEXIST) => move_out(&self.path.join(name(task, stream)), target),
            linked => Ok(linked?),
        }
    }

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

/// Makes an output file a link to `target`, an empty file elsewhere, and moves there what it has or what it links to; does
/// nothing if it is such a link. A concurrent reader finds the earlier output before and after.
///
/// # Errors
/// Returns the system error, such as a full disk. The output stays where it was.
fn move_out(own: &Path, target: &Path) -> io::Result<()> {
    let before = fs::read_link(own).ok();
    if before.as_deref() == Some(target) {
        return Ok(());
    }
    let is_same = is_same(own, target);
    match fs::File::open(own) {
        Ok(_) if is_same => {}
        Ok(mut earlier) => replace(target, 0o600, |new| io::copy(&mut earlier, new).map(drop))?,
        // The folder that it links to was removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut name = OsString::from(".");
    name.push(own.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
    let draft = own.with_file_name(name);
    remove_if_there(&draft)?;
    symlink(target, &draft)?;
    fs::rename(&draft, own).inspect_err(|_| drop(fs::remove_file(&draft)))?;
    if let Some(before) = before.filter(|_| !is_same) {
        remove_if_there(&before)?;
    }
    Ok(())
}

/// Reports whether both paths lead to one file, as through a link to its folder.
fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    id(one).is_some_and(|found| id(other) == Some(found))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn r151_output_of_an_earlier_run_is_moved_out_to_where_the_next_one_writes() {
        let (home, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = OutputFolder::open(home.path().to_owned()).unwrap();
        let (task, target) = (TaskId::random(), away.path().join("new.out"));
        let own = folder.files(task, false).out;
        let link = || {
            fs::write(&target, "").unwrap();
            folder.link(task, Stream::Stdout, &target).unwrap();
            assert_eq!(fs::read_link(&own).unwrap(), target);
            assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
            fs::read_to_string(&own).unwrap()
        };
        assert_eq!(link(), "");
        // Moved home between two runs.
        fs::write(&target, "first").unwrap();
        folder.move_into_folder(away.path()).unwrap();
        assert_eq!(link(), "first");
        // In a folder that was used before.
        let before = away.path().join("before.out");
        fs::write(&before, "second").unwrap();
        fs::remove_file(&own).unwrap();
        symlink(&before, &own).unwrap();
        assert_eq!((link().as_str(), before.exists()), ("second", false));
        // That folder is gone.
        fs::remove_file(&own).unwrap();
        symlink(&before, &own).unwrap();
        assert_eq!(link(), "");
    }
}
