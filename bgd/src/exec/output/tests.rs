//! Tests of output files.

use super::*;

fn folder() -> (tempfile::TempDir, OutputFolder) {
    let home = tempfile::tempdir().unwrap();
    let folder = OutputFolder::open(home.path().to_path_buf()).unwrap();
    (home, folder)
}

#[test]
fn parts_skip_dropped_bytes() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("f");
    let bytes: Vec<u8> = (0..400_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    let dropped = 131_072;
    let mut got = Vec::new();
    let mut offset = 0;
    loop {
        let part = read_part(&path, true, offset, 10_000, dropped).unwrap();
        if part.next == offset.cast_unsigned() {
            break;
        }
        got.extend(part.bytes);
        offset = part.next.cast_signed();
    }
    let kept = [&bytes[..65_536], &bytes[65_536 + 131_072..]].concat();
    assert_eq!(got, kept);
}

#[test]
fn negative_offset_counts_from_the_end() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("f");
    fs::write(&path, "0123456789").unwrap();
    assert_eq!(read_part(&path, true, -3, 100, 0).unwrap().bytes, b"789");
    assert_eq!(read_part(&path, true, -30, 2, 0).unwrap().bytes, b"01");
    assert_eq!(read_part(&path, true, 30, 2, 0).unwrap().next, 10);
}

#[test]
fn bounding_frees_the_middle_and_keeps_both_ends() {
    let (_home, folder) = folder();
    let task = TaskId::random();
    let file = fs::File::from(folder.create(task, Stream::Stdout).unwrap());
    io::Write::write_all(&mut &file, &vec![b'x'; 4 << 20]).unwrap();
    let dropped = folder.bound(task, Stream::Stdout, 4 << 20, 0, 1 << 20).unwrap();
    let stat = folder.stat(task, Stream::Stdout).unwrap();
    assert_eq!(stat.st_size, 4 << 20);
    assert_eq!(dropped, (4 << 20) - (1 << 20));
    assert!(stat.st_blocks * 512 <= (1 << 20) + (64 << 10), "{} blocks", stat.st_blocks);
    let path = folder.files(task, false).path(Stream::Stdout).to_path_buf();
    let bytes = fs::read(path).unwrap();
    assert!(bytes[..65_536].iter().all(|byte| *byte == b'x'));
    assert!(bytes[65_536..65_536 + usize::try_from(dropped).unwrap()].iter().all(|byte| *byte == 0));
    assert!(bytes[65_536 + usize::try_from(dropped).unwrap()..].iter().all(|byte| *byte == b'x'));
}

#[test]
fn bounding_also_frees_bytes_written_after_an_unnoticed_truncation() {
    let (_home, folder) = folder();
    let task = TaskId::random();
    let file = fs::File::from(folder.create(task, Stream::Stdout).unwrap());
    let mut dropped = 0;
    for mebibytes in [4, 5_u64] {
        file.set_len(0).unwrap();
        io::Write::write_all(&mut &file, &vec![b'x'; usize::try_from(mebibytes << 20).unwrap()]).unwrap();
        dropped = folder.bound(task, Stream::Stdout, mebibytes << 20, dropped, 1 << 20).unwrap();
        assert_eq!(dropped, (mebibytes - 1) << 20);
        let stat = folder.stat(task, Stream::Stdout).unwrap();
        assert!(stat.st_blocks * 512 <= (1 << 20) + (64 << 10), "{} blocks", stat.st_blocks);
    }
}

#[test]
fn last_line_is_shortened_and_sanitized() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("f");
    fs::write(&path, "first\n\x1b[31mred\x1b[0m \x07line\n\n  \n\x1b[0m\n").unwrap();
    assert_eq!(last_line(&path).unwrap(), "red line");
    fs::write(&path, b"\xff\xfe").unwrap();
    assert_eq!(last_line(&path).unwrap(), "\u{fffd}\u{fffd}");
    fs::write(&path, "x".repeat(100_000)).unwrap();
    assert_eq!(last_line(&path).unwrap().len(), read::LAST_LINE_CHARS);
    fs::write(&path, "").unwrap();
    assert_eq!(last_line(&path), None);
}

/// Refused resumes are runs, too, but leave no result.
#[test]
fn r32_results_of_all_runs_are_bounded_and_removed_with_their_task() {
    let (home, folder) = folder();
    let task = TaskId::random();
    let left = || -> Vec<u32> {
        let is_there = |run: &u32| folder.result(task, *run).exists();
        (1..=100).filter(is_there).collect()
    };
    let keep = |run| folder.keep_result(task, run, 0, b"an answer").unwrap();
    [1, 2, 3, 30].into_iter().for_each(keep);
    assert_eq!(left(), [1, 2, 3, 30]);
    [31, 40, 41, 42, 43, 44].into_iter().for_each(keep);
    assert_eq!(left(), [3, 30, 31, 40, 41, 42, 43, 44]);
    folder.remove(task, 60);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn r127_leftover_prompt_file_is_replaced_and_removed_with_its_task() {
    let (home, folder) = folder();
    let task = TaskId::random();
    // A reader that has the previous file open continues to read that one.
    let (_, before) = folder.create_prompt(task).unwrap();
    let (path, mut file) = folder.create_prompt(task).unwrap();
    io::Write::write_all(&mut file, b"the next").unwrap();
    assert_eq!((fs::read(&path).unwrap(), before.metadata().unwrap().len()), (b"the next".to_vec(), 0));
    folder.remove(task, 1);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}
