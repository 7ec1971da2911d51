//! Jobs in terminals on real processes: they run, stop and end as in a user's own terminal, and as they do without one.

use std::fs;
use std::io::Read as _;
use std::os::fd::AsFd as _;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    CancelParams, DetachParams, Given, SignalParams, SubmitParams, TaskCancel, TaskDetach, TaskSignal,
};
use bgd_tests::shared::rlimit::Rlimit;
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::{Process, TestDaemon, Viewer, executable};
use rustix::process::Signal;

fn signal(id: TaskId, signal: &str, tree: bool) -> SignalParams {
    SignalParams { id: id.into(), signal: signal.into(), tree }
}

/// Returns a field of `/proc/PID/stat`: 3 is the state, 5 the process group, 6 the session, 8 the foreground group.
#[track_caller]
fn stat(pid: i32, field: usize) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a living process");
    let (_, fields) = text.rsplit_once(") ").expect("a name in parentheses");
    fields.split(' ').nth(field - 3).expect("a field").to_owned()
}

#[track_caller]
fn leader_of(task: &Task) -> Process {
    let session = stat(task.pid.expect("a running task"), 6).parse().expect("a number");
    Process::open(session).expect("a living leader")
}

/// Runs the same command with a terminal and without one, and returns how both ended.
#[track_caller]
fn both_ways(daemon: &TestDaemon, params: &SubmitParams) -> [Task; 2] {
    let (mut viewer, task) = Viewer::run(daemon, params);
    let in_terminal = viewer.ended(task.id);
    let plainly = SubmitParams { pty: None, foreground: false, ..params.clone() };
    let plainly = daemon.submit_with(&plainly).id;
    [in_terminal, daemon.block(&[plainly]).remove(0)]
}

#[test]
fn terminal_job_ends_as_plain_job_does() {
    let daemon = TestDaemon::start();
    for (line, exit) in [
        ("exit 0", Exit::Code(0)),
        ("exit 7", Exit::Code(7)),
        ("exit 255", Exit::Code(255)),
        ("kill -TERM $$", Exit::Signal(15)),
        ("kill -KILL $$", Exit::Signal(9)),
        ("kill -PIPE $$", Exit::Signal(13)),
        ("kill -SEGV $$", Exit::Signal(11)),
        ("exec perl -e 'kill 40, $$'", Exit::Signal(40)),
    ] {
        let [in_terminal, plainly] = both_ways(&daemon, &daemon.in_terminal(line));
        assert_eq!(in_terminal.exit, Some(exit), "{line}");
        assert_eq!((in_terminal.status, in_terminal.error), (plainly.status, plainly.error), "{line}");
        assert_eq!((plainly.exit, plainly.lingering), (in_terminal.exit, in_terminal.lingering), "{line}");
    }
}

#[test]
fn start_failures_read_the_same_with_and_without_terminal() {
    let daemon = TestDaemon::start();
    let at = |name: &str| daemon.home().join(name);
    fs::write(at("plain"), "text").unwrap();
    executable::write(&at("orphan"), "#!/no/such/interpreter\n");
    let in_terminal = daemon.in_terminal("");
    let program = |argv: &[&str]| {
        let argv = argv.iter().map(|arg| (*arg).into()).collect();
        SubmitParams { shell: None, argv: Some(argv), ..in_terminal.clone() }
    };
    let long = "x".repeat(200_000);
    let elsewhere = SubmitParams { cwd: Some("/no/such/folder".into()), ..program(&["true"]) };
    for (params, word) in [
        (program(&["no-such-program"]), "no-such-program: command not found in PATH"),
        (program(&["/no/such/program"]), "/no/such/program: no such program"),
        (program(&["./plain"]), "./plain: not executable (permission denied)"),
        (
            program(&["./orphan"]),
            "./orphan: its interpreter (the program named in its first line) was not found",
        ),
        (program(&["/"]), "/: Is a directory"),
        (
            program(&["true", &long]),
            "true: the arguments and the environment are too long: the system allows 128 KiB each, and a quarter \
             of the stack limit, at most 6 MiB, in total",
        ),
        (elsewhere, "cannot enter the folder /no/such/folder: No such file or directory"),
    ] {
        let [in_terminal, plainly] = both_ways(&daemon, &params);
        assert_eq!((in_terminal.status, in_terminal.error.as_deref()), (Status::Failed, Some(word)));
        assert_eq!((plainly.status, plainly.error.as_deref()), (Status::Failed, Some(word)));
        assert_eq!((in_terminal.pid, in_terminal.exit, in_terminal.output.bytes), (None, None, 0));
    }
    assert!(daemon.task_processes().is_empty());
}

