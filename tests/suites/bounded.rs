//! Output that outgrows `limits.output_bytes` (decision 2): holes are punched, offsets stay valid, head and tail are
//! kept, and every reader is informed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use bgd_shared::id::TaskId;
use bgd_shared::limits::OUTPUT_HEAD_BYTES;
use bgd_shared::request::{
    Encoding, IdParams, OutputParams, OutputResult, Stdin, Stream, SubmitParams, TaskOutput, TaskResultOf,
    TaskWrite, WriteParams,
};
use bgd_shared::task::{Output, Status, Task};
use bgd_tests::user::must_be_root;
use bgd_tests::{Terminal, TestDaemon};

const LIMIT: u64 = 1024 * 1024;

/// Prints 16-byte lines, each with its own number, so that any part of the output can be checked.
const LINES: &str = "seq -f %015.0f 0 $(($1 / 16 - 1))";

fn bounded() -> TestDaemon {
    TestDaemon::builder().config("[limits]\noutput_bytes = \"1MiB\"\n").start()
}

/// As network file systems without this call are.
#[test]
fn output_on_a_disk_that_cannot_drop_parts_of_files_is_complete_and_reported_as_root() {
    must_be_root();
    let mount = "mount -t ramfs -o mode=700 none \"$XDG_STATE_HOME\" && exec \"$0\" \"$@\"";
    let prelude = format!("exec unshare --mount sh -c '{mount}' \"$0\" \"$@\" 3>&1 >/dev/null");
    let config = "[limits]\noutput_bytes = \"1MiB\"\n";
    let daemon = TestDaemon::builder().config(config).prelude(prelude).start();
    for _ in 0..2 {
        let task = lines(&daemon, 2 * LIMIT);
        assert_eq!((task.output.bytes, task.output.dropped_bytes), (2 * LIMIT, 0));
        check(part(&daemon, task.id, LIMIT.cast_signed(), 50_000 / 16 * 16).data.as_bytes(), LIMIT);
    }
    let warnings = daemon.status().warnings;
    let named: Vec<&String> = warnings.iter().filter(|text| text.contains("limits.output_bytes")).collect();
    assert!(matches!(named[..], [text] if text.contains("not supported")), "{warnings:?}");
    let log =
        fs::read_to_string(format!("/proc/{}/root{}/bgd.log", daemon.pid(), daemon.state_dir().display()));
    assert_eq!(log.unwrap().matches("outputs can't be limited").count(), 1);
}

fn lines(daemon: &TestDaemon, bytes: u64) -> Task {
    let argv = ["sh", "-c", LINES, "sh", &bytes.to_string()].map(Into::into).to_vec();
    let id = daemon.submit_with(&SubmitParams { argv: Some(argv), ..daemon.params() }).id;
    daemon.block(&[id]).remove(0)
}

#[track_caller]
fn check(bytes: &[u8], offset: u64) {
    assert_eq!((offset % 16, bytes.len() % 16), (0, 0));
    for (line, number) in bytes.chunks(16).zip(offset / 16..) {
        assert_eq!(String::from_utf8_lossy(line), format!("{number:015}\n"));
    }
}

fn part(daemon: &TestDaemon, id: TaskId, offset: i64, limit: u64) -> OutputResult {
    let params = OutputParams { id: id.into(), offset: Some(offset), limit: Some(limit), stream: None };
    daemon.client().call::<TaskOutput>(&params).expect("task.output")
}

#[test]
fn long_output_keeps_head_and_tail_and_little_disk() {
    let daemon = bounded();
    let size = 48 * LIMIT;
    let task = lines(&daemon, size);
    assert_eq!(task.status, Status::Completed);
    let dropped = task.output.dropped_bytes;
    assert_eq!((task.output.bytes, task.progress.output_bytes), (size, size), "offsets stay true");
    let kept = size - dropped;
    assert!((LIMIT - 64 * 1024..=LIMIT + 64 * 1024).contains(&kept), "{kept} bytes are kept");
    let meta = fs::metadata(&task.output.path).unwrap();
    assert_eq!(meta.len(), size);
    assert!(meta.blocks() * 512 <= kept + 64 * 1024, "{} KiB of disk", meta.blocks() / 2);
    let mut offset = 0;
    let mut seen = 0;
    while offset < size {
        let piece = part(&daemon, task.id, offset.cast_signed(), 50_000 / 16 * 16);
        check(piece.data.as_bytes(), piece.offset);
        assert!(piece.next > offset);
        if piece.offset > offset || piece.next - piece.offset > piece.data.len() as u64 {
            assert!(piece.offset.max(piece.next) >= OUTPUT_HEAD_BYTES + dropped);
        }
        seen += piece.data.len() as u64;
        assert_eq!(piece.eof, piece.next == size);
        offset = piece.next;
    }
    assert_eq!(seen, kept, "head and tail, once each");
}

