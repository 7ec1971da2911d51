//! Tasks that a Slurm cluster runs: `submit --on`, with real clusters.

use std::fs;
use std::time::Instant;

use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::CancelReason;
use bgd_tests::shared::request::{ListParams, Stream, TaskList};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::slurm::{Builder, Site, unknown};
use bgd_tests::{Outcome, wait};
use nix::sys::signal::Signal;

#[test]
fn r146_job_gets_folder_environment_and_arguments_of_task_as_root() {
    let site = Site::start();
    let folder = site.daemon.home().join("it's here");
    fs::create_dir(&folder).unwrap();
    let line = "pwd; umask; echo \"$NEW\" \"${BGD_INSTANCE-none}\" \"${BGD_BRIDGE_ID-none}\" $BGD_GROUP; \
                echo \"${LC_ALL-none}\"; echo late >&2; exit 3";
    let cwd = folder.to_str().unwrap();
    let id = site.submit(&["--env", "NEW=x  'y", "--cwd", cwd, "--split"], line);
    let task = site.ended(id);
    let mask = Outcome::of(std::process::Command::new("sh").args(["-c", "umask"])).stdout_text();
    assert_eq!(
        String::from_utf8(site.daemon.stream(id, Stream::Stdout)).unwrap(),
        format!("{cwd}\n{}\nx  'y none none hpc\nnone\n", mask.trim())
    );
    assert_eq!(site.daemon.stream(id, Stream::Stderr), b"late\n");
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Code(3))));
    assert!(task.started_at.is_some() && task.on.as_deref() == Some("hpc"));
    let argv: TaskId =
        site.run(&["submit", "--on", "hpc", "--", "printf", "%s|", "a b", "", "'\"$HOME\n"]).word();
    assert_eq!(site.ended(argv).status, Status::Completed);
    assert_eq!(site.output(argv), "a b||'\"$HOME\n|");
    // Its leftovers are removed with it.
    let files = |name: &str| fs::read_dir(site.folders()[0].join(name)).unwrap().count();
    assert_eq!(files("output"), 3);
    site.run(&["clear", "--all-sessions"]).success();
    wait::poll_until("its files are removed", || {
        ["output", "notes", "jobs"].into_iter().all(|name| files(name) == 0).then_some(())
    });
}

#[test]
fn r146_requested_resources_reach_cluster_as_root() {
    let site = Site::of(
        Builder::default(),
        "partition = \"other\"\ncpus = 2\ntime = \"10m\"\noptions = [\"--nice=3\"]",
    );
    let id = site.submit(&["--memory", "64M"], "sleep 1000");
    let job = site.running(id);
    let field = |job: &str, name| site.cluster.field(job, name).unwrap();
    let fields = ["Partition", "NumCPUs", "MinMemoryNode", "TimeLimit", "Nice"].map(|name| field(&job, name));
    assert_eq!(fields, ["other", "2", "64M", "00:10:00", "3"]);
    let id = site.submit(
        &["--partition", "main", "--cpus", "3", "--time-limit", "2h", "--option=--nice=5"],
        "sleep 1000",
    );
    let job = site.running(id);
    let fields = ["Partition", "NumCPUs", "TimeLimit", "Nice"].map(|name| field(&job, name));
    assert_eq!(fields, ["main", "3", "02:00:00", "5"]);
}

