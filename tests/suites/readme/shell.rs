//! The commands of README and guides for users of shells and scripts, in a terminal, with stand-ins for the programs.

use bgd_tests::templates::shell_agent;
use bgd_tests::{Terminal, TestDaemon, docs, executable, ports};

use super::block;

/// Blocks of the README that are in no guide.
pub const TYPED: [&str; 2] = ["bgctl submit -d \"web server\"", "bgctl run -- make"];

fn program(daemon: &TestDaemon, name: &str, line: &str) {
    executable::write(&daemon.home().join(name), &format!("#!/bin/sh\n{line}\n"));
}

/// A shell that finds the programs in the home first.
#[track_caller]
fn shell(daemon: &TestDaemon) -> Terminal {
    let mut shell = Terminal::shell(daemon);
    shell.resize((40, 120));
    // Not the terminal's session: a line above the prompt could come between two commands.
    assert_eq!(shell.run_line("PATH=$HOME:$PATH; export BGD_SESSION=s"), 0);
    shell
}

/// Returns the guide's blocks in this language.
fn guide(language: &str) -> Vec<String> {
    docs::blocks("man/bgd-shell.md", language)
}

/// Types a line, waits for the next prompt, and returns the screen.
#[track_caller]
fn typed(shell: &mut Terminal, line: &str) -> String {
    shell.clear();
    shell.type_line(line);
    shell.wait("the next prompt", |screen| screen.contents().trim_end().ends_with("\n$"));
    shell.screen()
}

#[test]
fn r171_readme_commands_for_a_background_job_work() {
    let port = ports::unused();
    let lines = block(TYPED[0]).replace("8000", &port.to_string());
    let [submit, list, output, cancel] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    let daemon = TestDaemon::start();
    let mut shell = shell(&daemon);
    typed(&mut shell, submit);
    let shown = typed(&mut shell, list);
    assert!(shown.contains(" running ") && shown.contains(" web server"), "{shown}");
    typed(&mut shell, output);
    let shown = typed(&mut shell, cancel);
    assert!(shown.contains(" cancelled"), "{shown}");
}

#[test]
fn r171_readme_background_key_works() {
    let lines = block(TYPED[1]);
    let [run, attach] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    let daemon = TestDaemon::start();
    program(&daemon, "make", "echo making; exec sleep 1000");
    let mut shell = shell(&daemon);
    for line in [run, attach] {
        shell.clear();
        shell.type_line(line);
        shell.wait_text("making\n");
        shell.type_keys("\x02");
        shell.wait_prompt();
    }
    assert!(typed(&mut shell, "bgctl cancel @").contains(" cancelled"));
}

#[test]
fn r171_guide_console_session_works() {
    let daemon = TestDaemon::start();
    program(&daemon, "cargo", "echo; echo '   Compiling bgd'; read x <gate; echo '    Finished'");
    let [session, _key] = &guide("console")[..] else { panic!("{:#?}", guide("console")) };
    let mut lines: Vec<&str> = session.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let mut shell = shell(&daemon);
    assert_eq!(shell.run_line("mkfifo gate"), 0);
    let cancel = lines.iter().position(|line| line.starts_with("bgctl cancel ")).unwrap();
    let cancel_the_server = "bgctl cancel $(bgctl list -q | head -n 1)";
    lines[cancel] = cancel_the_server;
    for line in lines {
        // Nobody waits for five seconds, and the build ends when something waits for it.
        let opened = if line.contains("--timeout none") { "echo >gate; " } else { "" };
        let shown =
            typed(&mut shell, &format!("{opened}{}", line.replace("5s", "10ms").replace("8099", "0")));
        let expected: &[&str] = match line {
            "bgctl list" => &["ID        STATUS", " build bgd", " web server"],
            line if line.contains("--timeout 5s") => &["running ", "build bgd", "\nexit 75\n"],
            line if line.contains("--timeout none") => &["completed ", "build bgd", "\nexit 0\n"],
            line if line == cancel_the_server => &[" cancelled\n"],
            _ => &[],
        };
        for words in expected {
            assert!(shown.contains(words), "{line} shows no {words:?}:\n{shown}");
        }
    }
    let shown = typed(&mut shell, "bgctl output $id");
    assert!(shown.contains("   Compiling bgd\n    Finished\n"), "{shown}");
}