#[test]
fn reads_inside_dropped_range_continue_after_it() {
    let daemon = bounded();
    let task = lines(&daemon, 8 * LIMIT);
    let behind = OUTPUT_HEAD_BYTES + task.output.dropped_bytes;
    for offset in [OUTPUT_HEAD_BYTES, OUTPUT_HEAD_BYTES + 1, LIMIT, behind - 1, behind] {
        let piece = part(&daemon, task.id, offset.cast_signed(), 160);
        assert_eq!((piece.offset, piece.data.len()), (behind, 160));
        check(piece.data.as_bytes(), behind);
    }
    let head = part(&daemon, task.id, 0, 200_000);
    assert_eq!((head.data.len() as u64, head.next), (OUTPUT_HEAD_BYTES, behind));
    let last = part(&daemon, task.id, -16, 100);
    check(last.data.as_bytes(), 8 * LIMIT - 16);
    let result = daemon.client().call::<TaskResultOf>(&IdParams { id: task.id.into() }).unwrap();
    assert_eq!(result.truncated_bytes, 8 * LIMIT - 256 * 1024);
    check(result.result.as_bytes(), result.truncated_bytes);
}

#[test]
fn bgctl_skips_dropped_output_and_reports_it() {
    let daemon = bounded();
    let task = lines(&daemon, 8 * LIMIT);
    let behind = OUTPUT_HEAD_BYTES + task.output.dropped_bytes;
    let id = task.id.to_string();
    let head = usize::try_from(OUTPUT_HEAD_BYTES).unwrap();
    for args in [&["output", &id][..], &["output", "--follow", &id], &["output", "--result", &id]] {
        let outcome = daemon.run(args).success();
        check(&outcome.stdout[..head], 0);
        // The line in which the hole ends is left out: here a whole one, which is not known.
        check(&outcome.stdout[head..], behind + 16);
        let word = format!("{} bytes were dropped", task.output.dropped_bytes + 16);
        assert!(outcome.stderr.contains(&word), "{args:?}: {}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{args:?}: {}", outcome.stderr);
    }
    let since = (behind + 32).to_string();
    let outcome = daemon.run(&["output", "--since", &since, &id]).success();
    check(&outcome.stdout, behind + 32);
    assert_eq!(outcome.stderr, "", "nothing is missing there");
    let tail = daemon.run(&["output", "--tail", "2", &id]).success();
    check(&tail.stdout, 8 * LIMIT - 32);
    assert_eq!(tail.stderr, "");
    let everything = daemon.run(&["output", "--tail", "99999999", &id]).success();
    assert_eq!(everything.stdout.len() as u64, task.output.bytes - task.output.dropped_bytes - 16);
}

