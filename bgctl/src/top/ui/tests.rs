//! Tests of the keys.

use bgd_shared::id::TaskId;
use bgd_shared::task::{Kind, Task};

use super::*;
use crate::render::samples;
use crate::render::wall::Clock;

fn id(number: u128) -> TaskId {
    TaskId::from_u128(number << 96)
}

fn key(number: u128) -> TaskKey {
    HostNo::default().task(id(number))
}

fn ui(tasks: &[Task]) -> Ui {
    let mut model = Model::new(1, None);
    for task in tasks {
        model.put_listed(HostNo::default(), task, &Clock::of_tests());
    }
    model.window(20);
    Ui::new(model)
}

fn task(number: u128, status: Status) -> Task {
    Task { id: id(number), status, ..samples::task() }
}

/// Presses the keys of a text; returns the request of the last one.
fn press(ui: &mut Ui, keys: &str) -> Option<Want> {
    let mut want = None;
    for c in keys.chars() {
        want = ui.key(match c {
            '\r' => Key::Enter,
            '\x1b' => Key::Escape,
            c => Key::Char(c),
        });
    }
    want
}

#[test]
fn r162_cancel_and_kill_keys_ask_for_confirmation() {
    for (key, what) in [("x", "cancel"), ("X", "kill")] {
        let mut ui = ui(&[task(1, Status::Running)]);
        assert_eq!(press(&mut ui, key), None);
        assert_eq!(ui.mode, Mode::Confirm(format!("{what} 00000001 make -j8? y/n"), confirmed(what)));
        assert_eq!(press(&mut ui, "xX1"), None, "only an answer answers");
        assert_eq!(press(&mut ui, "n"), None);
        assert_eq!(ui.mode, Mode::List);
        assert_eq!(press(&mut ui, &format!("{key}y")), Some(confirmed(what)));
    }
}

#[test]
fn r162_cancel_key_ends_what_is_left_of_an_ended_task() {
    for (key, what) in [("x", "cancel"), ("X", "kill")] {
        let left = Task { lingering: true, ..task(1, Status::Completed) };
        let mut ui = ui(&[left]);
        assert_eq!(press(&mut ui, key), None);
        assert_eq!(ui.mode, Mode::Confirm(format!("{what} 00000001 make -j8? y/n"), confirmed(what)));
        let mut gone = self::ui(&[task(1, Status::Completed)]);
        assert_eq!(press(&mut gone, key), None);
        assert_eq!(gone.note.as_deref(), Some("no task is selected that can be cancelled"));
        assert_eq!(gone.mode, Mode::List);
    }
}

fn confirmed(what: &str) -> Want {
    let ids = vec![key(1)];
    Want::Call(if what == "kill" { TaskCall::Kill(ids) } else { TaskCall::Cancel(ids) })
}

#[test]
fn r162_typed_verbs_that_end_work_ask_for_confirmation() {
    for line in [
        "cancel --all",
        "clear",
        "signal 3f2a INT",
        "session end .",
        "daemon stop",
        "daemon restart",
        "--json cancel 3f2a",
        "-H host daemon stop",
    ] {
        let mut ui = ui(&[]);
        assert_eq!(press(&mut ui, &format!(":{line}\r")), None, "{line}");
        assert_eq!(ui.mode_text(), format!("bgctl {line}? y/n"));
        let Some(Want::Verb(_, words)) = press(&mut ui, "y") else { panic!("{line}") };
        assert_eq!(words.join(" "), line);
    }
    let mut ui = ui(&[]);
    assert_eq!(
        press(&mut ui, ":daemon status\r"),
        Some(Want::Verb(Some(HostNo::default()), vec!["daemon".into(), "status".into()]))
    );
    assert_eq!(press(&mut ui, ":list 'x\r"), None);
    assert!(ui.note.as_deref().unwrap().contains("not closed"));
    assert_eq!(press(&mut ui, ":  \r"), None);
    assert_eq!(press(&mut ui, ":# cancel --all\r"), None);
}

impl Ui {
    fn mode_text(&self) -> &str {
        match &self.mode {
            Mode::Typing(_, text) | Mode::Confirm(text, _) => text,
            Mode::List | Mode::Help(_) | Mode::Graph(..) | Mode::Question(..) => "",
        }
    }
}

