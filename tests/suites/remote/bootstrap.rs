//! A machine without `bgctl`, to which this machine's programs are copied.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::user::must_be_root;
use bgd_tests::{Outcome, TestDaemon};
use serde_json::Value;

use super::begin;

/// A machine with an empty home, and without `bgctl`.
fn empty() -> Far {
    let far = Far::of(TestDaemon::home_only());
    far.set_session(&[("PATH", "/usr/bin:/bin")]);
    far
}

fn cache(far: &Far) -> PathBuf {
    far.daemon.home().join(".cache/bgd/programs")
}

/// Returns the names in a folder; none if there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(Result::unwrap);
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the folder of the one version that was copied.
#[track_caller]
fn copied(far: &Far) -> PathBuf {
    let folders = names(&cache(far));
    assert_eq!(folders.len(), 1, "{folders:?}");
    let folder = cache(far).join(&folders[0]);
    assert_eq!(names(&folder), ["bgctl", "bgd"], "and nothing that was left");
    folder
}

/// Runs a command that fails without keeping a program, and returns its message.
#[track_caller]
fn refused(far: &Far) -> String {
    let failed = far.run(&["--bootstrap", "list"]).expect_code(69);
    let kept: Vec<String> =
        names(&cache(far)).iter().flat_map(|name| names(&cache(far).join(name))).collect();
    assert!(kept.is_empty(), "{kept:?}");
    failed.stderr
}

