//! Upgrades in place (R121): terminals with their screens, their viewers and their leaders continue, and so do
//! handed-over processes whose output is being drained.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use bgd_tests::handed::{Job, ended_with_open_pipe, line_of};
use bgd_tests::shared::request::{
    Encoding, ExitParams, HandoffStream, IdParams, ListParams, ResizeParams, SignalParams, SubmitParams,
    TaskExit, TaskGet, TaskList, TaskResize, TaskSignal, TaskWrite, WriteParams, WriteResult,
};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::upgrades::{failing, has_only_threads, lasting_threads, refused, upgrade};
use bgd_tests::{Terminal, TestDaemon, Viewer, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Echoes the lines that it reads, until one says `end`, and leaves job control alone.
const REPEATS: &str = "echo ready; while read word; do test $word = end && exit 9; echo \"<$word>\"; done";

#[test]
fn r121_terminal_with_viewers_and_leader_survives_upgrade() {
    let daemon = TestDaemon::start();
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(REPEATS));
    let id = task.id;
    viewer.until_shown("ready\r\n");
    let mut second = Viewer::attach(&daemon, id, Some((20, 70)));
    for round in 1..4 {
        upgrade(&daemon);
        viewer.type_keys(id, &format!("word {round}\r"));
        viewer.until_shown(&format!("<word {round}>\r\n"));
        // Its leader still reports when it stops.
        viewer.type_keys(id, "\u{1a}");
        viewer.until("a stopped job", |viewer| viewer.stops == round);
        second.until("a stopped job", |viewer| viewer.stops == round);
        // The stop survives an upgrade, too, and is not reported again.
        upgrade(&daemon);
        let cont = SignalParams { id: id.into(), signal: "CONT".into(), tree: true };
        viewer.call::<TaskSignal>(&cont);
    }
    let size = |rows, cols| ResizeParams { id: id.into(), rows, cols };
    second.call::<TaskResize>(&size(10, 50));
    assert_eq!((viewer.redraws.len(), second.redraws.len()), (0, 1), "nothing is drawn again");
    let third = Viewer::attach(&daemon, id, None);
    assert!(third.screen().contains("<word 3>"), "{third:?}");
    viewer.type_keys(id, "end\r");
    let ended = viewer.ended(id);
    assert_eq!((ended.status, ended.exit), (Status::Failed, Some(Exit::Code(9))));
    assert!(viewer.shown == daemon.output(id), "what is shown is not what is kept: {viewer:?}");
    assert_eq!((viewer.stops, viewer.next), (3, Some(ended.output.bytes)));
}

#[test]
fn r121_upgrades_neither_lose_nor_repeat_terminal_output() {
    let daemon = TestDaemon::start();
    let line = "read go; i=0; while [ $i -lt 20000 ]; do echo \"line $i of ümläuts 漢字\"; i=$((i+1)); done; read go";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    let mut second = Viewer::attach(&daemon, task.id, Some((24, 80)));
    viewer.type_keys(task.id, "go\r");
    for upgrades in 1..=5 {
        let until = format!("line {}00 ", upgrades * 20);
        thread::scope(|scope| {
            let upgraded = scope.spawn(|| upgrade(&daemon));
            viewer.until_shown(&until);
            upgraded.join().expect("the upgrade");
        });
    }
    viewer.until_shown("line 19999 of ümläuts 漢字\r\n");
    second.until_seen("line 19999 ");
    assert_eq!(second.screen(), viewer.screen());
    viewer.type_keys(task.id, "go\r");
    let ended = viewer.ended(task.id);
    let lines = (0..20_000).fold(String::from("go\r\n"), |text, number| {
        text + "line " + &number.to_string() + " of ümläuts 漢字\r\n"
    });
    assert!(viewer.shown == (lines + "go\r\n").as_bytes(), "bytes are missing, or there are more");
    assert!(viewer.shown == daemon.output(task.id) && viewer.next == Some(ended.output.bytes));
}

