//! Files of a cluster's jobs that can't be read for a while, here or on its login node: nothing is decided because of
//! that, nothing is lost, and commands are still carried out.

use std::fs;

use bgd_tests::shared::request::Stream;
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::slurm::{Builder, Site, unknown};
use bgd_tests::{executable, wait};
use nix::sys::signal::Signal;

fn is_known_once_its_notes_are_read(site: &Site) {
    let gate = site.daemon.home().join("gate");
    let id = site
        .submit(&[], &format!("echo begins; until [ -e {} ]; do sleep 0.1; done; echo ends", gate.display()));
    let other = site.submit(&[], "exec sleep 1000");
    site.until(id, "its output", |task| task.output.bytes == 7);
    let (job, other_job) = (site.running(id), site.running(other));
    let hidden = site.hide_notes();
    fs::write(gate, "").unwrap();
    site.cluster.wait_for_state(&job, "COMPLETED");
    let task = site.until(id, "its notes can't be read", |task| unknown(task).is_some());
    assert!(
        unknown(&task).unwrap().contains("can't read") || unknown(&task).unwrap().contains("can't be read")
    );
    assert_eq!(task.status, Status::Running);
    // A command reaches the cluster, whatever the records say.
    let mut cancel = site.daemon.bgctl(&["cancel", &other.to_string()]).spawn().unwrap();
    site.cluster.wait_for_state(&other_job, "CANCELLED");
    let task = site.daemon.task(id);
    assert_eq!(task.status, Status::Running, "{task:?}");
    drop(hidden);
    let task = site.ended(id);
    assert_eq!((task.status, task.exit.as_ref()), (Status::Completed, Some(&Exit::Code(0))), "{task:?}");
    assert_eq!((site.output(id), unknown(&task)), ("begins\nends\n".to_owned(), None));
    assert!(cancel.wait().unwrap().success());
    assert_eq!(site.ended(other).status, Status::Cancelled);
}

#[test]
fn r151_unreadable_job_records_leave_jobs_undecided_as_root() {
    is_known_once_its_notes_are_read(&Site::start());
}

#[test]
fn r151_job_records_unreadable_on_login_node_leave_jobs_undecided_as_root() {
    is_known_once_its_notes_are_read(&Site::far(Builder::default()));
}

#[test]
fn r150_task_waits_for_output_unreadable_on_login_node_as_root() {
    let site = Site::far(Builder::default());
    let broken = site.cluster.path("broken");
    for (program, line) in
        [("base64", "exit 1"), ("tail", "/usr/bin/tail \"$@\" | /usr/bin/head -c 9; exit 1")]
    {
        let text = format!(
            "#!/bin/sh\n[ ! -e {} ] || {{ {line}; }}\nexec /usr/bin/{program} \"$@\"\n",
            broken.display()
        );
        executable::write(&site.cluster.programs().path().join(program), &text);
        fs::write(&broken, "").unwrap();
        let id = site.submit(&["--split"], "head -c 588890 /dev/zero; echo end; echo late >&2");
        let job = site.job(id);
        let task = site.until(id, "it can't be read", |task| unknown(task).is_some());
        assert!(unknown(&task).unwrap().contains("can't read its output"), "{task:?}");
        site.cluster.wait_for_state(&job, "COMPLETED");
        assert_eq!(site.daemon.task(id).status, Status::Running);
        fs::remove_file(&broken).unwrap();
        let task = site.ended(id);
        assert_eq!((task.status, task.output.bytes, task.output.lost_bytes), (Status::Completed, 588_899, 0));
        let [out, err] = [Stream::Stdout, Stream::Stderr].map(|stream| site.daemon.stream(id, stream));
        assert!(out.len() == 588_894 && out.ends_with(b"\0end\n") && err == b"late\n", "{program}");
    }
}

#[test]
fn r151_uncertain_submission_is_not_repeated_until_records_are_read_as_root() {
    let mut site = Site::far_durable(Builder::default().conf("MinJobAge=2"));
    let (ran, hangs) = (site.cluster.path("ran"), site.cluster.path("hangs"));
    let lines = format!(
        "if [ ! -e {hangs} ]; then SLURM_CONF={conf} /usr/bin/sbatch \"$@\" >&2; touch {hangs}; exec sleep 1000; fi",
        conf = site.cluster.conf().display(),
        hangs = hangs.display(),
    );
    site.cluster.programs().before("sbatch", &lines);
    let id = site.submit(&[], &format!("echo once >>{}; exit 6", ran.display()));
    wait::for_file(&hangs);
    // At once: the daemon does not wait for the command forever.
    site.daemon.kill_by(Signal::SIGKILL);
    wait::poll_until("it has ended, and the cluster has forgotten it", || {
        (ran.exists() && site.cluster.jobs().is_empty()).then_some(())
    });
    let hidden = site.hide_notes();
    site.daemon.launch();
    site.until(id, "its notes can't be read", |task| unknown(task).is_some());
    // It is looked for there often enough to be considered missing.
    let asked = site.cluster.programs().calls("squeue").len() as u64;
    site.cluster.programs().wait_for_calls("squeue", asked + 5);
    assert_eq!(site.cluster.programs().calls("sbatch").len(), 1);
    drop(hidden);
    let task = site.ended(id);
    assert_eq!((task.exit, task.run), (Some(Exit::Code(6)), 1), "{:?}", task.error);
    assert_eq!(fs::read_to_string(&ran).unwrap(), "once\n");
}
