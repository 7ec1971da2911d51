//! Readiness checks across an upgrade in place (R121): tasks that are not ready yet become ready after it, by every
//! kind of check.

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{BlockParams, BlockUntil, SubmitParams, TaskBlock};
use bgd_tests::shared::task::Status;
use bgd_tests::upgrades::{in_time, upgrade, upgrade_until_ended};
use bgd_tests::{TestDaemon, ports, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// A task that runs `then` after its gate was opened, and is ready then.
fn gated(daemon: &TestDaemon, number: usize, ready: &str, then: &str) -> TaskId {
    let gate = daemon.home().join(format!("gate{number}"));
    mkfifo(&gate, Mode::S_IRWXU).expect("a named pipe");
    let line = format!("echo begun; read x < gate{number}; {then}; exec sleep 1000");
    let ready = Some(ready.parse().expect("a condition"));
    let id = daemon.submit_with(&SubmitParams { shell: Some(line.into()), ready, ..daemon.params() }).id;
    wait::for_bytes(daemon.task(id).output.path.as_ref(), 6);
    id
}

#[test]
fn r121_every_kind_of_readiness_check_works_after_upgrade() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 5").start();
    let port = ports::unused();
    let serve = format!("python3 -m http.server --bind 127.0.0.1 {port} >/dev/null 2>&1 &");
    let http = format!("http://127.0.0.1:{port}/");
    let cases = [
        ("line:^Listening on \\d+$", "echo Listening on 80"),
        ("file:there", ": > there"),
        ("notify", "systemd-notify --ready"),
        (&*http, &*format!("{serve} true")),
        (&*format!("tcp:{port}"), "true"),
    ];
    let tasks: Vec<TaskId> =
        cases.iter().enumerate().map(|(number, (ready, then))| gated(&daemon, number, ready, then)).collect();
    let mut client = daemon.client();
    let ids: Vec<_> = tasks.iter().copied().map(Into::into).collect();
    let all = BlockParams { ids, until: BlockUntil::Ready, timeout_ms: None, ..BlockParams::default() };
    let waits = std::thread::spawn(move || client.call::<TaskBlock>(&all));

    upgrade(&daemon);

    assert!(tasks.iter().all(|id| daemon.task(*id).ready_at.is_none()));
    for number in 0..cases.len() {
        wait::for_reader(&daemon.home().join(format!("gate{number}")), "go on\n");
    }
    let blocked = waits.join().expect("it waits").expect("all of them become ready");
    assert_eq!(blocked.active.len(), tasks.len(), "{blocked:?}");
    // An upgrade also works once they are ready: one may still send notifications, the others send nothing more.
    upgrade(&daemon);
    assert!(tasks.iter().all(|id| daemon.task(*id).ready_at.is_some()));
    daemon.cancel(&tasks);
}

#[test]
fn r121_readiness_timeout_still_applies_after_upgrade() {
    let daemon = TestDaemon::start();
    in_time(|time| {
        let params = SubmitParams {
            shell: Some("sleep 1000".into()),
            ready: Some("file:never".parse().expect("a condition")),
            ready_timeout_ms: u64::try_from(time.as_millis()).ok(),
            ..daemon.params()
        };
        let id = daemon.submit_with(&params).id;
        let upgrades = upgrade_until_ended(&daemon, id);
        let task = daemon.task(id);
        let error = format!("not ready after {}s", time.as_secs());
        assert_eq!((task.status, task.error), (Status::Failed, Some(error)));
        upgrades >= 3
    });
}
