//! R164: the resources of the machine that a run has used, and that running tasks use.

use std::fs;
use std::path::PathBuf;

use bgd_tests::cgroups::Delegated;
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::notice::Notice;
use bgd_tests::shared::order::Retry;
use bgd_tests::shared::request::{
    CancelParams, ClearParams, SubmitParams, TaskCancel, TaskClear, TaskSubmit, TaskUsage, TerminalSize,
    UsageParams, UsageResult,
};
use bgd_tests::shared::task::Task;
use bgd_tests::shared::text::OsText;
use bgd_tests::upgrades::upgrade_under_load;
use bgd_tests::{FakeDaemon, TestDaemon, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const MIB: u64 = 1 << 20;

/// Computes for a quarter of a second of CPU time, then holds 64 MiB at once.
const WORK: &str =
    r#"exec perl -e 'while ((times)[0] < 0.25) { $n++ } $x = "x" x (64 << 20); print length $x'"#;

fn usage(daemon: &TestDaemon, ids: &[TaskId]) -> Result<UsageResult, ClientError> {
    let ids = ids.iter().copied().map(Into::into).collect();
    daemon.client().call::<TaskUsage>(&UsageParams { ids })
}

fn end(daemon: &TestDaemon, id: TaskId) -> Task {
    daemon.block(&[id]).remove(0)
}

fn assert_counts(task: &Task) {
    let usage = task.usage.expect("what it used is known");
    assert!(usage.user_ms >= 240, "{usage:?}");
    assert!(usage.peak_memory_bytes.is_some_and(|bytes| bytes >= 64 * MIB), "{usage:?}");
}

/// The kernel attributes the daemon's memory in a child to the child, and knows it only roughly while the daemon grows.
#[test]
fn r164_daemon_memory_is_not_attributed_to_small_tasks() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let filler = vec!["true".into(), "x".repeat(100_000).into()];
    let mut submit = |argv: &[OsText], hold| {
        let params = SubmitParams { argv: Some(argv.to_vec()), hold, ..daemon.params() };
        client.call::<TaskSubmit>(&params).unwrap().task.id
    };
    let mut small = Vec::new();
    for _ in 0..400 {
        submit(&filler, true);
        small.push(submit(&["true".into()], false));
    }
    for task in daemon.block(&small) {
        let usage = task.usage.expect("what it used is known");
        assert!(usage.peak_memory_bytes.is_none_or(|bytes| bytes < 8 * MIB), "{usage:?}");
    }
}

/// The program that takes over has a peak of its own, but the children of the previous one keep that of the daemon.
#[test]
fn r164_daemon_memory_is_not_attributed_to_small_task_across_upgrade() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let filler = vec!["true".into(), "x".repeat(100_000).into()];
    let fillers: Vec<TaskId> = (0..200)
        .map(|_| {
            let params = SubmitParams { argv: Some(filler.clone()), hold: true, ..daemon.params() };
            client.call::<TaskSubmit>(&params).unwrap().task.id
        })
        .collect();
    let gate = daemon.home().join("gate");
    mkfifo(&gate, Mode::S_IRWXU).unwrap();
    let id = daemon.submit_shell(&format!("read word < {}", gate.display()));
    daemon.wait_running(id);
    // The next program needs less memory than this one had. One call for each: an answer has the whole tasks.
    for id in fillers {
        let ids = vec![id.into()];
        client.call::<TaskCancel>(&CancelParams { ids: ids.clone(), ..CancelParams::default() }).unwrap();
        client.call::<TaskClear>(&ClearParams { ids: Some(ids), ..ClearParams::default() }).unwrap();
    }
    upgrade_under_load(&daemon);
    fs::write(&gate, "go\n").unwrap();
    let usage = end(&daemon, id).usage.expect("what it used is known");
    // A cgroup of its own measures a little.
    assert!(usage.peak_memory_bytes.is_none_or(|bytes| bytes < 8 * MIB), "{usage:?}");
}

