//! Terminals of jobs as the daemon shows them on the wire: every byte, to every viewer, in every viewer's size.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;

use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::limits::TERMINAL_VIEWERS;
use bgd_tests::shared::order::Retry;
use bgd_tests::shared::request::{
    DaemonStatusOf, DetachParams, Encoding, Given, NoParams, ResizeParams, SignalParams, Stdin, SubmitParams,
    TaskDetach, TaskResize, TaskSignal, TaskWrite, WriteParams,
};
use bgd_tests::shared::task::{Exit, Output, Status};
use bgd_tests::user::on_a_small_disk;
use bgd_tests::{TestDaemon, Viewer, wait};

fn leave(id: TaskId) -> DetachParams {
    DetachParams { id: id.into(), background: false }
}

fn to_background(id: TaskId) -> DetachParams {
    DetachParams { id: id.into(), background: true }
}

fn size(id: TaskId, rows: u16, cols: u16) -> ResizeParams {
    ResizeParams { id: id.into(), rows, cols }
}

/// Returns these lines as a terminal prints them.
fn shown(lines: &str) -> Vec<u8> {
    lines.replace('\n', "\r\n").into_bytes()
}

#[test]
fn every_byte_is_shown_and_kept_before_end_is_reported() {
    let daemon = TestDaemon::start();
    let mixed = "i=0; while [ $i -lt 3000 ]; do \
        printf 'line %s of ümläuts 漢字 \\033[1;3%smcoloured\\033[m\\n' $i $((i % 8)); i=$((i+1)); done; \
        head -c 100000 /dev/urandom; printf 'the last word'";
    for _ in 0..3 {
        let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(mixed));
        assert!(task.pty);
        let task = viewer.ended(task.id);
        assert_eq!((task.status, task.exit), (Status::Completed, Some(Exit::Code(0))));
        assert!(viewer.shown.ends_with(b"the last word"));
        assert!(viewer.shown.starts_with("line 0 of ümläuts 漢字 \u{1b}[1;30mcoloured".as_bytes()));
        assert!(viewer.shown == daemon.output(task.id), "what is shown is not what is kept");
        assert_eq!(viewer.next, Some(task.output.bytes));
    }
}

#[test]
fn r62_backgrounding_mid_stream_loses_no_output_and_stops_display() {
    let daemon = TestDaemon::start();
    let line = "i=0; while [ $i -lt 30000 ]; do echo line number $i; i=$((i+1)); done";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    viewer.until_shown("line number 100\r\n");
    let result = viewer.call::<TaskDetach>(&to_background(task.id));
    assert_eq!(result.message, format!("Command was manually backgrounded by user with ID {}", task.id));
    let before = viewer.next;
    assert_eq!(viewer.ended(task.id).status, Status::Completed);
    assert_eq!(viewer.next, before, "a job in the background is not shown");
    let whole =
        (0..30_000).fold(String::new(), |text, number| text + "line number " + &number.to_string() + "\n");
    let kept = daemon.output(task.id);
    assert!(kept == shown(&whole) && kept.starts_with(&viewer.shown));
}

#[test]
fn background_job_has_terminal_without_viewers() {
    let daemon = TestDaemon::start();
    let params = SubmitParams {
        foreground: false,
        ..daemon.in_terminal("stty size; head -c 300000 /dev/zero | tr '\\0' x; test -t 0 && test -t 2")
    };
    let task = daemon.submit_with(&params);
    let task = daemon.block(&[task.id]).remove(0);
    assert_eq!((task.status, task.pty, task.output.bytes), (Status::Completed, true, 300_007));
}

/// Prints its size at the start and after every change. It uses `sigwait`, because a handler beside `pause` misses a
/// signal that arrives just before it.
const SIZES: &str = "exec python3 -uc 'import os, signal
changed = {signal.SIGWINCH}
signal.pthread_sigmask(signal.SIG_BLOCK, changed)
while True:
    print(*os.get_terminal_size(0), flush=True)
    signal.sigwait(changed)'";