#[test]
fn r143_bootstrap_copies_programs_into_empty_home_and_reuses_them() {
    let far = empty();
    let plain = far.run(&["list"]).expect_code(69);
    assert!(plain.stderr.contains("far: no bgctl there"), "{}", plain.stderr);
    assert!(plain.stderr.contains("copied there with --bootstrap"), "{}", plain.stderr);
    let first = far.run(&["--bootstrap", "submit", "--", "true"]).success();
    let id = first.word::<TaskId>().to_string();
    let shown: Vec<&str> = first.stderr.lines().collect();
    for (line, name) in shown.iter().zip(["bgd", "bgctl"]) {
        assert!(line.starts_with(&format!("bgctl: copying {name} 0.1.0 (")), "{line}");
        let file = copied(&far).join(name);
        let sum = Outcome::of(std::process::Command::new("sha256sum").arg(&file)).success().stdout_text();
        assert!(line.contains(sum.split_whitespace().next().unwrap()), "{line}: {sum}");
        assert!(line.ends_with("to the cache folder of far"), "{line}");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
    assert_eq!(shown.len(), 2, "{shown:?}");
    // From now on the copies are found.
    let second = far.run(&["--bootstrap", "block", &id]).success();
    assert_eq!(second.stderr, "");
    let status: Value = far.run(&["--bootstrap", "--json", "daemon", "status"]).success().json();
    let pid = status["pid"].as_i64().unwrap();
    assert_eq!(fs::read_link(format!("/proc/{pid}/exe")).unwrap(), copied(&far).join("bgd"));
    let piped = far.run(&["--bootstrap", "run", "--", "echo", "over there"]).success();
    assert_eq!(piped.stdout_text(), "over there\n");
    assert_eq!(far.connections(), 1);
    far.run(&["--bootstrap", "daemon", "stop"]).success();
}

#[test]
fn r143_bootstrap_without_a_machine_is_refused() {
    let daemon = TestDaemon::home_only();
    let refused = daemon.run(&["--bootstrap", "list"]).expect_code(2);
    assert!(refused.stderr.contains("none is named") && refused.stderr.contains("-H"), "{}", refused.stderr);
    assert!(!daemon.socket().exists(), "nothing was started");
}

#[test]
fn r143_installed_program_is_preferred_over_copy() {
    let far = Far::start();
    assert_eq!(far.run(&["--bootstrap", "submit", "--", "true"]).success().stderr, "");
    assert_eq!(names(&cache(&far)), [""; 0]);
    // A copy that can't be used is not replaced.
    far.wrap("case \"$*\" in *dial*) echo 'unknown verb' >&2; exit 2;; esac");
    let unusable = far.run(&["--bootstrap", "list"]).expect_code(69);
    assert!(unusable.stderr.contains("no bgctl there that knows `dial`"), "{}", unusable.stderr);
    assert_eq!(names(&cache(&far)), [""; 0]);
}

#[test]
fn r143_damaged_copy_is_replaced() {
    let far = empty();
    far.run(&["--bootstrap", "list"]).success();
    let folder = copied(&far);
    for name in ["bgctl", "bgd"] {
        let program = folder.join(name);
        let whole = fs::metadata(&program).unwrap().len();
        for damaged in ["#!/bin/sh\nkill -KILL $$\n", "#!/bin/sh\nexit 1\n", ""] {
            bgd_tests::executable::write(&program, damaged);
            let again = far.run(&["--bootstrap", "list"]).success();
            let said = format!("bgctl: copying {name} ");
            assert!(again.stderr.contains(&said), "{damaged:?}: {}", again.stderr);
            assert_eq!(fs::metadata(copied(&far).join(name)).unwrap().len(), whole);
        }
    }
    assert_eq!(far.run(&["--bootstrap", "list"]).success().stderr, "");
    far.run(&["--bootstrap", "daemon", "stop"]).success();
}

#[test]
fn r143_concurrent_bootstraps_produce_one_copy() {
    let far = empty();
    let both = [(); 2].map(|()| begin(&far, &["--bootstrap", "submit", "--", "true"]));
    for one in both {
        let outcome = one.wait_with_output().unwrap();
        assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    }
    copied(&far);
    far.run(&["--bootstrap", "daemon", "stop"]).success();
}

#[test]
fn r143_truncated_copy_is_discarded() {
    let far = empty();
    far.wrap("case \"$*\" in *mktemp*.bgctl*) head -c 1000000 | $SSH \"$@\"; exit;; esac");
    let failed = far.run(&["--bootstrap", "list"]).expect_code(69);
    assert!(failed.stderr.contains("what arrived there is not the bgctl that was sent"), "{}", failed.stderr);
    let folder = cache(&far).join(&names(&cache(&far))[0]);
    assert_eq!(names(&folder), ["bgd"]);
    far.wrap("case \"$*\" in *mktemp*) exit 255;; esac");
    let lost = far.run(&["--bootstrap", "list"]).expect_code(69);
    assert!(lost.stderr.contains("far: ssh ended with 255 without a message"), "{}", lost.stderr);
    far.wrap("");
    far.run(&["--bootstrap", "list"]).success();
    copied(&far);
    far.run(&["--bootstrap", "daemon", "stop"]).success();
}

#[test]
fn r143_bootstrap_reports_why_programs_cannot_be_installed() {
    let far = empty();
    let says = |words: &[&str]| {
        let said = refused(&far);
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    };
    // Nobody can make a folder there, not even root.
    far.set_session(&[("PATH", "/usr/bin:/bin"), ("XDG_CACHE_HOME", "/proc/nowhere")]);
    says(&["far: can't write the cache folder there: mkdir: ", "/proc/nowhere", "hint: set XDG_CACHE_HOME"]);
    let programs = far.daemon.home().join("programs");
    fs::create_dir(&programs).unwrap();
    let program = |name: &str, text: &str| bgd_tests::executable::write(&programs.join(name), text);
    let path = format!("{}:/usr/bin:/bin", programs.display());
    far.set_session(&[("PATH", &path)]);
    far.cut();
    program("uname", "#!/bin/sh\necho Linux riscv64\n");
    let here = Outcome::of(std::process::Command::new("uname").arg("-sm")).stdout_text();
    says(&[&format!("no bgctl there, and this one, for {}, can't run there (Linux riscv64)", here.trim())]);
    fs::remove_file(programs.join("uname")).unwrap();
    for name in ["sha256sum", "shasum"] {
        program(name, "#!/bin/sh\necho none of that >&2; exit 1\n");
    }
    says(&["a copy can't be checked there: neither sha256sum nor shasum: none of that"]);
    far.configure("ForceCommand echo 'This account is not available.' >&2; exit 1");
    far.cut();
    says(&["no shell there that can receive a copy: This account is not available."]);
}

#[test]
fn r143_bootstrap_works_with_other_login_shells_and_banners() {
    for shell in ["fish -c", "zsh -c", "echo Welcome; printf to:; echo and >&2; sh -c"] {
        let far = empty();
        far.configure(&format!("ForceCommand {shell} \"$SSH_ORIGINAL_COMMAND\""));
        let id = far.run(&["--bootstrap", "submit", "--", "true"]).success().stdout_text();
        copied(&far);
        far.run(&["--bootstrap", "block", id.trim()]).success();
        far.run(&["--bootstrap", "daemon", "stop"]).success();
    }
}

#[test]
fn r143_bootstrap_reports_no_space_and_noexec_mount_as_root() {
    must_be_root();
    for (options, words) in [
        ("size=1m", "can't copy bgd there: cat: write error: No space left on device"),
        ("noexec", "bgd was copied there, but does not run: "),
    ] {
        let far = empty();
        let home = far.daemon.home().join(".cache");
        fs::create_dir(&home).unwrap();
        let mount = format!("mount -t tmpfs -o {options} none {} && exec \"$0\" \"$@\"", home.display());
        far.surround(&format!("exec unshare --mount sh -c '{mount}'"));
        let failed = far.run(&["--bootstrap", "list"]).expect_code(69);
        assert!(failed.stderr.contains(words) && failed.stderr.contains("hint: "), "{}", failed.stderr);
        // Nothing of it was kept, so the next attempt fails in the same way.
        let again = far.run(&["--bootstrap", "list"]).expect_code(69);
        assert!(again.stderr.contains(words), "{}", again.stderr);
    }
}