/// Everything that a process inherits, one item per line, except what identifies its task.
const SURROUNDINGS: &str = "env | grep -v ^BGD_TASK_ID= | sort; ulimit -a | grep -v ^locks; ulimit -Ha; umask; pwd; nice; \
    grep -E '^(Sig(Ign|Blk|Cgt|Pnd)|Cap|NoNewPrivs|Groups|Uid)' /proc/self/status; \
    cut -d. -f1 /proc/self/oom_score_adj; ls /proc/self/fd; cat /proc/self/cgroup";

#[test]
fn terminal_job_inherits_same_process_attributes_as_plain_job() {
    let mut daemon = TestDaemon::builder()
        // The daemon's own environment and limits do not reach its tasks.
        .env("ODD", "a=b\u{1}c")
        .prelude("ulimit -n 5000; umask 077; trap '' HUP USR1 PIPE")
        .start();
    let with = |pty: bool| {
        let mut params =
            SubmitParams { stdout: Some(Given::Fd), umask: Some(0o027), ..daemon.in_terminal(SURROUNDINGS) };
        params.rlimits.insert("nofile".into(), Rlimit { soft: Some(1234), hard: Some(2345) });
        params.rlimits.insert("core".into(), Rlimit { soft: Some(0), hard: Some(1 << 20) });
        if !pty {
            params.pty = None;
        }
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (mut viewer, task) = Viewer::run_with(&daemon, &params, &[writer.as_fd()]);
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(viewer.ended(task.id).status, Status::Completed, "{text}");
        text
    };
    let (in_terminal, plainly) = (with(true), with(false));
    assert_eq!(in_terminal, plainly);
    for part in ["1234\n", "2345\n", "ODD=a=b\u{1}c\n", "\n0027\n", "SigIgn:\t0000000000000000\n"] {
        assert!(plainly.contains(part), "{part:?} is not in\n{plainly}");
    }
    assert!(daemon.stop().success());
}

#[test]
fn terminal_job_gets_interactive_terminal() {
    let daemon = TestDaemon::start();
    let line = "tty; stty -a; ps -o stat= -p $$; echo $$ > note; read line; echo \"<$line>\"";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    let job = daemon.recorded_process("note");
    assert_eq!(daemon.wait_running(task.id).pid, Some(job.pid()), "the job's number, not its leader's");
    // In a group of its own, which is the terminal's foreground group.
    let leader = leader_of(&daemon.wait_running(task.id));
    assert_ne!(leader.pid(), job.pid());
    assert_eq!([stat(job.pid(), 5), stat(job.pid(), 8)], [job.pid().to_string(), job.pid().to_string()]);
    assert!(leader.cmdline().ends_with(&format!("--terminal-leader {}", task.id)), "{}", leader.cmdline());
    // Multi-byte characters are erased as a whole.
    viewer.type_keys(task.id, "wärong\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}ä right\r");
    viewer.until_shown("<wä right>");
    viewer.ended(task.id);
    let text = String::from_utf8(viewer.shown).unwrap();
    assert!(
        text.starts_with("/dev/pts/") && text.contains("\r\nisig icanon ") && text.contains("iutf8"),
        "{text}"
    );
    assert!(text.contains("rows 24; columns 80;"), "{text}");
}

#[test]
fn control_keys_interrupt_quit_and_end_input() {
    let daemon = TestDaemon::start();
    for (keys, exit) in [("\u{3}", Exit::Signal(2)), ("\u{1c}", Exit::Signal(3)), ("\u{4}", Exit::Code(0))] {
        let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal("echo ready; exec cat"));
        viewer.until_shown("ready");
        viewer.type_keys(task.id, keys);
        assert_eq!(viewer.ended(task.id).exit, Some(exit), "{keys:?}");
    }
}