#[test]
fn r121_unread_terminal_input_survives_upgrade() {
    let daemon = TestDaemon::start();
    let line = "stty raw -echo; mkfifo go; echo ready; read go < go; head -c 200000 | cksum";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    viewer.until_shown("ready");
    let data: String = ('a'..='z').cycle().take(200_000).collect();
    let write = WriteParams { id: task.id.into(), data: data.clone(), encoding: Encoding::Utf8, eof: false };
    let call = viewer.send::<TaskWrite>(&write);
    for _ in 0..2 {
        upgrade(&daemon);
    }
    wait::for_reader(&daemon.home().join("go"), "go\n");
    let answer = viewer.answer(call).expect("it is written");
    let answer: WriteResult = serde_json::from_str(answer.get()).expect("the result of task.write");
    assert_eq!(answer.written, 200_000);
    let typed = daemon.home().join("typed");
    fs::write(&typed, data).unwrap();
    let expected = Command::new("cksum").stdin(File::open(&typed).unwrap()).output().expect("cksum");
    viewer.until_shown(String::from_utf8(expected.stdout).unwrap().trim());
}

#[test]
fn r121_editor_and_pager_look_unchanged_when_attached_after_upgrade() {
    let daemon = TestDaemon::start();
    fs::write(
        daemon.home().join("numbers"),
        (0..1000).fold(String::new(), |all, n| all + &format!("no {n}\n")),
    )
    .unwrap();
    for (program, keys, seen, more, end) in [
        (&["vim", "-u", "NONE", "-N", "text"][..], "ihello\rworld", "world", "! \u{1b}:1\rA!", "\u{1b}:wq\r"),
        (&["less", "numbers"], " ", "no 30", "G", "q"),
    ] {
        let mut terminal = Terminal::bgctl(&daemon, &[&["run", "--"], program].concat());
        terminal.wait_alternate(true);
        terminal.type_keys(keys);
        // While vim draws, it hides the cursor; less draws its prompt last.
        terminal.wait("it has drawn", |screen| {
            let is_drawn = program[0] != "less" || screen.contents().trim_end().ends_with("\n:");
            is_drawn && screen.contents().contains(seen) && !screen.hide_cursor()
        });
        let running = daemon.client().call::<TaskList>(&ListParams::default()).expect("a list").tasks;
        let task = running.into_iter().find(|task| task.status == Status::Running).expect("it runs");
        let mut before = Viewer::attach(&daemon, task.id, Some((24, 80)));
        before.until_seen(seen);
        upgrade(&daemon);
        let mut after = Viewer::attach(&daemon, task.id, Some((24, 80)));
        assert_eq!(after.screen(), before.screen(), "{program:?}");
        assert_eq!(after.emulated().cursor_position(), before.emulated().cursor_position(), "{program:?}");
        assert_eq!(after.restore, before.restore, "it is in the same modes");
        terminal.type_keys(more);
        let (cursor, text) = (after.emulated().cursor_position(), after.screen());
        for viewer in [&mut before, &mut after] {
            viewer.until("a change", |viewer| {
                (viewer.emulated().cursor_position(), viewer.screen()) != (cursor, text.clone())
            });
        }
        terminal.type_keys(end);
        assert!(terminal.ended().success(), "{program:?}: {terminal:?}");
        assert_eq!(daemon.block(&[task.id])[0].exit, Some(Exit::Code(0)));
    }
    assert_eq!(fs::read_to_string(daemon.home().join("text")).unwrap(), "hello!\nworld! \n");
}

#[test]
fn r121_attached_tmux_survives_upgrade() {
    let daemon = TestDaemon::start();
    let socket = daemon.home().join("tmux");
    let line = format!(
        "TERM=xterm tmux -f /dev/null -S {} new-session 'exec bash --norc --noprofile'",
        socket.display()
    );
    let id =
        daemon.submit_with(&SubmitParams { foreground: false, ..daemon.in_terminal(&line) }).id.to_string();
    let mut terminal = Terminal::bgctl(&daemon, &["attach", &id]);
    terminal.type_line("echo fi''rst");
    terminal.wait_text("\nfirst\n");
    for round in 1..3 {
        upgrade(&daemon);
        terminal.type_line(&format!("echo \"round {round}\" again"));
        terminal.wait_text(&format!("\nround {round} again\n"));
    }
    terminal.resize((20, 60));
    terminal.wait("a smaller screen", |screen| {
        screen.contents().lines().nth(19).is_some_and(|line| line.starts_with('['))
    });
    terminal.type_line("stty size");
    terminal.wait_text("\n19 60\n");
    terminal.type_line("exit");
    assert!(terminal.ended().success(), "{terminal:?}");
}

