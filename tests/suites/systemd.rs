//! With a real systemd: where a user manager answers, the daemon has its own delegated cgroup, until the logout.

use std::fs;
use std::path::PathBuf;

use bgd_tests::shared::request::DaemonStatus;
use bgd_tests::systemd::{Session, Systemd, runtime_folder};
use bgd_tests::{Process, wait};
use rustix::process::Signal;

use crate::fault_trees::ESCAPE;

fn start(session: &mut Session<'_>) -> DaemonStatus {
    session.run("bgctl daemon start").success();
    status(session)
}

fn status(session: &mut Session<'_>) -> DaemonStatus {
    session.run("bgctl daemon status --json").success().json()
}

fn scope(status: &DaemonStatus) -> String {
    format!("bgd-{}.scope", status.instance)
}

fn instances(machine: &Systemd) -> PathBuf {
    machine.path("/run/home/alice/.local/state/bgd/instances")
}

/// Returns the cgroup of a process, as the machine names it.
fn cgroup_of(process: &Process) -> String {
    let groups = fs::read_to_string(process.proc("cgroup")).unwrap();
    groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
}

/// Returns the file of a scope's settings, which the user manager removes when it forgets the scope.
fn file_of(machine: &Systemd, scope: &str) -> PathBuf {
    machine.path(&format!("{}/systemd/transient/{scope}", runtime_folder()))
}

/// Submits a task that escapes everything but a cgroup. Returns the task and the escaped process.
fn escape(machine: &Systemd, session: &mut Session<'_>) -> (String, Process) {
    let script = format!("bgctl submit --shell '{}'", ESCAPE.replace('\'', "'\\''"));
    let id = session.run(&script).success().stdout_text().trim().to_owned();
    let note = machine.path("/run/home/alice/note");
    let away = machine.process(wait::for_line(&note, "").parse().unwrap());
    fs::remove_file(note).unwrap();
    (id, away)
}

#[test]
fn r05_no_process_escapes_daemon_in_delegated_scope_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let status = start(&mut alice);
    assert_eq!(status.tree, "cgroup");
    let scope = scope(&status);
    assert_eq!(status.tree_reason, format!("delegated by the systemd user manager as {scope}"));
    let page = alice.run("bgctl daemon status").success().stdout_text();
    let line = format!("trees by:    cgroup ({})", status.tree_reason);
    assert!(page.lines().any(|known| known == line), "{page}");
    let unit = alice.run(&format!("systemctl --user show {scope}")).success().stdout_text();
    for setting in ["Delegate=yes", "TasksMax=infinity", "ActiveState=active"] {
        assert!(unit.lines().any(|line| line == setting), "{setting} is not in\n{unit}");
    }
    let daemon = machine.process(status.pid);
    assert!(cgroup_of(&daemon).ends_with(&scope));

    let (id, away) = escape(&machine, &mut alice);
    assert!(cgroup_of(&away).ends_with(&format!("{scope}/bgd-{}/{id}", status.instance)));
    alice.run(&format!("bgctl cancel {id}")).success();
    assert!(!away.is_alive());

    alice.run("bgctl daemon stop").success();
    daemon.gone();
    wait::for_no_file(&file_of(&machine, &scope));
}

#[test]
fn r09_scope_of_killed_daemon_is_removed_with_its_processes_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let old = start(&mut alice);
    let (_, away) = escape(&machine, &mut alice);
    machine.process(old.pid).kill();
    assert!(away.is_alive());
    assert_eq!(alice.run("bgctl list -q").success().stdout_text(), "");
    assert!(!away.is_alive());
    let new = status(&mut alice);
    assert_ne!(new.instance, old.instance);
    assert_eq!(new.tree, "cgroup", "{}", new.tree_reason);
    wait::for_no_file(&file_of(&machine, &scope(&old)));
}

