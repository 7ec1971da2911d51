//! The prompt: jobs beside it, notices above it, and the console's own commands.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use bgd_tests::shared::event::{Event, EventKind};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::Status;
use bgd_tests::{Outcome, Relay, Terminal, TestDaemon, wait};

use super::{at_prompt, console, fifo, hanging, interrupt_until, run_line, task_of};
use crate::no_answer::Stopped;

#[test]
fn output_of_jobs_beside_prompt_appears_above_it() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    let mut fifo = fifo(&daemon);
    console.type_line("read x <fifo; echo $x; printf '\\033[31mtw'; echo o; exit 3 &");
    console.wait_text("[Ctrl-B] Background");
    at_prompt(&mut console);
    console.type_keys("echo a half li");
    console.wait_line("~> echo a half li");
    fifo.write_all(b"one\n").unwrap();
    console.wait_text("\n[1] one\n[1] two\n[1] failed (3)  read x");
    console.wait_line("~> echo a half li");
    console.type_line("ne");
    console.wait_text("\na half line\n");
    at_prompt(&mut console);
}

#[test]
fn flooding_job_beside_prompt_does_not_block_other_lines() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    let mut fifo = fifo(&daemon);
    console.type_line("yes 'a line of the flood' & read x <fifo; kill $!; wait; echo; echo over &");
    console.wait_text("[1] a line of the flood\n");
    for round in 0..20 {
        // Both in one write, so that each line ends while something is printed above the next one.
        console.type_keys(format!("echo first {round}\recho second {round}\r"));
        for text in [format!("\nsecond {round}\r\n"), "~> ".to_owned()] {
            let mut seen = Vec::new();
            console.drain(|bytes| {
                seen.extend_from_slice(bytes);
                let is_there = seen.windows(text.len()).any(|part| part == text.as_bytes());
                seen.drain(..seen.len().saturating_sub(text.len()));
                !is_there
            });
        }
    }
    fifo.write_all(b"enough\n").unwrap();
    console.wait_text("[1] over\n[1] completed  yes");
    at_prompt(&mut console);
    run_line(&mut console, "echo still there");
}

#[test]
fn r55_end_of_background_task_is_shown_above_prompt() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_keys("echo ty");
    console.wait_line("~> echo ty");
    daemon.run(&["submit", "--session", "here", "-d", "mine", "--", "true"]).success();
    console.wait_text(": \"mine\"\n");
    console.wait_line("~> echo ty");
    // The notice waits while a job has the terminal.
    console.type_line("ped; stty -echo; read x; echo end");
    console.wait_text("\ntyped");
    let id = daemon.run(&["submit", "--session", "here", "-d", "late", "--shell", "exit 4"]).success();
    daemon.run(&["submit", "--session", "other", "-d", "not ours", "--", "true"]).success();
    daemon.run(&["block", id.stdout_text().trim()]).expect_code(1);
    console.type_line("");
    let failed = format!("\nend\n[BACKGROUND TASK FAILED] {} exited with code 4", &id.stdout_text()[..8]);
    console.wait_text(&failed);
    at_prompt(&mut console);
    assert!(!console.screen().contains("not ours"), "{console:?}");
}

#[test]
fn r55_notices_are_shown_again_after_only_their_connection_broke() {
    let daemon = TestDaemon::start();
    let relay = Relay::start(daemon.home(), daemon.socket());
    let mut command = daemon.bgctl(&["console", "--session", "here"]);
    command.env("BGD_SOCKET", relay.socket());
    let mut console = Terminal::open(&command);
    at_prompt(&mut console);
    console.type_line("cat &");
    console.wait_text("[1] ");
    relay.cut_where_said("\"events.subscribe\"");
    for _ in 0..2 {
        let id = daemon.submit_in("here", "true");
        console.wait_text(&format!("[BACKGROUND TASK COMPLETED] {}", id.short()));
        assert!(!console.screen().contains("bgctl: "), "{console:?}");
    }
    run_line(&mut console, "jobs");
    assert!(console.screen().contains("foreground"), "the jobs are still there: {console:?}");
}