#[test]
fn ctrl_z_stops_job_and_notifies_viewers() {
    let daemon = TestDaemon::start();
    let line = "echo $$ > note; sleep 1000 | cat & echo ready; while read word; do echo \"<$word>\"; done";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    viewer.until_shown("ready");
    let mut second = Viewer::attach(&daemon, task.id, None);
    let job = daemon.recorded_process("note");
    for stops in 1..4 {
        viewer.type_keys(task.id, "\u{1a}");
        viewer.until("a stopped job", |viewer| viewer.stops == stops);
        assert_eq!(stat(job.pid(), 3), "T");
        second.until("a stopped job", |viewer| viewer.stops == stops);
        // The kernel sends the signal before it echoes the key, so either may be shown first.
        second.until("the key's echo", |viewer| viewer.shown.ends_with(b"^Z"));
        // For the daemon, the task is running all the time.
        assert_eq!(daemon.task(task.id).status, Status::Running);
        viewer.call::<TaskSignal>(&signal(task.id, "CONT", true));
        // The answer comes once the signal has been sent, so wait for its effect before the next Ctrl-Z.
        viewer.type_keys(task.id, &format!("word {stops}\r"));
        viewer.until_shown(&format!("<word {stops}>"));
    }
    // A stopped job can be cancelled.
    viewer.type_keys(task.id, "\u{1a}");
    viewer.until("a stopped job", |viewer| viewer.stops == 4);
    assert_eq!(daemon.cancel(&[task.id])[0].status, Status::Cancelled);
    assert!(!job.is_alive());
}

#[test]
fn signal_reaches_job_and_spares_terminal_leader() {
    let daemon = TestDaemon::start();
    // The child writes its number itself: as a copy of the shell, it would still have the shell's traps.
    let line = "trap 'echo one' USR1; trap 'echo two' TERM; \
        sh -c 'echo $$ > note; exec sleep 1000' & echo ready; while :; do wait; done";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    viewer.until_shown("ready");
    let child = daemon.recorded_process("note");
    let leader = leader_of(&daemon.wait_running(task.id));
    viewer.call::<TaskSignal>(&signal(task.id, "USR1", false));
    viewer.until_shown("one");
    viewer.call::<TaskSignal>(&signal(task.id, "TERM", false));
    viewer.until_shown("two");
    assert!(child.is_alive() && leader.is_alive());
    // A signal for the whole tree reaches the child, too, but spares the leader.
    viewer.call::<TaskSignal>(&signal(task.id, "TERM", true));
    child.gone();
    viewer.until("a second word", |viewer| viewer.screen().matches("two").count() == 2);
    viewer.call::<TaskSignal>(&signal(task.id, "KILL", false));
    let task = viewer.ended(task.id);
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Signal(9))));
}

#[test]
fn cancel_ends_whole_tree_and_reports_exit_of_job() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"1h\"").start();
    let line = "trap 'echo asked; exit 3' TERM; \
        setsid sh -c 'trap \"\" HUP; echo $$ > apart; while :; do sleep 1000; done' & \
        echo $$ > note; while :; do wait; done";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    let (apart, job) = (daemon.recorded_process("apart"), daemon.recorded_process("note"));
    let task =
        viewer.call::<TaskCancel>(&CancelParams { ids: vec![task.id.into()], ..CancelParams::default() });
    let task = &task.tasks[0];
    assert_eq!((task.status, &task.exit), (Status::Cancelled, &Some(Exit::Code(3))));
    assert!(viewer.screen().ends_with("asked") && !job.is_alive() && !apart.is_alive());
    assert!(daemon.task_processes().is_empty());
}