#[test]
fn r146_gpus_and_qos_reach_cluster_as_root() {
    let site = Site::of(Builder::default().gpu().accounting().conf("AccountingStorageEnforce=qos"), "");
    site.cluster.run(&["sacctmgr", "--immediate", "add", "account", "lab", "Cluster=test"]).success();
    site.cluster.run(&[
        "sacctmgr",
        "--immediate",
        "add",
        "user",
        "root",
        "Account=lab",
        "Cluster=test",
        "DefaultAccount=lab",
    ]);
    let id = wait::poll_until("the association", || {
        let id = site.submit(&["--gpus", "1", "--qos", "normal"], "sleep 1000");
        let task = site.until(id, "the answer", |task| {
            task.error.is_some() || task.elsewhere.as_ref().is_some_and(|there| there.id.is_some())
        });
        task.error.is_none().then_some(id)
    });
    let job = site.running(id);
    let field = |name| site.cluster.field(&job, name).unwrap_or_default();
    assert_eq!(field("QOS"), "normal");
    assert!(field("TresPerJob").contains("gpu:1"), "{}", field("TresPerJob"));
    let second = site.submit(&["--gpus", "1"], "true");
    site.until(second, "it waits for the only one", |task| {
        task.elsewhere.as_ref().is_some_and(|there| there.reason.as_deref() == Some("Resources"))
    });
    for (option, value, word) in [("--qos", "moon", "sacctmgr show qos"), ("--gpus", "9", "sinfo")] {
        let task = site.ended(site.submit(&[option, value], "true"));
        let error = task.error.unwrap();
        assert!(task.failure.unwrap().kind == FailureKind::Spawn && error.contains(word), "{error}");
    }
    site.daemon.cancel(&[id]);
    assert_eq!(site.ended(second).status, Status::Completed);
}

#[test]
fn r146_refused_submission_is_reported_with_advice_as_root() {
    let site = Site::start();
    let failure = |options: &[&str]| {
        let id = site.submit(options, "true");
        let task = site.ended(id);
        assert_eq!(task.failure.unwrap().kind, FailureKind::Spawn);
        task.error.unwrap()
    };
    let text = failure(&["--partition", "moon"]);
    assert!(text.contains("invalid partition") && text.contains("sinfo"), "{text}");
    site.cluster.programs().before("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified' >&2; exit 1");
    let text = failure(&["--account", "nobody"]);
    assert!(text.contains("Invalid account") && text.contains("sacctmgr"), "{text}");
    site.cluster.programs().restore("sbatch");
    for (args, word) in [
        (&["--pty", "--", "true"][..], "a terminal"),
        (&["--stdin-pipe", "--", "true"], "open standard input"),
        (&["--ready", "tcp:1", "--", "true"], "line:REGEX"),
    ] {
        let refused = site.run(&[&["submit", "--on", "hpc"], args].concat()).expect_code(2);
        assert!(refused.stderr.contains(word), "{}", refused.stderr);
    }
}

#[test]
fn r146_executor_check_reports_whether_cluster_works_as_root() {
    let site = Site::start();
    let checked = site.run(&["executors", "--check", "hpc"]).success().stdout_text();
    let version = site.cluster.run(&["sbatch", "--version"]).success().stdout_text();
    let version = version.trim().trim_start_matches("slurm-wlm ").trim_start_matches("slurm ").to_owned();
    assert!(checked.starts_with(&format!("hpc\tslurm\t-\t0\t0\tworks\t{version}\tanswer: ")), "{checked}");
    let work = format!("work_folder: {}/", site.cluster.work().display());
    for fact in [
        "max_array_size: 20001",
        "ended_jobs_known_for: ",
        "accounting: no",
        "usage_of_ended_jobs: no",
        &work,
    ] {
        assert!(checked.contains(&format!("; {fact}")), "{fact}: {checked}");
    }
    // A trial submits nothing.
    assert!(site.cluster.jobs().is_empty() && site.cluster.programs().calls("sbatch").len() == 1);
    site.cluster.programs().before(
        "scontrol",
        "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
    );
    let fails = site.run(&["executors", "--check"]).expect_code(69).stdout_text();
    assert!(fails.contains("\tfails: ") && fails.contains("Unable to contact"), "{fails}");
    assert!(fails.contains("\t-\t`scontrol ping` says whether"), "{fails}");
    // A cluster without commands reports that, and refuses its tasks.
    let text = "[executors.hpc]\ntype = \"slurm\"\n[executors.hpc.env]\nPATH = \"/nowhere\"\n";
    site.daemon.write_config(text);
    site.run(&["daemon", "reload"]).success();
    let task = site.ended(site.submit(&[], "true"));
    assert!(task.error.as_ref().unwrap().contains("PATH"), "{:?}", task.error);
    // The state folder of this machine is not that of a login node.
    let text = "[executors.hpc]\ntype = \"slurm\"\nhost = \"login\"\n";
    site.daemon.write_config(text);
    let refused = site.run(&["daemon", "reload"]);
    assert!(refused.code != 0 && refused.stderr.contains("work_folder"), "{}", refused.stderr);
}

