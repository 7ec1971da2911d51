//! The effects of keys on tasks.

use std::fs;

use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_tests::{TestDaemon, wait};
use nix::sys::signal::Signal;

use super::{open_gate, sized, task_waiting_at, top};

#[test]
fn r162_x_cancels_and_shift_x_kills_after_confirmation() {
    let daemon = TestDaemon::start();
    let id = task_waiting_at(&daemon, "gate", "exit 0");
    let mut top = top(&daemon);
    top.wait_text(" gate\n");
    top.type_keys("x");
    top.wait_text(&format!("cancel {} gate? y/n", id.short()));
    top.type_keys("n");
    top.wait_text("F1 help");
    assert_eq!(daemon.task(id).status, Status::Running);
    top.type_keys("xy");
    top.wait_text(&format!(" {} cancelled ", id.short()));
    let id = task_waiting_at(&daemon, "stubborn", "exit 0");
    top.wait_text(" stubborn\n");
    top.type_keys("\x1b[H\x1b[BXy");
    top.wait_text(&format!("killed {}", id.short()));
    assert_eq!(daemon.task(id).status, Status::Cancelled);
}

#[test]
fn r162_x_ends_what_is_left_of_an_ended_task() {
    let daemon = TestDaemon::start();
    let id = daemon.run(&["submit", "-d", "leaves", "--shell", "sleep 1000 &"]).success().word();
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Completed, true));
    let mut top = top(&daemon);
    top.wait_text(" leaves\n");
    top.type_keys("x");
    top.wait_text(&format!("cancel {} leaves? y/n", id.short()));
    top.type_keys("y");
    top.wait_text(&format!("cancelled {}", id.short()));
    assert!(!daemon.task(id).lingering);
}

#[test]
fn r162_keys_hold_and_release_marked_tasks_and_rerun_selected_one() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let running = task_waiting_at(&daemon, "gate", "exit 0");
    let ids: Vec<TaskId> = (0..3)
        .map(|number| daemon.run(&["submit", "--", "echo", &number.to_string()]).success().word())
        .collect();
    let mut top = top(&daemon);
    top.wait_text("3 pending");
    // The heading and its three tasks are the last lines.
    top.type_keys("\x1b[F   \x1b[A\x1b[A   ");
    top.type_keys("\x1b");
    top.wait_text("F1 help");
    top.type_keys("\x1b[F\x1b[A\x1b[A   h");
    top.wait_text("held 3 tasks");
    top.type_keys("\x1b[F");
    for id in &ids {
        top.wait_text(&format!("{} pending (held)", id.short()));
    }
    top.type_keys("\x1b[A\x1b[A   h");
    top.wait_text("released 3 tasks");
    open_gate(&daemon, "gate");
    daemon.block(&[running]);
    assert!(daemon.block(&ids).iter().all(|task| task.status == Status::Completed));
    top.wait_text(&format!(" {} completed ", running.short()));
    top.type_keys("/gate\r");
    top.wait_text("/gate (1)");
    top.type_keys("\x1b[F");
    top.type_keys("r");
    top.wait_text(&format!("submitted {} again", running.short()));
}

#[test]
fn r162_filter_and_search_narrow_the_list() {
    let daemon = TestDaemon::start();
    let ids: Vec<TaskId> = ["alpha", "beta"]
        .iter()
        .map(|word| {
            let line = format!("echo in {word} out");
            daemon
                .run(&["submit", "-d", &format!("say {word}"), "--tag", word, "--shell", &line])
                .success()
                .word()
        })
        .collect();
    daemon.block(&ids);
    let mut top = top(&daemon);
    top.wait_text("2 done");
    top.type_keys("/tag:alp");
    top.wait("one task", |screen| {
        screen.contents().contains("say alpha") && !screen.contents().contains("say beta")
    });
    top.type_keys("\x1b");
    top.wait_text("say beta");
    top.type_keys("?IN BETA\r");
    top.wait_text("?IN BETA (found 1)");
    top.wait("one task", |screen| {
        screen.contents().contains("say beta") && !screen.contents().contains("say alpha")
    });
    top.type_keys("\x1b");
    top.wait_text("say alpha");
    top.type_keys("\t");
    top.wait_text("folded by session");
    top.type_keys("\t\t\t\t");
    top.wait_text("folded by status");
}

#[test]
fn r162_a_search_reads_whole_outputs_of_all_tasks() {
    let daemon = TestDaemon::start();
    // The needle is far from the end, and across two pages.
    let long = "head -c 262140 /dev/zero | tr '\\0' x; echo the needle; head -c 3M /dev/zero | tr '\\0' y";
    let mut ids = Vec::new();
    for (description, line) in [("long", long), ("other", "echo nothing")] {
        let id = daemon.run(&["submit", "-d", description, "--shell", line]).success().word::<TaskId>();
        ids.push(id);
    }
    let split = ["submit", "-d", "split", "--split", "--shell", "echo out; echo a needle >&2"];
    ids.push(daemon.run(&split).success().word());
    daemon.block(&ids);
    let mut top = sized(&daemon, &["other"], (20, 90));
    top.wait_text("/other (1)");
    top.type_keys("?A NEEDLE\r");
    top.wait_text("?A NEEDLE (found 1, 1 hidden by the filter)");
    top.type_keys("?needle\r");
    top.wait_text("?needle (found 2, 2 hidden by the filter)");
    top.wait_text("no task matches");
    top.type_keys("/\x15\r");
    top.wait_text(" long\n");
    top.wait_text(" split\n");
    top.wait_text("?needle (found 2)");
    top.type_keys("\x1b");
    top.wait_text(" other\n");
}

