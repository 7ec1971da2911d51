//! Trees by cgroup: nothing escapes, and no cgroup is left behind.

use std::fs;
use std::path::PathBuf;

use bgd_tests::cgroups::Delegated;
use bgd_tests::shared::request::{Hello, HelloParams};
use bgd_tests::shared::task::Status;
use bgd_tests::{Process, TestDaemon, wait};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

const LONG_GRACE: &str = "[grace]\ncancel = \"1h\"";

/// Starts a process without a mark in its environment, in its own session, that is no child of its task and holds no
/// output open: only its cgroup reveals its task.
pub(crate) const ESCAPE: &str = "env -i PATH=\"$PATH\" setsid -f sh -c '
    exec >/dev/null 2>&1 </dev/null
    cd /
    (sh -c \"echo \\$\\$ > $0/note.new; mv $0/note.new $0/note; exec sleep 1000\" &)' \"$HOME\"; sleep 1000";

fn escaped(daemon: &TestDaemon) -> Process {
    let note = daemon.home().join("note");
    let pid = wait::for_line(&note, "").parse().unwrap();
    fs::remove_file(note).unwrap();
    Process::open(pid).unwrap()
}

#[test]
fn r05_cancel_ends_escaped_process_in_cgroup_and_leaves_no_cgroup_as_root() {
    let cgroup = Delegated::new();
    let mut daemon = cgroup.daemon(LONG_GRACE);
    assert_eq!(daemon.status().tree, "cgroup");
    let page = daemon.run(&["daemon", "status"]).success().stdout_text();
    assert!(page.contains("cgroup"), "{page}");

    let id = daemon.submit_shell(ESCAPE);
    let away = escaped(&daemon);
    let leader = daemon.wait_running(id).pid.unwrap();
    let of = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert_eq!(of(away.pid()), of(leader));
    assert!(of(leader).contains(&id.to_string()));
    assert!(!String::from_utf8_lossy(&fs::read(away.proc("environ")).unwrap()).contains("BGD_"));
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(!away.is_alive());

    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].status, Status::Completed);
    assert!(daemon.stop().success());
    assert_eq!(cgroup.inside(), Vec::<PathBuf>::new());
}

#[test]
fn r06_cancel_ends_lingering_process_in_cgroup_and_leaves_no_cgroup_as_root() {
    let cgroup = Delegated::new();
    let mut daemon = cgroup.daemon(LONG_GRACE);
    let id = daemon.submit_shell(ESCAPE.trim_end_matches("; sleep 1000"));
    let away = escaped(&daemon);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Completed, true));
    assert!(!daemon.cancel(&[id])[0].lingering);
    assert!(!away.is_alive());

    // A task may make cgroups inside its own.
    let nested = daemon.submit_shell(&format!(
        "own={}$(sed -n 's/^0:://p' /proc/self/cgroup | sed 's/.*\\(\\/bgd-[^/]*\\/.*\\)/\\1/')
         mkdir $own/deep $own/deep/er && sh -c 'echo $$ > '$own'/deep/er/cgroup.procs
         echo $$ > note.new; mv note.new note; exec sleep 1000'",
        cgroup.path().display()
    ));
    let deep = escaped(&daemon);
    assert_eq!(daemon.cancel(&[nested])[0].status, Status::Cancelled);
    assert!(!deep.is_alive());
    assert!(daemon.stop().success());
    assert_eq!(cgroup.inside(), Vec::<PathBuf>::new());
}

#[test]
fn r09_next_start_ends_cgroup_processes_of_killed_daemon_as_root() {
    let cgroup = Delegated::new();
    let mut daemon = cgroup.daemon(LONG_GRACE);
    daemon.submit_shell(ESCAPE);
    let away = escaped(&daemon);
    let before = cgroup.inside();
    assert_eq!(before.len(), 2, "{before:?}");
    daemon.kill9();
    assert!(away.is_alive());
    daemon.launch();
    assert!(!away.is_alive());
    assert_eq!(daemon.status().summary.total(), 0);
    assert!(before.iter().all(|path| !path.exists()), "{:?}", cgroup.inside());
    assert!(daemon.stop().success());
    assert_eq!(cgroup.inside(), Vec::<PathBuf>::new());
}

/// A service manager signals the processes of a unit cgroup by cgroup. If one vanishes meanwhile, systemd takes that
/// for a failure and kills the rest, including the daemon in the middle of its work.
#[test]
fn r11_signalled_daemon_removes_task_cgroups_last_as_root() {
    let cgroup = Delegated::new();
    let mut daemon = cgroup.daemon("");
    let instance = daemon.client().call::<Hello>(&HelloParams::default()).unwrap().instance;
    for _ in 0..3 {
        daemon.wait_running(daemon.submit(&["sleep", "1000"]));
    }
    let gone = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).unwrap();
    let tasks = cgroup.inside().into_iter().find(|path| path.ends_with(format!("bgd-{instance}"))).unwrap();
    for folder in [&tasks, &daemon.state_dir().join("instances")] {
        gone.add_watch(folder, AddWatchFlags::IN_DELETE).unwrap();
    }
    assert!(daemon.stop().success());
    let names: Vec<_> = gone.read_events().unwrap().into_iter().filter_map(|event| event.name).collect();
    assert_eq!((names.len(), names[0].to_str()), (4, Some(&*instance)), "{names:?}");
    assert_eq!(cgroup.inside(), Vec::<PathBuf>::new());
}

/// The threads that look for the processes of a task have small stacks.
#[test]
fn r05_cancel_removes_deeply_nested_cgroups_as_root() {
    let cgroup = Delegated::new();
    let mut daemon = cgroup.daemon(LONG_GRACE);
    let line = format!(
        "cd {}/*/\"$BGD_TASK_ID\"* || exit
        for n in $(seq 400); do mkdir n && cd n || exit; done
        sleep 1000 &
        echo $! > cgroup.procs && : > \"$HOME/deep\"; wait",
        cgroup.path().display()
    );
    let id = daemon.submit_shell(&line);
    wait::for_file(&daemon.home().join("deep"));
    assert!(cgroup.inside().len() > 400);
    daemon.run(&["pause", &id.to_string()]).success();
    daemon.run(&["continue", &id.to_string()]).success();
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(daemon.stop().success());
    assert_eq!(cgroup.inside(), Vec::<PathBuf>::new());
}
