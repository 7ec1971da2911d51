//! The long-lived programs, `mcp` and `console`, for a remote daemon; and the remote daemon itself.

use std::fs;

use bgd_tests::far::Far;
use bgd_tests::mcp::{Mcp, REVISION};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::{Outcome, Terminal, TestDaemon, processes_of, wait};
use rustix::process::Signal;
use serde_json::json;

use super::{hold_connections, tasks};
use crate::console::interrupt_until;
use crate::no_answer::Stopped;

/// Starts a server here for the remote daemon, with the name that its client reports.
fn mcp(far: &Far, client: &str) -> Mcp {
    let mut mcp = Mcp::spawn(far.bgctl(&["mcp", "--structured"]));
    let about = mcp.initialize(REVISION, client, &json!({}));
    assert!(about["instructions"].as_str().unwrap().contains("on another machine, far,"), "{about}");
    mcp
}

/// Waits until this prompt has been shown this many times.
fn wait_prompt(console: &mut Terminal, prompt: &str, times: usize) {
    console.wait("a prompt", |screen| screen.contents().matches(prompt).count() >= times);
}

#[test]
fn r141_tasks_of_mcp_client_run_on_remote_machine() {
    let far = Far::start();
    let mut mcp = mcp(&far, "test");
    let started =
        mcp.call("background_command", &json!({"command": "echo \"on $HOME\"; pwd", "cwd": "/tmp"}));
    let id = started.id().to_string();
    mcp.call("background_block", &json!({"task_ids": [id]}));
    let output = mcp.call("background_output", &json!({"task_id": id}));
    let home = far.daemon.home().display().to_string();
    assert!(output.text.contains(&format!("on {home}\n/tmp")), "{}", output.text);
    let line = mcp.call("background_command", &json!({"command": "echo one; echo two; exec sleep 1000"}));
    let found = mcp.call("background_block", &json!({"task_ids": [line.id().to_string()], "line": "tw"}));
    assert!(found.text.contains("two"), "{}", found.text);
    assert_eq!(tasks(&far).len(), 2);
    // The tasks outlive the server, whose connection may be lost at any time.
    assert!(mcp.close().success());
    wait::poll_until("the end of the connections", || (far.daemon.status().connections == 1).then_some(()));
    assert_eq!(far.daemon.task(line.id()).status, Status::Running);
}

#[test]
fn r142_mcp_server_recovers_from_connection_loss() {
    let far = Far::start();
    let mut mcp = mcp(&far, "claude-code");
    let gate = far.daemon.home().join("gate");
    let line = format!("until [ -e {} ]; do sleep 0.05; done", gate.display());
    let id = mcp.call("background_command", &json!({"command": line})).id();
    far.cut();
    fs::write(&gate, "").unwrap();
    far.daemon.wait_status(id, Status::Completed);
    // Events of the meantime wake the agent, without a call by it.
    let woken = mcp.notification("notifications/claude/channel");
    assert_eq!(woken["meta"]["task_id"], id.to_string(), "{woken}");
    far.wrap("echo 'no route' >&2; exit 255");
    far.cut();
    let failed = mcp.result("tools/call", &json!({"name": "background_list", "arguments": {}}));
    let text = failed["content"][0]["text"].as_str().unwrap();
    assert!(failed["isError"] == true && text.contains("far: ssh can't connect: no route"), "{failed}");
    far.wrap("");
    let listed = mcp.call("background_list", &json!({}));
    assert!(listed.text.contains("the tasks kept running"), "{}", listed.text);
    assert!(listed.text.contains(&id.to_string()), "{}", listed.text);
}

#[test]
fn r141_console_runs_lines_on_remote_machine() {
    let far = Far::start();
    let mut console = far.terminal(&["console"]);
    console.wait_text("far:~>");
    console.type_line("echo \"on $HOME\"");
    console.wait_text(&format!("on {}", far.daemon.home().display()));
    wait_prompt(&mut console, "far:~>", 2);
    console.type_line("cd /usr/../tmp");
    console.wait_text("far:/tmp>");
    console.type_line("pwd");
    console.wait_text("\n/tmp\n");
    wait_prompt(&mut console, "far:/tmp>", 2);
    console.type_line("cd /nowhere");
    console.wait_text("bgctl: cd: can't cd to /nowhere");
    wait_prompt(&mut console, "far:/tmp>", 3);
    console.type_line("exec sleep 1000");
    wait::poll_until("the job", || {
        tasks(&far).iter().any(|task| task.status == Status::Running).then_some(())
    });
    console.type_keys("\x02");
    console.wait_text("Command was manually backgrounded by user with ID");
    // No `cd` is left in the list.
    let shown: Vec<String> = tasks(&far).into_iter().map(|task| task.description).collect();
    assert!(shown.iter().all(|description| description != "cd"), "{shown:?}");
}