#[test]
fn stopped_job_waits_beside_prompt_until_resumed() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_line("cat -u");
    console.wait_text("[Ctrl-B] Background");
    console.type_line("one");
    console.wait_text("\none\none");
    console.type_keys("\x1a");
    console.wait_text("[1] ");
    console.wait_text(" stopped  cat -u\n");
    at_prompt(&mut console);
    console.type_line("fg");
    console.wait_text("~> fg\n");
    console.type_line("two");
    console.wait_text("\ntwo\ntwo");
    console.type_keys("\x1a");
    console.wait("a prompt", |screen| screen.contents().trim_end().ends_with("stopped  cat -u\n~>"));
    // It continues once it is moved to the background.
    console.type_keys("\x02");
    console.wait_text("manually backgrounded by user");
    let task = task_of(&daemon, "cat -u");
    run_line(&mut console, "jobs");
    assert!(console.screen().contains(&format!("{}  running     cat -u", task.id.short())), "{console:?}");
    console.type_line(&format!("fg {}", task.id.short()));
    console.wait("the terminal of the task", |screen| {
        screen.contents().starts_with("[Ctrl-B] Detach (the task keeps running)\none\none\n")
    });
    console.type_line("three");
    console.wait_text("three\nthree");
    console.type_keys("\x02");
    at_prompt(&mut console);
    let task = daemon.task(task.id);
    assert_eq!((task.status, task.foreground), (Status::Running, false));
    daemon.cancel(&[task.id]);
    console.wait_text(&format!("[BACKGROUND TASK CANCELLED] {}", task.id.short()));
}

#[test]
fn resumed_job_has_the_size_of_the_terminal() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.resize((24, 80));
    console.type_line("trap 'stty size' WINCH; sleep 1000 & echo up; while :; do wait; done");
    console.wait_text("\nup\n");
    console.resize((40, 120));
    console.wait_text("\n40 120\n");
    console.type_keys("\x1a");
    console.wait_text(" stopped ");
    at_prompt(&mut console);
    console.resize((24, 80));
    console.type_line("fg");
    console.wait_text("\n24 80\n");
    console.type_keys("\x03");
    at_prompt(&mut console);
}

#[test]
fn task_visited_between_its_attempts_can_be_left() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    let args =
        ["submit", "--pty", "--retry", "1", "--retry-delay", "1h", "--shell", "echo up; read x; exit 3"];
    let id = daemon.run(&args).success().word::<TaskId>();
    console.type_line(&format!("fg {}", id.short()));
    console.wait_text("up\n");
    console.type_line("");
    console.wait_text("attempt 1 has ended");
    console.type_keys("\x02");
    at_prompt(&mut console);
    assert!(!console.screen().contains("task.attach"), "{console:?}");
    daemon.cancel(&[id]);
}

#[test]
fn job_can_be_stopped_and_resumed_more_often_than_request_limit() {
    let daemon = TestDaemon::builder().config("[limits]\nrequests = 8").start();
    let mut console = console(&daemon);
    console.type_line("cat -u");
    console.wait_text("[Ctrl-B] Background");
    for round in 0..10 {
        console.type_line(&format!("words {round}"));
        console.wait_text(&format!("words {round}\nwords {round}"));
        console.type_keys("\x1a");
        console.wait("a prompt", |screen| screen.contents().trim_end().ends_with("stopped  cat -u\n~>"));
        console.type_line("fg");
        console
            .wait("the job", |screen| screen.contents().trim_end().ends_with("\n~> fg\n[Ctrl-B] Background"));
    }
    console.type_keys("\x04");
    at_prompt(&mut console);
    run_line(&mut console, "echo still there");
}

#[test]
fn ctrl_c_interrupts_hanging_cd() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_line("cd \"$(exec sleep 1001)\"");
    let shell = hanging(&daemon, "sleep 1001");
    console.type_keys("\x03");
    console.wait_text("bgctl: cd: interrupted\n");
    at_prompt(&mut console);
    shell.gone();
    run_line(&mut console, "echo still there");
}

/// Types a line while the daemon stands still, and gives it up.
#[track_caller]
fn given_up<'a>(daemon: &'a TestDaemon, console: &mut Terminal) -> Stopped<'a> {
    let stopped = Stopped::now(daemon);
    console.type_line("exec sleep 1002");
    interrupt_until(console, || !console.is_sane());
    console.wait_text("bgctl: the daemon has not answered: interrupted\n");
    at_prompt(console);
    stopped
}