#[test]
fn r162_keys_apply_to_all_marked_tasks() {
    let mut ui = ui(&[task(1, Status::Running), task(2, Status::Running), task(3, Status::Running)]);
    press(&mut ui, "  x");
    assert_eq!(ui.mode_text(), "cancel 2 tasks? y/n");
    assert!(matches!(press(&mut ui, "y"), Some(Want::Call(TaskCall::Cancel(ids))) if ids.len() == 2));
    assert_eq!(ui.model.chosen().len(), 1, "the marks have been used");
}

#[test]
fn r162_y_and_n_answer_an_open_question() {
    let mut task = Task { kind: Kind::Agent, ..task(1, Status::Running) };
    task.progress.needs_input = Some(samples::question());
    let answer = |option: &str| TaskCall::Answer { task: key(1), request: 7, option: Some(option.into()) };
    let mut shown = ui(std::slice::from_ref(&task));
    shown.question_shown = Some((key(1), 7));
    assert_eq!(press(&mut shown, "y"), Some(Want::Call(answer("once"))));
    assert_eq!(press(&mut ui(&[task]), "n"), Some(Want::Call(answer("reject"))));
    let mut ui = ui(&[self::task(1, Status::Running)]);
    assert_eq!(press(&mut ui, "y"), None);
    assert_eq!(ui.note.as_deref(), Some("this task has no open question"));
}

#[test]
fn r162_question_not_shown_to_its_end_is_shown_before_y_allows_it() {
    let mut task = Task { kind: Kind::Agent, ..task(1, Status::Running) };
    task.progress.needs_input = Some(samples::question());
    let mut ui = ui(std::slice::from_ref(&task));
    ui.rows = 5;
    // Another question of this task was shown, and that of another task.
    for shown in [None, Some((key(1), 6)), Some((key(2), 7))] {
        let at = |at| Question { task: key(1), request: 7, at };
        (ui.question_shown, ui.question_drawn) = (shown, None);
        assert_eq!((press(&mut ui, "yyy"), &ui.mode), (None, &Mode::Question(at(0))), "not drawn yet");
        ui.question_drawn = Some(at(0));
        assert_eq!((press(&mut ui, "yy"), &ui.mode), (None, &Mode::Question(at(5))), "a page further");
        assert_eq!((press(&mut ui, "k"), &ui.mode), (None, &Mode::Question(at(4))));
        assert_eq!((press(&mut ui, "q"), &ui.mode), (None, &Mode::List));
    }
    press(&mut ui, "y");
    ui.question_shown = Some((key(1), 7));
    assert!(matches!(press(&mut ui, "y"), Some(Want::Call(TaskCall::Answer { request: 7, .. }))));
    assert_eq!(ui.mode, Mode::List);
    ui.question_shown = None;
    assert!(matches!(press(&mut ui, "yn"), Some(Want::Call(TaskCall::Answer { request: 7, .. }))));
    press(&mut ui, "y");
    task.progress.needs_input = None;
    ui.model.put_listed(HostNo::default(), &task, &Clock::of_tests());
    assert_eq!((press(&mut ui, "y"), &ui.mode), (None, &Mode::List));
    assert_eq!(ui.note.as_deref(), Some("this task has no open question"));
}

#[test]
fn r162_enter_attaches_to_running_and_pages_ended_task() {
    let attach = Want::Verb(Some(HostNo::default()), vec!["attach".into(), id(1).to_string()]);
    assert_eq!(press(&mut ui(&[task(1, Status::Running)]), "\r"), Some(attach));
    let mut ui = ui(&[task(1, Status::Failed)]);
    assert_eq!(ui.model.waiting(), 1);
    assert_eq!(press(&mut ui, "\r"), Some(Want::Page(key(1))));
    assert_eq!(ui.model.waiting(), 0, "it was looked at");
    press(&mut ui, "k\r");
    assert!(matches!(ui.model.selected(), Some(Spot::Head(head)) if ui.model.is_folded(head)));
}