#[test]
fn terminal_size_is_smallest_of_all_viewers() {
    let daemon = TestDaemon::start();
    let (mut owner, task) = Viewer::run(&daemon, &daemon.in_terminal(SIZES));
    let id = task.id;
    owner.until_shown("80 24\r\n");
    owner.call::<TaskResize>(&size(id, 30, 100));
    owner.until_shown("100 30\r\n");
    let mut second = Viewer::attach(&daemon, id, Some((40, 70)));
    owner.until_shown("70 30\r\n");
    // A viewer without a size accepts the current one.
    let third = Viewer::attach(&daemon, id, None);
    second.call::<TaskResize>(&size(id, 20, 90));
    owner.until_shown("90 20\r\n");
    drop(third);
    // Repeating a size changes nothing: nothing is shown between these two.
    second.call::<TaskResize>(&size(id, 20, 90));
    second.call::<TaskDetach>(&leave(id));
    owner.until_shown("90 20\r\n100 30\r\n");
    // The size stays when nobody looks, and the next viewer decides.
    owner.call::<TaskDetach>(&to_background(id));
    let mut last = Viewer::attach(&daemon, id, None);
    last.until_seen("100 30");
    last.try_attach(id, Some((10, 50))).unwrap();
    last.until_shown("50 10\r\n");
    let gone = Viewer::attach(&daemon, id, Some((5, 5)));
    last.until_shown("5 5\r\n");
    // A lost connection counts as leaving.
    drop(gone);
    last.until_shown("5 5\r\n50 10\r\n");
    daemon.cancel(&[id]);
}

#[test]
fn slow_viewer_gets_screen_redrawn_and_delays_nobody() {
    let daemon = TestDaemon::start();
    let line = "read go; i=0; while [ $i -lt 2000 ]; do seq 1000; i=$((i+1)); done; \
        printf '\\033[1mthe \\033[31mend\\033[m'; read go";
    let (mut owner, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    let mut slow = Viewer::attach(&daemon, task.id, Some((24, 80)));
    owner.type_keys(task.id, "go\r");
    owner.until_shown("\u{1b}[1mthe \u{1b}[31mend\u{1b}[m");
    // The owner has received everything, while the slow viewer read nothing.
    assert!(owner.shown.len() > 7_000_000, "{}", owner.shown.len());
    slow.until_seen("the end");
    assert_eq!(slow.redraws.len(), 2, "once at first, and once when it had been left behind");
    assert_eq!(slow.screen(), owner.screen());
    assert_eq!(slow.emulated().cursor_position(), owner.emulated().cursor_position());
    // From there on it follows like everyone else.
    slow.type_keys(task.id, "go\r");
    for viewer in [&mut owner, &mut slow] {
        assert_eq!(viewer.ended(task.id).status, Status::Completed);
        assert!(viewer.shown.ends_with(b"go\r\n"), "{viewer:?}");
    }
    assert!(owner.shown == daemon.output(task.id));
}

#[test]
fn job_can_end_or_be_cancelled_while_viewers_do_not_read() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"1h\"").start();
    // An owner that reads nothing, with less output than its backlog may hold.
    let (_owner, short) = Viewer::run(&daemon, &daemon.in_terminal("seq 10000"));
    assert_eq!(daemon.block(&[short.id])[0].status, Status::Completed);
    // An attached viewer that reads nothing.
    let flood = SubmitParams { foreground: false, ..daemon.in_terminal("read go; seq 300000") };
    let flood = daemon.submit_with(&flood).id;
    let mut sleeper = Viewer::attach(&daemon, flood, None);
    sleeper.type_keys(flood, "go\r");
    assert_eq!(daemon.block(&[flood])[0].status, Status::Completed);
    // It is shown the end as soon as it reads again.
    assert_eq!(sleeper.ended(flood).status, Status::Completed);
    assert!(sleeper.screen().ends_with("\n300000"), "{sleeper:?}");
    // An owner that reads nothing blocks its own job, as every terminal does; but the job can be cancelled.
    let (owner, long) = Viewer::run(&daemon, &daemon.in_terminal("echo $$ > note; exec seq 1000000"));
    wait::for_line(&daemon.home().join("note"), "");
    assert_eq!(daemon.cancel(&[long.id])[0].status, Status::Cancelled);
    drop(owner);
}