#[test]
fn r09_daemon_started_by_orphaned_task_survives_cleanup_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let old = start(&mut alice);
    // A task that has not started when the daemon is killed never reads from the FIFO, so wait until it is up.
    alice
        .run(
            "mkfifo ~/up ~/go; bgctl submit --shell 'echo up >~/up; read word <~/go; exec bgctl daemon start'; \
             read word <~/up",
        )
        .success();
    machine.process(old.pid).kill();
    alice.run("echo now >~/go").success();
    wait::for_no_file(&instances(&machine).join(&old.instance));
    let new = status(&mut alice);
    assert_ne!(new.instance, old.instance);
    assert!(cgroup_of(&machine.process(new.pid)).ends_with(&scope(&new)));
}

#[test]
fn r05_logout_ends_all_tasks_and_next_login_gets_new_daemon_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let old = start(&mut alice);
    let (_, away) = escape(&machine, &mut alice);
    let daemon = machine.process(old.pid);
    alice.logout();
    machine.logged_out();
    assert!(!daemon.is_alive());
    assert!(!away.is_alive());
    assert!(machine.processes().is_empty(), "{:?}", machine.processes());
    // It has ended cleanly: nothing is left for the next one to clean up.
    let left: Vec<_> =
        fs::read_dir(instances(&machine)).unwrap().flatten().map(|entry| entry.path()).collect();
    let log = fs::read_to_string(machine.path("/run/home/alice/.local/state/bgd/bgd.log")).unwrap();
    assert!(left.is_empty(), "{left:?} is left; the log of bgd:\n{log}");

    let mut alice = machine.login();
    assert_eq!(alice.run("bgctl list -q").success().stdout_text(), "");
    let new = status(&mut alice);
    assert_ne!(new.instance, old.instance);
    assert_eq!(new.tree, "cgroup", "{}", new.tree_reason);
}

#[test]
fn r05_tasks_survive_logout_with_lingering_enabled_as_root() {
    let machine = Systemd::boot();
    machine.run(&["loginctl", "enable-linger", "alice"]).success();
    let mut alice = machine.login();
    let old = start(&mut alice);
    assert_eq!(old.tree, "cgroup", "{}", old.tree_reason);
    let id = alice.run("bgctl submit -- sleep 1000").success().stdout_text();
    alice.logout();
    let mut alice = machine.login();
    assert_eq!(status(&mut alice).instance, old.instance);
    assert_eq!(alice.run("bgctl list -q").success().stdout_text(), id);
}

#[test]
fn r01_daemon_starts_despite_hung_user_manager_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let is_manager = |process: &Process| process.cmdline().ends_with("systemd --user");
    let manager = machine.processes().into_iter().find(is_manager).unwrap();
    manager.signal(Signal::STOP).unwrap();
    let status = start(&mut alice);
    assert_eq!(status.tree, "session");
    assert_eq!(status.tree_reason, "the systemd user manager did not answer within 2 s");
    let id = alice.run("bgctl submit -- echo done").success().stdout_text();
    assert_eq!(alice.run(&format!("bgctl block {id}")).success().code, 0);
    manager.signal(Signal::CONT).unwrap();
    assert_eq!(self::status(&mut alice).instance, status.instance);
}

#[test]
fn r01_daemon_starts_without_user_manager_and_reports_why_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let elsewhere = "mkdir -pm 700 ~/run; export XDG_RUNTIME_DIR=$HOME/run";
    alice.run(&format!("{elsewhere}; bgctl daemon start")).success();
    let status: DaemonStatus =
        alice.run(&format!("{elsewhere}; bgctl daemon status --json")).success().json();
    assert_eq!(status.tree, "session");
    let why = "no systemd user manager: /run/home/alice/run/systemd/private: No such file or directory";
    assert!(status.tree_reason.starts_with(why), "{}", status.tree_reason);
    assert!(cgroup_of(&machine.process(status.pid)).contains("/session-"));
}

