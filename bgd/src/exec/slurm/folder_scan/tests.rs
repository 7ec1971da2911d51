//! The output of a look's script, with real shells and programs, some of which fail.

use super::super::remote_scripts::testing::{SHELLS, programs, run, run_bytes, run_with};
use super::super::remote_scripts::{files_of, output, remove};
use super::*;
use bgd_shared::request::Stream;
use std::fs;

/// A work folder with an output for each of two jobs.
fn folder(home: &tempfile::TempDir) -> WorkFolder {
    let folder = WorkFolder::new(home.path().join("it's\nhere"));
    folder.prepare().unwrap();
    folder.create_jobs("k1").unwrap();
    for index in 0..2 {
        folder.write_job("k1", index, b"x").unwrap();
        fs::write(folder.path().join("output").join(output("k1", index, Stream::Stdout)), "").unwrap();
    }
    folder
}

fn asks(outputs: &[&str]) -> FolderScan {
    FolderScan { outputs: outputs.iter().map(|name| (*name).to_owned()).collect(), ..FolderScan::default() }
}

/// Runs a look, and returns its exit code with the result.
fn find(shell: &str, folder: &WorkFolder, what: &FolderScan) -> (i32, Option<Looked>) {
    let (code, printed) = run(shell, &look(folder, what));
    (code, looked(&printed, &what.outputs))
}

fn names(looked: &Looked) -> Vec<&str> {
    looked.notes.iter().map(|note| &*note.name).collect()
}

#[test]
fn r147_look_finds_notes_and_sizes_and_removes_finished_files() {
    for shell in SHELLS {
        let home = tempfile::tempdir().unwrap();
        let folder = folder(&home);
        assert_eq!(find(shell, &folder, &FolderScan::default()), (0, Some(Looked::default())), "{shell}");
        for (name, text) in [
            ("k1.0.0.start", "n1 7\n"),
            ("k1.0.0.exit", "0 0\n"),
            ("k1.1.0.fail", "cut"),
            (".k1", "x"),
            ("other.exit", "x\n"),
            ("* $(x)", "x"),
        ] {
            fs::write(folder.notes().join(name), text).unwrap();
        }
        fs::write(folder.path().join("output/k1.0.out"), "twelve bytes").unwrap();
        let what = asks(&["k1.0.out", "k1.1.out", "missing"]);
        let (code, found) = find(shell, &folder, &what);
        let found = found.unwrap();
        let notes: Vec<(&str, &[u8])> = found.notes.iter().map(|note| (&*note.name, &*note.text)).collect();
        let expected: [(&str, &[u8]); 3] =
            [("k1.0.0.start", b"n1 7\n"), ("k1.0.0.exit", b"0 0\n"), ("k1.1.0.fail", b"cut")];
        assert_eq!((code, &notes[..]), (0, &expected[..]), "{shell}");
        assert!(found.notes.iter().all(|note| note.at.is_some()));
        assert!(
            found.sizes.contains(&("k1.0.out".into(), 12)) && found.sizes.contains(&("k1.1.out".into(), 0))
        );
        assert_eq!(
            (&found.missing[..], &found.unread[..]),
            (&["missing".to_owned()][..], &[][..]),
            "{shell}"
        );
        let (_, printed) = run(shell, &look(&folder, &what));
        assert_eq!(looked(&printed[..printed.len() - 1], &what.outputs), None);
        let mut removed = files_of("k1", 0, false, 0);
        removed.push("notes/k1.0.0.start".to_owned());
        let keys = vec!["k1".to_owned()];
        let (_, left) =
            find(shell, &folder, &FolderScan { removed, keys: keys.clone(), ..FolderScan::default() });
        assert_eq!(names(&left.unwrap()), ["k1.1.0.fail"]);
        assert!(folder.jobs("k1").exists() && !folder.path().join("output/k1.0.out").exists());
        find(
            shell,
            &folder,
            &FolderScan { removed: files_of("k1", 1, false, 0), keys, ..FolderScan::default() },
        );
        assert!(!folder.jobs("k1").exists());
        fs::remove_dir_all(folder.path().join("output")).unwrap();
        let (code, found) = find(shell, &folder, &what);
        assert_eq!((code, found.unwrap().missing), (0, what.outputs.clone()), "{shell}");
        run(shell, &remove(folder.path()));
        assert_eq!(find(shell, &folder, &what).0, remote_scripts::GONE, "{shell}");
    }
}