/// Reports whether the job of [`given_up`] was cancelled.
fn is_undone(event: &Event) -> bool {
    event.kind == EventKind::Cancelled && event.task.description == "exec sleep 1002"
}

#[test]
fn ctrl_c_ends_wait_for_stopped_daemon_and_its_late_job_is_cancelled() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let mut console = console(&daemon);
    drop(given_up(&daemon, &mut console));
    watch.until(is_undone);
    run_line(&mut console, "echo still there");
    let stopped = Stopped::now(&daemon);
    console.type_line("exit 3");
    let process = console.process();
    interrupt_until(&console, || !process.is_alive());
    let ended = console.ended();
    drop(stopped);
    assert_eq!(ended.code(), Some(3));
}

#[test]
fn late_job_of_stopped_daemon_is_cancelled_although_the_next_one_has_the_terminal() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let mut console = console(&daemon);
    let stopped = given_up(&daemon, &mut console);
    console.type_line("echo up; exec sleep 1003");
    wait::poll_until("the line was taken", || console.is_sane().then_some(()));
    drop(stopped);
    watch.until(is_undone);
    // Its output shows that the console has the answer about it.
    console.wait_text("\nup\n");
    console.type_keys("\x03");
    console.wait_text("[failed (SIGINT)]");
    at_prompt(&mut console);
}

#[test]
fn fg_restores_screen_of_stopped_full_screen_program() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    fs::write(daemon.home().join("text"), "first line\n").unwrap();
    console.type_line("less text");
    console.wait_alternate(true);
    console.wait_text("first line");
    console.type_keys("\x1a");
    console.wait_alternate(false);
    at_prompt(&mut console);
    console.type_line("fg %1");
    console.wait_alternate(true);
    console.wait_text("first line");
    console.type_keys("q");
    console.wait_alternate(false);
    at_prompt(&mut console);
    assert!(console.screen().contains("stopped  less text"), "{console:?}");
    assert!(!console.screen().contains("first line"), "{console:?}");
}

#[test]
fn jobs_inherit_console_size_folder_and_session() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    fs::create_dir(daemon.home().join("a folder")).unwrap();
    run_line(&mut console, "stty size; echo $BGD_SESSION");
    assert!(console.screen().contains("\n24 80\nhere\n"), "{console:?}");
    console.type_line("cd 'a folder'");
    console.wait_line("~/a folder>");
    console.type_line("pwd; echo $OLDPWD");
    let home = daemon.home().display();
    console.wait_text(&format!("\n{home}/a folder\n{home}\n"));
    console.wait_line("~/a folder>");
    console.type_line("cd nowhere");
    console.wait_text("bgctl: cd: can't cd to nowhere");
    console.type_line("cd -");
    at_prompt(&mut console);
    console.resize((30, 100));
    run_line(&mut console, "stty size");
    assert!(console.screen().contains("\n30 100\n"), "{console:?}");
    // A task that a job submits belongs to the session, too.
    let bgctl = bgd_tests::bgctl_path();
    console.type_line(&format!("{} submit -d inner -- true >/dev/null", bgctl.display()));
    console.wait_text(": \"inner\"\n");
}

#[test]
fn lines_typed_at_once_run_one_by_one() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_keys("echo one\recho two\recho three\r");
    console.wait_text("\nthree\n");
    at_prompt(&mut console);
    let order = ["\none\n", "\ntwo\n", "\nthree\n"].map(|text| console.screen().find(text).unwrap());
    assert!(order.is_sorted(), "{console:?}");
}

#[test]
fn ctrl_c_clears_line_or_interrupts_job() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_keys("rm -rf");
    console.wait_line("~> rm -rf");
    console.type_keys("\x03");
    at_prompt(&mut console);
    console.type_line("echo up; exec sleep 1000");
    console.wait_text("\nup");
    console.type_keys("\x03");
    console.wait_text("\n[failed (SIGINT)]\n");
    at_prompt(&mut console);
}

