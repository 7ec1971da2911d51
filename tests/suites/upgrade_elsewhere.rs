//! An upgrade in place picks up tasks on other machines where they are (R121), and waits for no machine.

use std::fs;
use std::time::Duration;

use bgd_tests::far::{Far, HOST};
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    DaemonStatusOf, DaemonUpgrade, Encoding, ExecutorList, ExecutorListParams, NoParams, SelectParams,
    SignalParams, TaskPause, TaskSignal, TaskWrite, UpgradeParams, WriteParams,
};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::{Process, wait};

#[track_caller]
fn upgrade(far: &mut Far) {
    far.here().client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
}

#[test]
fn r121_remote_tasks_survive_upgrade() {
    let mut far = Far::with_here("");
    let line = "trap 'echo usr; exit 6' USR1; echo up; while read word; do echo \"<$word>\"; done; exit 7";
    let reads = far.submit_on(&["--stdin-pipe", "--ready", "line:^up"], line);
    let sleeps = far.submit_on(&[], "exec sleep 1000");
    let held = far.submit_on(&["--hold"], "true");
    far.until(reads, "it is ready", |task| task.ready_at.is_some());
    let before = far.running(sleeps);
    let after = far.submit_on(&["--after", &format!("{reads}:fail")], "echo after");
    for round in 0..5 {
        upgrade(&mut far);
        // Although the connection is still being made.
        far.run_here(&["pause", &sleeps.to_string()]).success();
        assert!(far.here().task(sleeps).paused, "{round}");
        upgrade(&mut far);
        far.run_here(&["continue", &sleeps.to_string()]).success();
        assert!(!far.here().task(sleeps).paused, "{round}");
        far.run_here(&["write", &reads.to_string(), "-n", &format!("words {round}")]).success();
    }
    let task = far.here().task(sleeps);
    assert_eq!((task.started_at, task.elsewhere), (before.started_at, before.elsewhere));
    assert_eq!(far.here().task(held).status, Status::Pending);
    // A signal may overtake what was written before it.
    far.here().wait_output(reads, "<words 4>");
    far.run_here(&["signal", &reads.to_string(), "USR1"]).success();
    assert_eq!(far.ended(reads).exit, Some(Exit::Code(6)));
    let output = String::from_utf8(far.here().output(reads)).unwrap();
    let words = (0..5).map(|round| format!("<words {round}>\n")).collect::<Vec<_>>().concat();
    assert_eq!(output, format!("up\n{words}usr\n"));
    assert_eq!(far.ended(after).status, Status::Completed);
    let cancelled = far.here().cancel(&[sleeps, held]);
    assert!(cancelled.iter().all(|task| task.status == Status::Cancelled && !task.lingering));
    far.forgotten();
    // Nothing is left of the connections of the previous programs.
    wait::poll_until("one connection", || (far.bridges().len() == 1).then_some(()));
}

#[test]
fn r121_tasks_of_two_executors_on_one_machine_survive_upgrade() {
    let mut far = Far::start();
    far.start_here(&far.second_executor());
    let gate = far.daemon.home().join("gate");
    let line = format!("until [ -e {} ]; do sleep 0.02; done; exit 3", gate.display());
    let first = far.submit_on(&[], &line);
    let second = far.run_here(&["submit", "--on", "second", "--shell", &line]).word();
    far.running(first);
    far.running(second);
    for _ in 0..2 {
        upgrade(&mut far);
        // Each looks for unknown tasks before it accepts one.
        for on in [HOST, "second"] {
            let last = far.run_here(&["submit", "--on", on, "--shell", "exit 4"]).word();
            assert_eq!(far.ended(last).exit, Some(Exit::Code(4)));
        }
    }
    fs::write(gate, "").unwrap();
    for id in [first, second] {
        assert_eq!(far.ended(id).exit, Some(Exit::Code(3)));
    }
    far.forgotten();
}