#[test]
fn r164_ended_run_reports_its_usage() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let id = daemon.submit_shell(WORK);
    let task = end(&daemon, id);
    assert_counts(&task);
    let event = watch.until(|event| event.kind.is_terminal());
    assert_eq!(event.task.usage, task.usage);
    let page = daemon.run(&["status", &id.to_string()]).success();
    let line = page.stdout_text().lines().find(|line| line.contains("of CPU")).unwrap().to_owned();
    assert!(line.trim_start().starts_with("used"), "{line}");
    // Children that it waited for count, the others do not, nor do other processes.
    let parent = daemon.submit_shell(&format!("({WORK}); sh -c 'exit 0'"));
    assert_counts(&end(&daemon, parent));
    let idle = end(&daemon, daemon.submit_shell("exit 3")).usage.unwrap();
    assert!(idle.user_ms < 200 && idle.written_bytes < MIB, "{idle:?}");
}

#[test]
fn r164_system_time_is_counted_separately() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_shell("exec perl -e 'while ((times)[1] < 0.25) { -e \"/\" }'");
    let usage = end(&daemon, id).usage.unwrap();
    assert!(usage.system_ms >= 240, "{usage:?}");
}

#[test]
fn r164_agent_process_is_measured_only_while_it_works() {
    let daemon = FakeDaemon::start(&[], "keep_warm = \"1h\"");
    let task = daemon.submit_with(&daemon.prompt_params("say so; touch there; hang"));
    wait::for_file(&daemon.home().join("there"));
    // The agent may be faster than the daemon, which may not have read its first message yet.
    daemon.wait_running(task.id);
    let usages = usage(&daemon, &[task.id]).unwrap().usages;
    assert_eq!((usages.len(), usages[0].id), (1, task.id));
    assert!(usages[0].processes >= 1 && usages[0].memory_bytes > MIB, "{usages:?}");
    daemon.cancel(&[task.id]);
    let ended = end(&daemon, task.id);
    assert_eq!(ended.usage, None, "its process works for others, too");
    let usages = usage(&daemon, &[task.id]).unwrap().usages;
    assert!(usages.is_empty(), "it is not its any more: {usages:?}");
}

#[test]
fn r164_terminal_job_reports_its_usage() {
    let daemon = TestDaemon::start();
    let terminal = SubmitParams {
        shell: Some(WORK.into()),
        pty: Some(TerminalSize { rows: 10, cols: 40 }),
        ..daemon.params()
    };
    let id = daemon.client().call::<TaskSubmit>(&terminal).unwrap().task.id;
    assert_counts(&end(&daemon, id));
}

#[test]
fn r164_cgroup_usage_includes_unwaited_processes_as_root() {
    let cgroup = Delegated::new();
    let daemon = cgroup.daemon("");
    // Nobody waits for the process that computes, so only the cgroup knows about it.
    let gate = daemon.home().join("gate");
    mkfifo(&gate, Mode::S_IRWXU).unwrap();
    let line = "(perl -e 'while ((times)[0] < 0.25) { $n++ }'; echo >gate) & exec cat gate";
    let task = end(&daemon, daemon.submit_shell(line));
    assert!(task.usage.is_some_and(|usage| usage.user_ms >= 240), "{:?}", task.usage);
}

#[test]
fn r164_each_attempt_reports_its_own_usage() {
    let daemon = TestDaemon::start();
    let line = format!("[ -e again ] || {{ touch again; ({WORK}); exit 1; }}");
    let retry =
        Some(Retry { times: 1, delay_ms: Some(0), max_delay_ms: None, codes: Vec::new(), signal: false });
    let params = SubmitParams { shell: Some(line.into()), retry, ..daemon.params() };
    let id = daemon.client().call::<TaskSubmit>(&params).unwrap().task.id;
    let task = end(&daemon, id);
    assert!(task.attempts[0].usage.unwrap().user_ms >= 240, "{:?}", task.attempts);
    assert!(task.usage.unwrap().user_ms < 200, "{:?}", task.usage);
}