#[test]
fn r162_keys_hold_release_rerun_and_prompt_tasks() {
    let mut held = task(1, Status::Pending);
    assert_eq!(press(&mut ui(&[held.clone()]), "h"), Some(Want::Call(TaskCall::Hold(vec![key(1)]))));
    held.waiting = Some(bgd_shared::order::Waiting {
        reason: bgd_shared::order::WaitingFor::Held,
        ids: Vec::new(),
        until: None,
    });
    assert_eq!(press(&mut ui(&[held]), "h"), Some(Want::Call(TaskCall::Release(vec![key(1)]))));
    assert_eq!(
        press(&mut ui(&[task(1, Status::Failed)]), "r"),
        Some(Want::Call(TaskCall::Rerun(vec![key(1)])))
    );
    let agent = Task { kind: Kind::Agent, ..task(1, Status::Completed) };
    let prompt = Want::Call(TaskCall::Prompt(key(1), "go on".into()));
    assert_eq!(press(&mut ui(&[agent]), "pgo on\r"), Some(prompt));
    for (key, why) in [("h", "only pending"), ("r", "only ended"), ("p", "runs a command")] {
        let mut ui = ui(&[task(1, Status::Running)]);
        assert_eq!(press(&mut ui, key), None);
        assert!(ui.note.as_deref().unwrap().contains(why), "{key}: {:?}", ui.note);
    }
}

#[test]
fn r162_keys_for_tasks_say_on_a_heading_that_none_is_selected() {
    for key in ["h", "r", "x", "X", "g", "p", "y"] {
        let mut ui = ui(&[task(1, Status::Pending)]);
        press(&mut ui, "k");
        assert!(matches!(ui.model.selected(), Some(Spot::Head(_))));
        assert_eq!(press(&mut ui, key), None);
        assert_eq!((ui.note.as_deref(), &ui.mode), (Some("select a task first"), &Mode::List), "{key}");
    }
}

#[test]
fn r162_filter_applies_while_being_typed() {
    let named =
        |number, description: &str| Task { description: description.into(), ..task(number, Status::Running) };
    let mut ui = ui(&[named(1, "make"), named(2, "test")]);
    press(&mut ui, "/mak");
    assert_eq!((ui.model.shown(), ui.mode_text()), (1, "mak"));
    ui.key(Key::Backspace);
    ui.key(Key::Paste("x".repeat(1 << 20)));
    assert_eq!((ui.model.shown(), ui.model.filter().len()), (0, 256));
    ui.key(Key::Ctrl('u'));
    press(&mut ui, "test\r");
    assert_eq!((ui.model.shown(), &ui.mode), (1, &Mode::List));
    press(&mut ui, "\x1b");
    assert_eq!(ui.model.shown(), 2);
    press(&mut ui, "/mak\x1b");
    assert_eq!((ui.model.shown(), ui.model.filter()), (2, ""));
}

/// Returns two hosts, each with a running task of the same id.
fn two_hosts() -> Ui {
    let mut model = Model::new(2, None);
    model.name_hosts(&["a".into(), "b".into()]);
    for host in model.hosts() {
        model.put_listed(host, &task(1, Status::Running), &Clock::of_tests());
    }
    model.window(20);
    Ui::new(model)
}

#[test]
fn r144_typed_verb_goes_to_host_of_selected_task() {
    let mut ui = two_hosts();
    let verb = |host, words: &[&str]| Some(Want::Verb(host, words.iter().map(ToString::to_string).collect()));
    assert_eq!(press(&mut ui, ":list\r"), verb(Some(HostNo(0)), &["list"]));
    assert_eq!(press(&mut ui, "j:list\r"), verb(Some(HostNo(1)), &["list"]));
    assert_eq!(press(&mut ui, ":-H c list\r"), verb(None, &["-H", "c", "list"]));
    assert_eq!(press(&mut ui, ":cancel --all\r"), None);
    assert_eq!(ui.mode_text(), "bgctl -H b cancel --all? y/n");
    assert_eq!(press(&mut ui, "y"), verb(Some(HostNo(1)), &["cancel", "--all"]));
    assert_eq!(press(&mut ui, "k  :list\r"), None, "the marked tasks are on two hosts");
    assert!(ui.note.as_deref().unwrap().contains("on which host?"), "{:?}", ui.note);
    assert_eq!(press(&mut ui, "\r"), verb(Some(HostNo(1)), &["attach", &id(1).to_string()]));
}

#[test]
fn r144_confirmation_names_the_hosts() {
    let mut ui = two_hosts();
    press(&mut ui, "jx");
    assert_eq!(ui.mode_text(), "cancel 00000001 make -j8 on b? y/n");
    press(&mut ui, "nk  X");
    assert_eq!(ui.mode_text(), "kill 2 tasks on 2 hosts? y/n");
    let both = vec![HostNo(0).task(id(1)), HostNo(1).task(id(1))];
    assert_eq!(press(&mut ui, "y"), Some(Want::Call(TaskCall::Kill(both))));
}