#[test]
fn r151_look_distinguishes_unreadable_from_missing_files() {
    for shell in SHELLS {
        let home = tempfile::tempdir().unwrap();
        let folder = folder(&home);
        fs::write(folder.notes().join("k1.0.0.exit"), "0 0\n").unwrap();
        // A folder can't be read as a file, and a link to itself can't be followed.
        fs::create_dir(folder.notes().join("k1.1.0.exit")).unwrap();
        std::os::unix::fs::symlink("k1.2.0.exit", folder.notes().join("k1.2.0.exit")).unwrap();
        fs::write(folder.notes().join("k1.3.0.exit"), "").unwrap();
        let what = asks(&["k1.0.out", "k1.1.out"]);
        let (code, found) = find(shell, &folder, &what);
        let found = found.unwrap();
        assert_eq!((code, names(&found)), (0, vec!["k1.0.0.exit", "k1.3.0.exit"]), "{shell}");
        assert_eq!(found.notes[1].text, b"", "{shell}: nothing of another one");
        assert_eq!(found.unread, ["k1.1.0.exit", "k1.2.0.exit"].map(str::to_owned), "{shell}");
        let path = programs(&home, &[("wc", "exit 1")]);
        let (_, printed) = run_with(shell, &path, &look(&folder, &what));
        let unread = looked(&printed, &what.outputs).unwrap().unread;
        assert!(what.outputs.iter().all(|name| unread.contains(name)), "{shell} {unread:?}");
        let path = programs(&home, &[("ls", "echo k1.0.0.exit; echo ls: reading directory >&2; exit 2")]);
        let code = run_with(shell, &path, &look(&folder, &what)).0;
        assert!(code != 0 && code != remote_scripts::GONE, "{shell}");
        fs::remove_dir_all(folder.notes()).unwrap();
        assert_eq!(find(shell, &folder, &what).0, remote_scripts::GONE, "{shell}");
        fs::write(folder.notes(), "").unwrap();
        let code = find(shell, &folder, &what).0;
        assert!(code != 0 && code != remote_scripts::GONE, "{shell}");
    }
}

#[test]
fn r149_look_at_many_notes_uses_little_cpu_time() {
    // The script takes a second. If the step for each note copied the whole list, it would take a minute.
    const LIMIT: &[u8] = b"ulimit -t 8\n";
    let home = tempfile::tempdir().unwrap();
    let folder = folder(&home);
    let all: Vec<String> = (0..10 * NOTES).map(|index| format!("k1.{index}.0.exit")).collect();
    for name in &all {
        fs::write(folder.notes().join(name), "0 0\n").unwrap();
    }
    fs::write(folder.notes().join("k9.0.0.start"), "n1 7\n").unwrap();
    for shell in SHELLS {
        let find = |what: &FolderScan| {
            let script = [LIMIT, look(&folder, what).bytes()].concat();
            let (code, printed) = run_bytes(shell, "/usr/bin:/bin", &script);
            looked(&printed, &[]).unwrap_or_else(|| panic!("{shell}: {code}"))
        };
        let found = find(&FolderScan::default());
        assert!(found.has_more && found.notes.len() == NOTES, "{shell}");
        assert_eq!(names(&found)[0], "k9.0.0.start", "{shell}");
        // Some of the known notes may be gone.
        let mut kept = all[..all.len() - 10].to_vec();
        kept.push("k0.0.0.exit".to_owned());
        let found = find(&FolderScan { kept, ..FolderScan::default() });
        assert!(!found.has_more && all[all.len() - 10..].iter().all(|name| names(&found).contains(&&**name)));
        let found = find(&FolderScan { kept: all.clone(), ..FolderScan::default() });
        assert_eq!((found.has_more, names(&found)), (false, vec!["k9.0.0.start"]), "{shell}");
    }
}
