//! Jobs on the other machine that have this machine's terminal, and outlive their connection (R142).

use std::fs;

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::{Terminal, wait};
use rustix::process::Signal;

use super::{hold_connections, tasks};

/// Runs a shell line on the other machine in a terminal of this one, and returns its task.
fn run(far: &Far, options: &[&str], line: &str) -> (Terminal, TaskId) {
    let terminal = far.terminal(&[options, &["run", "--shell", line]].concat());
    let running = |task: &Task| task.status == Status::Running;
    let task = wait::poll_until("the job", || tasks(far).into_iter().find(running));
    (terminal, task.id)
}

/// Returns everything that was shown.
fn text(terminal: &Terminal) -> String {
    String::from_utf8_lossy(&terminal.shown()).into_owned()
}

/// Waits until this many connections have been made, of which the last one shows the job.
fn wait_shown(far: &Far, connections: usize, id: TaskId) {
    wait::poll_until("the connection", || (far.connections() >= connections).then_some(()));
    wait::poll_until("the foreground", || far.daemon.task(id).foreground.then_some(()));
}

#[test]
fn r142_terminal_job_shows_all_output_despite_connection_losses() {
    let far = Far::start();
    let (first, last) = (far.daemon.home().join("first"), far.daemon.home().join("last"));
    let line = format!(
        "seq -f 'a%05g' 300; until [ -e {0} ]; do sleep 0.02; done; seq -f 'b%05g' 3000; \
         until [ -e {1} ]; do sleep 0.02; done; seq -f 'c%05g' 300; exit 5",
        first.display(),
        last.display()
    );
    let (mut terminal, id) = run(&far, &[], &line);
    terminal.wait_text("a00300");
    // While there is no connection, the job writes more than fits on the screen.
    let hold = hold_connections(&far);
    far.cut();
    terminal.wait_text("the connection to far is lost; connecting again");
    wait::poll_until("the background", || (!far.daemon.task(id).foreground).then_some(()));
    fs::write(&first, "").unwrap();
    wait::poll_until("the output", || (far.daemon.task(id).output.bytes >= 8 * 3300).then_some(()));
    fs::remove_file(hold).unwrap();
    terminal.wait_text("b03000");
    // Once more, with no output.
    wait_shown(&far, 2, id);
    far.cut();
    wait_shown(&far, 3, id);
    fs::write(&last, "").unwrap();
    terminal.wait_text("c00300");
    assert_eq!(terminal.ended().code(), Some(5));
    let all = text(&terminal);
    for (letter, count) in [('a', 300), ('b', 3000), ('c', 300)] {
        let lacks = (1..=count).map(|number| format!("{letter}{number:05}")).find(|line| !all.contains(line));
        assert_eq!(lacks, None);
    }
    assert_eq!(tasks(&far).len(), 1);
}

#[test]
fn r142_terminal_job_loses_no_line_when_cut_while_writing() {
    let far = Far::start();
    let gate = far.daemon.home().join("gate");
    let line = format!(
        "n=0; until [ -e {} ]; do n=$((n+1)); echo \"n$n.\"; sleep 0.001; done; echo \"last $n!\"; exit 3",
        gate.display()
    );
    let (mut terminal, id) = run(&far, &[], &line);
    for cuts in 1..=3 {
        terminal.wait_text("n");
        far.cut();
        wait_shown(&far, 1 + cuts, id);
    }
    fs::write(gate, "").unwrap();
    assert_eq!(terminal.ended().code(), Some(3));
    let all = text(&terminal);
    let (_, last) = all.rsplit_once("last ").unwrap();
    let last: u32 = last.split('!').next().unwrap().parse().unwrap();
    assert_eq!((1..=last).find(|number| !all.contains(&format!("n{number}."))), None, "of {last}");
}

#[test]
fn r142_exit_code_is_reported_when_job_ends_while_disconnected() {
    let far = Far::start();
    let gate = far.daemon.home().join("gate");
    let line =
        format!("echo up; until [ -e {} ]; do sleep 0.02; done; seq -f 'd%05g' 1000; exit 9", gate.display());
    let (mut terminal, id) = run(&far, &[], &line);
    terminal.wait_text("up");
    let hold = hold_connections(&far);
    far.cut();
    terminal.wait_text("connecting again");
    fs::write(gate, "").unwrap();
    far.daemon.wait_status(id, Status::Failed);
    fs::remove_file(hold).unwrap();
    assert_eq!(terminal.ended().code(), Some(9));
    let all = text(&terminal);
    assert_eq!((1..=1000).find(|number| !all.contains(&format!("d{number:05}"))), None, "{all}");
}

#[test]
fn r142_keys_and_ctrl_b_work_after_reconnect() {
    let far = Far::start();
    let line = "trap 'echo caught' INT; echo up; while :; do read line && echo \"got $line\"; done";
    let (mut terminal, id) = run(&far, &[], line);
    terminal.wait_text("up");
    far.cut();
    wait_shown(&far, 2, id);
    // The first keys may be answered before the screen is drawn.
    terminal.type_line("typed");
    terminal.wait_text("got typed");
    terminal.type_keys("\x03");
    terminal.wait_text("caught");
    terminal.type_keys("\x02");
    terminal.wait_text(&format!("Command was manually backgrounded by user with ID {id}"));
    assert_eq!(terminal.ended().code(), Some(0));
    assert_eq!(far.daemon.task(id).status, Status::Running);
    // It is an ordinary task now, which can be attached to.
    let mut attach = far.terminal(&["attach", &id.to_string()]);
    attach.type_line("again");
    attach.wait_text("got again");
    far.run(&["cancel", "--signal", "KILL", &id.to_string()]).success();
    attach.ended();
}

#[test]
fn r142_job_keeps_running_when_host_stays_unreachable() {
    let far = Far::start();
    // The connection that both share.
    far.run(&["list"]).success();
    let (mut terminal, id) = run(&far, &["--connect-timeout", "30s"], "echo up; exec sleep 1000");
    terminal.wait_text("up");
    far.wrap("echo gone >&2; exit 255");
    far.cut();
    terminal.wait_text(&format!("job {id} keeps running there"));
    terminal.wait_text(&format!("bgctl -H far attach {}", id.short()));
    assert_eq!(terminal.ended().code(), Some(69));
    assert_eq!(far.daemon.task(id).status, Status::Running);
    // The job also survives if its program here is killed; a local job would end.
    far.wrap("");
    far.run(&["cancel", &id.to_string()]).success();
    let (mut terminal, id) = run(&far, &[], "echo up; exec sleep 1000");
    terminal.wait_text("up");
    terminal.process().signal(Signal::KILL).unwrap();
    wait::poll_until("the background", || (!far.daemon.task(id).foreground).then_some(()));
    assert_eq!(far.daemon.task(id).status, Status::Running);
}

#[test]
fn r142_job_with_lost_start_reply_is_started_once_and_shown() {
    let far = Far::start();
    // The first connection carries only the answer to the greeting.
    let used = far.path("used");
    far.wrap(&format!(
        "case \"$*\" in *dial*) if [ ! -e {used} ]; then echo >{used}; $SSH \"$@\" | sed -u 1q; exit 255; fi;; esac",
        used = used.display()
    ));
    let (mut terminal, id) = run(&far, &[], "echo up; read line; exit 4");
    terminal.wait_text("up");
    wait_shown(&far, 1, id);
    assert!(used.exists() && text(&terminal).contains("connected to far again"), "{terminal:?}");
    terminal.type_line("");
    assert_eq!(terminal.ended().code(), Some(4));
    assert_eq!(tasks(&far).len(), 1);
}