/// Returns the params that send a signal to a task's whole tree.
fn signal(id: TaskId, signal: &str) -> SignalParams {
    SignalParams { id: id.into(), signal: signal.to_owned(), tree: true }
}

#[test]
fn job_continued_by_another_viewer_does_not_wait_for_its_stopped_owner() {
    let daemon = TestDaemon::start();
    let line = "echo up; read go; seq 1000000; read go; echo last";
    let (mut owner, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    owner.until_seen("up");
    owner.call::<TaskSignal>(&signal(task.id, "TSTP"));
    owner.until("the stop", |viewer| viewer.stops == 1);
    // From here on the owner does not read, as `bgctl` after Ctrl-Z.
    let mut other = Viewer::attach(&daemon, task.id, None);
    other.call::<TaskSignal>(&signal(task.id, "CONT"));
    other.type_keys(task.id, "go\r");
    other.until("the last line", |viewer| viewer.screen().ends_with("\n1000000"));
    // When it is back, it is shown the screen as it is now, and gets every byte again.
    owner.call::<TaskSignal>(&signal(task.id, "CONT"));
    owner.until("the last line", |viewer| viewer.screen().ends_with("\n1000000"));
    assert_eq!(owner.redraws.len(), 1);
    other.type_keys(task.id, "go\r");
    for viewer in [&mut owner, &mut other] {
        assert_eq!(viewer.ended(task.id).status, Status::Completed);
        assert!(viewer.screen().ends_with("\nlast"), "{viewer:?}");
    }
}

#[test]
fn offsets_of_a_later_attempt_are_those_in_the_whole_output() {
    let daemon = TestDaemon::start();
    let retry = Retry { times: 1, delay_ms: Some(0), max_delay_ms: None, codes: Vec::new(), signal: false };
    let line = "echo begun; read go; test $go = again";
    let params = SubmitParams { foreground: false, retry: Some(retry), ..daemon.in_terminal(line) };
    let id = daemon.submit_with(&params).id;
    Viewer::attach(&daemon, id, None).type_keys(id, "once\r");
    wait::poll_until("the second attempt", || (daemon.wait_running(id).attempt == Some(2)).then_some(()));
    let mut viewer = Viewer::attach(&daemon, id, None);
    viewer.until_seen("begun");
    viewer.type_keys(id, "again\r");
    viewer.until_seen("again");
    assert_eq!(viewer.ended(id).status, Status::Completed);
    assert_eq!(viewer.next, Some(daemon.output(id).len() as u64));
}

#[test]
fn attach_draws_full_screen_program_and_main_screen_after_it() {
    let daemon = TestDaemon::start();
    let line = "echo before; printf '\\033[?1049h\\033[?25l\\033[?2004h\\033[2J\\033[3;5Hhello \\033[7mworld'; \
        read go; printf '\\033[m\\033[?2004l\\033[?25h\\033[?1049l'; echo after; read go";
    let (mut owner, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    owner.until_shown("world");
    assert_eq!(owner.restore, "\u{1b}[?2004l\u{1b}[?25h\u{1b}[?1049l\u{1b}[m");
    let mut second = Viewer::attach(&daemon, task.id, None);
    assert_eq!(second.restore, owner.restore);
    let screen = second.emulated();
    assert_eq!(
        (screen.alternate_screen(), screen.hide_cursor(), screen.bracketed_paste()),
        (true, true, true)
    );
    assert_eq!(screen.contents(), "\n\n    hello world");
    assert!(screen.cell(2, 10).is_some_and(vt100::Cell::inverse));
    assert_eq!(screen.cursor_position(), (2, 15));
    second.type_keys(task.id, "go\r");
    // The main screen from before it attached is drawn as soon as it becomes visible.
    second.until("the main screen", |viewer| viewer.screen().ends_with("after"));
    second.until("the main screen as it is", |viewer| viewer.screen() == "before\nafter");
    owner.until_seen("after");
    assert_eq!(owner.screen(), "before\nafter");
    // Attributes were used and, as far as the daemon knows, may still be in use.
    assert_eq!((&*owner.restore, &*second.restore), ("\u{1b}[m", "\u{1b}[m"));
    owner.type_keys(task.id, "go\r");
    assert_eq!(owner.ended(task.id).status, Status::Completed);
}

#[test]
fn number_of_terminal_viewers_is_limited() {
    let daemon = TestDaemon::start();
    let (mut owner, task) = Viewer::run(&daemon, &daemon.in_terminal("read go"));
    let mut others: Vec<_> = (1..TERMINAL_VIEWERS).map(|_| Viewer::attach(&daemon, task.id, None)).collect();
    let mut late = Viewer::connect(&daemon);
    let error = late.try_attach(task.id, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooManyRequests, "{error}");
    assert!(error.message.contains("32 clients show the terminal of task"), "{error}");
    // Attaching again does not count twice.
    others[0].try_attach(task.id, None).unwrap();
    others[1].call::<TaskDetach>(&leave(task.id));
    late.try_attach(task.id, None).unwrap();
    owner.type_keys(task.id, "go\r");
    for viewer in others.iter_mut().chain([&mut late, &mut owner]) {
        viewer.ended(task.id);
    }
    assert!(late.screen().ends_with("go") && others[1].screen().is_empty(), "{late:?} {:?}", others[1]);
}

#[test]
fn invalid_terminal_requests_are_refused_with_reason() {
    let daemon = TestDaemon::start();
    let (mut owner, task) = Viewer::run(&daemon, &daemon.in_terminal("read go"));
    let plain = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(plain);
    let mut other = Viewer::connect(&daemon);
    let error = other.try_attach(plain, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.data.hint.as_deref().is_some_and(|hint| hint.contains("bgctl output --follow")));
    let error = other.try_call::<TaskResize>(&size(task.id, 10, 10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
    let error = other.try_call::<TaskDetach>(&leave(task.id)).unwrap_err();
    assert!(error.message.contains("does not show the terminal"), "{error}");
    let error = owner.try_call::<TaskDetach>(&leave(task.id)).unwrap_err();
    assert!(error.message.contains("is a foreground job of this connection"), "{error}");
    for (rows, cols) in [(0, 80), (24, 0), (1001, 80), (24, 1001)] {
        let error = owner.try_call::<TaskResize>(&size(task.id, rows, cols)).unwrap_err();
        assert!(error.message.contains("1 to 1000"), "{error}");
        assert_eq!(
            other.try_attach(task.id, Some((rows, cols))).unwrap_err().kind(),
            ErrorKind::InvalidParams
        );
    }
    let eof = WriteParams { id: task.id.into(), data: String::new(), encoding: Encoding::Utf8, eof: true };
    let error = owner.try_call::<TaskWrite>(&eof).unwrap_err();
    assert!(error.message.contains("`eof`") && error.message.contains("terminal"), "{error}");
    // As the hint says.
    owner.type_keys(task.id, "\u{4}");
    assert_eq!(owner.ended(task.id).exit, Some(Exit::Code(1)));
    for error in [
        other.try_attach(task.id, None).unwrap_err(),
        owner.try_call::<TaskResize>(&size(task.id, 10, 10)).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotRunning, "{error}");
    }
    daemon.cancel(&[plain]);
}

#[test]
fn passed_streams_are_exact_and_others_are_the_terminal() {
    let daemon = TestDaemon::start();
    let (input, mut input_end) = std::io::pipe().unwrap();
    let (mut error_end, error) = std::io::pipe().unwrap();
    let line = "test -t 1 && cat >&2; echo seen >/dev/tty; tty <&1";
    let params = SubmitParams { stdin: Some(Stdin::Fd), stderr: Some(Given::Fd), ..daemon.in_terminal(line) };
    let (mut viewer, task) = Viewer::run_with(&daemon, &params, &[input.as_fd(), error.as_fd()]);
    drop((input, error));
    std::io::Write::write_all(&mut input_end, b"exact\nbytes\0\xff").unwrap();
    drop(input_end);
    let mut received = Vec::new();
    error_end.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"exact\nbytes\0\xff");
    assert_eq!(viewer.ended(task.id).status, Status::Completed);
    let text = String::from_utf8(viewer.shown).unwrap();
    assert!(text.starts_with("seen\r\n/dev/pts/"), "{text}");
}

#[test]
fn full_disk_does_not_stop_terminal_output() {
    let daemon = on_a_small_disk("size=8m");
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal("seq 2000000; echo the end"));
    let task = viewer.ended(task.id);
    assert_eq!(task.status, Status::Completed);
    let lines = (1..=2_000_000).fold(String::new(), |text, number| text + &number.to_string() + "\n");
    assert!(viewer.shown == shown(&(lines + "the end\n")), "not everything was shown");
    // Every byte shown is either in the file or counted as lost.
    let Output { bytes, lost_bytes, dropped_bytes, .. } = task.output;
    assert_eq!((bytes + lost_bytes, dropped_bytes), (viewer.shown.len() as u64, 0));
    assert!((1..8 << 20).contains(&bytes), "{bytes}");
    assert_eq!(daemon.output(task.id).len() as u64, bytes);
    let warnings = viewer.call::<DaemonStatusOf>(&NoParams {}).warnings;
    assert!(warnings.iter().any(|warning| warning.contains("full")), "{warnings:?}");
}

#[test]
fn writes_to_stopped_job_wait_up_to_a_limit() {
    let daemon = TestDaemon::start();
    let line = "stty raw -echo; echo ready; kill -STOP $$; head -c 100000 | cksum";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    viewer.until("a stopped job", |viewer| viewer.stops == 1);
    let data = "x".repeat(1000);
    let params = WriteParams { id: task.id.into(), data, encoding: Encoding::Utf8, eof: false };
    // The kernel buffers some, and 64 wait behind that.
    let calls: Vec<_> = (0..100).map(|_| viewer.send::<TaskWrite>(&params)).collect();
    viewer.until("a refusal", |viewer| viewer.refusals() > 0);
    viewer.call::<TaskSignal>(&SignalParams { id: task.id.into(), signal: "CONT".into(), tree: true });
    let mut written = 0;
    for call in calls {
        match viewer.answer(call) {
            Ok(_) => written += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::TooManyRequests, "{error}"),
        }
    }
    assert!((64..100).contains(&written), "{written}");
    viewer.type_keys(task.id, &"x".repeat(100_000 - 1000 * written));
    assert_eq!(viewer.ended(task.id).status, Status::Completed);
    let mut cksum = std::process::Command::new("sh");
    let expected = cksum.args(["-c", "head -c 100000 /dev/zero | tr '\\0' x | cksum"]).output().unwrap();
    assert!(viewer.shown.windows(expected.stdout.len()).any(|part| part == expected.stdout), "{viewer:?}");
}

