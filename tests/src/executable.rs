//! Programs that tests create, each written by another process. A child that another test spawns meanwhile inherits all
//! files that this process has open for writing until the child's own `exec`, and a program that is open for writing
//! cannot be started (ETXTBSY).

use std::fs;
use std::path::Path;
use std::process::Command;

/// Copies a program, executable by everyone. Replaces an earlier one in one step, as it may be started meanwhile.
#[track_caller]
pub fn copy(from: &Path, to: &Path) {
    let mut new = to.as_os_str().to_owned();
    new.push(".new");
    let mut install = Command::new("install");
    install.args(["-m", "755", "--"]).arg(from).arg(&new);
    assert!(install.status().expect("install(1) starts").success(), "{} is not copied", from.display());
    fs::rename(new, to).expect("a file of the test");
}

#[track_caller]
pub fn write(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).expect("a file of the test");
    copy(&draft, path);
    fs::remove_file(draft).expect("a file of the test");
}