#[test]
fn r121_upgrades_neither_lose_nor_repeat_flowing_remote_output() {
    let mut far = Far::with_here("");
    let line = "i=0; while [ $i -lt 40000 ]; do echo line $i; i=$((i+1)); done; exit 9";
    let id = far.submit_on(&[], line);
    far.running(id);
    let mut seen = 0;
    for _ in 0..10 {
        let task = far.until(id, "more output, or its end", |task| {
            task.output.bytes > seen || task.completed_at.is_some()
        });
        seen = task.output.bytes;
        upgrade(&mut far);
    }
    assert_eq!(far.ended(id).exit, Some(Exit::Code(9)));
    let whole = (0..40_000).map(|number| format!("line {number}\n")).collect::<Vec<_>>().concat();
    assert!(far.here().output(id) == whole.as_bytes());
}

#[test]
fn r121_remote_submissions_in_flight_at_upgrade_run_once() {
    let mut far = Far::start();
    let wire = far.wire();
    wire.delay(Duration::from_millis(50));
    far.start_here("");
    let mut all = Vec::new();
    for round in 0..10 {
        all.push(far.submit_on(&[], &format!("echo ran >>$HOME/ran{round}; exit {round}")));
        if round % 3 == 0 {
            far.until(all[round], "it is there", |task| task.elsewhere.is_some());
        }
        upgrade(&mut far);
    }
    for (round, task) in far.here().block(&all).iter().enumerate() {
        assert_eq!(task.exit, Some(Exit::Code(i32::try_from(round).unwrap())), "{task:?}");
        let ran = fs::read_to_string(far.daemon.home().join(format!("ran{round}"))).unwrap();
        assert_eq!(ran, "ran\n", "{round}");
    }
    far.forgotten();
}

#[test]
fn r121_upgrade_does_not_wait_for_silent_or_unreachable_machine() {
    let mut far = Far::start();
    let wire = far.wire();
    far.start_here("");
    let gate = far.daemon.home().join("gate");
    let id = far.submit_on(&[], &format!("until [ -e {} ]; do sleep 0.02; done; exit 3", gate.display()));
    let ends = far.submit_on(&[], "exec sleep 1000");
    far.running(id);
    far.running(ends);
    // The machine does not answer, and nobody knows it yet.
    wire.freeze();
    upgrade(&mut far);
    upgrade(&mut far);
    assert_eq!(far.here().task(id).status, Status::Running);
    // The machine can't be reached.
    far.wrap("exit 255");
    let unknown = |task: &Task| task.elsewhere.as_ref().is_some_and(|there| there.unknown_since.is_some());
    let task = wait::poll_until("it is not known", || {
        far.bridges().iter().for_each(Process::kill);
        Some(far.here().task(id)).filter(unknown)
    });
    let since = task.elsewhere.unwrap().unknown_since;
    upgrade(&mut far);
    let task = far.until(id, "it is not known", unknown);
    assert_eq!((task.status, task.elsewhere.unwrap().unknown_since), (Status::Running, since));
    wire.thaw();
    far.wrap("");
    fs::write(gate, "").unwrap();
    assert_eq!(far.ended(id).exit, Some(Exit::Code(3)));
    assert_eq!(far.here().cancel(&[ends])[0].status, Status::Cancelled);
    far.forgotten();
}

