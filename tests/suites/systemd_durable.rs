//! With a real systemd: the tasks of a durable daemon that is a service outlive the service's stop, its restart and the
//! kill of its process (R126, R131), in their own scope that is removed with the last of them.

use std::fs;
use std::path::PathBuf;

use bgd_tests::shared::request::{DaemonStatus, TaskResult};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::systemd::{Session, Systemd, runtime_folder};
use bgd_tests::upgrades::in_time;
use bgd_tests::{Process, wait};

/// Installs the units that `bgctl` writes, with further settings of the service, and starts the daemon with this
/// configuration.
fn serve(alice: &mut Session<'_>, config: &str, settings: &str) -> DaemonStatus {
    alice
        .run(&format!(
            "set -e; mkdir -p ~/.config/bgd ~/.config/systemd/user/bgd.service.d\n\
             echo '{config}' >~/.config/bgd/config.toml\n\
             echo '[Service]\n{settings}' >~/.config/systemd/user/bgd.service.d/more.conf\n\
             bgctl daemon install >&2\n\
             systemctl --user daemon-reload; systemctl --user start bgd.socket bgd.service"
        ))
        .success();
    status(alice)
}

fn status(alice: &mut Session<'_>) -> DaemonStatus {
    alice.run("bgctl --no-start daemon status --json").success().json()
}

fn task(alice: &mut Session<'_>, id: &str) -> Task {
    alice.run(&format!("bgctl --no-start status --json {id}")).success().json::<TaskResult>().task
}

/// Submits a shell line with these options. Returns its id.
fn submit(alice: &mut Session<'_>, options: &str, line: &str) -> String {
    let submitted = alice.run(&format!("bgctl --no-start submit {options} --shell '{line}'")).success();
    submitted.stdout_text().trim().to_owned()
}

fn output(alice: &mut Session<'_>, id: &str) -> String {
    alice.run(&format!("bgctl --no-start output {id}")).success().stdout_text()
}

fn ended(alice: &mut Session<'_>, id: &str) -> Task {
    let _ = alice.run(&format!("bgctl --no-start block --timeout none {id}"));
    task(alice, id)
}

fn home(machine: &Systemd, name: &str) -> PathBuf {
    machine.path("/run/home/alice").join(name)
}

/// Returns the cgroup of a process, as the machine names it.
fn cgroup_of(process: &Process) -> String {
    let groups = fs::read_to_string(process.proc("cgroup")).unwrap();
    groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
}

fn scope_of(process: &Process) -> String {
    let cgroup = cgroup_of(process);
    let scope = cgroup.split('/').find(|part| part.strip_suffix(".scope").is_some());
    scope.unwrap_or_else(|| panic!("{cgroup} is no scope's")).to_owned()
}

fn keepers(machine: &Systemd) -> Vec<Process> {
    machine.processes().into_iter().filter(|process| process.cmdline().contains("--keeper")).collect()
}

/// Returns the remaining scopes and their cgroups.
fn left(alice: &mut Session<'_>) -> String {
    let units = "systemctl --user list-units --all --plain --no-legend \"bgd-*\"";
    // A cgroup may be removed while it is being searched.
    let cgroups = "find /sys/fs/cgroup -ignore_readdir_race -name \"bgd-*\"";
    alice.run(&format!("{units}; {cgroups}")).success().stdout_text()
}

#[track_caller]
fn nothing_is_left(alice: &mut Session<'_>) {
    wait::poll_until("no scope and no cgroup is left", || left(alice).is_empty().then_some(()));
}

/// Tasks of all kinds, which wait for files.
struct Work {
    ends: String,
    lasts: String,
    terminal: String,
    tree: String,
    /// The processes of the three lasting tasks, as the machine numbers them.
    pids: Vec<Option<i32>>,
}

/// Returns a command that waits until the file exists.
fn gate(name: &str) -> String {
    format!("until [ -e $HOME/{name} ]; do sleep 0.02; done")
}