#[test]
fn r121_foreground_job_can_be_stopped_and_continued_after_upgrade() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl run --shell 'echo rea''dy; while read word; do echo \"<$word>\"; done'");
    shell.wait_text("\nready\n");
    for round in ["one", "two"] {
        upgrade(&daemon);
        shell.type_line(round);
        shell.wait_text(&format!("<{round}>"));
        shell.type_keys("\u{1a}");
        shell.wait_prompt();
        upgrade(&daemon);
        shell.fg();
    }
    shell.type_line("three");
    shell.wait_text("<three>");
    shell.type_keys("\u{4}");
    shell.wait_prompt();
    shell.type_line("echo code=$?");
    shell.wait_text("\ncode=0\n");
}

#[test]
fn r121_twenty_terminals_survive_many_upgrades_without_leaks() {
    let daemon = TestDaemon::start();
    let mut all: Vec<_> = (0..20).map(|_| Viewer::run(&daemon, &daemon.in_terminal(REPEATS))).collect();
    for (viewer, _) in &mut all {
        viewer.until_shown("ready\r\n");
    }
    let open = || daemon.process().descriptors().unwrap();
    upgrade(&daemon);
    let (descriptors, threads) = (open(), lasting_threads(&daemon));
    let mut longest = 0;
    for round in 0..20 {
        for (viewer, task) in &mut all {
            viewer.type_keys(task.id, &format!("{round}\r"));
        }
        let result = upgrade(&daemon);
        assert_eq!(result.active, 20);
        longest = longest.max(result.pause_ms);
        // Otherwise the next input may be shown before the answer.
        for (viewer, _) in &mut all {
            viewer.until_shown(&format!("<{round}>\r\n"));
        }
    }
    println!("the longest pause with 20 terminals: {longest} ms");
    wait::poll_until("as many descriptors as before", || (open() <= descriptors).then_some(()));
    has_only_threads(&daemon, &threads);
    for (viewer, task) in &mut all {
        viewer.type_keys(task.id, "end\r");
        let ended = viewer.ended(task.id);
        assert_eq!(ended.exit, Some(Exit::Code(9)));
        let expected = (0..20).fold(String::from("ready\r\n"), |text, n| text + &format!("{n}\r\n<{n}>\r\n"));
        assert_eq!(String::from_utf8_lossy(&viewer.shown), expected + "end\r\n");
        assert!(viewer.shown == daemon.output(task.id));
    }
}

#[test]
fn r122_terminal_survives_rolled_back_upgrade() {
    let daemon = TestDaemon::start();
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(REPEATS));
    viewer.until_shown("ready\r\n");
    refused(&daemon, &failing(&daemon, "turning-back"));
    viewer.type_keys(task.id, "word\r");
    viewer.until_shown("<word>\r\n");
    viewer.type_keys(task.id, "end\r");
    assert_eq!(viewer.ended(task.id).exit, Some(Exit::Code(9)));
    assert!(viewer.shown == daemon.output(task.id));
}

/// Returns the daemon's only file in a folder of outputs.
#[track_caller]
fn output_file(daemon: &TestDaemon) -> PathBuf {
    let state = daemon.state_dir();
    let found =
        Command::new("find").arg(&state).args(["-path", "*/output/*", "-type", "f"]).output().expect("find");
    let found = String::from_utf8(found.stdout).expect("text");
    PathBuf::from(found.lines().next().unwrap_or_else(|| panic!("no output in {}", state.display())))
}

#[track_caller]
fn digest(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().expect("sh");
    String::from_utf8(output.stdout).expect("text").split(' ').next().expect("a digest").to_owned()
}

#[test]
fn r121_gigabyte_is_drained_from_handed_over_pipe_across_five_upgrades() {
    let daemon = TestDaemon::builder().config("[limits]\noutput_bytes = \"4GiB\"").start();
    let line = "seq 1000000000 | head -c 1073741824";
    // The rest is written only once the last upgrade is over.
    let last = daemon.home().join("last");
    mkfifo(&last, Mode::S_IRWXU).unwrap();
    let gated =
        format!("seq 1000000000 | {{ head -c 1000000000; read x < {}; head -c 73741824; }}", last.display());
    let (mut job, pipe) = Job::shell(&daemon, &format!("read go; {gated}; exit 7"));
    let id = job.hand_over_pipe(&daemon, &pipe).id;
    drop(pipe);
    job.say("go");
    let size = || fs::metadata(output_file(&daemon)).expect("its output").len();
    for upgrades in 1..=5_u64 {
        wait::poll_until("more of it", || (size() > upgrades * 150_000_000).then_some(()));
        upgrade(&daemon);
        assert!(size() < 1 << 30, "it is not over yet");
    }
    wait::for_reader(&last, "\n");
    job.wait_dead();
    job.wait();
    assert_eq!(daemon.block(&[id])[0].output.bytes, 1 << 30);
    let kept = digest(&format!("sha256sum < {}", output_file(&daemon).display()));
    assert_eq!(kept, digest(&format!("{line} | sha256sum")));
}

