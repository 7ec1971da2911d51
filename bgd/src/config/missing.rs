//! Why the configuration's file can't be opened. One that a link promises counts as there: without it, everything that
//! it sets, such as `durable`, would silently be at its default.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::Uid;

/// Returns the error for a missing file if its path, or a folder in it, is a link that leads nowhere.
pub fn dangling(path: &Path) -> Option<io::Error> {
    let (there, meta) = nearest(path)?;
    let leads_nowhere = || fs::metadata(there).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if !meta.is_symlink() || !leads_nowhere() {
        return None;
    }
    let what = if there == path { "it".to_owned() } else { there.display().to_string() };
    let target = fs::read_link(there).unwrap_or_default();
    let message = format!("{what} is a link to {}, which does not exist", target.display());
    Some(io::Error::new(io::ErrorKind::NotFound, message))
}

/// Adds to an error what to do if the file, or its folder, may not be read. `is_named`: the user named the file.
pub fn advised(path: &Path, error: io::Error, is_named: bool) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    let advice = match nearest(path) {
        Some((there, meta)) if meta.uid() == Uid::effective().as_raw() => {
            // A link may lead to a folder.
            let is_folder = fs::metadata(there).map_or(meta.is_dir(), |meta| meta.is_dir());
            let right = if is_folder { "x" } else { "r" };
            format!("give yourself the right: chmod u+{right} {}", there.display())
        }
        _ if is_named => "name a file that you may read".to_owned(),
        _ => "it is another user's: set HOME or XDG_CONFIG_HOME to a folder of your own".to_owned(),
    };
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{error}; {advice}"))
}

/// Returns the longest beginning of a path that can be seen.
fn nearest(path: &Path) -> Option<(&Path, fs::Metadata)> {
    path.ancestors().find_map(|part| Some((part, fs::symlink_metadata(part).ok()?)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_link_that_leads_nowhere_is_dangling() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("file"), "").unwrap();
        for (target, link) in [("gone", "a"), ("file", "b"), ("folder", "c"), ("a", "d")] {
            symlink(target, at(link)).unwrap();
        }
        for there in ["none", "none/config.toml", "folder/config.toml", "b", "c/config.toml"] {
            assert!(dangling(&at(there)).is_none(), "{there}");
        }
        let said = |path: &str| dangling(&at(path)).unwrap().to_string();
        assert_eq!(said("a"), "it is a link to gone, which does not exist");
        assert_eq!(said("d"), "it is a link to a, which does not exist");
        let folder = format!("{} is a link to gone, which does not exist", at("a").display());
        assert_eq!(said("a/bgd/config.toml"), folder);
    }

    #[test]
    fn unreadable_file_comes_with_advice() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let file = tempfile::NamedTempFile::new().unwrap();
        let own = advised(file.path(), denied(), false);
        assert_eq!(own.kind(), io::ErrorKind::PermissionDenied);
        assert!(own.to_string().ends_with(&format!("chmod u+r {}", file.path().display())), "{own}");
        let home = tempfile::tempdir().unwrap();
        let (folder, link) = (home.path().join("folder"), home.path().join("link"));
        fs::create_dir(&folder).unwrap();
        symlink(&folder, &link).unwrap();
        for closed in [folder, link] {
            let own = advised(&closed.join("bgd/config.toml"), denied(), false);
            assert!(own.to_string().ends_with(&format!("chmod u+x {}", closed.display())), "{own}");
        }
        let other = io::Error::from(io::ErrorKind::NotFound);
        assert!(!advised(file.path(), other, false).to_string().contains("; "));
    }
}