impl Work {
    fn begin(machine: &Systemd, alice: &mut Session<'_>) -> Self {
        let (first, second) = (gate("first"), gate("second"));
        let ends =
            submit(alice, "", &format!("echo ran >>$HOME/ends; echo begun; {first}; echo over; exit 7"));
        let lasts =
            submit(alice, "", &format!("echo ran >>$HOME/lasts; echo begun; {second}; echo over; exit 3"));
        let line = format!("echo ran >>$HOME/terminal; echo begun; {second}; test -t 1 && exit 9");
        let terminal = submit(alice, "--pty", &line);
        let line = format!(
            "(setsid sh -c \"echo \\$\\$ >$HOME/away.new; mv $HOME/away.new $HOME/away; exec sleep 1000\" &); {second}; exit 5"
        );
        let tree = submit(alice, "", &line);
        wait::for_line(&home(machine, "away"), "");
        for (id, word) in [(&ends, "begun\n"), (&lasts, "begun\n"), (&terminal, "begun\r\n")] {
            wait::poll_until("it has begun", || (output(alice, id) == word).then_some(()));
        }
        for id in [&ends, &lasts, &terminal, &tree] {
            wait::poll_until("it runs", || task(alice, id).pid);
        }
        let pids = [&lasts, &terminal, &tree].map(|id| task(alice, id).pid).to_vec();
        Self { ends, lasts, terminal, tree, pids }
    }

    /// Returns a process of the tree that has left its session.
    fn away(machine: &Systemd) -> Process {
        machine.process(fs::read_to_string(home(machine, "away")).unwrap().trim().parse().unwrap())
    }

    /// Checks that the same processes as before continue.
    #[track_caller]
    fn goes_on(&self, alice: &mut Session<'_>) {
        let tasks = [&self.lasts, &self.terminal, &self.tree].map(|id| task(alice, id));
        assert!(tasks.iter().all(|task| task.status == Status::Running && task.run == 1), "{tasks:?}");
        assert_eq!(tasks.map(|task| task.pid).to_vec(), self.pids);
    }

    /// Lets the lasting tasks end, and checks all of them.
    #[track_caller]
    fn end(&self, machine: &Systemd, alice: &mut Session<'_>) {
        fs::write(home(machine, "second"), "").unwrap();
        let exits = [&self.ends, &self.lasts, &self.terminal].map(|id| ended(alice, id).exit);
        assert_eq!(exits, [7, 3, 9].map(|code| Some(Exit::Code(code))));
        for (id, text) in
            [(&self.ends, "begun\nover\n"), (&self.lasts, "begun\nover\n"), (&self.terminal, "begun\r\n")]
        {
            assert_eq!(output(alice, id), text);
        }
        for name in ["ends", "lasts", "terminal"] {
            assert_eq!(fs::read_to_string(home(machine, name)).unwrap(), "ran\n", "{name} ran once");
        }
        // Its tree is known to the last process.
        let away = Self::away(machine);
        wait::poll_until("its leader has ended", || task(alice, &self.tree).exit);
        assert!(away.is_alive() && task(alice, &self.tree).lingering);
        alice.run(&format!("bgctl --no-start clear {}", self.tree)).success();
        assert!(!away.is_alive());
    }
}

#[test]
fn r131_tasks_survive_restart_and_stop_of_service_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let first = serve(&mut alice, "durable = true", "");
    let work = Work::begin(&machine, &mut alice);
    let keeper = keepers(&machine).remove(0);
    let scope = scope_of(&keeper);
    let reason = format!("in {scope}, which outlives the unit that started bgd");
    assert_eq!((&*first.tree, &*first.tree_reason), ("cgroup", &*reason));
    assert!(cgroup_of(&machine.process(first.pid)).ends_with("/bgd.service"));
    for process in work.pids.iter().map(|pid| machine.process(pid.unwrap())).chain([Work::away(&machine)]) {
        assert!(cgroup_of(&process).contains(&format!("/{scope}/bgd-{}/", first.instance)));
    }
    // At a logout, the daemon must not start further tasks in a scope that is being stopped.
    let before = alice.run(&format!("systemctl --user show --value --property Before {scope}")).success();
    assert!(before.stdout_text().split_whitespace().any(|unit| unit == "bgd.service"), "{before:?}");

    alice.run("systemctl --user restart bgd.service").success();
    work.goes_on(&mut alice);
    let second = status(&mut alice);
    assert_eq!((&*second.instance, &*second.tree_reason), (&*first.instance, &*reason));
    assert_ne!(second.pid, first.pid);

    let leader = machine.process(task(&mut alice, &work.ends).pid.unwrap());
    alice.run("systemctl --user stop bgd.socket bgd.service").success();
    fs::write(home(&machine, "first"), "").unwrap();
    leader.gone();
    alice.run("bgctl --no-start list").expect_code(69);
    assert!(keeper.is_alive() && Work::away(&machine).is_alive());
    alice.run("systemctl --user start bgd.service").success();
    work.goes_on(&mut alice);
    // A task started now is in the same place as the others.
    let late = submit(&mut alice, "", "exec sleep 1000");
    // It counts as running as soon as it is being started, and has a pid once it is.
    let process = machine.process(wait::poll_until("it runs", || {
        let late = task(&mut alice, &late);
        late.pid.filter(|_| late.status == Status::Running)
    }));
    assert_eq!(scope_of(&process), scope);
    alice.run(&format!("bgctl --no-start cancel {late}")).success();
    assert!(!process.is_alive());
    work.end(&machine, &mut alice);

    let stopped = alice.run("bgctl --no-start daemon stop").success().stdout_text();
    assert_eq!(stopped, "stopped\n");
    nothing_is_left(&mut alice);
    assert!(keepers(&machine).is_empty());
}

