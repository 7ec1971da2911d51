//! The end of a console and of the things it depends on.

use std::fs;

use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{SubmitManyParams, SubmitParams, TaskSubmitMany};
use bgd_shared::task::Status;
use bgd_tests::{Process, Terminal, TestDaemon};

use super::{at_prompt, console, hanging, run_line, task_of};

/// A console with one job beside the prompt and another in the background.
#[track_caller]
fn with_jobs(daemon: &TestDaemon) -> (Terminal, Process, Process) {
    let mut console = console(daemon);
    console.type_line("sleep 1001");
    console.wait_text("[Ctrl-B] Background");
    console.type_keys("\x02");
    console.wait_text("manually backgrounded by user");
    at_prompt(&mut console);
    run_line(&mut console, "sleep 1002 &");
    let processes = ["sleep 1001", "sleep 1002"].map(|line| {
        let task = daemon.wait_running(task_of(daemon, line).id);
        Process::open(task.pid.unwrap()).unwrap()
    });
    let [background, beside] = processes;
    (console, background, beside)
}

#[track_caller]
fn only_the_background_goes_on(daemon: &TestDaemon, background: &Process, beside: &Process) {
    beside.gone();
    let ended = daemon.wait_status(task_of(daemon, "sleep 1002").id, Status::Cancelled);
    assert!(ended.error.unwrap().contains("terminal was closed or its client"));
    let task = task_of(daemon, "sleep 1001");
    assert_eq!(task.status, Status::Running);
    assert!(background.is_alive());
    daemon.cancel(&[task.id]);
}

#[test]
fn r71_leaving_console_ends_foreground_jobs_but_not_background_tasks() {
    let daemon = TestDaemon::start();
    let (mut console, background, beside) = with_jobs(&daemon);
    console.type_keys("\x04");
    assert_eq!(console.ended().code(), Some(0));
    assert!(console.is_sane());
    assert!(console.screen().ends_with(
        "1 job in the foreground ends now\n\
         1 task keeps running in the background: bgctl list --session here"
    ));
    only_the_background_goes_on(&daemon, &background, &beside);
}

#[test]
fn console_counts_every_background_task_it_leaves_however_many_there_are() {
    let daemon = TestDaemon::start();
    let task = SubmitParams { hold: true, session: Some("here".into()), ..daemon.params() };
    // One more than a page of `task.list` can have.
    let argvs = vec![vec!["true".into()]; LIST_PAGE + 1];
    let params = SubmitManyParams { task: Some(Box::new(task)), argvs, ..SubmitManyParams::default() };
    assert_eq!(daemon.client().call::<TaskSubmitMany>(&params).unwrap().ids.len(), 1001);
    let mut console = console(&daemon);
    console.type_keys("\x04");
    assert_eq!(console.ended().code(), Some(0));
    let screen = console.screen();
    assert!(
        screen.ends_with("1001 tasks keep running in the background: bgctl list --session here"),
        "{screen}"
    );
}

#[test]
fn r71_closed_terminal_ends_foreground_jobs_but_not_background_tasks() {
    let daemon = TestDaemon::start();
    let (mut console, background, beside) = with_jobs(&daemon);
    assert_eq!(console.close().code(), Some(129));
    only_the_background_goes_on(&daemon, &background, &beside);
}

#[test]
fn sigterm_ends_console_and_restores_terminal() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_keys("half");
    console.wait_line("~> half");
    assert!(!console.is_sane());
    console.process().signal(rustix::process::Signal::TERM).unwrap();
    assert_eq!(console.ended().code(), Some(143));
    assert!(console.is_sane());
}

#[test]
fn sigint_does_not_end_console_at_its_prompt_and_help_does_not_say_so() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.process().signal(rustix::process::Signal::INT).unwrap();
    run_line(&mut console, "echo still there");
    console.type_line("exit 7");
    assert_eq!(console.ended().code(), Some(7));
    let help = daemon.run(&["console", "--help"]).success().stdout_text();
    let codes = help.split("EXIT CODES:").nth(1).unwrap();
    assert!(!codes.contains("ended by SIGINT") && codes.contains("  143  ended by SIGTERM"), "{codes}");
}

#[test]
fn sigterm_ends_job_on_terminal_and_console() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_line("trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.02; done");
    console.wait_text("\nup");
    console.process().signal(rustix::process::Signal::TERM).unwrap();
    assert_eq!(console.ended().code(), Some(143));
    assert!(console.is_sane());
    assert!(console.screen().contains("\ntold"), "{console:?}");
}

#[test]
fn hanging_cd_does_not_keep_console_from_ending() {
    for closes in [false, true] {
        let daemon = TestDaemon::start();
        let mut console = console(&daemon);
        console.type_line("cd \"$(exec sleep 1001)\"");
        let shell = hanging(&daemon, "sleep 1001");
        let ended = if closes {
            console.close()
        } else {
            console.process().signal(rustix::process::Signal::TERM).unwrap();
            console.ended()
        };
        assert_eq!(ended.code(), Some(if closes { 129 } else { 143 }));
        shell.gone();
    }
}

#[test]
fn exit_command_sets_exit_code() {
    let daemon = TestDaemon::start();
    let mut console = console(&daemon);
    console.type_line("exit 7");
    assert_eq!(console.ended().code(), Some(7));
    assert!(console.is_sane());
}

#[test]
fn killed_daemon_ends_console_and_restores_terminal() {
    for has_job in [false, true] {
        let mut daemon = TestDaemon::start();
        let mut console = console(&daemon);
        if has_job {
            console.type_line("echo up; exec sleep 1000");
            console.wait_text("\nup");
        } else {
            console.type_keys("half");
            console.wait_line("~> half");
        }
        daemon.kill9();
        assert_eq!(console.ended().code(), Some(69), "{console:?}");
        assert!(console.is_sane());
        let end = if has_job { "the next one ends the job" } else { "and the foreground jobs with it" };
        assert!(
            console
                .screen()
                .contains(&format!("the daemon has ended{} {end}", if has_job { ":" } else { "," }))
        );
        daemon.launch();
    }
}

#[test]
fn dumb_terminal_is_refused_naming_it_and_what_to_set() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    assert_eq!(shell.run_line("TERM=dumb bgctl console 2> refused"), 2);
    let refused = fs::read_to_string(daemon.home().join("refused")).unwrap();
    assert!(refused.contains("does not support line editing (TERM=dumb)\n"), "{refused}");
    assert!(refused.contains("set TERM"), "{refused}");
}