#[test]
fn r146_executor_check_finds_faults_that_would_fail_every_task_as_root() {
    let site = Site::of(Builder::default(), "partition = \"nowhere\"");
    let fails = || site.run(&["executors", "--check", "hpc"]).expect_code(69).stdout_text();
    let text = fails();
    assert!(
        text.contains("`partition`: `sinfo` lists") && text.contains("correct [executors.hpc]"),
        "{text}"
    );
    let text = fs::read_to_string(site.daemon.config_path()).unwrap().replace("partition = \"nowhere\"", "");
    site.daemon.write_config(&text);
    site.run(&["daemon", "reload"]).success();
    // Busy nodes, or no nodes, only make tasks wait.
    site.running(site.submit(&["--option=--exclusive"], "sleep 1000"));
    site.run(&["executors", "--check", "hpc"]).success();
    for program in ["squeue", "scancel"] {
        site.cluster.programs().before(program, "echo 'not for you' >&2; exit 1");
        assert!(fails().contains("not for you"), "{program}: {}", fails());
        site.cluster.programs().restore(program);
    }
    site.run(&["executors", "--check", "hpc"]).success();
}

#[test]
fn r147_job_outcomes_are_reported_accurately_as_root() {
    let site = Site::start();
    let killed = site.submit(&[], "kill -9 $$");
    let missing: TaskId = site.run(&["submit", "--on", "hpc", "--", "no-such-program"]).word();
    let nowhere = site.submit(&["--cwd", "/tmp"], "exit 0");
    assert_eq!(site.ended(killed).exit, Some(Exit::Signal(9)));
    assert_eq!(site.ended(missing).exit, Some(Exit::Code(127)));
    assert_eq!(site.ended(nowhere).status, Status::Completed);
    let late = site.submit(&["--time-limit", "1s"], "sleep 1000");
    let task = site.ended(late);
    assert!(task.timed_out && task.failure.unwrap().kind == FailureKind::Timeout);
    let ready = site.submit(&["--ready", "line:^up"], "echo nearly; sleep 0.5; echo up; sleep 1000");
    let task = site.until(ready, "it is ready", |task| task.ready_at.is_some());
    assert_eq!(task.status, Status::Running);
    site.until(ready, "its output is seen", |task| task.output.bytes == 10);
    assert_eq!(site.daemon.cancel(&[ready])[0].status, Status::Cancelled);
}

#[test]
fn r147_vanished_job_is_reported_lost_as_root() {
    let site = Site::of(Builder::default(), "");
    let id = site.submit(&[], "sleep 1000");
    let job = site.running(id);
    // The cluster has forgotten it.
    site.cluster.programs().before("squeue", "exit 0");
    let task = site.ended(id);
    assert_eq!(task.failure.unwrap().kind, FailureKind::Lost);
    assert!(task.error.unwrap().contains("lost by the cluster"));
    // If it runs after all, it does not run beside another attempt.
    site.cluster.wait_for_state(&job, "CANCELLED");
    wait::poll_until("the end of its process", || site.daemon.task_processes().is_empty().then_some(()));
}

