//! What a task on another machine learns about its place among other tasks, and what is shown of its folder (R145).

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::Status;
use bgd_tests::wait;
use nix::unistd::{Uid, User};

/// Runs this line on the other machine. Returns its output.
#[track_caller]
fn output(far: &mut Far, options: &[&str], line: &str) -> String {
    let id = far.submit_on(options, line);
    far.ended(id);
    String::from_utf8(far.here().output(id)).unwrap()
}

#[test]
fn r145_remote_task_gets_slots_group_attempt_and_dependencies_of_its_daemon_here() {
    let mut far = Far::with_here("[groups.far]\nslots = 2\n");
    // The slots there are other ones.
    let blocker = far.daemon.submit_shell("exec sleep 1000");
    far.daemon.wait_running(blocker);
    let line = "echo $BGD_GROUP $BGD_SLOT/$BGD_SLOTS/$BGD_SLOT_LIST ${BGD_ATTEMPT-none}";
    assert_eq!(output(&mut far, &[], line), "far 1/1/1 none\n");
    assert_eq!(output(&mut far, &["--slots", "2"], line), "far 1/2/1,2 none\n");
    assert_eq!(output(&mut far, &["--slots", "0"], line), "far /0/ none\n");
    let tries = ["--retry", "1", "--retry-delay", "0s"];
    assert_eq!(output(&mut far, &tries, &format!("{line}; exit 1")), "far 1/1/1 1\nfar 1/1/1 2\n");
    let first = far.submit_on(&[], "true");
    let after =
        output(&mut far, &["--after", &first.to_string()], "echo $BGD_AFTER ${BGD_AFTER_FILE_1-none}");
    assert_eq!(after, format!("{first} none\n"), "the file is not there");
    // The submitter can't replace them, as on this machine.
    let chosen = ["--env", "BGD_SLOT=7", "--env", "BGD_AFTER=x"];
    assert_eq!(output(&mut far, &chosen, "echo $BGD_SLOT ${BGD_AFTER-none}"), "1 none\n");
    // What the task submits there is a task of that machine.
    let nested =
        "id=$(bgctl submit --slots 0 --shell 'echo $BGD_GROUP ${BGD_SLOT-none}'); bgctl output --follow $id";
    assert_eq!(output(&mut far, &[], nested), "default none\n");
}

#[test]
fn r145_folder_of_the_submitter_is_not_shown_for_a_remote_task() {
    let mut far = Far::start();
    let ssh = far.path("ssh").display().to_string();
    let its =
        format!("[executors.its]\ntype = \"ssh\"\nhost = \"far\"\nssh = \"{ssh}\"\nfolder = \"/tmp\"\n");
    far.start_here(&its);
    for (options, folder) in
        [(&["--on", "far"][..], "~"), (&["--on", "its"], "/tmp"), (&["--on", "far", "--cwd", "/"], "/")]
    {
        let id: TaskId = far.run_here(&[&["submit"], options, &["--", "pwd"]].concat()).word();
        assert_eq!(far.ended(id).status, Status::Completed);
        // An ssh session starts in the home of the account, not in $HOME.
        let home = User::from_uid(Uid::current()).unwrap().expect("an account").dir.display().to_string();
        let ran_in = if folder == "~" { &home } else { folder };
        assert_eq!(far.here().output(id), format!("{ran_in}\n").into_bytes());
        assert_eq!(far.here().task(id).cwd.to_string_lossy(), folder);
        let page = far.run_here(&["status", &id.to_string()]).success().stdout_text();
        assert!(page.contains(&format!("folder:      {folder}\n")), "{page}");
    }
}

#[test]
fn r145_machine_that_never_got_a_task_is_not_noted() {
    let mut far = Far::start();
    let ssh = far.path("ssh").display().to_string();
    far.start_here(&format!(
        "[executors.bad]\ntype = \"ssh\"\nhost = \"nowhere.invalid\"\nssh = \"{ssh}\"\n"
    ));
    let ids = [0; 2].map(|_| -> TaskId { far.run_here(&["submit", "--on", "bad", "--", "true"]).word() });
    for id in ids {
        far.until(id, "it can't be submitted", |task| {
            task.elsewhere.as_ref().is_some_and(|there| there.unknown_because.is_some())
        });
    }
    let notes = far.here().state_dir().join("executors");
    let is_noted = || notes.read_dir().is_ok_and(|mut all| all.next().is_some());
    assert!(is_noted(), "they may be submitted at any moment");
    far.here().cancel(&ids);
    wait::poll_until("no note", || (!is_noted()).then_some(()));
    // The next one is noted again.
    let id: TaskId = far.run_here(&["submit", "--on", "bad", "--", "true"]).word();
    wait::poll_until("a note", || is_noted().then_some(()));
    far.here().cancel(&[id]);
    wait::poll_until("no note", || (!is_noted()).then_some(()));
}