#[test]
fn history_is_saved_privately_and_recalled() {
    let daemon = TestDaemon::start();
    let mut first = console(&daemon);
    run_line(&mut first, "echo remembered");
    run_line(&mut first, " echo not this");
    first.type_keys("\x04");
    assert!(first.ended().success());
    let file = daemon.home().join("state/bgd/console_history");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_to_string(&file).unwrap(), "#V2\necho remembered\n");
    let mut second = console(&daemon);
    second.type_keys("\x1b[A");
    second.wait_line("~> echo remembered");
    second.type_line("");
    second.wait_text("\nremembered\n");
    at_prompt(&mut second);
}

#[test]
fn invalid_lines_and_failed_commands_are_reported() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    for (line, expected) in [
        ("!", "bgctl: `!` needs a command: `!COMMAND` runs it directly"),
        ("@nobody", "bgctl: `@nobody` needs a prompt: "),
        ("fg", "bgctl: no jobs next to the prompt"),
        ("fg %3", "bgctl: no job %3"),
        ("fg abcdef", "bgctl: there is no task abcdef"),
        ("nosuchprogram", "[failed (127)]"),
        ("kill -9 $$", "[failed (SIGKILL)]"),
        ("help", "LINE &          run next to the prompt"),
    ] {
        run_line(&mut console, line);
        assert!(console.screen().contains(expected), "{line}: {console:?}");
    }
}

#[test]
fn console_refuses_missing_terminal_and_reserved_key() {
    let daemon = TestDaemon::start();
    let outcome = Outcome::of(daemon.bgctl(&["console"]).stdin(Stdio::null()));
    assert_eq!(outcome.code, 2);
    assert!(outcome.stderr.contains("bgctl: the console needs a terminal"), "{}", outcome.stderr);
    let mut terminal = Terminal::bgctl(&daemon, &["console", "--key", "ctrl-m"]);
    assert_eq!(terminal.ended().code(), Some(2));
    assert!(terminal.screen().contains("is Enter, which the job needs itself"), "{terminal:?}");
}

#[test]
fn r55_console_given_the_current_session_shows_its_notices() {
    let daemon = TestDaemon::start();
    let mut console = Terminal::open(daemon.bgctl(&["console", "--session", "."]).env("BGD_SESSION", "mine"));
    at_prompt(&mut console);
    run_line(&mut console, "echo $BGD_SESSION >session");
    assert_eq!(fs::read_to_string(daemon.home().join("session")).unwrap(), "mine\n");
    daemon.run(&["submit", "--session", "mine", "-d", "ours", "--", "true"]).success();
    console.wait_text(": \"ours\"\n");
}

#[test]
fn end_of_visited_task_of_another_session_is_shown() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    let line = "stty -echo; echo up; read x; exit 3";
    let submit = ["submit", "--session", "other", "--pty", "--shell", line];
    let id: TaskId = daemon.run(&submit).success().word();
    daemon.wait_running(id);
    console.type_line(&format!("fg {}", id.short()));
    console.wait_text("up\n");
    console.type_line("");
    console.wait_text("[failed (3)]\n");
    at_prompt(&mut console);
}

#[test]
fn repeated_visits_of_restarted_task_leave_no_subscription() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    let line = "stty -echo; echo up $BGD_ATTEMPT; read x; exit $x";
    let submit =
        ["submit", "--session", "here", "--retry", "1", "--retry-delay", "1ms", "--pty", "--shell", line];
    let id: TaskId = daemon.run(&submit).success().word();
    daemon.wait_running(id);
    // The console's own.
    let before: u64 = 1;
    let subscribed = |more| {
        wait::poll_until("the subscriptions", || {
            (daemon.status().subscriptions == before + more).then_some(())
        });
    };
    // That of `wait_running` may count a moment longer.
    subscribed(0);
    let visit = |console: &mut Terminal| {
        run_line(console, "# a clear screen");
        console.type_line(&format!("fg {}", id.short()));
        console.wait_text("up 1\n");
        subscribed(1);
    };
    for _ in 0..3 {
        visit(&mut console);
        console.type_keys("\x02");
        at_prompt(&mut console);
        subscribed(0);
    }
    visit(&mut console);
    console.type_line("3");
    console.wait_text("up 2\n");
    console.type_line("0");
    console.wait_text("[BACKGROUND TASK COMPLETED]");
}
