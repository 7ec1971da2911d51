//! The script that installs the tarball: who owns the files, who may use them, and where they may go.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use bgd_tests::Outcome;
use bgd_tests::docs::root as repository;
use bgd_tests::user::{must_be_root, not_as_root, unused_uid};
use tempfile::TempDir;

/// The contents of the tarball, as far as the script is concerned, and the mode that each file is to have.
const FILES: [(&str, u32); 4] = [
    ("bin/bgd", 0o755),
    ("bin/bgctl", 0o755),
    ("share/man/man1/bgctl.1.gz", 0o644),
    ("share/systemd/user/bgd.service", 0o644),
];

/// A folder that everybody may enter, with the unpacked tarball in it.
fn unpacked() -> (TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("bgd-install-").tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let tree = folder.path().join("tree");
    for (name, mode) in FILES {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "one\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let unit = repository().join("packages/systemd/bgd.service");
    fs::copy(unit, tree.join("share/systemd/user/bgd.service")).unwrap();
    fs::create_dir_all(tree.join("share/doc/bgd")).unwrap();
    fs::copy(repository().join("packages/install"), tree.join("install")).unwrap();
    (folder, tree)
}

/// Runs the script without a home.
fn run(tree: &Path, umask: &str, args: &[&str]) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", "umask $0; exec \"$@\"", umask]).arg(tree.join("install")).args(args);
    Outcome::of(command.env_clear().env("PATH", "/usr/bin:/bin"))
}

#[test]
fn r170_files_installed_by_root_belong_to_root_and_serve_everybody_as_root() {
    must_be_root();
    let (folder, tree) = unpacked();
    let user = unused_uid();
    for (name, _) in FILES {
        chown(tree.join(name), Some(user), Some(user)).unwrap();
    }
    let prefix = folder.path().join("prefix");
    // The second time it replaces the installed files, and what an earlier version has left halfway.
    for _ in 0..2 {
        run(&tree, "077", &[prefix.to_str().unwrap()]).success();
        for (name, mode) in FILES.into_iter().chain([
            ("share/doc/bgd/installed", 0o644),
            ("bin", 0o755),
            ("share/systemd/user", 0o755),
            ("", 0o755),
        ]) {
            let path = prefix.join(name);
            let status = fs::metadata(&path).unwrap();
            assert_eq!((status.uid(), status.gid(), status.mode() & 0o7777), (0, 0, mode), "{name}");
        }
        for name in ["bin/bgd.part", "share/systemd/user/bgd.service.part"] {
            let part = prefix.join(name);
            fs::write(&part, "half").unwrap();
            chown(part, Some(user), Some(user)).unwrap();
        }
    }
    run(&tree, "077", &["--remove", prefix.to_str().unwrap()]).success();
    assert!(!prefix.join("bin").exists() && !prefix.join("share").exists(), "nothing is left of it");
}

#[test]
fn r170_install_script_accepts_any_path_a_unit_can_name_and_needs_no_home() {
    let (folder, tree) = unpacked();
    let prefix = folder.path().join("a b|50%&\\\"x\"");
    let prefix = prefix.to_str().unwrap();
    run(&tree, "022", &[prefix]).success();
    let unit = fs::read_to_string(Path::new(prefix).join("share/systemd/user/bgd.service")).unwrap();
    // As `bgctl daemon install` writes it.
    let program = format!("{}/a b|50%%&\\\\\\\"x\\\"/bin/bgd", folder.path().display());
    assert!(unit.lines().any(|line| line == format!("ExecStart=\"{program}\"")), "{unit}");
    let before = fs::read_to_string(repository().join("packages/systemd/bgd.service")).unwrap();
    assert_eq!(unit.lines().count(), before.lines().count());
    run(&tree, "022", &["--remove", prefix]).success();
    assert_eq!(fs::read_dir(prefix).unwrap().count(), 0, "nothing is left of it");
    run(&tree, "022", &[&format!("{}\nx", folder.path().display())]).expect_code(2);
    let refused = not_as_root(unused_uid(), || run(&tree, "022", &[])).expect_code(2);
    assert!(refused.stderr.contains("by default $HOME/.local"), "{}", refused.stderr);
}