#[test]
fn r121_handed_over_process_tree_and_exit_stay_tracked_after_upgrade() {
    let daemon = TestDaemon::start();
    let line = "sh -c 'mkfifo rest; read word < rest' >/dev/null & echo up; read word; echo \"<$word>\"; read word; exit 7";
    let mut command = Command::new("sh");
    // Its remaining processes are found by its group.
    let (mut job, pipe) = Job::piped(&daemon, command.args(["-c", line]).process_group(0));
    let mut client = daemon.client();
    let id = job.hand_over(&mut client, &[(HandoffStream::Stdout, pipe.as_fd())]).id;
    drop(pipe);
    let rest = daemon.home().join("rest");
    wait::for_file(&rest);
    for word in ["one", "end"] {
        upgrade(&daemon);
        job.say(word);
    }
    job.wait_dead();
    let code = job.wait().code().expect("a code");
    assert_eq!(code, 7);
    // On older kernels only the parent knows the exit, and reports it on the connection that was carried over.
    let reported = client.call::<TaskExit>(&ExitParams { id: id.into(), exit: Exit::Code(code) });
    assert!(reported.is_ok() || daemon.task(id).exit.is_some(), "{reported:?}");
    let ended = wait::poll_until("the end of its leader", || daemon.task(id).exit);
    assert_eq!(ended, Exit::Code(7));
    assert_eq!(daemon.output(id), b"up\n<one>\n");
    assert!(daemon.task(id).lingering, "{:?}", daemon.task(id));
    upgrade(&daemon);
    assert!(daemon.task(id).lingering);
    wait::for_reader(&rest, "over\n");
    wait::poll_until("nothing lingers", || (!daemon.task(id).lingering).then_some(()));
}

/// Nobody waits for the answer any more.
#[test]
fn r121_reported_exit_of_a_running_job_blocks_no_upgrade_once_the_reporter_is_gone() {
    let daemon = TestDaemon::start();
    let (mut job, pipe) = Job::shell(&daemon, "read word; exit 7");
    let id = job.hand_over_pipe(&daemon, &pipe).id;
    drop(pipe);
    let mut reporter = daemon.client();
    reporter.send::<TaskExit>(&ExitParams { id: id.into(), exit: Exit::Code(3) }, &[]).unwrap();
    // The reply shows that the daemon has already received the report.
    reporter.call::<TaskGet>(&IdParams { id: id.into() }).unwrap();
    drop(reporter);
    upgrade(&daemon);
    job.say("end");
    // What the system reports takes precedence.
    assert_eq!(daemon.block(&[id])[0].exit, Some(Exit::Code(7)));
}

#[test]
fn r121_pipes_outliving_their_task_are_drained_after_upgrade() {
    let daemon = TestDaemon::start();
    let (id, mut writer) = ended_with_open_pipe(&daemon);
    for word in ["second\n", "third\n"] {
        upgrade(&daemon);
        writer.write_all(word.as_bytes()).expect("somebody drains it");
    }
    wait::poll_until("all of it", || (daemon.output(id) == b"first\nsecond\nthird\n").then_some(()));
    daemon.run(&["clear", &id.to_string()]).success();
    for _ in 0..2 {
        upgrade(&daemon);
        writer.write_all(&vec![b'x'; 200_000]).expect("somebody takes it");
    }
}

#[test]
fn r121_handed_over_terminal_survives_upgrade() {
    let daemon = TestDaemon::start();
    let (mut job, mut said, id) = Job::in_terminal(&daemon, REPEATS);
    upgrade(&daemon);
    let mut viewer = Viewer::attach(&daemon, id, Some((24, 80)));
    viewer.until_seen("ready");
    upgrade(&daemon);
    viewer.type_keys(id, "word\r");
    viewer.until_shown("<word>\r\n");
    viewer.type_keys(id, "end\r");
    job.say("");
    assert_eq!(line_of(&mut said), "9");
    let ended = daemon.block(&[id]).remove(0);
    assert_eq!(ended.exit, Some(Exit::Code(9)));
    assert_eq!(String::from_utf8_lossy(&daemon.output(id)), "ready\r\nword\r\n<word>\r\nend\r\n");
}