#[test]
fn r147_accounting_supplies_end_of_job_missing_from_queue_as_root() {
    let site = Site::of(Builder::default().accounting(), "");
    let gate = site.daemon.home().join("gate");
    // It kills its script, too, so that it records nothing.
    let line = format!("until [ -e {} ]; do sleep 0.1; done; kill -9 $PPID $$", gate.display());
    let id = site.submit(&[], &line);
    let job = site.running(id);
    // Nothing is decided before the accounting has the end: while it calls the job running, or does not know its name, the
    // job may count as lost.
    let refuse = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1";
    site.cluster.programs().before("squeue", refuse);
    fs::write(gate, "").unwrap();
    let format = "--format=JobName,State";
    let query = ["sacct", "--noheader", "--parsable2", "--allocations", format, "--jobs", &job];
    wait::poll_until("its record", || {
        let record = site.cluster.run(&query).success().stdout_text();
        (record.starts_with("bgd-") && record.trim().ends_with("|FAILED")).then_some(())
    });
    site.cluster.programs().before("squeue", "exit 0");
    let task = site.ended(id);
    assert!(
        task.status == Status::Failed && task.failure.as_ref().unwrap().kind != FailureKind::Lost,
        "{task:?}"
    );
}

#[test]
fn r148_waiting_job_shows_reason_as_root() {
    let site = Site::start();
    let all = site.submit(&["--cpus", "16"], "sleep 1000");
    site.running(all);
    let waits = site.submit(&["--cpus", "16"], "true");
    let has_reason = |task: &Task| {
        task.elsewhere.as_ref().is_some_and(|there| there.reason.as_deref() == Some("Resources"))
    };
    let task = site.until(waits, "a reason", has_reason);
    assert_eq!(task.status, Status::Pending);
    let listed = site.run(&["list"]).success().stdout_text();
    assert!(listed.contains("pending (hpc: Resources)"), "{listed}");
    assert_eq!(site.daemon.cancel(&[waits])[0].status, Status::Cancelled);
    assert_eq!(site.daemon.cancel(&[all])[0].status, Status::Cancelled);
}

#[test]
fn r148_external_cancel_and_requeue_are_recognized_as_root() {
    let site = Site::start();
    let file = site.daemon.home().join("times");
    let again =
        site.submit(&[], &format!("echo x >>{0}; [ $(wc -l <{0}) = 2 ] || sleep 1000", file.display()));
    let all = site.submit(&["--cpus", "15"], "sleep 1000");
    let (job, running) = (site.running(again), site.running(all));
    let waiting = site.submit(&["--cpus", "16"], "true");
    let pending = site.job(waiting);
    wait::for_lines(&file, 1, "x");
    site.cluster.run(&["scancel", &running, &pending]).success();
    for id in [all, waiting] {
        let task = site.ended(id);
        assert_eq!((task.status, task.cancel_reason), (Status::Cancelled, Some(CancelReason::Elsewhere)));
    }
    site.cluster.run(&["scontrol", "requeue", &job]).success();
    let task = site.until(again, "it waits again", |task| task.status == Status::Pending);
    assert_eq!(task.elsewhere.unwrap().requeued, 1);
    site.cluster.start_requeued(&job);
    assert_eq!(site.ended(again).status, Status::Completed);
}

#[test]
fn r148_requeued_task_becomes_ready_by_output_of_new_run_as_root() {
    let site = Site::start();
    let gate = site.daemon.home().join("gate");
    fs::write(&gate, "").unwrap();
    let wait_at = format!("until [ -e {} ]; do sleep 0.1; done", gate.display());
    let id = site.submit(&["--ready", "line:^up"], &format!("echo begins; {wait_at}; echo up; sleep 1000"));
    site.until(id, "it is ready", |task| task.ready_at.is_some());
    let job = site.job(id);
    fs::remove_file(&gate).unwrap();
    site.cluster.run(&["scontrol", "requeue", &job]).success();
    site.until(id, "it waits again", |task| task.status == Status::Pending);
    site.cluster.start_requeued(&job);
    let twice = "begins\nup\nbegins\n";
    let begins = |task: &Task| task.status == Status::Running && task.output.bytes == twice.len() as u64;
    let task = site.until(id, "it begins again", begins);
    assert_eq!(task.ready_at, None, "the first attempt does not count");
    fs::write(&gate, "").unwrap();
    site.until(id, "it is ready again", |task| task.ready_at.is_some());
    assert_eq!(site.daemon.cancel(&[id])[0].status, Status::Cancelled);
}

