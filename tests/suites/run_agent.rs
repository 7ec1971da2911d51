//! R69: an agent's task in the foreground of `bgctl run --agent` and of the console.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::Command;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{ListParams, SubmitParams, TaskList};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::{FakeDaemon, Process, Terminal, processes_of, wait};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// A shell or, with arguments, a `bgctl`, whose agents find the fake agent's home.
#[track_caller]
fn terminal(daemon: &FakeDaemon, args: Option<&[&str]>) -> Terminal {
    let home = daemon.fake_home().0;
    fs::create_dir_all(&home).unwrap();
    match args {
        None => {
            let mut shell = Terminal::shell(daemon);
            assert_eq!(shell.run_line(&format!("export FAKE_ACP_HOME='{}'", home.display())), 0);
            shell
        }
        Some(args) => Terminal::open(daemon.bgctl(args).env("FAKE_ACP_HOME", home)),
    }
}

/// Returns the id in the sentence of R61, which is alone on its line.
#[track_caller]
fn moved(terminal: &Terminal) -> TaskId {
    let screen = terminal.screen();
    let sentence = "Command was manually backgrounded by user with ID ";
    let id = screen.lines().find_map(|line| line.strip_prefix(sentence));
    id.unwrap_or_else(|| panic!("no sentence on\n{screen}")).trim_end().parse().unwrap()
}

/// Asserts that the terminal has line mode and echo again, as its programs see it.
#[track_caller]
fn assert_sane(shell: &mut Terminal) {
    assert_eq!(shell.run_line("stty -a | grep -q ' icanon.* echo '"), 0);
}

#[track_caller]
fn only_task(daemon: &FakeDaemon) -> Task {
    let tasks = daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    daemon.task(tasks[0].id)
}

#[test]
fn r07_result_that_ends_with_a_line_in_colour_is_followed_by_no_empty_line() {
    let daemon = FakeDaemon::start(&[], "");
    let prompt = daemon.prompt_params("say \u{1b}[31mred\\n");
    let id = daemon.submit_with(&SubmitParams { description: Some("red".to_owned()), ..prompt }).id;
    daemon.block(&[id]);
    assert_eq!(daemon.result(id), "\u{1b}[31mred\n");
    let mut shell = terminal(&daemon, None);
    shell.type_line(&format!("bgctl output --result {id}; echo end"));
    shell.wait_text("\nred\nend\n");
}

#[test]
fn r69_agent_text_is_shown_as_it_arrives() {
    let daemon = FakeDaemon::start(&[], "");
    let mut shell = terminal(&daemon, None);
    shell.type_line("bgctl run --agent fake 'say one; await go; say  and two'; echo \"<$?>\"");
    shell.wait_text("\n[Ctrl-B] Background\none");
    // Typed text goes nowhere, and is not shown.
    shell.type_keys("zyxzyx");
    daemon.touch("go");
    assert_eq!(shell.wait_code(), 0);
    let task = only_task(&daemon);
    assert_eq!(
        (task.status, task.description.as_str()),
        (Status::Completed, "say one; await go; say  and two")
    );
    let shown = String::from_utf8(shell.shown()).unwrap();
    assert_eq!(shown.matches("\none and two").count(), 1, "{shown:?}");
    assert!(!shown.contains("zyxzyx"));
    assert_sane(&mut shell);
}

#[test]
fn r69_key_moves_agent_task_to_background() {
    let daemon = FakeDaemon::start(&[], "");
    let mut shell = terminal(&daemon, None);
    shell.type_line("bgctl run --agent fake 'say half; await go; say  rest'");
    shell.wait_line("half");
    shell.type_keys("\x02".repeat(20));
    shell.wait_prompt();
    let id = moved(&shell);
    let sentence = format!("\nhalf\nCommand was manually backgrounded by user with ID {id}\n$");
    assert!(shell.screen().ends_with(&sentence), "{shell:?}");
    let task = daemon.task(id);
    assert_eq!((task.status, task.foreground), (Status::Running, false));
    shell.type_line("echo \"<$?>\"");
    assert_eq!(shell.wait_code(), 0);
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.output(id), b"half rest\n");
    assert_sane(&mut shell);
}

#[test]
fn r69_direct_agent_task_ignores_background_key() {
    let daemon = FakeDaemon::start(&[], "");
    let mut shell = terminal(&daemon, None);
    shell.type_line("bgctl run --direct --agent fake 'say here; await go'; echo \"<$?>\"");
    shell.wait_line("here");
    shell.type_keys("\x02");
    daemon.touch("go");
    assert_eq!(shell.wait_code(), 0);
    assert!(!String::from_utf8_lossy(&shell.shown()).contains("ackground"));
    assert_eq!(only_task(&daemon).status, Status::Completed);
}