#[test]
fn r01_daemon_configured_for_sessions_requests_no_scope_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    alice.run("mkdir -p ~/.config/bgd; echo 'tree = \"session\"' >~/.config/bgd/config.toml").success();
    let status = start(&mut alice);
    assert_eq!((&*status.tree, &*status.tree_reason), ("session", "set in the configuration"));
    assert!(cgroup_of(&machine.process(status.pid)).contains("/session-"));
}

#[test]
fn r01_concurrent_first_calls_create_one_scope_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    alice.run("for n in 1 2 3 4 5 6 7 8 9 10; do bgctl submit -- true & done; wait").success();
    let status = status(&mut alice);
    assert_eq!(status.summary.total(), 10);
    let units = alice.run("systemctl --user list-units --all --plain --no-legend 'bgd-*'").success();
    let units = units.stdout_text();
    assert_eq!(units.lines().count(), 1, "{units}");
    assert!(units.starts_with(&scope(&status)), "{units}");
}

#[test]
fn r01_daemon_stays_in_unit_of_user_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let unit = "systemd-run --user --quiet --unit=mine --service-type=notify -p Delegate=yes";
    alice.run(&format!("{unit} /run/programs/bgd")).success();
    let first = status(&mut alice);
    assert_eq!((&*first.tree, &*first.tree_reason), ("cgroup", "in the cgroup of the unit that started bgd"));
    assert!(cgroup_of(&machine.process(first.pid)).ends_with("/mine.service"));
    alice.run("systemctl --user stop mine").success();
    // Started by hand, in a scope that delegates.
    let run = "systemd-run --user --quiet --scope --unit=byhand -p Delegate=yes /run/programs/bgd";
    alice.run(&format!("mkfifo ~/ready; {run} --ready-fd 3 3>~/ready & read word <~/ready")).success();
    let status = status(&mut alice);
    assert_eq!((&*status.tree, &*status.tree_reason), ("cgroup", "already delegated where bgd was started"));
    assert!(cgroup_of(&machine.process(status.pid)).ends_with("/byhand.scope"));
}

#[test]
fn r170_installed_units_start_daemon_on_demand_and_uninstall_cleanly_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let stdout = alice.run("bgctl daemon install").success().stdout_text();
    let steps: Vec<&str> = stdout.lines().filter(|line| line.starts_with("  systemctl")).collect();
    assert_eq!(steps.len(), 2, "{stdout}");
    let readme = bgd_tests::docs::blocks("README.md", "sh");
    let lines =
        readme.iter().find(|lines| lines.starts_with("bgctl daemon install ")).expect("the README has them");
    assert!(lines.lines().skip(1).eq(steps.iter().map(|step| step.trim_start())), "{lines}");
    assert!(!stdout.contains("daemon stop"), "no daemon runs yet: {stdout}");
    alice.run(&steps.join("\n")).success();
    // Nothing runs until somebody connects; `--no-start` shows that it is not bgctl that starts it.
    alice.run("systemctl --user is-active bgd.service").expect_code(3);
    alice.run("bgctl --no-start run -- true").success();
    let first = status(&mut alice);
    assert_eq!(&*first.tree_reason, "in the cgroup of the unit that started bgd");
    assert!(cgroup_of(&machine.process(first.pid)).ends_with("/bgd.service"));
    // The manager keeps listening after its end.
    alice.run("bgctl daemon stop").success();
    alice.run("bgctl --no-start run -- true").success();
    // Repeating it changes nothing; what the user wrote is left alone.
    let again = alice.run("bgctl daemon install").success().stdout_text();
    assert!(again.contains("bgctl daemon stop"), "{again}");
    let unit = "~/.config/systemd/user/bgd.service";
    alice.run(&format!("echo '# mine' >> {unit}")).success();
    let refused = alice.run("bgctl daemon install").expect_code(65);
    assert!(refused.stderr.contains("bgd.service exists"), "{}", refused.stderr);
    assert!(alice.run(&format!("tail -n 1 {unit}")).success().stdout_text().contains("# mine"));
    alice.run("bgctl daemon uninstall").expect_code(65);
    alice.run(&format!("sed -i '$d' {unit}")).success();
    // Nothing of it is left, either in the home or in the manager.
    let stdout = alice.run("bgctl daemon uninstall").success().stdout_text();
    let steps: Vec<&str> = stdout.lines().filter(|line| line.starts_with("  systemctl")).collect();
    assert_eq!(steps.len(), 2, "{stdout}");
    let steps: Vec<&str> = steps.iter().map(|step| step.split("     ").next().unwrap()).collect();
    alice.run(&steps.join("\n")).success();
    assert_eq!(alice.run("ls ~/.config/systemd").code, 2);
    alice.run("systemctl --user cat bgd.socket").expect_code(1);
    let units = alice.run("systemctl --user list-units --all --plain --no-legend 'bgd.*'").success();
    assert_eq!(units.stdout_text(), "");
    alice.run("bgctl --no-start list").expect_code(69);
}

