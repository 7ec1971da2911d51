//! The contents of the screen: folds, the graph, previews, progress (R160, R161, R162, R165).

use std::fs;
use std::path::PathBuf;

use bgd_shared::id::TaskId;
use bgd_tests::{Terminal, TestDaemon, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{open_gate, sized, task_waiting_at, top};

/// Submits a task that writes `before`, waits for a line in the FIFO `name`, which is created, and runs `after`.
fn writes(daemon: &TestDaemon, name: &str, before: &str, after: &str) -> TaskId {
    mkfifo(&daemon.home().join(name), Mode::S_IRWXU).unwrap();
    let line = format!("{before}; read x < {name}; {after}");
    let id = daemon.run(&["submit", "-d", name, "--shell", &line]).success().word();
    daemon.wait_running(id);
    wait_output(daemon, id, "");
    id
}

/// Waits until a task has written this text, after some output.
fn wait_output(daemon: &TestDaemon, id: TaskId, text: &str) {
    let path = PathBuf::from(daemon.task(id).output.path);
    wait::for_change(&path, || {
        fs::read_to_string(&path).is_ok_and(|all| !all.is_empty() && all.contains(text)).then_some(())
    });
}

/// Returns the text beside the list, line by line.
fn preview(screen: &vt100::Screen) -> String {
    let (_, cols) = screen.size();
    let list = (cols.get() / 2).max(84.min(cols.get() - 36));
    screen.rows(list + 1, cols.get() - list - 1).map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn r160_tasks_are_folded_by_session_group_batch_and_dependency() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    daemon.run(&["group", "set", "gpu", "--slots", "1"]).success();
    let gate = task_waiting_at(&daemon, "gate", "exit 0");
    let submit = |words: &[&str]| daemon.run(&[&["submit"], words].concat()).success().word::<TaskId>();
    let after = submit(&["-d", "behind", "--after", &gate.to_string(), "--", "true"]);
    submit(&["-d", "elsewhere", "--group", "gpu", "--session", "chat", "--hold", "--", "true"]);
    fs::write(daemon.home().join("items"), "a\nb\n").unwrap();
    let items = daemon.home().join("items");
    let batch = submit(&["--hold", "--each", items.to_str().unwrap(), "--", "echo", "{}"]);
    let mut top = sized(&daemon, &[], (20, 90));
    top.wait_text("1 running, 4 pending\n");
    for (name, heads) in [
        ("session", vec!["- chat: 1 pending\n".to_owned()]),
        ("group", vec!["- default: 1 running, 3 pending\n".to_owned(), "- gpu: 1 pending\n".to_owned()]),
        (
            "batch",
            vec![format!("- {}: 2 pending\n", batch.short()), "- others: 1 running, 2 pending\n".to_owned()],
        ),
        (
            "dependency",
            vec![
                format!("- {} gate: 1 running, 1 pending\n", gate.short()),
                "- others: 3 pending\n".to_owned(),
            ],
        ),
    ] {
        top.type_keys("\t");
        top.wait_text(&format!("folded by {name}\n"));
        for head in heads {
            top.wait_text(&head);
        }
    }
    // Folded to its heading, and back.
    top.type_keys("\x1b[H\x1b[D");
    top.wait_text(&format!("+ {} gate: 1 running, 1 pending\n", gate.short()));
    top.wait("nothing below it", |screen| !screen.contents().contains(" behind"));
    top.type_keys("\x1b[C");
    top.wait_text(" behind\n");
    // The graph of the first task.
    top.type_keys("jg");
    top.wait_text(&format!(
        "> {} running gate\n  v {} pending (after {}) behind\n",
        gate.short(),
        after.short(),
        gate.short()
    ));
    top.type_keys("q");
    top.wait_text("by dependency");
    open_gate(&daemon, "gate");
    daemon.block(&[gate, after]);
}

#[test]
fn r162_j_and_k_move_selection() {
    let daemon = TestDaemon::start();
    for name in ["first", "second"] {
        let id = daemon.run(&["submit", "-d", name, "--", "true"]).success().word();
        daemon.block(&[id]);
    }
    let mut top = top(&daemon);
    top.wait_text("2 done");
    let is_selected = |top: &mut Terminal, row: u16| {
        top.wait("the selection", |screen| screen.cell(row, 2).is_some_and(vt100::Cell::inverse));
    };
    is_selected(&mut top, 3);
    top.type_keys("j");
    is_selected(&mut top, 4);
    top.type_keys("kk");
    is_selected(&mut top, 2);
}

#[test]
fn r161_only_pinned_previews_follow_and_several_can_be_pinned() {
    let daemon = TestDaemon::start();
    let plain = writes(&daemon, "plain", "echo plain one", "echo plain two; read x < never");
    mkfifo(&daemon.home().join("never"), Mode::S_IRWXU).unwrap();
    for name in ["a", "b"] {
        writes(&daemon, name, &format!("echo {name} one"), &format!("echo {name} two; read x < never"));
    }
    // Newest first: b, a, plain.
    let mut top = sized(&daemon, &[], (30, 120));
    top.wait("the first preview", |screen| preview(screen).contains("\nb one\n"));
    top.type_keys("fjf");
    top.wait("two pins", |screen| preview(screen).matches("(follows)").count() == 2);
    top.type_keys("j");
    top.wait("the selected one", |screen| preview(screen).contains("\nplain one\n"));
    for name in ["plain", "a", "b"] {
        open_gate(&daemon, name);
    }
    top.wait("what is pinned", |screen| {
        let shown = preview(screen);
        shown.contains("\na one\na two\n") && shown.contains("\nb one\nb two\n")
    });
    wait_output(&daemon, plain, "plain two\n");
    // A later frame, drawn after the event of that output.
    daemon.run(&["submit", "-d", "later", "--", "true"]).success();
    top.wait_text(" later\n");
    assert!(!preview(top.emulated()).contains("plain two"), "{top:?}");
    top.type_keys("f");
    top.wait("what is new", |screen| preview(screen).contains("\nplain one\nplain two\n"));
}

#[test]
fn r161_preview_shows_agent_text_and_tools() {
    let daemon = bgd_tests::FakeDaemon::start(&[], "");
    let gate = daemon.home().join("gate");
    let id = daemon.prompt(&format!("tool Read the manual\nsay All is well\nawait {}", gate.display()));
    let mut top = sized(&daemon, &[], (20, 120));
    top.wait("its tool", |screen| preview(screen).contains("1 tool call: Read the manual\n"));
    top.wait("its words", |screen| preview(screen).contains("All is well\n"));
    fs::write(gate, "").unwrap();
    daemon.ends_as(id, bgd_shared::task::Status::Completed);
}

#[test]
fn r161_preview_of_a_job_without_output_shows_its_first_output() {
    let daemon = TestDaemon::start();
    let id = task_waiting_at(&daemon, "gate", "echo first; read x < next; echo second; read x < next");
    mkfifo(&daemon.home().join("next"), Mode::S_IRWXU).unwrap();
    let mut top = sized(&daemon, &[], (20, 120));
    // Counts CPU time, so the preview beside it has been asked for.
    top.wait("the task's memory", |screen| screen.contents().contains("MiB"));
    open_gate(&daemon, "gate");
    top.wait("its output", |screen| preview(screen).contains("first\n"));
    open_gate(&daemon, "next");
    wait_output(&daemon, id, "second");
    top.type_keys("f");
    top.wait("both lines, once it is pinned", |screen| preview(screen).contains("first\nsecond\n"));
}

#[test]
fn r161_preview_shows_end_of_output_once_task_has_ended() {
    let daemon = TestDaemon::start();
    writes(&daemon, "ends", "echo begin", "echo end");
    let mut top = sized(&daemon, &[], (20, 120));
    top.wait("its beginning", |screen| preview(screen).contains("begin\n"));
    open_gate(&daemon, "ends");
    top.wait("its end", |screen| preview(screen).contains("begin\nend\n"));
}

#[test]
fn r165_progress_column_follows_task_output() {
    let daemon = TestDaemon::start();
    let id =
        writes(&daemon, "steps", "echo 'step 3/8'", "printf '\\033]9;4;1;50\\033\\\\more\\n'; read x < last");
    // A separate FIFO: a reader that opens the first one before its writer has closed it reads its end.
    mkfifo(&daemon.home().join("last"), Mode::S_IRWXU).unwrap();
    let mut top = top(&daemon);
    let shows = |top: &mut Terminal, percent: &str| {
        top.wait("the progress", |screen| {
            screen.contents().lines().any(|line| line.contains(&id.short()) && line.contains(percent))
        });
    };
    shows(&mut top, " 37% ");
    open_gate(&daemon, "steps");
    shows(&mut top, " 50% ");
    open_gate(&daemon, "last");
    top.wait_text("1 done\n");
}

#[test]
fn r162_kill_key_asks_first_and_ends_task_ignoring_sigterm() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"10m\"").start();
    let id: TaskId = daemon
        .run(&[
            "submit",
            "-d",
            "stubborn",
            "--shell",
            "trap '' TERM INT HUP; echo up; while :; do read x < gate; done",
        ])
        .success()
        .word();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    wait_output(&daemon, id, "up\n");
    let mut top = top(&daemon);
    top.wait_text(" stubborn");
    top.type_keys("X");
    top.wait_text(&format!("kill {} stubborn? y/n", id.short()));
    top.type_keys("n");
    top.wait_text("F1 help");
    assert!(daemon.task(id).status.is_active());
    top.type_keys("Xy");
    top.wait_text(&format!("killed {}", id.short()));
    top.wait_text(&format!(" {} cancelled ", id.short()));
    let task = daemon.task(id);
    assert_eq!(task.exit, Some(bgd_shared::task::Exit::Signal(9)));
}
