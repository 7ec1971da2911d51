//! Finds the file of a program by its name, as `execvp` does.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bgd_shared::text::OsText;

/// The search path if PATH is not set.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// Returns the paths that a program's name may refer to, in the order in which `execvp` tries them. Relative ones are
/// meant from the folder in which the program is started.
pub fn candidates(name: &[u8], path: Option<&OsText>) -> Vec<PathBuf> {
    let name_path = Path::new(OsStr::from_bytes(name));
    if name.contains(&b'/') {
        return vec![name_path.to_path_buf()];
    }
    path.map_or(DEFAULT_PATH, OsText::as_bytes)
        .split(|byte| *byte == b':')
        .map(|folder| if folder.is_empty() { b".".as_slice() } else { folder })
        .map(|folder| Path::new(OsStr::from_bytes(folder)).join(name_path))
        .collect()
}

/// Reports whether the file has any execute bit set. Follows symlinks.
pub fn is_program(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns why a program can't be started in a folder, as far as the files show; `None` if nothing speaks against it.
/// Blocks as long as a disk does.
pub fn problem(program: &str, path: Option<&OsText>, folder: &Path) -> Option<String> {
    let files: Vec<PathBuf> =
        candidates(program.as_bytes(), path).into_iter().map(|file| folder.join(file)).collect();
    if files.iter().any(|file| is_program(file)) {
        return None;
    }
    let is_file = files.iter().any(|file| file.is_file());
    Some(if is_file { not_executable(program) } else { not_found(program) })
}

/// Says that there is no such program.
pub fn not_found(program: &str) -> String {
    let what = if program.contains('/') { "no such program" } else { "command not found in PATH" };
    format!("{program}: {what}")
}

/// Says that the program's file may not be executed.
pub fn not_executable(program: &str) -> String {
    format!("{program}: not executable (permission denied)")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn program_name_is_resolved_in_submitter_path() {
        let path = OsText::from("/a::/b");
        let names = candidates(b"x", Some(&path));
        assert_eq!(names, ["/a/x", "./x", "/b/x"].map(PathBuf::from));
        assert_eq!(candidates(b"./x", Some(&path)), [PathBuf::from("./x")]);
        assert_eq!(candidates(b"x", None).len(), 3);
    }

    #[test]
    fn problem_with_program_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hook");
        let path = OsText::from(folder.path().as_os_str());
        let of = |name: &str, path: &OsText| problem(name, Some(path), folder.path());
        let full = file.to_str().unwrap();
        assert_eq!(of("hook", &path).as_deref(), Some("hook: command not found in PATH"));
        assert_eq!(of(full, &path), Some(format!("{full}: no such program")));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(of("hook", &path).as_deref(), Some("hook: not executable (permission denied)"));
        fs::set_permissions(&file, Permissions::from_mode(0o700)).unwrap();
        for (name, path) in [("hook", path), (full, "/nowhere".into()), ("hook", "/nowhere:".into())] {
            assert_eq!(of(name, &path), None, "{name} {path:?}");
        }
    }
}
