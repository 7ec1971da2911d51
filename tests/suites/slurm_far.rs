//! Tasks of a cluster whose login node is reached by ssh: a real sshd in front of a real cluster.

use std::fs;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::CancelReason;
use bgd_tests::shared::request::Stream;
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::slurm::{Builder, Site, unknown};
use bgd_tests::wait;
use nix::sys::signal::Signal;

#[test]
fn r146_job_runs_through_login_node_as_root() {
    let site = Site::far(Builder::default());
    // Everything started by ssh inherits it.
    site.login().wrap("umask 027");
    let home = site.login().daemon.home().to_str().unwrap().to_owned();
    let line = "pwd; umask; echo \"$NEW\" \"${OLD-none}\" \"${BGD_INSTANCE-none}\" $BGD_GROUP; \
                echo \"${LC_ALL-none}\"; echo late >&2; exit 3";
    let mut command =
        site.daemon.bgctl(&["submit", "--on", "hpc", "--env", "NEW=x  'y", "--split", "--shell", line]);
    let id: TaskId = bgd_tests::Outcome::of(command.env("OLD", "here")).word();
    let task = site.ended(id);
    assert_eq!(
        String::from_utf8(site.daemon.stream(id, Stream::Stdout)).unwrap(),
        format!("{home}\n0027\nx  'y none none hpc\nnone\n")
    );
    assert_eq!(site.daemon.stream(id, Stream::Stderr), b"late\n");
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Code(3))));
    let argv: TaskId = site
        .run(&[
            "submit",
            "--on",
            "hpc",
            "--cwd",
            "/usr",
            "--",
            "sh",
            "-c",
            "pwd; printf '%s|' \"$@\"",
            "sh",
            "a b",
            "",
            "'\"$HOME\n",
        ])
        .word();
    assert_eq!(site.ended(argv).status, Status::Completed);
    assert_eq!(site.output(argv), "/usr\na b||'\"$HOME\n|");
    assert_eq!(site.login().connections(), 1, "one connection for everything");
    // Once it is here, nothing is left there.
    let next = site.submit(&[], "sleep 1000");
    site.running(next);
    let left = |name: &str| -> Vec<_> {
        fs::read_dir(site.folders()[0].join(name)).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    wait::poll_until("files are removed", || {
        (left("output").len() == 1 && left("jobs").len() == 1 && left("notes").len() <= 1).then_some(())
    });
    site.daemon.cancel(&[next]);
}

#[test]
fn r150_output_arrives_while_job_runs_and_cancel_ends_job_as_root() {
    let site = Site::far(Builder::default());
    let go = site.daemon.home().join("go");
    let line = format!(
        "echo one; until [ -e {} ]; do sleep 0.1; done; head -c 3000000 /dev/zero; sleep 1000",
        go.display()
    );
    let id = site.submit(&["--ready", "line:^one"], &line);
    site.until(id, "its output is here", |task| task.output.bytes == 4 && task.ready_at.is_some());
    assert_eq!(site.output(id), "one\n");
    fs::write(go, "").unwrap();
    site.until(id, "the rest is here", |task| task.output.bytes == 3_000_004);
    let job = site.job(id);
    let task = site.daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.cancel_reason), (Status::Cancelled, Some(CancelReason::User)));
    assert_ne!(
        site.cluster.field(&job, "JobState").as_deref(),
        Some("RUNNING"),
        "the cluster has confirmed it"
    );
    site.cluster.wait_for_state(&job, "CANCELLED");
    assert_eq!(site.daemon.output(id).len(), 3_000_004);
    // Output written just before the end is here with the end.
    let id = site.submit(&[], "head -c 2500000 /dev/zero; echo end");
    assert_eq!(site.ended(id).output.bytes, 2_500_004);
    assert!(site.daemon.output(id).ends_with(b"\0end\n"));
}

#[test]
fn r149_many_jobs_take_few_calls_over_one_connection_as_root() {
    let site = Site::far(Builder::default());
    let items = site.daemon.home().join("items");
    let lines: Vec<String> = (1..=200).map(|number| number.to_string()).collect();
    fs::write(&items, lines.join("\n")).unwrap();
    let each = items.to_str().unwrap();
    let batch: TaskId = site.run(&["submit", "--on", "hpc", "--each", each, "--", "echo", "n{}"]).word();
    let batch = batch.to_string();
    site.run(&["block", "--timeout", "none", "--batch", &batch]).success();
    let outputs = site.run(&["output", "--batch", &batch]).success().stdout_text();
    for number in 1..=200 {
        assert!(outputs.lines().any(|line| line == format!("n{number}")), "{number}");
    }
    assert!(site.cluster.programs().calls("sbatch").len() <= 3);
    assert_eq!(site.login().connections(), 1);
}