#[test]
fn r64_input_typed_during_direct_agent_task_goes_to_shell() {
    let daemon = FakeDaemon::start(&[], "");
    let mut shell = terminal(&daemon, None);
    shell.type_line("bgctl run --direct --agent fake 'say here; await go'");
    shell.wait_line("here");
    shell.type_line("echo typed-$((40 + 2))");
    shell.wait_text("typed-$");
    daemon.touch("go");
    shell.wait_text("\ntyped-42\n");
    assert_eq!(only_task(&daemon).status, Status::Completed);
}

#[test]
fn r69_ctrl_c_cancels_an_agents_task() {
    let daemon = FakeDaemon::start(&[], "");
    let mut shell = terminal(&daemon, None);
    shell.type_line("bgctl run --agent fake 'say half; hang'; echo next");
    shell.wait_line("half");
    shell.type_keys("\x03");
    shell.wait_prompt();
    assert!(!shell.screen().contains("\nnext"), "it ends what the shell was doing: {shell:?}");
    shell.type_line("echo \"<$?>\"");
    assert_eq!(shell.wait_code(), 130);
    assert_eq!(only_task(&daemon).status, Status::Cancelled);
    assert_sane(&mut shell);
}

#[test]
fn r69_agent_question_is_shown_with_answer_command() {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let mut shell = terminal(&daemon, None);
    shell.type_line("bgctl run --agent fake 'say first; ask Run make?'; echo \"<$?>\"");
    let id = {
        shell.wait_text("OPTION`: an id");
        only_task(&daemon).id
    };
    shell.wait_text(&format!("`bgctl answer {}", id.short()));
    assert!(shell.screen().contains("\nfirst\nquestion 1: "), "{shell:?}");
    daemon.run(&["answer", &id.to_string(), "allow"]).success();
    assert_eq!(shell.wait_code(), 0);
    assert_eq!(daemon.result(id), "firstallowed: allow-once");
}

#[test]
fn r69_only_agent_text_is_printed_without_terminal() {
    let daemon = FakeDaemon::start(&[], "");
    let outcome = daemon.bgctl_with_fake(&["run", "--agent", "fake", "stream 20000 abcdefghij"]).success();
    assert!(
        outcome.stdout_text() == "abcdefghij".repeat(20_000) + "\n",
        "{} bytes",
        outcome.stdout_text().len()
    );
    assert_eq!(outcome.stderr, "");
    let outcome = daemon.bgctl_with_fake(&["run", "--agent", "fake", "say so; error -32000 no, no"]);
    let outcome = outcome.expect_code(1);
    assert_eq!(outcome.stdout_text(), "so\n");
    let why = outcome.stderr;
    assert!(why.starts_with("bgctl: ") && why.contains("no, no"), "{why:?}");
}

#[test]
fn r71_closing_terminal_cancels_agent_task() {
    let daemon = FakeDaemon::start(&[], "");
    let mut terminal = terminal(&daemon, Some(&["run", "--agent", "fake", "say half; hang"]));
    terminal.wait_line("half");
    let id = only_task(&daemon).id;
    terminal.close();
    let task = daemon.ends_as(id, Status::Cancelled);
    assert!(task.error.unwrap().contains("its terminal was closed or its client ended"));
}

#[test]
fn r69_console_backgrounds_and_cancels_agent_tasks() {
    let daemon = FakeDaemon::start(&[], "");
    let mut console = terminal(&daemon, Some(&["console", "--session", "here"]));
    console.wait_line("~>");
    console.type_line("@fake say one; await go; say  and two");
    console.wait_line("one");
    console.type_keys("\x02");
    console.wait_text("\nCommand was manually backgrounded by user with ID ");
    console.wait_line("~>");
    let id = moved(&console);
    assert!(!daemon.task(id).foreground);
    daemon.touch("go");
    console.wait_text(": \"say one;");
    assert_eq!(daemon.output(id), b"one and two\n");
    console.type_line("@fake say three; hang");
    console.wait_line("three");
    console.type_keys("\x03");
    console.wait_text("\n[cancelled");
    console.wait_line("~>");
    console.type_line("@fake say four");
    console.wait_text("\nfour\n");
    console.wait_line("~>");
    console.type_line("exit");
    assert!(console.ended().success());
}