#[test]
fn r141_remote_console_leaves_folder_that_is_gone() {
    let far = Far::start();
    let folder = far.daemon.home().join("d");
    fs::create_dir(&folder).unwrap();
    let mut console = far.terminal(&["console"]);
    console.wait_text("far:~>");
    console.type_line(&format!("cd {}", folder.display()));
    console.wait_text(&format!("far:{}>", folder.display()));
    fs::remove_dir(&folder).unwrap();
    console.type_line("cd nowhere");
    console.wait_text("bgctl: cd: can't cd to nowhere");
    // The shell is in the home folder, but that is not where the user was.
    console.type_line("cd .");
    console.wait_text("bgctl: cd: the current folder is gone: give an absolute path");
    console.type_line("cd /");
    console.wait_line("far:/>");
    // The folders before are known to the shell there.
    console.type_line("cd tmp");
    console.wait_line("far:/tmp>");
    console.type_line("cd \"$OLDPWD$1\"");
    console.wait_line("far:/>");
    console.type_line("cd -");
    console.wait_line("far:/tmp>");
}

#[test]
fn r141_remote_console_takes_no_warning_for_a_folder() {
    let far = Far::start();
    let mut console = far.terminal(&["console"]);
    console.wait_text("far:~>");
    console.type_line("cd \"$(echo warn >&2; echo /tmp)\"");
    console.wait_line("far:/tmp>");
    console.type_line("cd \"$(echo warn >&2; echo /nowhere)\"");
    console.wait_text("bgctl: cd: can't cd to /nowhere");
    console.wait_line("far:/tmp>");
}

#[test]
fn r141_cd_given_up_on_remote_machine_leaves_no_task() {
    let far = Far::start();
    let mut watch = far.daemon.watch();
    let mut console = far.terminal(&["console"]);
    console.wait_text("far:~>");
    let stopped = Stopped::now(&far.daemon);
    console.type_line("cd /tmp");
    interrupt_until(&console, || !console.is_sane());
    console.wait_text("bgctl: the daemon has not answered: interrupted");
    wait_prompt(&mut console, "far:~>", 2);
    drop(stopped);
    watch.until(|event| event.task.description == "cd" && !event.task.status.is_active());
    far.forgotten();
    console.type_line("cd \"$(exec sleep 1000)\"");
    let shell = wait::poll_until("the task", || {
        processes_of(far.daemon.home()).into_iter().find(|process| process.cmdline() == "sleep 1000")
    });
    let stopped = Stopped::now(&far.daemon);
    interrupt_until(&console, || !console.is_sane());
    // The answer about its task may still be on its way to the console.
    let both = ["bgctl: cd: interrupted", "bgctl: the daemon has not answered: interrupted"];
    console.wait("another interruption", |screen| {
        both.map(|text| screen.contents().matches(text).count()).iter().sum::<usize>() == 2
    });
    drop(stopped);
    shell.gone();
    far.forgotten();
    console.type_line("cd /tmp");
    console.wait_line("far:/tmp>");
}

#[test]
fn r142_console_reports_connection_loss_and_continues() {
    let far = Far::start();
    let mut console = far.terminal(&["console"]);
    console.wait_text("far:~>");
    // The job's output differs from its line: the editor echoes the line before the job starts.
    console.type_line("echo a$((40+1))b; exec sleep 1000");
    console.wait_text("a41b");
    far.cut();
    console.wait_text("the connection to far is lost");
    console.wait_text("connected to far again");
    wait_prompt(&mut console, "far:~>", 2);
    console.type_line("echo a$((40+2))b");
    console.wait_text("a42b");
    wait_prompt(&mut console, "far:~>", 3);
    far.cut();
    console
        .wait("the second time", |screen| screen.contents().matches("connected to far again").count() == 2);
    console.type_line("false || exit 3");
    console.wait_text("[failed (3)]");
    wait_prompt(&mut console, "far:~>", 4);
    console.type_line("exit 4");
    assert_eq!(console.ended().code(), Some(4));
}

#[test]
fn r142_console_announces_tasks_that_ended_while_connection_was_lost() {
    let far = Far::start();
    let mut console = far.terminal(&["console"]);
    console.wait_text("far:~>");
    let gates = ["one", "two"].map(|name| far.daemon.home().join(name));
    let mut ids = Vec::new();
    for (number, gate) in gates.iter().enumerate() {
        console.type_line(&format!("until [ -e {} ]; do sleep 0.02; done", gate.display()));
        let runs = |task: &Task| task.status == Status::Running && !ids.contains(&task.id);
        let task = wait::poll_until("the job", || tasks(&far).into_iter().find(runs));
        ids.push(task.id);
        console.type_keys("\x02");
        wait_prompt(&mut console, "far:~>", number + 2);
    }
    let said = |id: TaskId| format!("[BACKGROUND TASK COMPLETED] {}", id.short());
    let hold = hold_connections(&far);
    far.cut();
    console.wait_text("the connection to far is lost");
    fs::write(&gates[0], "").unwrap();
    far.daemon.block(&ids[..1]);
    fs::remove_file(hold).unwrap();
    console.wait_text("connected to far again");
    console.wait_text(&said(ids[0]));
    fs::write(&gates[1], "").unwrap();
    console.wait_text(&said(ids[1]));
    assert_eq!(console.screen().matches("[BACKGROUND TASK").count(), 2, "once each: {console:?}");
    console.type_line("exit");
    assert_eq!(console.ended().code(), Some(0));
}