/// Otherwise systemd kills the daemon and its tasks after that limit.
#[test]
fn r05_stop_of_service_may_take_longer_than_its_limit_if_grace_does_as_root() {
    in_time(|limit| {
        let limit = limit.as_secs();
        let machine = Systemd::boot();
        let mut alice = machine.login();
        serve(&mut alice, "grace.cancel = \"5m\"", &format!("TimeoutStopSec={limit}s"));
        // The signal also reaches `sleep`.
        let ends = format!(
            "trap \"sleep {}; echo over >$HOME/over; exit 0\" TERM; echo begun; while :; do sleep 0.02; done",
            limit + 3
        );
        let id = submit(&mut alice, "", &ends);
        wait::poll_until("it has begun", || (output(&mut alice, &id) == "begun\n").then_some(()));
        let stopped = alice.run("systemctl --user stop bgd.socket bgd.service");
        let result = alice.run("systemctl --user show --property=Result --value bgd.service").success();
        let result = result.stdout_text();
        // The daemon could not ask for more time within the limit.
        if result == "timeout\n" {
            return false;
        }
        stopped.success();
        assert_eq!(fs::read_to_string(home(&machine, "over")).unwrap(), "over\n");
        assert_eq!(result, "success\n");
        true
    });
}

#[test]
fn r126_tasks_survive_kills_of_service_restarted_by_systemd_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let first =
        serve(&mut alice, "durable = true", "Restart=on-failure\nRestartSec=10ms\nStartLimitBurst=100");
    let work = Work::begin(&machine, &mut alice);
    let leader = machine.process(task(&mut alice, &work.ends).pid.unwrap());
    let mut pid = first.pid;
    for round in 0..5 {
        machine.process(pid).kill();
        if round == 2 {
            fs::write(home(&machine, "first"), "").unwrap();
            leader.gone();
        }
        let main = "systemctl --user show --value -p MainPID -p SubState bgd.service";
        pid = wait::poll_until("the manager has started it again", || {
            let said = alice.run(main).success().stdout_text();
            let now = said.lines().find_map(|line| line.parse::<i32>().ok())?;
            (![0, pid].contains(&now) && said.contains("running")).then_some(now)
        });
        work.goes_on(&mut alice);
        assert_eq!(status(&mut alice).instance, first.instance);
    }
    work.end(&machine, &mut alice);
    alice.run("systemctl --user stop bgd.socket bgd.service").success();
    nothing_is_left(&mut alice);
}

#[test]
fn r131_stop_with_cancel_ends_all_tasks_of_service_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    serve(&mut alice, "durable = true", "");
    let work = Work::begin(&machine, &mut alice);
    alice.run("systemctl --user restart bgd.service").success();
    let away = Work::away(&machine);
    let stopped = alice.run("bgctl --no-start daemon stop --cancel").success().stdout_text();
    assert_eq!(stopped, "stopped; 4 tasks were cancelled\n");
    assert!(!away.is_alive());
    nothing_is_left(&mut alice);
    assert!(keepers(&machine).is_empty());
    assert_eq!(task(&mut alice, &work.lasts).status, Status::Cancelled);
}