#[test]
fn r121_upgrade_answers_calls_waiting_for_silent_machine() {
    let mut far = Far::start();
    let wire = far.wire();
    far.start_here("");
    let line = "echo up; while read word; do echo \"<$word>\"; done; exit 7";
    let reads = far.submit_on(&["--stdin-pipe", "--ready", "line:^up"], line);
    let sleeps = far.submit_on(&[], "exec sleep 1000");
    far.until(reads, "it is ready", |task| task.ready_at.is_some());
    far.running(sleeps);
    wire.freeze();
    let mut client = far.here().client();
    let one = |id: TaskId| SelectParams { ids: vec![id.into()], matching: None };
    let write =
        WriteParams { id: reads.into(), data: "words\n".into(), encoding: Encoding::Utf8, eof: false };
    let write = client.send::<TaskWrite>(&write, &[]).unwrap();
    // The signal may arrive, and changes nothing.
    let signal = SignalParams { id: reads.into(), signal: "CONT".into(), tree: false };
    let signal = client.send::<TaskSignal>(&signal, &[]).unwrap();
    let pause = client.send::<TaskPause>(&one(sleeps), &[]).unwrap();
    let check = ExecutorListParams { check: true, ..ExecutorListParams::default() };
    let check = client.send::<ExecutorList>(&check, &[]).unwrap();
    // All of these are under way once a later call is answered.
    client.call::<DaemonStatusOf>(&NoParams {}).unwrap();

    upgrade(&mut far);

    let error = |error: ClientError| error.to_string();
    let refused = client.answer::<TaskWrite>(write).map_err(error).unwrap_err();
    assert!(
        refused.contains("upgraded before an answer came: it is not known whether it was written"),
        "{refused}"
    );
    let refused = client.answer::<TaskSignal>(signal).map_err(error).unwrap_err();
    assert!(refused.contains("it is not known whether the signal was delivered"), "{refused}");
    let checked = client.answer::<ExecutorList>(check).unwrap().executors;
    let problem = checked.iter().find(|executor| executor.name == HOST).and_then(|far| far.check.clone());
    let problem = problem.and_then(|check| check.problem);
    assert_eq!(problem.as_deref(), Some("it did not answer before the daemon was upgraded"));
    // Requests that the daemon knows of are carried out once the machine answers.
    assert!(client.answer::<TaskPause>(pause).unwrap().tasks[0].paused);
    wire.thaw();
    wait::poll_until("it is paused there", || far.tasks_there().iter().any(|task| task.paused).then_some(()));
    far.run_here(&["continue", &sleeps.to_string()]).success();
    far.run_here(&["write", &reads.to_string(), "-n", "last", "--eof"]).success();
    assert_eq!(far.ended(reads).exit, Some(Exit::Code(7)));
    let output = String::from_utf8(far.here().output(reads)).unwrap();
    assert!(output.ends_with("<last>\n") && output.matches("<words>").count() <= 1, "{output}");
    assert_eq!(far.here().cancel(&[sleeps])[0].status, Status::Cancelled);
    far.forgotten();
}

#[test]
fn r121_write_during_reconnection_after_upgrade_reaches_remote_task_or_is_refused() {
    let mut far = Far::with_here("");
    let line = "while read word; do echo \"<$word>\"; done; exit 7";
    let reads = far.submit_on(&["--stdin-pipe"], line);
    far.running(reads);
    let gate = far.path("gate");
    let params =
        WriteParams { id: reads.into(), data: "words\n".into(), encoding: Encoding::Utf8, eof: false };
    // Returns the answer to a write that is made while an ssh waits for the gate, which then runs this line.
    let write = |far: &mut Far, then: &str| {
        let _ = fs::remove_file(&gate);
        far.wrap(&format!("until [ -e {} ]; do sleep 0.02; done; {then}", gate.display()));
        upgrade(far);
        let mut client = far.here().client();
        let call = client.send::<TaskWrite>(&params, &[]).unwrap();
        // It is under way once a later call is answered.
        client.call::<DaemonStatusOf>(&NoParams {}).unwrap();
        fs::write(&gate, "").unwrap();
        client.answer::<TaskWrite>(call).map_err(|error| error.to_string())
    };
    write(&mut far, "").expect("it is written once there is a connection");
    far.here().wait_output(reads, "<words>");
    let refused = write(&mut far, "exit 255").unwrap_err();
    assert!(refused.contains("can't be written to now: far can't be reached"), "{refused}");
    far.wrap("");
    far.until(reads, "it is known again", |task| {
        task.elsewhere.as_ref().is_some_and(|there| there.unknown_since.is_none())
    });
    far.run_here(&["write", &reads.to_string(), "--eof"]).success();
    assert_eq!(far.ended(reads).exit, Some(Exit::Code(7)));
    assert_eq!(far.here().output(reads), b"<words>\n", "the refused one was not written");
    far.forgotten();
}