#[test]
fn r170_units_for_another_socket_serve_it_and_start_nothing_by_themselves_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let own = "export BGD_SOCKET=$HOME/own/bgd.sock; bgctl daemon";
    let first = alice.run(&format!("{own} install")).success().stdout_text();
    assert!(!first.contains("daemon stop"), "{first}");
    alice.run("systemctl --user daemon-reload; systemctl --user enable --now bgd.socket").success();
    let again = alice.run(&format!("{own} install")).success().stdout_text();
    assert_eq!(again, first);
    alice.run("systemctl --user is-active bgd.service").expect_code(3);
    let socket = "BGD_SOCKET=$HOME/own/bgd.sock bgctl --no-start";
    let status: DaemonStatus = alice.run(&format!("{socket} daemon status --json")).success().json();
    assert_eq!(status.socket, "/run/home/alice/own/bgd.sock");
    assert!(cgroup_of(&machine.process(status.pid)).ends_with("/bgd.service"));
    let running = alice.run(&format!("{own} install")).success().stdout_text();
    assert!(running.contains("daemon stop"), "{running}");
    alice.run(&format!("{own} stop")).success();
    alice.run("systemctl --user is-active bgd.service").expect_code(3);
    alice.run(&format!("{own} uninstall")).success();
    alice.run("systemctl --user is-active bgd.service").expect_code(3);
}

#[test]
fn r05_daemon_started_by_task_of_another_daemon_outlives_that_task_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let first = start(&mut alice);
    let second = "BGD_SOCKET=$XDG_RUNTIME_DIR/second/bgd.sock";
    let id =
        alice.run(&format!("bgctl submit --shell '{second} bgctl daemon start; exec sleep 1000'")).success();
    let id = id.stdout_text().trim().to_owned();
    let output = instances(&machine).join(&first.instance).join(format!("output/{id}.out"));
    wait::for_line(&output, "started");
    let other: DaemonStatus = alice.run(&format!("{second} bgctl daemon status --json")).success().json();
    let daemon = machine.process(other.pid);
    assert!(cgroup_of(&daemon).ends_with(&scope(&other)));
    alice.run(&format!("bgctl cancel {id}")).success();
    alice.run("bgctl daemon stop").success();
    assert!(daemon.is_alive());
}

#[test]
fn r05_process_moved_to_its_own_scope_ends_with_its_task_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    start(&mut alice);
    let script = "echo $$ >~/new; mv ~/new ~/note; exec sleep 1000";
    let submit = format!("bgctl submit -- systemd-run --user --quiet --scope sh -c '{script}'");
    let id = alice.run(&submit).success().stdout_text();
    let note = machine.path("/run/home/alice/note");
    let leader = machine.process(wait::for_line(&note, "").parse().unwrap());
    assert!(cgroup_of(&leader).contains("/run-"), "{}", cgroup_of(&leader));
    alice.run(&format!("bgctl cancel {id}")).success();
    assert!(!leader.is_alive());
}