#[test]
fn r126_service_recreates_its_stopped_scope_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    serve(&mut alice, "durable = true", "");
    let ends = submit(&mut alice, "", "exec sleep 1000");
    wait::poll_until("it runs", || task(&mut alice, &ends).pid);
    let next = submit(&mut alice, "--hold", &format!("echo begun; {}; exit 4", gate("go")));
    let keeper = keepers(&machine).remove(0);
    let scope = scope_of(&keeper);
    alice.run(&format!("systemctl --user stop {scope}")).success();
    keeper.gone();
    let signal = ended(&mut alice, &ends);
    assert_eq!(signal.exit, Some(Exit::Signal(15)), "{signal:?}");
    // Not before: what starts in a scope that is being stopped is stopped, too.
    alice.run(&format!("bgctl --no-start release {next}")).success();
    wait::poll_until("the next one runs", || (output(&mut alice, &next) == "begun\n").then_some(()));
    let keeper = wait::poll_until("another keeper", || keepers(&machine).pop());
    let process = machine.process(wait::poll_until("its process", || task(&mut alice, &next).pid));
    assert_eq!((scope_of(&keeper), scope_of(&process)), (scope.clone(), scope));
    alice.run("systemctl --user restart bgd.service").success();
    fs::write(home(&machine, "go"), "").unwrap();
    assert_eq!(ended(&mut alice, &next).exit, Some(Exit::Code(4)));
    alice.run("systemctl --user stop bgd.socket bgd.service").success();
    nothing_is_left(&mut alice);
}

#[test]
fn r131_service_without_scope_reports_it_and_cancels_tasks_on_stop_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let settings =
        format!("UnsetEnvironment=XDG_RUNTIME_DIR\nEnvironment=BGD_SOCKET={}/bgd/bgd.sock", runtime_folder());
    let first = serve(&mut alice, "durable = true", &settings);
    let why = "in the cgroup of the unit that started bgd, whose end ends the tasks here: no systemd user manager: \
               XDG_RUNTIME_DIR is not set";
    assert_eq!((&*first.tree, &*first.tree_reason), ("cgroup", why));
    let page = alice.run("bgctl --no-start daemon status").success().stdout_text();
    assert!(page.contains(why), "{page}");
    let id = submit(&mut alice, "", "exec sleep 1000");
    wait::poll_until("it runs", || task(&mut alice, &id).pid);
    alice.run("systemctl --user restart bgd.service").success();
    // The manager's signal and the daemon's are the same, and either may come first.
    let ended = task(&mut alice, &id);
    assert_eq!(ended.exit, Some(Exit::Signal(15)), "{ended:?}");
    let id = submit(&mut alice, "", "exec sleep 1000");
    wait::poll_until("it runs", || task(&mut alice, &id).pid);
    let stopped = alice.run("bgctl --no-start daemon stop").success().stdout_text();
    assert_eq!(stopped, "stopped; 1 task was cancelled\n");
    nothing_is_left(&mut alice);
}

#[test]
fn r131_upgrade_keeps_scope_of_service_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    let first = serve(&mut alice, "durable = true", "StandardError=append:%h/log");
    let work = Work::begin(&machine, &mut alice);
    alice.run("bgctl --no-start daemon upgrade").success();
    // A replacement keeper is moved to the scope, too.
    let gone = keepers(&machine).remove(0);
    let scope = scope_of(&gone);
    gone.kill();
    wait::poll_until("another keeper in the scope", || {
        let keeper = keepers(&machine).pop().filter(|keeper| keeper.pid() != gone.pid())?;
        cgroup_of(&keeper).contains(&scope).then_some(())
    });
    let log = home(&machine, "log");
    wait::for_change(&log, || {
        let text = fs::read_to_string(&log).ok()?;
        let (_, after) = text.rsplit_once("another one takes its place")?;
        after.contains("the keeper holds everything that is running").then_some(())
    });
    alice.run("systemctl --user restart bgd.service").success();
    work.goes_on(&mut alice);
    assert_eq!(status(&mut alice).tree_reason, first.tree_reason);
    fs::write(home(&machine, "first"), "").unwrap();
    work.end(&machine, &mut alice);
    alice.run("systemctl --user stop bgd.socket bgd.service").success();
    nothing_is_left(&mut alice);
}

#[test]
fn r131_tasks_survive_stop_of_durable_daemon_without_service_as_root() {
    let machine = Systemd::boot();
    let mut alice = machine.login();
    alice
        .run("mkdir -p ~/.config/bgd; echo 'durable = true' >~/.config/bgd/config.toml; bgctl daemon start")
        .success();
    let work = Work::begin(&machine, &mut alice);
    let stopped = alice.run("bgctl daemon stop").success().stdout_text();
    assert_eq!(stopped, "stopped; 4 tasks keep running, and the next daemon finds them again\n");
    alice.run("bgctl daemon start").success();
    work.goes_on(&mut alice);
    fs::write(home(&machine, "first"), "").unwrap();
    work.end(&machine, &mut alice);
    alice.run("bgctl daemon stop").success();
    nothing_is_left(&mut alice);
}