#[test]
fn r71_a_lost_client_hangs_up_the_whole_tree() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"1h\"").start();
    let line = "trap 'echo hung up >> note; exit 0' HUP; \
        setsid sh -c 'trap \"echo apart >> note; exit 0\" HUP; echo $$ > apart; sleep 1000 & wait' & \
        echo $$ > note; while :; do wait; done";
    let (viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    daemon.recorded_process("apart");
    daemon.recorded_process("note");
    drop(viewer);
    let task = daemon.block(&[task.id]).remove(0);
    assert_eq!(task.status, Status::Cancelled);
    assert_eq!(task.error.as_deref(), Some("its terminal was closed or its client ended"));
    let note = fs::read_to_string(daemon.home().join("note")).unwrap();
    assert!(note.contains("hung up\n") && note.contains("apart\n"), "{note}");
}

#[test]
fn r71_job_ignoring_hangup_is_killed_after_grace_period() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"10ms\"").start();
    let line = "trap '' HUP; echo $$ > note; while :; do sleep 1000; done";
    let (viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    let job = daemon.recorded_process("note");
    drop(viewer);
    let task = daemon.block(&[task.id]).remove(0);
    assert_eq!((task.status, task.exit), (Status::Cancelled, Some(Exit::Signal(9))));
    job.gone();
}

#[test]
fn killed_terminal_leader_hangs_up_its_job() {
    let daemon = TestDaemon::start();
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal("echo ready; exec cat"));
    viewer.until_shown("ready");
    let task = daemon.wait_running(task.id);
    let job = Process::open(task.pid.unwrap()).unwrap();
    leader_of(&task).signal(Signal::KILL).unwrap();
    let task = viewer.ended(task.id);
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Signal(9))));
    job.gone();
    // A job that ignores the hang-up lingers, like everything that outlives its leader, and can be cancelled.
    let line =
        "trap '' HUP; echo $$ > note; while :; do read line; echo \"<$line>\" >> lines; sleep 1000; done";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    let job = daemon.recorded_process("note");
    leader_of(&daemon.wait_running(task.id)).signal(Signal::KILL).unwrap();
    let task = viewer.ended(task.id);
    assert_eq!((task.exit, task.lingering), (Some(Exit::Signal(9)), true));
    assert!(job.is_alive());
    assert!(!daemon.cancel(&[task.id])[0].lingering);
    assert!(!job.is_alive());
}

#[test]
fn processes_left_by_ended_job_keep_running() {
    let daemon = TestDaemon::start();
    // In the job's own group; in its own session without the terminal; and one that writes later.
    let line = "sleep 1000 & echo $! > one; setsid sh -c 'exec sleep 1000 <>/dev/null >&0 2>&0' & echo $! > two; \
        (trap '' HUP; echo up > three; while [ ! -e go ]; do sleep 0.01; done; echo late; exec sleep 1000) & \
        while [ ! -e three ]; do sleep 0.01; done; echo early";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    let task = viewer.ended(task.id);
    assert_eq!((task.status, task.lingering), (Status::Completed, true));
    let left = [daemon.recorded_process("one"), daemon.recorded_process("two")];
    assert!(left.iter().all(Process::is_alive), "{left:?}");
    // Later output is still shown and kept.
    fs::write(daemon.home().join("go"), "").unwrap();
    viewer.until_shown("early\r\nlate\r\n");
    let task = daemon.cancel(&[task.id]).remove(0);
    assert!(!task.lingering && left.iter().all(|process| !process.is_alive()));
    assert_eq!(daemon.output(task.id), b"early\r\nlate\r\n");
}

#[test]
fn daemonized_process_of_job_is_found_and_ended() {
    let daemon = TestDaemon::start();
    let line = "exec perl -MPOSIX -e 'fork and exit; POSIX::setsid(); fork and exit; \
        open STDIN, \"</dev/null\"; open STDOUT, \">/dev/null\"; open STDERR, \">/dev/null\"; \
        open N, \">note\"; print N \"$$\\n\"; close N; sleep 1000'";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(line));
    let task = viewer.ended(task.id);
    assert_eq!((task.status, task.lingering), (Status::Completed, true));
    let left = daemon.recorded_process("note");
    assert!(!daemon.cancel(&[task.id])[0].lingering);
    assert!(!left.is_alive());
}