#[test]
fn r20_halves_of_lines_around_dropped_output_are_not_joined() {
    let daemon = bounded();
    // The head ends within a line, and so does the hole.
    let line = |number: u64| format!("{number:0100}");
    let id = daemon.submit_shell("seq -f %0100.0f 1 80000");
    let task = daemon.block(&[id]).remove(0);
    let behind = OUTPUT_HEAD_BYTES + task.output.dropped_bytes;
    let (id, cut, next) = (id.to_string(), OUTPUT_HEAD_BYTES / 101, behind / 101 + 2);
    let ends = usize::try_from(OUTPUT_HEAD_BYTES % 101).unwrap();
    let begins: Vec<String> = (1..=cut).map(line).collect();
    let wanted: Vec<String> =
        [begins, vec![line(cut + 1)[..ends].to_owned()], (next..=80_000).map(line).collect()].concat();
    let word = format!("{} bytes were dropped here", (next - 1) * 101 - OUTPUT_HEAD_BYTES);
    let copy = daemon.home().join("copy");
    for args in [&["output", &id][..], &["output", "--follow", &id], &["output", "--tail", "9999999", &id]] {
        let outcome = daemon.run(args).success();
        assert!(outcome.stdout_text().lines().eq(&wanted), "{args:?}");
        assert!(outcome.stderr.contains(&word), "{args:?}: {}", outcome.stderr);
        // The kernel copies what goes into a file.
        let file = fs::File::create(&copy).unwrap();
        assert!(daemon.bgctl(args).stdout(file).status().unwrap().success());
        assert!(fs::read_to_string(&copy).unwrap().lines().eq(&wanted), "{args:?}");
    }
    let count = 80_000 - next + 1;
    let tail = |lines: u64| daemon.run(&["output", "--tail", &lines.to_string(), &id]).success();
    let whole = tail(count);
    assert!(whole.stdout_text().lines().eq(&wanted[wanted.len() - usize::try_from(count).unwrap()..]));
    assert_eq!(whole.stderr, "");
    let across = tail(count + 2);
    assert!(across.stdout_text().lines().eq(&wanted[wanted.len() - usize::try_from(count + 2).unwrap()..]));
    assert!(across.stderr.contains(&word), "{}", across.stderr);
}

#[test]
fn head_that_ends_within_a_character_is_returned_completely() {
    let daemon = bounded();
    let id = daemon.submit_shell("yes é | head -c 8388608");
    let task = daemon.block(&[id]).remove(0);
    let behind = OUTPUT_HEAD_BYTES + task.output.dropped_bytes;
    let head = part(&daemon, id, OUTPUT_HEAD_BYTES.cast_signed() - 7, 100);
    let bytes = head.encoding.decode(head.data).unwrap();
    assert_eq!((bytes.as_slice(), head.next), (&"é\né\né".as_bytes()[..7], behind));
}

/// On a terminal, a part of a terminal's output is read through the daemon.
#[test]
fn dropped_output_of_a_terminal_is_reported_on_a_terminal() {
    let daemon = bounded();
    let args = ["submit", "--pty", "--shell", "seq -f %0100.0f 80000"];
    let id = daemon.run(&args).success().word::<TaskId>();
    let task = daemon.block(&[id]).remove(0);
    assert!(task.output.dropped_bytes > 0, "{task:?}");
    let said = daemon.home().join("said");
    let mut shell = Terminal::shell(&daemon);
    assert_eq!(shell.run_line(&format!("bgctl output --since 1 {id} 2> '{}'", said.display())), 0);
    let said = fs::read_to_string(said).unwrap();
    let said = said.split_once("bgctl: ").and_then(|(_, said)| said.split_once(" bytes were dropped here"));
    let missing: u64 = said.expect("the report").0.parse().unwrap();
    // With the rest of a line.
    assert!((1..=102).contains(&(missing - task.output.dropped_bytes)), "{missing}");
}

#[test]
fn dropped_output_is_reported_on_a_line_of_its_own_in_attach() {
    let daemon = bounded();
    let mut watch = daemon.watch();
    // The head ends within a line.
    let id = daemon.submit_shell("seq -f %0100.0f 80000; exec sleep 1000");
    let task = watch.until(|event| event.task.id == id && event.task.output.bytes == 80_000 * 101).task;
    assert!(task.output.dropped_bytes > 0, "{task:?}");
    let mut terminal = Terminal::bgctl(&daemon, &["attach", &id.to_string()]);
    terminal.wait_shown("the report", |shown| {
        let said = b" bytes were dropped here (limits.output_bytes)\r";
        let mut lines = shown.split(|byte| *byte == b'\n');
        lines.any(|line| line.starts_with(b"bgctl: ") && line.ends_with(said))
    });
    terminal.type_keys("\x02");
    assert!(terminal.ended().success(), "{terminal:?}");
    daemon.cancel(&[id]);
}

