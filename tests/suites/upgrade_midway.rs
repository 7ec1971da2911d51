//! Operations that are under way during an upgrade in place (R121): a time limit, a cancel, a signal, a frame whose
//! descriptor has already arrived; and clients of another version afterwards (R124).

use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;

use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::fds;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::CancelReason;
use bgd_tests::shared::request::{CancelParams, DaemonUpgrade, SubmitParams, TaskCancel, UpgradeParams};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::upgrades::{exit_of, in_time, refused, release, until, upgrade, upgrade_until_ended};
use bgd_tests::user::{fill_disk, on_a_small_disk_with};
use bgd_tests::{Outcome, Raw, TestDaemon, bgctl_path, bgd_path, executable, wait};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::process::Signal;
use serde_json::json;

#[test]
fn r121_time_limit_still_ends_task_after_upgrade() {
    let daemon = TestDaemon::start();
    in_time(|limit| {
        let params = SubmitParams {
            argv: Some(["sleep", "1000"].map(Into::into).into()),
            time_limit_ms: u64::try_from(limit.as_millis()).ok(),
            ..daemon.params()
        };
        let id = daemon.submit_with(&params).id;
        let upgrades = upgrade_until_ended(&daemon, id);
        let task = daemon.task(id);
        let kind = task.failure.as_ref().map(|failure| failure.kind);
        assert_eq!((task.status, kind), (Status::Failed, Some(FailureKind::Timeout)));
        upgrades >= 3
    });
}

#[test]
fn r121_cancel_in_grace_period_still_kills_task_after_upgrade() {
    let daemon = TestDaemon::start();
    in_time(|grace| {
        let id = daemon.submit_shell("trap 'echo asked' TERM; echo begun; while :; do sleep 0.1; done");
        daemon.wait_output(id, "begun");
        let grace_ms = u64::try_from(grace.as_millis()).ok();
        let params = CancelParams { ids: vec![id.into()], grace_ms, ..CancelParams::default() };
        let mut client = daemon.client();
        let call = client.send::<TaskCancel>(&params, &[]).unwrap();
        let asked = || String::from_utf8(daemon.output(id)).unwrap().matches("asked").count();
        wait::poll_until("the signal", || (asked() > 0 || !daemon.task(id).status.is_active()).then_some(()));
        upgrade(&daemon);
        let is_in_time = daemon.task(id).status.is_active();
        let cancelled = client.answer::<TaskCancel>(call).unwrap();
        assert_eq!(cancelled.tasks[0].status, Status::Cancelled);
        let task = daemon.task(id);
        assert_eq!((task.exit, task.cancel_reason), (Some(Exit::Signal(9)), Some(CancelReason::User)));
        assert!(asked() <= 1, "it was asked once");
        is_in_time && asked() == 1
    });
}

#[test]
fn r121_partial_frame_and_its_descriptor_survive_upgrade() {
    let daemon = TestDaemon::start();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut params = serde_json::to_value(daemon.params()).unwrap();
    params["shell"] = "echo through the pipe".into();
    params["stdout"] = "fd".into();
    let line = json!({"jsonrpc": "2.0", "id": 7, "method": "task.submit", "params": params}).to_string();
    let (begin, end) = line.split_at(line.len() / 2);
    let mut raw = Raw::connect(daemon.socket());
    assert_eq!(fds::send(&raw, begin.as_bytes(), &[writer.as_fd()]).unwrap(), begin.len());
    let pipe = fs::read_link(format!("/proc/self/fd/{}", writer.as_raw_fd())).unwrap();
    drop(writer);
    for _ in 0..2 {
        let process = daemon.process();
        let has_pipe = |fd: fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|target| target == pipe);
        wait::poll_until("the half frame to be read", || {
            fs::read_dir(process.proc("fd")).unwrap().flatten().any(has_pipe).then_some(())
        });
        upgrade(&daemon);
    }
    raw.send(format!("{end}\n").as_bytes()).unwrap();
    let answer = raw.receive().expect("an answer");
    assert!(answer["id"] == 7 && answer["result"]["task"]["id"].is_string(), "{answer}");
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through the pipe\n", "and nobody else has the descriptor");
}

#[test]
fn r124_clients_of_other_versions_are_served_if_protocol_matches() {
    let daemon = TestDaemon::start();
    let mut raw = Raw::connect(daemon.socket());
    let hello = |client: &str, protocol: u32| json!({"client": client, "protocol": protocol});
    for (id, version) in ["bgctl 0.0.1", "bgctl 99.0.0"].into_iter().enumerate() {
        let answer = raw.call(id as u64, "hello", &hello(version, 1));
        assert_eq!(answer["result"]["protocol"], 1, "{answer}");
        let params = serde_json::to_value(SubmitParams { shell: Some("exit 3".into()), ..daemon.params() });
        let task = raw.call(10 + id as u64, "task.submit", &params.unwrap());
        let ids = json!({"ids": [task["result"]["task"]["id"]]});
        let ended = raw.call(20 + id as u64, "task.block", &ids);
        assert_eq!(ended["result"]["tasks"][0]["exit"]["code"], 3, "{ended}");
        upgrade(&daemon);
    }
    let answer = raw.call(30, "hello", &hello("bgctl 99.0.0", 99));
    assert_eq!(answer["error"]["data"]["kind"], "unsupported", "{answer}");
}

