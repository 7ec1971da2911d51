//! The commands of bgd-notifications(7).

use bgd_tests::{Terminal, TestDaemon, docs, executable};

/// Returns the numbered block of shell lines of the guide, and a shell that has its programs.
#[track_caller]
fn block(daemon: &TestDaemon, number: usize) -> (Vec<String>, Terminal) {
    let blocks = docs::blocks("man/bgd-notifications.md", "sh");
    assert_eq!(blocks.len(), 3, "each of them is typed by a test");
    executable::write(&daemon.home().join("make"), "#!/bin/sh\necho \"$* made\"\n");
    let titles =
        "import json, sys\nfor line in sys.stdin: print('title:', json.loads(line)['title'], flush=True)";
    executable::write(&daemon.home().join("jq"), &format!("#!/usr/bin/env python3\n{titles}\n"));
    let mut shell = Terminal::shell(daemon);
    shell.resize((40, 140));
    // Not the terminal's session: a line above the prompt could come between two commands.
    assert_eq!(shell.run_line("PATH=$HOME:$PATH; export BGD_SESSION=s"), 0);
    (blocks[number].lines().map(str::to_owned).collect(), shell)
}

/// Types a line, waits until it shows this text, and ends the command if it keeps running.
#[track_caller]
fn shows(shell: &mut Terminal, line: &str, text: &str, goes_on: bool) {
    shell.clear();
    shell.type_line(line);
    shell.wait_text(text);
    if goes_on {
        shell.type_keys("\x03");
    }
    shell.wait("the next prompt", |screen| screen.contents().trim_end().ends_with("\n$"));
}

#[test]
fn r171_guide_commands_for_sessions_work() {
    let daemon = TestDaemon::start();
    let (lines, mut shell) = block(&daemon, 0);
    let [list, cancel, end] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(shell.run_line("bgctl submit -d mine -- sleep 1000"), 0);
    assert_eq!(shell.run_line("bgctl submit -d other --session discord:4711 -- sleep 1000"), 0);
    shows(&mut shell, list, " mine\n", false);
    assert!(!shell.screen().contains(" other"), "{shell:?}");
    shows(&mut shell, cancel, " cancelled\n", false);
    shows(&mut shell, end, "discord:4711", false);
    let left = daemon.run(&["list"]).success().stdout_text();
    assert!(left.contains("\trunning\t") && left.contains("\tmine") && !left.contains("\tother"), "{left}");
}

#[test]
fn r171_guide_commands_for_the_inbox_work() {
    let daemon = TestDaemon::start();
    let (lines, mut shell) = block(&daemon, 1);
    let [session, submit, wait, follow] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(shell.run_line(session), 0);
    assert_eq!(shell.run_line(submit), 0);
    shows(&mut shell, wait, " made", false);
    shell.type_line("bgctl submit -- make more");
    shows(&mut shell, follow, "\ntitle: ", true);
}

#[test]
fn r171_guide_commands_for_events_work() {
    let daemon = TestDaemon::start();
    let (lines, mut shell) = block(&daemon, 2);
    let [events, metrics] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(shell.run_line("bgctl submit -- true"), 0);
    shows(&mut shell, events, "\"kind\":\"submitted\"", true);
    shows(&mut shell, metrics, "\n# EOF\n", false);
}

#[test]
fn r171_guide_notice_line_appears_above_the_prompt() {
    let daemon = TestDaemon::start();
    let console = docs::blocks("man/bgd-notifications.md", "console");
    let [notice, submit, _id, typed] = console[0].lines().collect::<Vec<_>>()[..] else {
        panic!("{console:?}")
    };
    let mut shell = Terminal::shell(&daemon);
    shell.resize((24, 120));
    assert_eq!(shell.run_line("unset BGD_SESSION"), 0);
    shell.type_line(submit.strip_prefix("$ ").unwrap());
    shell.wait("the next prompt", |screen| screen.contents().trim_end().ends_with("\n$"));
    shell.type_keys(typed.strip_prefix("$ ").unwrap());
    // Ignoring the id and the time.
    let (begin, end) = (notice.split_once("] ").unwrap().0, ": \"short nap\" (bgctl output ");
    assert!(notice.contains(end), "{notice}");
    shell.wait("the line", |screen| {
        screen.contents().lines().any(|line| line.starts_with(begin) && line.contains(end))
    });
    shell.wait_line(typed);
}