#[test]
fn r144_outcomes_of_several_hosts_share_the_note_line() {
    let mut ui = two_hosts();
    ui.show_outcome(HostNo(0), Ok("held 2 tasks".into()));
    ui.show_outcome(HostNo(1), Err("no such task".into()));
    assert_eq!(ui.note.as_deref(), Some("b: no such task; a: held 2 tasks"));
    ui.show_outcome(HostNo(1), Ok("held 00000001".into()));
    assert_eq!(ui.note.as_deref(), Some("a: held 2 tasks; b: held 00000001"));
    press(&mut ui, "j");
    ui.show_outcome(HostNo(1), Ok("released".into()));
    assert_eq!(ui.note.as_deref(), Some("b: released"), "what came before the key is over");
}

#[test]
fn r144_enter_on_silent_host_retries_the_connection() {
    let mut ui = two_hosts();
    let silence = crate::top::model::Silence { since: None, why: "gone".into() };
    ui.model.set_silence(HostNo(1), Some(silence));
    ui.model.select_end(false);
    assert_eq!(press(&mut ui, "\r"), Some(Want::Retry(HostNo(1))));
    assert_eq!(
        press(&mut ui, ":daemon status\r"),
        Some(Want::Verb(Some(HostNo(1)), vec!["daemon".into(), "status".into()]))
    );
}

#[test]
fn r162_every_active_key_is_in_help_and_only_q_quits() {
    let tasks = [task(1, Status::Running), task(2, Status::Pending), task(3, Status::Completed)];
    let shown: String = super::super::help::KEYS.iter().map(|(keys, _)| *keys).collect::<Vec<_>>().join(" ");
    for key in ' '..='~' {
        let mut ui = ui(&tasks);
        let (before, by, filter) =
            (ui.model.selected().cloned(), ui.model.by(), ui.model.filter().to_owned());
        let want = press(&mut ui, &key.to_string());
        let did = want.is_some()
            || ui.mode != Mode::List
            || ui.note.is_some()
            || ui.model.selected() != before.as_ref()
            || (ui.model.by(), ui.model.filter()) != (by, filter.as_str())
            || ui.preview != Preview::Auto
            || !ui.model.pins().is_empty();
        let is_shown = shown.split(' ').any(|shown| shown == key.to_string()) || key == ' ' || key == 'G';
        assert_eq!(did, is_shown, "{key:?}: {want:?}");
        assert_eq!(want == Some(Want::Quit), key == 'q');
    }
}

#[test]
fn r162_mouse_click_and_wheel_select_tasks() {
    let mut ui = ui(&[task(1, Status::Running), task(2, Status::Running)]);
    ui.drawn = (2, ui.model.window(9));
    ui.key(Key::Click(4, 0));
    assert_eq!(ui.model.selected_task(), Some(key(2)));
    ui.key(Key::Click(3, 7));
    assert_eq!(ui.model.selected_task(), Some(key(1)));
    ui.key(Key::Click(0, 0));
    ui.key(Key::Click(999, 0));
    assert_eq!(ui.model.selected_task(), Some(key(1)));
    ui.key(Key::Wheel(1));
    assert_eq!(ui.model.selected_task(), Some(key(2)));
}

#[test]
fn r162_graph_shows_dependencies_and_dependents() {
    use bgd_shared::order::{Condition, Dependency};
    let on = |number| vec![Dependency { id: id(number), condition: Condition::Ok, met: false }];
    let tasks = [
        Task { after: on(1), ..task(2, Status::Pending) },
        Task { after: on(2), ..task(3, Status::Pending) },
        Task { after: on(9), ..task(1, Status::Running) },
    ];
    let mut ui = ui(&tasks);
    press(&mut ui, "g");
    let Mode::Graph(lines, 0) = &ui.mode else { panic!("{:?}", ui.mode) };
    assert_eq!(
        lines[..],
        [
            "  ^ 00000009 (deleted)",
            "> 00000001 running make -j8",
            "  v 00000002 pending make -j8",
            "    v 00000003 pending make -j8",
        ]
    );
    press(&mut ui, "jjjjjjjj");
    assert!(matches!(ui.mode, Mode::Graph(_, 3)));
    press(&mut ui, "q");
    assert_eq!(ui.mode, Mode::List);
}
