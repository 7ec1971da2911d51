//! The output of the script for parts, with real shells and programs, some of which fail.

use super::super::remote_scripts::testing::{SHELLS, programs, run, run_with};
use super::*;
use bgd_shared::request::Stream;
use std::fs;

/// A work folder with an output of these bytes, and an empty error file.
fn folder(home: &tempfile::TempDir, bytes: &[u8]) -> WorkFolder {
    let folder = WorkFolder::new(home.path().join("w"));
    let output = folder.path().join("output");
    fs::create_dir_all(&output).unwrap();
    fs::write(output.join(remote_scripts::output("k1", 0, Stream::Stdout)), bytes).unwrap();
    fs::write(output.join(remote_scripts::output("k1", 0, Stream::Stderr)), "").unwrap();
    folder
}

fn wanted(stream: Stream, offset: u64, count: u64) -> Wanted {
    Wanted { name: remote_scripts::output("k1", 0, stream), offset, count }
}

#[test]
fn r150_output_parts_are_read_from_their_offsets() {
    let home = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
    let folder = folder(&home, &bytes);
    let all = [
        wanted(Stream::Stdout, 0, 5),
        wanted(Stream::Stdout, 100_000, 100_000),
        wanted(Stream::Stdout, 199_999, 5),
        wanted(Stream::Stdout, 300_000, 5),
        wanted(Stream::Stderr, 0, 5),
    ];
    let expected = [&bytes[..5], &bytes[100_000..], &bytes[199_999..], b"", b""];
    for shell in SHELLS {
        let (code, printed) = run(shell, &read(&folder, &all));
        let found = parts(printed.clone(), &all).unwrap();
        assert!(code == 0 && found == expected.map(|bytes| Part::Bytes(bytes.to_vec())), "{shell}");
        assert_eq!(parts(printed[..100].to_vec(), &all), None);
        assert_eq!(parts(printed, &[&all[..], &all[..1]].concat()), None);
    }
}

#[test]
fn r150_failed_read_of_a_part_is_not_taken_for_the_end() {
    let all = [wanted(Stream::Stdout, 2, 5)];
    for shell in SHELLS {
        for (program, text) in [
            ("base64", "exit 1"),
            ("base64", "printf MTIz"),
            ("base64", "printf MT"),
            ("tail", "exit 1"),
            ("head", "/usr/bin/head -c 1; exit 1"),
            ("wc", "exit 2"),
        ] {
            let home = tempfile::tempdir().unwrap();
            let folder = folder(&home, b"12345678");
            let path = programs(&home, &[(program, text)]);
            let (_, printed) = run_with(shell, &path, &read(&folder, &all));
            assert_eq!(parts(printed, &all), Some(vec![Part::Unread]), "{shell} {program} {text}");
        }
    }
}

#[test]
fn r150_only_a_missing_file_counts_as_gone() {
    let all = [wanted(Stream::Stdout, 0, 5), wanted(Stream::Stderr, 0, 5)];
    for shell in SHELLS {
        let home = tempfile::tempdir().unwrap();
        let folder = folder(&home, b"12345678");
        let output = folder.path().join("output");
        fs::remove_file(output.join("k1.0.out")).unwrap();
        // The file exists, but nobody can read it.
        fs::remove_file(output.join("k1.0.err")).unwrap();
        std::os::unix::fs::symlink("k1.0.err", output.join("k1.0.err")).unwrap();
        let (code, printed) = run(shell, &read(&folder, &all));
        assert_eq!((code, parts(printed, &all)), (0, Some(vec![Part::Gone, Part::Unread])), "{shell}");
        fs::remove_dir_all(&output).unwrap();
        assert_eq!(run(shell, &read(&folder, &all)).0, remote_scripts::GONE, "{shell}");
        fs::write(&output, "").unwrap();
        let code = run(shell, &read(&folder, &all)).0;
        assert!(code != 0 && code != remote_scripts::GONE, "{shell}");
    }
}