#[test]
fn r69_console_shows_backgrounded_agent_again() {
    let daemon = FakeDaemon::start(&[], "");
    let mut console = terminal(&daemon, Some(&["console", "--session", "here"]));
    console.wait_line("~>");
    console.type_line("@fake say one; await go; say  and two; await end");
    console.wait_line("one");
    console.type_keys("\x02");
    console.wait_text("\nCommand was manually backgrounded by user with ID ");
    console.wait_line("~>");
    let id = moved(&console);
    console.type_line(&format!("fg {}", id.short()));
    console.wait_text("\n[Ctrl-B] Detach (the task keeps running)\none");
    daemon.touch("go");
    console.wait_line("one and two");
    console.type_keys("\x02");
    console.wait_line("~>");
    assert_eq!(daemon.task(id).status, Status::Running);
    // Ctrl-C is for what is shown, and neither for the task nor for the console.
    console.type_line(&format!("fg {}", id.short()));
    console.wait_line("one and two");
    console.type_keys("\x03");
    console.wait_line("~>");
    assert_eq!(daemon.task(id).status, Status::Running);
    console.type_line(&format!("fg {}", id.short()));
    console.wait_line("one and two");
    daemon.touch("end");
    console.wait_line("~>");
    assert_eq!(daemon.ends_as(id, Status::Completed).id, id);
}

#[test]
fn r69_key_that_terminals_turn_into_signal_moves_agent_task_to_background() {
    let daemon = FakeDaemon::with("background_key = \"ctrl-\\\\\"", &[], "");
    let mut shell = terminal(&daemon, None);
    shell.type_line("bgctl run --agent fake 'say half; await go'");
    shell.wait_line("half");
    shell.type_keys("\x1c");
    shell.wait_prompt();
    let id = moved(&shell);
    assert!(!daemon.task(id).foreground);
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
    assert_sane(&mut shell);
}

#[test]
fn r69_ctrl_z_stops_agent_run_blocked_on_full_pipe() {
    let daemon = FakeDaemon::start(&[], "");
    fs::write(daemon.home().join("reader"), "read x < gate; wc -c").unwrap();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    let mut shell = terminal(&daemon, None);
    // More than bgctl queues itself, and less: then only its own text is left, and the agent's task is over.
    for (words, bytes) in [(30_000, 300_001), (10_000, 100_001)] {
        shell.clear();
        shell.type_line(&format!("bgctl run --agent fake 'stream {words} abcdefghij' | sh reader"));
        let is_run = |one: &Process| one.cmdline().contains("bgctl run");
        let run = || processes_of(daemon.home()).into_iter().find(is_run);
        let writable = |path| fs::File::options().write(true).open(path).ok();
        let out = wait::poll_until("bgctl", || writable(run()?.proc("fd/1")));
        let is_full =
            || poll(&mut [PollFd::new(out.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO) == Ok(0);
        wait::poll_until("a full pipe", || is_full().then_some(()));
        drop(out);
        let tasks = daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
        daemon.ends_as(tasks[0].id, Status::Completed);
        shell.type_keys("\x1a");
        shell.wait_text("Stopped");
        shell.wait_prompt();
        shell.clear();
        shell.type_line("fg");
        wait::for_reader(&daemon.home().join("gate"), "go\n");
        shell.wait_text(&format!("\n{bytes}\n"));
        shell.wait_prompt();
    }
}

/// Makes a task's output unreadable until the returned function is called.
fn hide_output(daemon: &FakeDaemon, id: TaskId) -> impl FnOnce() {
    let name = format!("{id}.out");
    let found = Command::new("find").arg(daemon.state_dir()).args(["-name", &name]).output().unwrap();
    let path = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim_end());
    let hidden = path.with_extension("hidden");
    fs::rename(&path, &hidden).unwrap();
    fs::create_dir(&path).unwrap();
    move || {
        fs::remove_dir(&path).unwrap();
        fs::rename(&hidden, &path).unwrap();
    }
}

#[test]
fn r69_agent_whose_text_cannot_be_read_stays_a_job_of_the_console() {
    let daemon = FakeDaemon::start(&[], "");
    let mut console = terminal(&daemon, Some(&["console", "--session", "here"]));
    console.wait_line("~>");
    console.type_line("@fake say one; await go; say  and two; await end");
    console.wait_line("one");
    let id = only_task(&daemon).id;
    let show_again = hide_output(&daemon, id);
    daemon.touch("go");
    console.wait_text(&format!("\n[1] {} running  say one;", id.short()));
    console.wait_line("~>");
    show_again();
    console.type_line("fg %1");
    console.wait_line("one and two");
    daemon.touch("end");
    console.wait_line("~>");
    assert_eq!(daemon.ends_as(id, Status::Completed).id, id);
}