#[test]
fn r162_enter_and_o_open_output_and_enter_attaches_to_running_task() {
    let daemon = TestDaemon::start();
    let id = daemon.run(&["submit", "-d", "fails", "--shell", "echo its output; exit 1"]).success().word();
    daemon.block(&[id]);
    let mut top = top(&daemon);
    for (shown, key) in [(1, "\r"), (2, "o")] {
        top.wait_text(" fails\n");
        top.type_keys(key);
        // The previous pager's text is still on the terminal's main screen.
        let is_paged =
            |screen: &vt100::Screen| screen.contents().matches("its output\n<paged>").count() == shown;
        top.wait("the pager", is_paged);
        top.type_line("");
    }
    top.wait_text("nothing needs you");
    let running = task_waiting_at(&daemon, "gate", "echo done; exit 0");
    // Enter would show the output of a task that does not run yet.
    top.wait_text(&format!(" {} running ", running.short()));
    top.type_keys("\x1b[H\x1b[B\r");
    top.wait_text("[Ctrl-B] Detach");
    open_gate(&daemon, "gate");
    daemon.block(&[running]);
    top.wait_text("2 done");
}

#[test]
fn r162_bgctl_verbs_can_be_typed_after_colon() {
    let daemon = TestDaemon::start();
    let mut top = top(&daemon);
    top.type_keys(":submit -d 'typed here' -- true\r");
    top.wait_text("[press a key to return to bgctl top]");
    top.type_keys(" ");
    top.wait_text(" typed here\n");
    top.type_keys(":nonsense\r");
    top.wait_text("unrecognized subcommand");
    top.type_keys(" ");
    top.wait_text(" typed here\n");
    top.type_keys(":--no-start clear --all-sessions\r");
    top.wait_text("bgctl --no-start clear --all-sessions? y/n");
    top.type_keys("y");
    top.wait_text("[press a key to return to bgctl top]");
    top.type_keys(" ");
    top.wait_text("no tasks");
}

#[test]
fn r162_output_of_verb_stays_while_terminal_is_resized() {
    let daemon = TestDaemon::start();
    let mut top = top(&daemon);
    top.type_keys(":submit -d 'typed here' -- true\r");
    top.wait_text("[press a key to return to bgctl top]");
    top.resize((30, 100));
    // `ShdPnd` of /proc/PID/status has a bit for each signal that the process has not read yet.
    let status = top.process().proc("status");
    let is_read = || {
        let text = fs::read_to_string(&status).ok()?;
        let pending = text.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?.trim();
        (u64::from_str_radix(pending, 16).ok()? & (1 << (Signal::SIGWINCH as i32 - 1)) == 0).then_some(())
    };
    wait::poll_until("the signal is read", is_read);
    // In the list, this key would end the program.
    top.type_keys("q");
    top.wait_text(" typed here\n");
    top.type_keys("q");
    assert!(top.ended().success());
}

#[test]
fn r162_p_sends_prompt_to_agent() {
    let daemon = bgd_tests::FakeDaemon::start(&[], "");
    let task = daemon.completed("say one");
    let mut top = sized(&daemon, &[], (20, 120));
    top.wait_text("done 1");
    top.wait_text(" one\n");
    top.type_keys("pask Nothing?\r");
    top.wait_text(&format!("sent the prompt to {}", task.id.short()));
    assert_eq!(daemon.task(task.id).resume_count, 1);
}

#[test]
fn r162_f1_shows_help_and_mouse_selects_rows() {
    let daemon = TestDaemon::start();
    for number in 0..3 {
        let id = daemon.run(&["submit", "-d", &format!("task {number}"), "--", "true"]).success().word();
        daemon.block(&[id]);
    }
    let mut top = top(&daemon);
    top.wait_text("3 done");
    top.type_keys("\x1bOP");
    top.wait_text("batch or\n             dependency\n");
    top.type_keys("\x1b[6~");
    top.wait_text("cancel with SIGKILL");
    top.wait_text("Actions that end work ask for confirmation.");
    top.type_keys("\x1b[<0;5;6M");
    top.wait_text("F1 help");
    // Row 6 has the last task of the title, the header, the heading and three tasks.
    top.type_keys("\x1b[<0;5;6M\x1b[<0;5;6m");
    top.wait("the selection", |screen| screen.cell(5, 2).is_some_and(vt100::Cell::inverse));
    top.type_keys("\x1b[<64;5;6M");
    top.wait("the selection", |screen| screen.cell(2, 2).is_some_and(vt100::Cell::inverse));
}
