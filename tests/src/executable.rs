//! Programs that tests make. Another process writes them: a child that some other test starts at that moment holds what
//! this process has open for writing until its own `exec`, and a program that is open for writing can't be started.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Copies a program, for everybody to run.
#[track_caller]
pub fn copy(from: &Path, to: &Path) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "--"]).args([from, to]);
    assert!(install.status().expect("install(1) starts").success(), "{} is not copied", from.display());
}

/// Makes a program of this text.
#[track_caller]
pub fn write(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).expect("a file of the test");
    copy(&draft, path);
    fs::remove_file(draft).expect("a file of the test");
}