#[test]
fn r148_job_that_prints_its_ready_line_and_ends_at_once_was_ready_as_root() {
    for site in [Site::start(), Site::far(Builder::default())] {
        let id = site.submit(&["--ready", "line:^up"], "echo up");
        let after = site.submit(&["--after", &format!("{id}:ready")], "echo after");
        assert_eq!(site.ended(after).status, Status::Completed);
        assert!(site.daemon.task(id).ready_at.is_some());
    }
}

#[test]
fn r148_out_of_memory_job_fails_with_memory_cause_as_root() {
    let site = Site::of(Builder::default().memory_limits(), "");
    let line = "exec perl -e 'my $x = q(x) x 200_000_000; sleep 1000'";
    let task = site.ended(site.submit(&["--memory", "20M"], line));
    assert_eq!((task.status, task.failure.unwrap().kind), (Status::Failed, FailureKind::Memory));
}

#[test]
fn r145_retries_and_dependencies_span_cluster_and_local_tasks_as_root() {
    let site = Site::start();
    let file = site.daemon.home().join("tried");
    let line = format!("echo try; test -e {0} || {{ touch {0}; exit 1; }}", file.display());
    let tried = site.submit(&["--retry", "3", "--retry-delay", "0s"], &line);
    let after: TaskId =
        site.run(&["submit", "--after", &tried.to_string(), "--shell", "cat $BGD_AFTER_FILE_1"]).word();
    let task = site.ended(tried);
    assert_eq!((task.status, task.attempt), (Status::Completed, Some(2)));
    assert_eq!(site.ended(after).status, Status::Completed);
    assert_eq!(site.output(after), "try\ntry\n");
}

#[test]
fn r149_array_of_a_thousand_tasks_takes_few_calls_as_root() {
    let site = Site::start();
    let items = site.daemon.home().join("items");
    let lines: Vec<String> = (1..=1000).map(|number| number.to_string()).collect();
    fs::write(&items, lines.join("\n")).unwrap();
    let begun = Instant::now();
    let each = items.to_str().unwrap();
    let batch: TaskId = site.run(&["submit", "--on", "hpc", "--each", each, "--", "echo", "n{}"]).word();
    site.run(&["block", "--timeout", "none", "--batch", &batch.to_string()]).success();
    let seconds = begun.elapsed().as_secs() + 1;
    let tasks = site
        .daemon
        .client()
        .call::<TaskList>(&ListParams { limit: Some(1000), ..ListParams::default() })
        .unwrap()
        .tasks;
    let mut outputs: Vec<String> = tasks.iter().map(|task| site.output(task.id)).collect();
    outputs.sort();
    let mut expected: Vec<String> = (1..=1000).map(|number| format!("n{number}\n")).collect();
    expected.sort();
    assert_eq!(outputs, expected);
    let calls = |name| site.cluster.programs().calls(name).len();
    eprintln!("1000 tasks in {seconds} s: {} sbatch, {} squeue", calls("sbatch"), calls("squeue"));
    assert!(calls("sbatch") <= 4, "{:?}", site.cluster.programs().calls("sbatch"));
    assert!(calls("squeue") as u64 <= seconds && calls("scontrol") == 1);
}