#[test]
fn daemon_closes_terminals_of_ended_jobs() {
    let daemon = TestDaemon::start();
    let terminals = || {
        let open = std::fs::read_dir(daemon.process().proc("fd")).unwrap().flatten();
        open.filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .filter(|target| target.starts_with("/dev/pts") || target.starts_with("/dev/ptmx"))
            .count()
    };
    for _ in 0..10 {
        let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal("echo word"));
        viewer.ended(task.id);
        let error =
            SubmitParams { shell: None, argv: Some(vec!["/no/such".into()]), ..daemon.in_terminal("") };
        let (mut viewer, task) = Viewer::run(&daemon, &error);
        assert_eq!(viewer.ended(task.id).status, Status::Failed);
    }
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal("read go"));
    viewer.type_keys(task.id, "go");
    // Only the two sides of this terminal remain open. Each query is a round trip through the dispatcher, so this does
    // not spin.
    let end = std::time::Instant::now() + wait::PATIENCE;
    while terminals() != 2 {
        assert!(std::time::Instant::now() < end, "{} are open", terminals());
        daemon.status();
    }
    drop(viewer);
    assert_eq!(daemon.block(&[task.id])[0].status, Status::Cancelled);
    let kept = File::open(&*daemon.task(task.id).output.path).map(|file| file.metadata().unwrap().len());
    assert!(kept.is_ok_and(|length| length > 0), "what was typed was shown and so is kept");
}