#[test]
fn r123_durable_daemon_on_full_disk_refuses_upgrade_until_there_is_room() {
    let daemon = on_a_small_disk_with("size=4m", "durable = true");
    let task = until(&daemon, "first", 7);
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    let fill = fill_disk(&daemon);
    wait::poll_until("a submit is refused", || {
        let outcome = daemon.run(&["submit", "--hold", "--", "true"]);
        (outcome.code != 0)
            .then(|| assert!(outcome.stderr.contains("the disk is full"), "{}", outcome.stderr))
    });
    let known = daemon.status().summary.total();
    let text = refused(&daemon, &bgd_path());
    assert!(text.contains("the journal can't be written: the disk is full"), "{text}");
    assert_eq!(daemon.status().summary.total(), known);
    fs::remove_file(fill).unwrap();
    wait::poll_until("the journal is written again", || {
        daemon.status().warnings.iter().all(|warning| !warning.contains("journal")).then_some(())
    });
    upgrade(&daemon);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
    daemon.run(&["release", &held.to_string()]).success();
    assert_eq!(daemon.block(&[held])[0].status, Status::Completed);
    assert_eq!(daemon.status().summary.total(), known);
}

/// As with Homebrew and Nix: a folder for each version, which is removed, and links to the latest one.
#[test]
fn r120_daemon_started_by_symlink_upgrades_to_current_link_target() {
    let home = TestDaemon::home_only();
    let bin = home.home().join("bin");
    fs::create_dir(&bin).unwrap();
    let install = |version: &str| {
        let folder = home.home().join(version);
        fs::create_dir(&folder).unwrap();
        for program in [bgd_path(), bgctl_path()] {
            let name = program.file_name().unwrap();
            executable::copy(program.as_ref(), &folder.join(name));
            let _ = fs::remove_file(bin.join(name));
            symlink(folder.join(name), bin.join(name)).unwrap();
        }
        folder
    };
    let run = |bgctl: &Path, args: &[&str]| {
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let mut command = Command::new(bgctl);
        command.args(args).env_clear().envs(home.environment()).env_remove("BGD_DAEMON").env("PATH", path);
        Outcome::of(command.current_dir(home.home())).success()
    };
    let first = install("1");
    run(Path::new("bgctl"), &["daemon", "start"]);
    let process = home.process();
    let runs = |folder: &Path| fs::read_link(process.proc("exe")).unwrap() == folder.join("bgd");
    assert!(runs(&first));
    let second = install("2");
    fs::remove_dir_all(&first).unwrap();
    run(Path::new("bgctl"), &["daemon", "upgrade"]);
    assert!(runs(&second));
    let status = run(&bin.join("bgctl"), &["daemon", "status"]).stdout_text();
    assert!(!status.contains("program:"), "{status}");
    run(&bin.join("bgctl"), &["daemon", "stop"]);
    process.gone();
}

/// A signal may arrive when the daemon no longer looks for any, because it is about to execute the next program.
#[test]
fn r121_signal_during_upgrade_ends_the_next_program() {
    let mut daemon = TestDaemon::start();
    for _ in 0..5 {
        // A large state takes a while to be written.
        for number in 0..60 {
            let env = [("LARGE".into(), format!("{number:060000}").into())].into_iter().collect();
            let argv = Some(vec!["true".into()]);
            daemon.submit_with(&SubmitParams { argv, env: Some(env), hold: true, ..daemon.params() });
        }
        let changes = Inotify::init(InitFlags::IN_CLOEXEC).unwrap();
        // That it is being replaced is recorded just before the state is written.
        changes.add_watch(&daemon.socket_path().beside("lock"), AddWatchFlags::IN_MODIFY).unwrap();
        let (process, mut client) = (daemon.process(), daemon.client());
        let signalled = thread::scope(|scope| {
            let signaller = scope.spawn(|| {
                assert!(wait::readable(changes.as_fd(), wait::PATIENCE));
                process.signal(Signal::TERM)
            });
            // It may end before it answers.
            let _ = client.call::<DaemonUpgrade>(&UpgradeParams::default());
            signaller.join().expect("a thread that does not panic")
        });
        signalled.expect("the daemon lives");
        assert!(daemon.ended().success());
        daemon.launch();
    }
}