#[test]
fn r149_submitting_and_cancelling_thousands_takes_few_calls_as_root() {
    let site = Site::start();
    // Everything else waits.
    let all = site.submit(&["--cpus", "16"], "sleep 1000");
    site.running(all);
    let items = site.daemon.home().join("items");
    fs::write(&items, "x\n".repeat(3000)).unwrap();
    let calls = |name| site.cluster.programs().calls(name).len() as u64;
    let (begun, before) = (Instant::now(), calls("squeue"));
    let each = items.to_str().unwrap();
    let batch: TaskId =
        site.run(&["submit", "--on", "hpc", "--cpus", "16", "--each", each, "--", "true"]).word();
    wait::poll_until("all jobs", || (site.cluster.jobs().len() == 3001).then_some(()));
    assert!(calls("sbatch") <= 10, "{:?}", site.cluster.programs().calls("sbatch"));
    site.run(&["cancel", "--batch", &batch.to_string()]).success();
    wait::poll_until("nothing waits there", || {
        site.cluster.jobs().iter().all(|(_, state)| state != "PENDING").then_some(())
    });
    site.run(&["block", "--batch", &batch.to_string()]);
    let seconds = begun.elapsed().as_secs() + 1;
    assert!(calls("squeue") - before <= seconds, "{} in {seconds} s", calls("squeue"));
    assert!(calls("scancel") <= 20, "{}", calls("scancel"));
    assert_eq!(site.daemon.task(all).status, Status::Running);
}

#[test]
fn r150_jobs_can_be_held_signalled_and_paused_as_root() {
    let site = Site::start();
    let first =
        site.submit(&["--cpus", "16"], "trap 'echo usr; exit 5' USR1; echo up; while :; do sleep 0.1; done");
    site.until(first, "it is ready for the signal", |task| task.output.bytes == 3);
    let second = site.submit(&["--cpus", "16"], "true");
    let (first_id, second_id, job) = (first.to_string(), second.to_string(), site.job(second));
    site.run(&["edit", &second_id, "--priority", "-7"]).success();
    wait::poll_until("the priority", || (site.cluster.field(&job, "Nice")? == "7").then_some(()));
    site.run(&["edit", &second_id, "--priority", "7"]).expect_code(70);
    site.until(second, "the refusal", |task| {
        let refused = task.elsewhere.as_ref().and_then(|there| there.refused.as_deref());
        refused.is_some_and(|why| why.contains("only lower")) && task.priority == -7
    });
    site.run(&["hold", &second_id]).success();
    wait::poll_until("the hold", || (site.cluster.field(&job, "Reason")? == "JobHeldUser").then_some(()));
    site.run(&["pause", &first_id]).success();
    assert!(site.daemon.task(first).paused);
    site.run(&["continue", &first_id]).success();
    site.run(&["signal", &first_id, "USR1"]).success();
    assert_eq!(site.ended(first).exit, Some(Exit::Code(5)));
    assert_eq!(site.daemon.task(second).status, Status::Pending);
    site.run(&["release", &second_id]).success();
    assert_eq!(site.ended(second).status, Status::Completed);
}

#[test]
fn r150_cancel_ends_jobs_even_if_they_ignore_sigterm_as_root() {
    let site = Site::start();
    let deaf = site.submit(&[], "trap '' TERM; echo up; while :; do sleep 0.1; done");
    let running = site.submit(&[], "sleep 1000");
    let (deaf_job, job) = (site.running(deaf), site.running(running));
    site.until(deaf, "it is deaf", |task| task.output.bytes == 3);
    for task in site.daemon.cancel(&[deaf, running]) {
        assert_eq!(
            (task.status, task.cancel_reason, task.lingering),
            (Status::Cancelled, Some(CancelReason::User), false)
        );
    }
    for job in [job, deaf_job] {
        assert_ne!(
            site.cluster.field(&job, "JobState").as_deref(),
            Some("RUNNING"),
            "the cluster has confirmed it"
        );
        site.cluster.wait_for_state(&job, "CANCELLED");
    }
}

#[test]
fn r151_stopped_controller_leaves_jobs_undecided_as_root() {
    let site = Site::start();
    let ends = site.daemon.home().join("go");
    let id = site.submit(&[], &format!("until [ -e {} ]; do sleep 0.1; done; exit 4", ends.display()));
    let goes_on = site.submit(&[], "sleep 1000");
    site.running(id);
    site.running(goes_on);
    site.cluster.stop_controller();
    let task = site.until(id, "it is not known", |task| unknown(task).is_some());
    assert_eq!(task.status, Status::Running);
    let late = site.submit(&[], "echo late");
    site.until(late, "it can't be submitted", |task| unknown(task).is_some());
    fs::write(ends, "").unwrap();
    site.cluster.start_controller();
    assert_eq!(site.ended(id).exit, Some(Exit::Code(4)));
    assert_eq!(site.ended(late).status, Status::Completed);
    let known = site.until(goes_on, "it is known", |task| unknown(task).is_none());
    assert_eq!(known.status, Status::Running);
}