#[test]
fn output_is_bounded_while_task_runs() {
    let daemon = bounded();
    let mut watch = daemon.watch();
    let params = SubmitParams {
        shell: Some("yes 0123456789abcde | head -c 33554432; cat".into()),
        stdin: Some(Stdin::Pipe),
        ..daemon.params()
    };
    let id = daemon.submit_with(&params).id;
    let event = watch.until(|event| event.task.id == id && event.task.output.dropped_bytes > 0);
    assert_eq!(event.task.status, Status::Running);
    let path = event.task.output.path;
    // Output events report growth, so the file may change after the last of them.
    let head = fs::read(&path).unwrap()[..16].to_vec();
    assert_eq!(head, b"0123456789abcde\n");
    let outcome = daemon.run(&["output", &id.to_string()]).success();
    assert!(!outcome.stdout.contains(&0), "no byte that the task did not write");
    daemon.cancel(&[id]);
    let blocks = fs::metadata(&path).unwrap().blocks() * 512;
    assert!(blocks <= LIMIT + 128 * 1024, "{blocks} bytes of disk");
}

#[test]
fn output_is_bounded_again_after_its_file_was_truncated() {
    let daemon = bounded();
    let mut watch = daemon.watch();
    let line = format!("set -- {}; {LINES}; read x; : >/dev/stdout; read x; {LINES}; read x", 8 * LIMIT);
    let params = SubmitParams { shell: Some(line.into()), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    let go_on = || {
        let data = "go on\n".to_owned();
        let params = WriteParams { id: id.into(), data, encoding: Encoding::Utf8, eof: false };
        daemon.client().call::<TaskWrite>(&params).expect("task.write");
    };
    watch.until(|event| event.task.output.bytes == 8 * LIMIT);
    go_on();
    let task = watch.until(|event| event.task.output.lost_bytes > 0).task;
    assert_eq!((task.output.lost_bytes, task.output.dropped_bytes), (8 * LIMIT, 0));
    go_on();
    let Output { dropped_bytes, path, .. } =
        watch.until(|event| event.task.output.bytes == 8 * LIMIT).task.output;
    assert!((7 * LIMIT..8 * LIMIT).contains(&dropped_bytes), "{dropped_bytes}");
    let blocks = fs::metadata(&path).unwrap().blocks() * 512;
    assert!(blocks <= LIMIT + 128 * 1024, "{blocks} bytes of disk");
    let tail = daemon.run(&["output", "--tail", "2", &id.to_string()]).success();
    check(&tail.stdout, 8 * LIMIT - 32);
    go_on();
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
}

#[test]
fn each_stream_of_split_task_is_bounded_separately() {
    let daemon = bounded();
    let line = format!("set -- {}; {LINES} >&2; echo short", 4 * LIMIT);
    let params = SubmitParams { shell: Some(line.into()), split: true, ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    let task = daemon.block(&[id]).remove(0);
    assert_eq!(task.output.bytes, 4 * LIMIT + 6);
    assert_eq!(task.output.dropped_bytes, 0);
    let dropped = task.output.stderr_dropped_bytes;
    assert!(dropped >= 3 * LIMIT, "{dropped}");
    assert_eq!(daemon.output(id), b"short\n");
    assert_eq!(daemon.stream(id, Stream::Stderr).len() as u64, 4 * LIMIT - dropped);
    let outcome = daemon.run(&["output", "--stderr", &id.to_string()]).success();
    assert_eq!(outcome.stdout.len() as u64, 4 * LIMIT - dropped - 16);
    assert!(outcome.stderr.contains("were dropped"));
    let outcome = daemon.run(&["output", &id.to_string()]).success();
    assert_eq!(outcome.stdout.as_slice(), b"short\n");
    // Nothing of this stream was dropped; the message only mentions the other one.
    assert!(
        outcome.stderr.contains("stored separately") && !outcome.stderr.contains("dropped"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn output_exactly_at_limit_loses_nothing() {
    let daemon = bounded();
    let task = lines(&daemon, LIMIT);
    assert_eq!((task.output.bytes, task.output.dropped_bytes), (LIMIT, 0));
    let outcome = daemon.run(&["output", &task.id.to_string()]).success();
    check(&outcome.stdout, 0);
    assert_eq!((outcome.stdout.len() as u64, outcome.stderr.as_str()), (LIMIT, ""));
}