#[test]
fn r142_console_does_not_retry_after_permission_denied() {
    let far = Far::start();
    let mut console = far.terminal(&["console"]);
    console.wait_text("far:~>");
    far.change_key("user");
    let before = far.connections();
    far.cut();
    assert_eq!(console.ended().code(), Some(69));
    assert!(console.screen().contains("far: ssh can't connect: "), "{console:?}");
    assert!(console.screen().contains("Permission denied"), "{console:?}");
    assert_eq!(far.connections(), before + 1);
}

/// Returns a console that waits for a new connection.
fn reconnecting(far: &Far) -> Terminal {
    let mut console = far.terminal(&["--connect-timeout", "10m", "console"]);
    console.wait_text("far:~>");
    far.wrap("exec sleep 1000");
    far.cut();
    console.wait_text("connecting again");
    wait::poll_until("an attempt", || sleeps(far).then_some(()));
    console
}

#[test]
fn r142_console_exits_on_signal_while_reconnecting() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let far = Far::start();
        let mut console = reconnecting(&far);
        console.process().signal(signal).unwrap();
        assert_eq!(console.ended().code(), Some(code));
        wait::poll_until("the end of what would have connected", || (!sleeps(&far)).then_some(()));
    }
}

#[test]
fn r142_console_exits_on_ctrl_d_while_reconnecting() {
    let far = Far::start();
    let mut console = reconnecting(&far);
    console.type_keys("\x04");
    assert_eq!(console.ended().code(), Some(130));
    wait::poll_until("the end of what would have connected", || (!sleeps(&far)).then_some(()));
}

/// Reports whether an idle ssh runs here.
fn sleeps(far: &Far) -> bool {
    processes_of(far.home()).iter().any(|process| process.cmdline().starts_with("sleep 1000"))
}

#[test]
fn r141_remote_daemon_can_be_restarted() {
    let far = Far::of(TestDaemon::home_only());
    far.set_session(&[("BGD_DAEMON", bgd_tests::bgd_path().to_str().unwrap())]);
    let id: TaskId = far.run(&["submit", "--", "sleep", "1000"]).word();
    far.daemon.write_config("nonsense");
    let refused = far.run(&["daemon", "restart"]).expect_code(78);
    assert!(refused.stderr.contains("far: nothing was stopped: "), "{}", refused.stderr);
    assert_eq!(far.run(&["list", "--quiet"]).word::<TaskId>(), id);
    far.daemon.write_config("");
    let restarted = far.run(&["daemon", "restart"]).success();
    assert!(restarted.stdout_text().starts_with("restarted, pid "), "{}", restarted.stdout_text());
    assert!(restarted.stderr.contains("cancels 1 active task"), "{}", restarted.stderr);
    assert_eq!(far.run(&["list", "--quiet"]).success().stdout_text(), "");
    far.run(&["daemon", "stop"]).success();
}

#[test]
fn r140_completion_queries_host_of_command_line_without_blocking_shell() {
    let far = Far::start();
    let id: TaskId = far.run(&["submit", "-d", "over there", "--", "true"]).word();
    far.run(&["block", &id.to_string()]).success();
    let candidates = |words: &[&str], host: &str| {
        let place = (words.len() - 1).to_string();
        let mut command = far.bgctl(&[&["--"], words].concat());
        command.env("BGCTL_COMPLETE", "fish").env("_CLAP_COMPLETE_INDEX", place).env("_CLAP_IFS", "\n");
        let outcome = Outcome::of(command.env("BGD_HOST", host)).success();
        assert_eq!(outcome.stderr, "");
        outcome.stdout_text()
    };
    let there = format!("{}\tcompleted: over there\n", id.short());
    // None are offered if the machine does not answer soon enough for a shell.
    let offers = |words: &[&str], host: &str| {
        wait::poll_until("candidates in time", || candidates(words, host).starts_with(&there).then_some(()));
    };
    offers(&["bgctl", "-H", "far", "status", ""], "");
    offers(&["bgctl", "status", "--host=far", ""], "");
    offers(&["bgctl", "output", ""], "far");
    assert!(!candidates(&["bgctl", "-H", "far,near", "status", ""], "").contains(&id.short()));
    far.wrap("echo gone >&2; exit 255");
    assert!(!candidates(&["bgctl", "-H", "far", "status", ""], "").contains(&id.short()));
    far.wrap("exec sleep 1000");
    assert!(!candidates(&["bgctl", "-H", "far", "status", ""], "").contains(&id.short()));
    // The names that ssh knows.
    fs::create_dir(far.home().join(".ssh")).unwrap();
    fs::write(far.home().join(".ssh/config"), "Host build1 *.lan\n").unwrap();
    fs::write(far.home().join(".ssh/known_hosts"), "build2 ssh-ed25519 k\n").unwrap();
    assert_eq!(candidates(&["bgctl", "-H", "build"], ""), "build1\nbuild2\n");
}