#[test]
fn r164_written_bytes_are_counted() {
    let daemon = TestDaemon::start();
    // Not in a folder on a memory file system.
    let folder = tempfile::tempdir_in(PathBuf::from(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let line = format!("head -c 8388608 /dev/zero > {}/file", folder.path().display());
    let usage = end(&daemon, daemon.submit_shell(&line)).usage.unwrap();
    assert!(usage.written_bytes >= 8 * MIB, "{usage:?}");
}

#[test]
fn r164_running_tasks_are_measured_on_request() {
    let daemon = TestDaemon::start();
    let line = r#"perl -e '$x = "x" x (64 << 20); open F, ">there"; close F; sleep 1000' & wait"#;
    let id = daemon.submit_shell(line);
    wait::for_file(&daemon.home().join("there"));
    daemon.wait_running(id);
    let ended = daemon.submit_shell("exit 0");
    end(&daemon, ended);
    let usages = usage(&daemon, &[ended, id]).unwrap().usages;
    assert_eq!(usages.len(), 1, "what has ended uses nothing: {usages:?}");
    assert_eq!((usages[0].id, usages[0].processes), (id, 2));
    assert!(usages[0].memory_bytes >= 64 * MIB, "{usages:?}");
    let unknown = usage(&daemon, &[TaskId::from_u128(7)]).unwrap_err();
    assert_eq!(unknown.kind(), Some(ErrorKind::TaskNotFound));
    let many = usage(&daemon, &vec![id; 257]).unwrap_err();
    assert_eq!(many.kind(), Some(ErrorKind::InvalidParams));
    assert!(many.to_string().contains("at most 256"), "{many}");
}

/// Returns the library that makes the daemon's clocks run faster than those of its tasks: four seconds are 80 to it.
#[track_caller]
fn fast_clock() -> PathBuf {
    // Distributions have a folder per architecture, or none.
    let per_machine =
        fs::read_dir("/usr/lib").expect("a folder").map(|entry| entry.expect("an entry").path());
    let folders = per_machine.chain(["/usr/lib".into(), "/usr/lib64".into()]);
    let mut libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    libraries.find(|path| path.is_file()).expect("libfaketime, which tests/run installs")
}

#[test]
fn r164_notice_of_run_over_a_minute_includes_usage() {
    let config = "default_deliver_to = [\"ops\"]\n[channels.ops]\ntype = \"exec\"\n\
                  command = [\"/bin/sh\", \"-c\", 'cat >> \"$HOME/told\"']\ntimeout = \"10m\"\n";
    let builder = TestDaemon::builder().config(config);
    let daemon = builder.env("LD_PRELOAD", fast_clock()).env("FAKETIME", "+0 x20").start();
    let file = daemon.home().join("told");
    let notice = |name: &str, line: &str| -> Notice {
        let params =
            SubmitParams { description: Some(name.into()), shell: Some(line.into()), ..daemon.params() };
        let id = daemon.submit_with(&params).id;
        // The daemon's wait is short by its clock. The channel also reports the task's start.
        serde_json::from_str(&wait::for_line(&file, &format!("\"key\":\"{id}/1\""))).unwrap()
    };
    let long = notice("long", &format!("unset LD_PRELOAD; ({WORK}); sleep 4"));
    // By the daemon's clock, even this takes over a minute if the machine is busy for three seconds.
    let short = wait::poll_until("a run of less than a minute", || {
        let short = notice("short", "true");
        (short.duration_ms.expect("it has run") < 60_000).then_some(short)
    });
    assert!(long.duration_ms.is_some_and(|ms| ms >= 60_000), "{long:?}");
    let usage = long.task.usage.expect("what it used is known");
    let said = bgd_tests::shared::show::usage(&usage);
    assert!(long.text.contains(&said) && said.contains(" of CPU, at most "), "{said}: {}", long.text);
    assert!(!short.text.contains("of CPU"), "{}", short.text);
}