#[test]
fn r151_unreachable_login_node_leaves_jobs_undecided_as_root() {
    let site = Site::far(Builder::default());
    let ends = site.daemon.home().join("go");
    let line = format!("echo begins; until [ -e {} ]; do sleep 0.1; done; echo ends; exit 4", ends.display());
    let (id, goes_on) = (site.submit(&[], &line), site.submit(&[], "sleep 1000"));
    let job = site.running(id);
    site.running(goes_on);
    site.cut();
    let task = site.until(id, "it is not known", |task| unknown(task).is_some());
    assert!(unknown(&task).unwrap().contains("far"), "{task:?}");
    assert_eq!(task.status, Status::Running);
    assert!(task.elsewhere.unwrap().unknown_since.is_some());
    let late = site.submit(&[], "echo late");
    let task = site.until(late, "it can't be submitted", |task| unknown(task).is_some());
    assert_eq!(task.status, Status::Pending);
    fs::write(ends, "").unwrap();
    site.cluster.wait_for_state(&job, "FAILED");
    assert_eq!(site.daemon.task(id).status, Status::Running, "nobody here knows");
    site.mend();
    assert_eq!(site.ended(id).exit, Some(Exit::Code(4)));
    assert_eq!(site.output(id), "begins\nends\n");
    assert_eq!(site.ended(late).status, Status::Completed);
    assert_eq!(site.cluster.jobs().len(), 3, "nothing was submitted twice");
    let known = site.until(goes_on, "it is known", |task| unknown(task).is_none());
    assert_eq!(known.status, Status::Running);
}

#[test]
fn r151_login_node_jobs_are_cancelled_at_shutdown_or_by_next_daemon_as_root() {
    let mut site = Site::far(Builder::default());
    let id = site.submit(&[], "sleep 1000");
    let job = site.running(id);
    site.daemon.stop();
    site.cluster.wait_for_state(&job, "CANCELLED");
    assert!(site.folders().is_empty(), "{:?}", site.folders());
    site.daemon.launch();
    let id = site.submit(&[], "sleep 1000");
    let job = site.running(id);
    site.daemon.kill_by(Signal::SIGKILL);
    assert_eq!(site.cluster.field(&job, "JobState").as_deref(), Some("RUNNING"));
    // The next daemon does it as soon as it can get there.
    site.login().wrap("exit 255");
    site.daemon.launch();
    wait::for_line(&site.daemon.state_dir().join("bgd.log"), "not cancelled, which is tried again");
    site.mend();
    site.cluster.wait_for_state(&job, "CANCELLED");
    wait::poll_until("its files are removed", || site.folders().is_empty().then_some(()));
}

#[test]
fn r151_login_node_permission_denied_fails_task_at_once_as_root() {
    let site = Site::far(Builder::default());
    let checked = site.run(&["executors", "--check", "hpc"]).success().stdout_text();
    assert!(checked.contains("\tfar\t") && checked.contains("works"), "{checked}");
    assert!(site.folders().is_empty(), "{:?}", site.folders());
    site.connections().iter().for_each(bgd_tests::Process::kill);
    site.login().change_key("user");
    let task = site.ended(site.submit(&[], "true"));
    let error = task.error.unwrap();
    assert!(error.contains("Permission denied") && error.contains("ssh far true"), "{error}");
    let fails = site.run(&["executors", "--check"]).expect_code(69).stdout_text();
    assert!(fails.contains("Permission denied"), "{fails}");
}

#[test]
fn r146_login_shell_banner_is_ignored_as_root() {
    let site = Site::far(Builder::default());
    let home = site.login().daemon.home();
    fs::write(home.join(".bashrc"), "echo Welcome; echo 'No mail.' >&2\n").unwrap();
    site.login().set_session(&[
        ("PATH", &format!("{}:/usr/bin:/bin", site.cluster.programs().path().display())),
        ("SHLVL", "0"),
    ]);
    let id = site.submit(&[], "echo works");
    assert_eq!(site.ended(id).status, Status::Completed);
    assert_eq!(site.output(id), "works\n");
    let task = site.ended(site.submit(&["--partition", "moon"], "true"));
    let error = task.error.unwrap();
    assert!(error.contains("invalid partition") && !error.contains("mail"), "{error}");
}