#[test]
fn script_without_shebang_runs_in_shell() {
    let daemon = TestDaemon::start();
    let script = daemon.home().join("script");
    executable::write(&script, "echo $1 from $0; tty >/dev/null && test -t 2");
    let argv = Some(vec!["./script".into(), "word".into()]);
    let (mut viewer, task) =
        Viewer::run(&daemon, &SubmitParams { shell: None, argv, ..daemon.in_terminal("") });
    assert_eq!(viewer.ended(task.id).status, Status::Completed);
    assert_eq!(viewer.shown, b"word from ./script\r\n");
}

#[test]
fn daemon_kill_and_restart_leave_no_terminal_job_running() {
    let mut daemon = TestDaemon::start();
    // One that receives the hang-up, and one that ignores it and is ended by the next daemon.
    let (_viewer, _) = Viewer::run(&daemon, &daemon.in_terminal("echo $$ > one; exec sleep 1000"));
    let stubborn = "trap '' HUP; echo $$ > two; setsid sleep 1000 & while :; do sleep 1000; done";
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(stubborn));
    viewer.call::<TaskDetach>(&DetachParams { id: task.id.into(), background: true });
    let (hears, ignores) = (daemon.recorded_process("one"), daemon.recorded_process("two"));
    let leader = leader_of(&daemon.wait_running(task.id));
    daemon.kill9();
    hears.gone();
    leader.gone();
    assert!(ignores.is_alive());
    daemon.launch();
    assert!(!ignores.is_alive());
    assert!(daemon.task_processes().is_empty());
}

#[test]
fn terminal_leader_is_internal_and_small() {
    let daemon = TestDaemon::start();
    let mut command = std::process::Command::new(bgd_tests::bgd_path());
    let output = command.arg("--terminal-leader").stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("bgd: --terminal-leader is for internal use only: "), "{said}");
    let help = std::process::Command::new(bgd_tests::bgd_path()).arg("--help").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("leader"));
    // It is small: it does not keep the daemon's memory.
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal("echo ready; exec cat"));
    viewer.until_shown("ready");
    let leader = leader_of(&daemon.wait_running(task.id));
    // How much of the program's mappings is relocated depends on the build.
    let private = leader.own_memory_kb();
    assert!(private < 384, "{private} kB");
    viewer.type_keys(task.id, "\u{4}");
    viewer.ended(task.id);
}

/// On the stop key, waits a while, prints something, and then stops.
const LATE: &str = "perl -e '
    $| = 1;
    $SIG{TSTP} = sub {
        select(undef, undef, undef, 0.2); print \"last words\\n\"; $SIG{TSTP} = \"DEFAULT\"; kill TSTP => $$
    };
    print \"ready\\n\"; $line = <STDIN>; print \"goes on\\n\"'; exit $?";

/// Stops a job by the key and continues it. Its output before it stops is shown before the stop.
#[track_caller]
fn stops_and_continues(script: &str) {
    let daemon = TestDaemon::start();
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(script));
    viewer.until_shown("ready");
    viewer.type_keys(task.id, "\x1a");
    viewer.until("a stopped job", |viewer| viewer.stops == 1);
    assert!(viewer.screen().contains("last words"), "{viewer:?}");
    viewer.call::<TaskSignal>(&signal(task.id, "CONT", true));
    viewer.type_keys(task.id, "\n");
    viewer.until_shown("goes on");
    assert_eq!(viewer.ended(task.id).status, Status::Completed);
    assert_eq!(viewer.stops, 1);
}

#[test]
fn output_written_before_stop_is_shown_before_stop() {
    // The shell stops at once; the program that it runs does not.
    stops_and_continues(LATE);
}

/// Ignores the first stop, as less does when the key comes just before its read.
const MISSES: &str = "perl -e '
    $| = 1;
    $SIG{TSTP} = sub {
        $SIG{TSTP} = sub { print \"last words\\n\"; $SIG{TSTP} = \"DEFAULT\"; kill TSTP => $$ }
    };
    print \"ready\\n\"; $line = <STDIN>; print \"goes on\\n\"'; exit $?";

#[test]
fn job_that_ignores_first_stop_key_is_stopped_with_its_shell() {
    stops_and_continues(MISSES);
}