#[test]
fn r171_guide_console_session_with_background_key_works() {
    let daemon = TestDaemon::start();
    let [_, session] = &guide("console")[..] else { panic!("{:#?}", guide("console")) };
    let lines: Vec<&str> = session.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let [run, list, rest] = lines[..] else { panic!("{lines:?}") };
    let mut shell = shell(&daemon);
    // The third step waits until it has been seen in the list.
    assert_eq!(shell.run_line("mkfifo gate"), 0);
    let run = run.replace("sleep 1", "[ $n != 2 ] || read x <gate");
    shell.clear();
    shell.type_line(&run);
    shell.wait_text("[Ctrl-B] Background\nstep 1\nstep 2\n");
    shell.type_keys("\x02");
    shell.wait_text("\nCommand was manually backgrounded by user with ID ");
    shell.wait_prompt();
    let shown = typed(&mut shell, list);
    assert!(shown.contains(" running ") && shown.contains(" sh -c for n in 1 2 3"), "{shown}");
    let shown = typed(&mut shell, &format!("echo >gate; {rest}"));
    assert!(shown.contains(" completed ") && shown.contains("\nstep 1\n"), "{shown}");
    assert!(shown.contains("\nstep 6\n"), "{shown}");
}

#[test]
fn r171_guide_commands_for_top_work() {
    let daemon = TestDaemon::start();
    daemon.run(&["submit", "-d", "one", "--", "true"]).success();
    let lines = &guide("sh")[0];
    let [top, filtered, once] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    let mut shell = shell(&daemon);
    for (line, text) in [(top, " one\n"), (filtered, "s:failed tag:nightly")] {
        shell.type_line(line);
        shell.wait_alternate(true);
        shell.wait_text(text);
        shell.type_keys("q");
        shell.wait_alternate(false);
        shell.wait_prompt();
    }
    let shown = typed(&mut shell, once);
    assert!(shown.contains(" one\n"), "{shown}");
}

#[test]
fn r171_guide_commands_for_foreground_jobs_work() {
    let daemon = TestDaemon::builder().config(shell_agent("opencode", "echo \"so: $1\"", "")).start();
    for name in ["tmux", "top", "htop"] {
        program(&daemon, name, &format!("echo \"{name} is up\" $*; read x; echo \"{name} has read $x\""));
    }
    let lines = &guide("sh")[1];
    let [attach, agent, key, direct, pty, console] = lines.lines().collect::<Vec<_>>()[..] else {
        panic!("{lines}")
    };
    let mut shell = shell(&daemon);
    typed(&mut shell, pty);
    shell.clear();
    shell.type_line(&attach.replace("3f2a ", "@ "));
    shell.wait_text("htop is up\n");
    shell.type_line("this");
    shell.wait_text("htop has read this\n");
    shell.wait_prompt();
    assert!(typed(&mut shell, agent).contains("\nso: why does it grow?\n"));
    shell.clear();
    shell.type_line(key);
    shell.wait_text("\ntmux is up\n");
    // Not its key.
    shell.type_keys("\x02");
    shell.wait_text("^B");
    shell.type_keys("\x0f");
    shell.wait_text("backgrounded by user");
    shell.wait_prompt();
    typed(&mut shell, "bgctl cancel @");
    shell.clear();
    shell.type_line(direct);
    shell.wait_text("\ntop is up\n");
    shell.type_line("");
    shell.wait_prompt();
    shell.clear();
    shell.type_line(console);
    shell.wait_line("~>");
    shell.type_keys("\x04");
    shell.wait_prompt();
}

#[test]
fn r171_guide_commands_for_scripts_work() {
    let daemon = TestDaemon::start();
    program(&daemon, "make", "seq 30; exit 3");
    let lines = &guide("sh")[2];
    let mut shell = shell(&daemon);
    for line in lines.lines() {
        let shown = typed(&mut shell, line);
        if line.contains("--tail 20") {
            assert!(
                shown.contains("\n11\n") && shown.contains("\n30\n") && !shown.contains("\n10\n"),
                "{shown}"
            );
        } else if line.contains("--exit-code") {
            assert!(shown.contains("\nmake said 3\n"), "{shown}");
        }
    }
    assert_eq!(guide("sh").len(), 3, "all of them are typed");
}