#[test]
fn r151_submission_with_lost_reply_runs_once_as_root() {
    for start in [Site::start, || Site::far(Builder::default())] {
        runs_once_without_reply(&start());
    }
}

#[track_caller]
fn runs_once_without_reply(site: &Site) {
    let (file, once) = (site.cluster.path("times"), site.cluster.path("once"));
    // It is submitted, but the answer is lost.
    let lines = format!(
        "if [ ! -e {once} ]; then touch {once}; SLURM_CONF={conf} /usr/bin/sbatch \"$@\" >&2; \
         echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1; fi",
        once = once.display(),
        conf = site.cluster.conf().display(),
    );
    site.cluster.programs().before("sbatch", &lines);
    let id = site.submit(&[], &format!("echo once >>{}", file.display()));
    assert_eq!(site.ended(id).status, Status::Completed);
    assert_eq!(fs::read_to_string(&file).unwrap(), "once\n");
    assert_eq!(site.cluster.programs().calls("sbatch").len(), 1);
    // This time it really was not submitted.
    fs::remove_file(&once).unwrap();
    let lines = format!("if [ ! -e {once} ]; then touch {once}; kill -9 $$; fi", once = once.display());
    site.cluster.programs().before("sbatch", &lines);
    let id = site.submit(&[], &format!("echo once >>{}", file.display()));
    assert_eq!(site.ended(id).status, Status::Completed);
    assert_eq!(fs::read_to_string(&file).unwrap(), "once\nonce\n");
}

#[test]
fn r151_hung_sbatch_times_out_and_task_still_completes_as_root() {
    let site = Site::start();
    let once = site.cluster.path("once");
    let lines = format!("if [ ! -e {once} ]; then touch {once}; exec sleep 1000; fi", once = once.display());
    site.cluster.programs().before("sbatch", &lines);
    // It is unknown only until the next look for it.
    let mut watch = site.daemon.watch();
    let id = site.submit(&[], "echo done");
    let task = watch.until(|event| event.task.id == id && unknown(&event.task).is_some()).task;
    assert!(unknown(&task).unwrap().contains("did not end within"), "{task:?}");
    assert_eq!(site.ended(id).status, Status::Completed);
}

#[test]
fn r151_jobs_are_cancelled_at_shutdown_or_by_next_daemon_as_root() {
    let mut site = Site::start();
    let submit = || site.submit(&["--cpus", "16"], "sleep 1000");
    // One after the other: of two that are submitted at once, either may come first.
    let job = site.running(submit());
    let waiting = site.job(submit());
    site.daemon.stop();
    site.cluster.wait_for_state(&job, "CANCELLED");
    site.cluster.wait_for_state(&waiting, "CANCELLED");
    assert!(site.folders().is_empty(), "{:?}", site.folders());
    // After a kill, the next daemon takes care of it without being asked.
    site.daemon.launch();
    let id = site.submit(&[], "sleep 1000");
    let job = site.running(id);
    let other = site.cluster.run(&["sbatch", "--parsable", "--output=/dev/null", "--wrap=exec sleep 1000"]);
    let other = other.success().stdout_text().trim().to_owned();
    site.daemon.kill_by(Signal::SIGKILL);
    assert_eq!(site.cluster.field(&job, "JobState").as_deref(), Some("RUNNING"));
    site.daemon.launch();
    site.cluster.wait_for_state(&job, "CANCELLED");
    wait::poll_until("its files are removed", || site.folders().is_empty().then_some(()));
    assert_eq!(site.cluster.field(&other, "JobState").as_deref(), Some("RUNNING"));
}
