//! Tests of frames at several sizes, with ratatui's test backend.

use std::collections::HashMap;

use bgd_shared::consumption::{AgentUsage, Amount, Cost, PlanStep, StepStatus};
use bgd_shared::id::TaskId;
use bgd_shared::question::NeedsInput;
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;
use bgd_shared::usage::Usage;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::render::samples;
use crate::render::wall::Clock;
use crate::top::keys::Key;
use crate::top::model::{Live, Model, Silence};
use crate::top::pane::Pane;
use crate::top::task_key::{HostNo, TaskKey};

fn id(number: u128) -> TaskId {
    TaskId::from_u128(number << 96)
}

fn key(number: u128) -> TaskKey {
    HostNo::default().task(id(number))
}

fn task(number: u128, status: Status, description: &str) -> Task {
    let clock = Clock::of_tests();
    let started_at = (status != Status::Pending).then_some(samples::task().created_at);
    Task {
        id: id(number),
        status,
        description: description.into(),
        started_at,
        completed_at: (!status.is_active()).then_some(clock.now),
        ..samples::task()
    }
}

fn ui() -> Ui {
    let mut model = Model::new(1, None);
    let mut asks = task(1, Status::Running, "review the code");
    asks.progress.needs_input = Some(samples::question());
    for task in [
        asks,
        task(2, Status::Failed, "make test"),
        task(3, Status::Running, "漢字 and e\u{301}\u{202e}evil"),
        task(4, Status::Pending, "deploy"),
        task(5, Status::Completed, "build"),
    ] {
        model.put_listed(HostNo::default(), &task, &Clock::of_tests());
    }
    let line = "Epoch 3/8 [====>   ] 42%".to_owned();
    model.set_live(key(3), Live { percent: Some(42), line, ..Live::default() });
    model.end_listing(HostNo::default());
    Ui::new(model)
}

/// Draws a frame of this size, and returns its lines without trailing blanks.
fn drawn(ui: &mut Ui, panes: &HashMap<TaskId, Pane>, (rows, cols): (u16, u16)) -> (Vec<String>, Frame) {
    let mut terminal = Terminal::new(TestBackend::new(cols, rows)).unwrap();
    let mut frame = Frame::default();
    let scene = Scene { panes: Panes(vec![Some(panes)]), clock: &Clock::of_tests(), colour: true };
    terminal.draw(|on| frame = draw(ui, &scene, on.buffer_mut())).unwrap();
    let cells = terminal.backend().buffer().content().chunks(usize::from(cols));
    let line = |row: &[ratatui::buffer::Cell]| {
        let text: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned()
    };
    (cells.map(line).collect(), frame)
}

fn lines(size: (u16, u16)) -> Vec<String> {
    drawn(&mut ui(), &HashMap::new(), size).0
}

#[test]
fn r160_wide_list_shows_usage_of_running_tasks() {
    let mut ui = Ui { preview: Preview::Off, ..ui() };
    let known = Live { cpu: Some(150), memory_bytes: Some(3 << 29), ..Live::default() };
    ui.model.set_live(key(3), known);
    let (lines, frame) = drawn(&mut ui, &HashMap::new(), (14, 120));
    assert!(lines[1].contains("QUIET   CPU     MEMORY    DONE"), "{}", lines[1]);
    assert!(lines.iter().any(|line| line.contains(" 150%    1.5 GiB ")), "{lines:#?}");
    assert!(frame.shows_usage && frame.changes_in.is_some_and(|ms| ms <= 2000));
    let (_, narrow) = drawn(&mut ui, &HashMap::new(), (14, 80));
    assert!(!narrow.shows_usage, "what nobody sees is not measured");
}

#[test]
fn r164_wide_list_shows_usage_of_ended_tasks() {
    let mut ui = Ui { preview: Preview::Off, ..ui() };
    let usage =
        Usage { user_ms: 60_000, system_ms: 5_000, peak_memory_bytes: Some(3 << 29), written_bytes: 0 };
    let ended = Task { usage: Some(usage), ..task(5, Status::Completed, "build") };
    ui.model.put(HostNo::default(), &ended, &Clock::of_tests());
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (14, 120));
    assert!(lines.iter().any(|line| line.contains(" 1m 05s  1.5 GiB        build")), "{lines:#?}");
    // The next attempt has used nothing yet.
    ui.model.put(HostNo::default(), &Task { status: Status::Running, ..ended }, &Clock::of_tests());
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (14, 120));
    assert!(!lines.iter().any(|line| line.contains("1m 05s")), "{lines:#?}");
}

#[test]
fn r160_wide_list_shows_agent_consumption() {
    let mut ui = Ui { preview: Preview::Off, ..ui() };
    let heads = |ui: &mut Ui, cols| drawn(ui, &HashMap::new(), (14, cols)).0.swap_remove(1);
    assert!(!heads(&mut ui, 140).contains("TOKENS"), "no agent says");
    let usage = AgentUsage {
        input_tokens: Some(12_000),
        output_tokens: Some(345),
        context_tokens: Some(45_000),
        context_size: Some(200_000),
        cost: Amount::of(1.2).map(|amount| Cost { amount, currency: "USD\x1b".into() }),
        ..AgentUsage::default()
    };
    ui.model.put(
        HostNo::default(),
        &Task { agent_usage: Some(usage), ..task(3, Status::Running, "fix it") },
        &Clock::of_tests(),
    );
    assert!(heads(&mut ui, 140).contains("MEMORY    TOKENS CONTEXT COST        DONE"));
    assert!(!heads(&mut ui, 109).contains("TOKENS"), "there is no room");
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (14, 140));
    assert!(lines.iter().any(|line| line.contains(" 12.3k  22%     1.20 USD\u{fffd}   42%")), "{lines:#?}");
}

#[test]
fn r160_side_preview_takes_no_column_from_the_list() {
    let mut ui = ui();
    let heads = |ui: &mut Ui, cols| drawn(ui, &HashMap::new(), (14, cols)).0.swap_remove(1);
    assert!(heads(&mut ui, 100).contains(" STATE            AGE     QUIET   DONE DESCRIPTION"));
    for cols in [120, 121, 160, 168, 200] {
        let head = heads(&mut ui, cols);
        assert!(head.contains("QUIET   CPU     MEMORY    DONE DESCRIPTION"), "{cols}: {head}");
    }
    let usage = AgentUsage { input_tokens: Some(900), ..AgentUsage::default() };
    let agent = Task { agent_usage: Some(usage), ..task(3, Status::Running, "fix it") };
    ui.model.put(HostNo::default(), &agent, &Clock::of_tests());
    for cols in [146, 160, 200] {
        let head = heads(&mut ui, cols);
        assert!(head.contains("MEMORY    TOKENS CONTEXT COST        DONE DESCRIPTION"), "{cols}: {head}");
    }
}

#[test]
fn r160_narrow_description_beside_a_preview_is_not_shortened_for_the_last_line() {
    let mut ui = ui();
    ui.model.put(HostNo::default(), &task(3, Status::Running, "make -j8 all tests"), &Clock::of_tests());
    let line = "Epoch 3/8 [====>   ] 42%".to_owned();
    ui.model.set_live(key(3), Live { percent: Some(42), line, ..Live::default() });
    for (cols, shows) in [(120, false), (168, false), (200, true)] {
        let (lines, _) = drawn(&mut ui, &HashMap::new(), (14, cols));
        let row = lines.iter().find(|line| line.starts_with(" 00000003 ")).unwrap();
        assert_eq!(row.contains(" Epoch 3/8"), shows, "{cols}: {row}");
        assert!(row.contains(if shows { " make -j8" } else { " make -j8 all tes" }), "{cols}: {row}");
    }
}

#[test]
fn r160_80_column_terminal_shows_all_basic_columns() {
    assert_eq!(
        lines((14, 80)),
        [
            "1 question and 1 failure need you | 1 running, 1 pending, 1 done",
            " ID       STATE            AGE     QUIET   DONE DESCRIPTION",
            "- asks 1",
            " 00000001 running (asks)   1m 40s  1m 40s       review the code",
            "- failed 1",
            " 00000002 failed           1m                   make test",
            "- running 1",
            " 00000003 running          1m 40s  1m 40s  42%  漢 字  and e\u{301}\u{fffd}evil Epoch 3/8 [====…",
            "- pending 1",
            " 00000004 pending          1m                   deploy",
            "- done 1",
            " 00000005 completed        1m                   build",
            "",
            "F1 help  q quit  Enter open  o output  / filter  Tab fold  x cancel  y n answer",
        ]
    );
}

#[test]
fn r160_waiting_reason_is_readable_at_common_widths() {
    use bgd_shared::order::WaitingFor::{After, Elsewhere, Held, Paused, Retry, Slot, Until};
    let waiting = |reason, ids: &[u128]| bgd_shared::order::Waiting {
        reason,
        ids: ids.iter().map(|number| id(*number)).collect(),
        until: Some(Timestamp::from_unix_ms(1_100_000 + 3_600_000)),
    };
    for (reason, ids) in [
        (After, &[1][..]),
        (After, &[1, 2, 3]),
        (Paused, &[]),
        (Slot, &[]),
        (Until, &[]),
        (Retry, &[]),
        (Held, &[]),
    ] {
        let mut pending = task(4, Status::Pending, "deploy");
        (pending.waiting, pending.group) = (Some(waiting(reason, ids)), "gpu".into());
        let mut model = Model::new(1, None);
        model.put(HostNo::default(), &pending, &Clock::of_tests());
        let state = model.row(key(4)).unwrap().state.to_string();
        // The list alone, and beside a preview, which has room only for the first of several ids.
        for cols in [80, 100, 120] {
            let shown =
                if ids.len() > 1 && cols > 80 { &state[.."pending (after 00000001,".len()] } else { &state };
            let mut ui = Ui::new(Model::new(1, None));
            ui.model.put(HostNo::default(), &pending, &Clock::of_tests());
            let (lines, frame) = drawn(&mut ui, &HashMap::new(), (14, cols));
            let list = frame.previews.first().map_or(cols, |(_, preview)| preview.x - 1);
            let row: String = lines[3].chars().take(list.into()).collect();
            assert!(row.contains(shown) && row.trim_end().ends_with(" deploy"), "{cols}: {row:?}");
        }
    }
    let mut queued = task(4, Status::Pending, "train");
    (queued.waiting, queued.on) = (Some(waiting(Elsewhere, &[])), Some("cluster".into()));
    let known = bgd_shared::resources::Elsewhere { reason: Some("Resources".into()), ..Default::default() };
    queued.elsewhere = Some(known);
    let mut ui = ui();
    ui.model.put(HostNo::default(), &queued, &Clock::of_tests());
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (14, 80));
    assert!(lines.iter().any(|line| line.contains(" pending (cluster: Resources) ")), "{lines:#?}");
}

#[test]
fn r163_tiny_terminal_shows_the_essentials() {
    assert_eq!(
        lines((5, 20)),
        ["1 question and 1 fa…", "- asks 1", " running review the…", "- failed 1", "F1 help  q quit"]
    );
    assert_eq!(lines((2, 9)), ["1 questi…", " review …"]);
    assert_eq!(lines((1, 1)), ["…"]);
}

#[test]
fn r161_preview_is_beside_the_list_if_there_is_room() {
    let mut ui = ui();
    let mut pane = Pane::default();
    pane.set_output(0, b"\x1b[31mred\x1b[m and\nmore \xff\xfe\n");
    let mut asking = task(1, Status::Running, "review the code");
    asking.progress.needs_input = Some(samples::question());
    asking.progress.plan = vec![
        PlanStep { text: "read it".into(), status: StepStatus::Completed },
        PlanStep { text: "mend it".into(), status: StepStatus::InProgress },
    ];
    asking.progress.tool_calls = 2;
    asking.progress.last_tools = vec!["read".into(), "edit".into()];
    asking.agent_usage = Some(AgentUsage { input_tokens: Some(900), ..AgentUsage::default() });
    pane.set_task(&asking);
    let panes = HashMap::from([(id(1), pane)]);
    let (wide, frame) = drawn(&mut ui, &panes, (22, 170));
    assert_eq!(frame.previews, [(key(1), Rect::new(86, 1, 84, 20))]);
    let right = |row: usize| wide[row].chars().skip(86).collect::<String>();
    assert_eq!(right(1), "00000001 running (asks) review the code");
    assert_eq!(right(2), "asks: Run `make`?");
    assert_eq!((right(3).as_str(), right(4).as_str()), ("  Allow once", "  No"));
    assert_eq!((right(5).as_str(), right(6).as_str()), ("[x] read it", "[>] mend it"));
    // This row has an additional combining character.
    assert_eq!((right(7).trim_start(), right(8).as_str()), ("2 tool calls: read, edit", "900 tokens in"));
    assert_eq!((right(9).as_str(), right(10).as_str()), ("red and", "more"));
    let (_, frame) = drawn(&mut ui, &panes, (14, 80));
    assert!(frame.previews.is_empty());
    ui.key(Key::Char('v'));
    ui.key(Key::Char('v'));
    let (_, frame) = drawn(&mut ui, &panes, (14, 80));
    assert_eq!(frame.previews, [(key(1), Rect::new(0, 7, 80, 6))], "below it on demand");
}

#[test]
fn r162_y_allows_only_a_question_whose_end_is_visible() {
    let mut ui = ui();
    let mut asking = task(1, Status::Running, "review the code");
    let mut ask = |ui: &mut Ui, question: &str, size| {
        asking.progress.needs_input = Some(NeedsInput { question: question.into(), ..samples::question() });
        ui.model.put_listed(HostNo::default(), &asking, &Clock::of_tests());
        let mut pane = Pane::default();
        pane.set_task(&asking);
        drawn(ui, &HashMap::from([(id(1), pane)]), size).0
    };
    let long = format!("Run `make{}; rm -rf /`?", " ".repeat(2000));
    ask(&mut ui, "Run `make`?", (14, 170));
    assert_eq!(ui.question_shown, Some((key(1), 7)), "the preview has all of it");
    ask(&mut ui, &long, (14, 170));
    assert_eq!(ui.question_shown, None);
    let lines = ask(&mut ui, "Run `make`?", (14, 80));
    assert_eq!(ui.question_shown, None, "there is no preview: {lines:#?}");

    ui.key(Key::Char('y'));
    let lines = ask(&mut ui, "Run `make`?", (14, 80));
    assert_eq!((lines[1].as_str(), lines[2].as_str()), ("00000001 review the code asks", "Run `make`?"));
    assert_eq!(lines[13], "y Allow once  n No  any other key returns");
    assert_eq!(ui.question_shown, Some((key(1), 7)));

    let lines = ask(&mut ui, &long, (14, 80));
    assert!(lines[1].contains("1-11 of 29") && lines[13].starts_with("y show the rest"), "{lines:#?}");
    assert_eq!(ui.question_shown, None);
    for _ in 0..2 {
        assert_eq!(ui.key(Key::Char('y')), None);
        ask(&mut ui, &long, (14, 80));
    }
    let lines = ask(&mut ui, &long, (14, 80));
    assert!(lines.iter().any(|line| line.contains("rm -rf /`?")), "{lines:#?}");
    assert_eq!(ui.question_shown, Some((key(1), 7)));
    // Another question of the task begins at its first line.
    asking.progress.needs_input =
        Some(NeedsInput { request: 8, question: "Run\t`make`?".into(), ..samples::question() });
    ui.model.put_listed(HostNo::default(), &asking, &Clock::of_tests());
    assert_eq!(ui.key(Key::Char('y')), None);
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (14, 80));
    assert_eq!((lines[2].as_str(), ui.question_shown), ("Run `make`?", Some((key(1), 8))));
    assert!(ui.key(Key::Char('y')).is_some());
    // What covers a preview hides its question.
    ui.key(Key::Help);
    let mut pane = Pane::default();
    pane.set_task(&asking);
    drawn(&mut ui, &HashMap::from([(id(1), pane)]), (14, 170));
    assert_eq!(ui.question_shown, None);
}

#[test]
fn r161_several_previews_can_be_pinned() {
    let mut ui = ui();
    for _ in 0..3 {
        drawn(&mut ui, &HashMap::new(), (20, 170));
        ui.key(Key::Char('f'));
        ui.key(Key::Down);
        ui.key(Key::Down);
    }
    let (_, frame) = drawn(&mut ui, &HashMap::new(), (20, 170));
    let shown: Vec<TaskKey> = frame.previews.iter().map(|(key, _)| *key).collect();
    assert_eq!(shown, [key(1), key(2), key(3), key(4)], "three pinned and the selected one");
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (20, 170));
    assert!(lines[1].ends_with("00000001 (follows) running (asks) review the code"), "{lines:?}");
    assert!(lines[3].starts_with("> 00000001") || lines[3].starts_with(">00000001"), "{lines:?}");
}

#[test]
fn r160_frame_reports_when_visible_ages_change() {
    let (_, frame) = drawn(&mut ui(), &HashMap::new(), (14, 80));
    assert_eq!(frame.changes_in, Some(500), "one is running: 1m 40s is the nearest for half a second");
    let (_, frame) = drawn(&mut ui(), &HashMap::new(), (14, 40));
    assert_eq!(frame.changes_in, None, "no age is visible");
    let mut quiet = Model::new(1, None);
    for (number, status) in [(1, Status::Failed), (2, Status::Completed), (3, Status::Pending)] {
        quiet.put(HostNo::default(), &task(number, status, "quiet"), &Clock::of_tests());
    }
    let (lines, frame) = drawn(&mut Ui::new(quiet), &HashMap::new(), (14, 200));
    assert_eq!(
        frame.changes_in,
        Some(20_000),
        "where nothing runs, minutes are shown: 1m 40s is 1m for 20 s"
    );
    assert!(!frame.shows_usage && lines.iter().any(|line| line.contains(" 1m ")), "{lines:#?}");
    let (_, frame) = drawn(&mut Ui::new(Model::new(1, None)), &HashMap::new(), (14, 80));
    assert_eq!(frame.changes_in, None);
    let mut model = Model::new(1, None);
    let mut old = task(1, Status::Completed, "old");
    old.created_at = bgd_shared::time::Timestamp::from_unix_ms(1_100_000 - 7_230_000);
    model.put(HostNo::default(), &old, &Clock::of_tests());
    let (_, frame) = drawn(&mut Ui::new(model), &HashMap::new(), (14, 80));
    assert_eq!(frame.changes_in, Some(60_000), "minutes are shown: 2h 00m 30s is the first moment of 2h 01m");
}

#[test]
fn r162_last_line_shows_input_and_confirmation() {
    let mut ui = ui();
    ui.key(Key::Char('/'));
    ui.key(Key::Paste("make".into()));
    let (lines, frame) = drawn(&mut ui, &HashMap::new(), (8, 30));
    assert_eq!((lines[7].as_str(), frame.cursor), ("/make", Some((5, 7))));
    ui.key(Key::Paste("x".repeat(100)));
    let (lines, frame) = drawn(&mut ui, &HashMap::new(), (8, 30));
    assert_eq!(lines[7], format!("/{}", "x".repeat(28)));
    assert_eq!(frame.cursor, Some((29, 7)));
    ui.key(Key::Escape);
    ui.key(Key::Char('x'));
    let (lines, frame) = drawn(&mut ui, &HashMap::new(), (8, 60));
    assert_eq!((lines[7].as_str(), frame.cursor), ("cancel 00000001 review the code? y/n", None));
    ui.key(Key::Char('n'));
    ui.key(Key::Help);
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (8, 80));
    let (title, rows) = lines[1].split_at("Keys 1-5 of ".len());
    assert_eq!(title, "Keys 1-5 of ");
    assert!(rows.ends_with(": Up and Down scroll, any other key returns"), "{rows}");
    assert!(lines.iter().all(|line| !line.contains('…')), "{lines:#?}");
    for _ in 0..9 {
        ui.key(Key::PageDown);
    }
    let (end, _) = drawn(&mut ui, &HashMap::new(), (8, 80));
    assert!(end[6].ends_with("Actions that end work ask for confirmation."), "{end:#?}");
    ui.key(Key::Up);
    assert_ne!(drawn(&mut ui, &HashMap::new(), (8, 80)).0, end, "a key is seen at once");
    let (large, _) = drawn(&mut ui, &HashMap::new(), (50, 80));
    assert_eq!((large[1].as_str(), &large[2][..11]), ("Keys", "Up Down k j"));
    ui.key(Key::Char('q'));
    assert_eq!(ui.mode, Mode::List);
}

#[test]
fn r163_frame_without_colours_sets_none() {
    let mut ui = ui();
    let mut buffer = Buffer::empty(Rect::new(0, 0, 120, 14));
    let mut pane = Pane::default();
    pane.set_output(0, b"\x1b[31mred\n");
    let panes = HashMap::from([(id(1), pane)]);
    let scene = Scene { panes: Panes(vec![Some(&panes)]), clock: &Clock::of_tests(), colour: false };
    draw(&mut ui, &scene, &mut buffer);
    assert!(buffer.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
}

#[test]
fn r163_empty_list_says_what_to_do() {
    let mut empty = Ui::new(Model::new(1, None));
    assert_eq!(drawn(&mut empty, &HashMap::new(), (6, 60)).0[1], "listing the tasks");
    empty.model.end_listing(HostNo::default());
    let (lines, _) = drawn(&mut empty, &HashMap::new(), (6, 60));
    assert_eq!(lines[..2], ["nothing needs you", "no tasks; `:submit -- COMMAND` starts one"]);
    let mut ui = ui();
    let why = "the daemon is gone; waiting for it".to_owned();
    let since = Some(Clock::of_tests().now);
    ui.model.set_silence(HostNo::default(), Some(Silence { since, why }));
    ui.model.set_filter("nobody");
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (6, 60));
    assert_eq!(lines[0], "the daemon is gone; waiting for it | 1 question and 1 failu…");
    assert_eq!(lines[1], "no task matches; Esc shows all");
    ui.model.set_filter("s:bogus");
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (6, 60));
    assert!(lines[1].starts_with("no status begins with \"bogus\"; there are asks, "), "{lines:?}");
}

#[test]
fn r163_huge_terminal_is_drawn() {
    let (lines, frame) = drawn(&mut ui(), &HashMap::new(), (300, 1000));
    assert_eq!((lines.len(), frame.tasks.len()), (300, 5));
}

/// Returns three hosts: one with two tasks, one that had a task and no longer answers, and one that has not answered
/// yet.
fn hosts() -> Ui {
    let mut model = Model::new(3, None);
    model.name_hosts(&["build1".into(), "me@a-very-long-name".into(), "new".into()]);
    for (host, task) in [
        (0, task(1, Status::Running, "make")),
        (0, task(2, Status::Failed, "test")),
        (1, task(1, Status::Running, "old")),
    ] {
        model.put_listed(HostNo(host), &task, &Clock::of_tests());
    }
    let since = Some(bgd_shared::time::Timestamp::from_unix_ms(1_002_999));
    model.set_silence(HostNo(1), Some(Silence { since, why: "no route; trying again".into() }));
    model.set_silence(HostNo(2), Some(Silence { since: None, why: "connecting".into() }));
    model.end_listing(HostNo(0));
    Ui::new(model)
}

#[test]
fn r144_several_hosts_get_a_column_and_silent_ones_a_line() {
    let (lines, _) = drawn(&mut hosts(), &HashMap::new(), (11, 80));
    assert_eq!(
        lines[..9],
        [
            "me@a-very-long-name does not answer | 1 failure needs you | 2 running",
            " HOST             ID       STATE            AGE     DONE DESCRIPTION",
            "- me@a-very-long-name: no answer since 00:16:42: no route; trying again",
            "- new: connecting",
            "- failed 1",
            " build1           00000002 failed           1m           test",
            "- running 2",
            " build1           00000001 running          1m 40s       make",
            " me@a-very-long-… 00000001 running          1m 40s       old",
        ]
    );
    let (narrow, _) = drawn(&mut hosts(), &HashMap::new(), (9, 50));
    assert_eq!(narrow[1], " HOST       STATE            DESCRIPTION", "{narrow:#?}");
    assert_eq!(narrow[5], " build1     failed           test");
    let (tiny, _) = drawn(&mut hosts(), &HashMap::new(), (9, 30));
    assert_eq!(tiny[5], " failed           test", "{tiny:#?}");
}

#[test]
fn r144_host_column_yields_to_a_long_state_on_narrow_terminals() {
    let mut pending = task(3, Status::Pending, "deploy");
    let (reason, ids) = (bgd_shared::order::WaitingFor::After, vec![id(1), id(2)]);
    pending.waiting = Some(bgd_shared::order::Waiting { reason, ids, until: None });
    let mut ui = hosts();
    ui.model.put(HostNo(0), &pending, &Clock::of_tests());
    let (wide, _) = drawn(&mut ui, &HashMap::new(), (13, 80));
    let state = "pending (after 00000001, 00000002)";
    assert!(wide.contains(&format!(" build1           00000003 {state} deploy")), "{wide:#?}");
    let (narrow, _) = drawn(&mut ui, &HashMap::new(), (13, 60));
    assert!(narrow.contains(&format!(" 00000003 {state} deploy")), "{narrow:#?}");
}

#[test]
fn r144_each_host_has_a_heading_when_folded_by_host() {
    let mut ui = hosts();
    drawn(&mut ui, &HashMap::new(), (20, 80));
    ui.key(Key::Tab);
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (20, 90));
    let heads: Vec<&str> = lines.iter().map(String::as_str).filter(|line| line.starts_with("- ")).collect();
    assert_eq!(
        heads,
        [
            "- build1: 1 failed, 1 running",
            "- me@a-very-long-name: 1 running; no answer since 00:16:42: no route; trying again",
            "- new: connecting",
        ]
    );
    ui.model.set_silence(HostNo(2), None);
    ui.model.end_listing(HostNo(2));
    let (lines, _) = drawn(&mut ui, &HashMap::new(), (20, 80));
    assert!(lines.contains(&"- new: no tasks".to_owned()), "{lines:#?}");
}

#[test]
fn r144_preview_belongs_to_task_of_selected_host() {
    let mut ui = hosts();
    let mut panes = [HashMap::new(), HashMap::new()];
    for (panes, text) in panes.iter_mut().zip(["from build1", "from the other one"]) {
        let mut pane = Pane::default();
        pane.set_output(0, text.as_bytes());
        panes.insert(id(1), pane);
    }
    let mut buffer = Buffer::empty(Rect::new(0, 0, 200, 12));
    let scene =
        Scene { panes: Panes(panes.iter().map(Some).collect()), clock: &Clock::of_tests(), colour: true };
    draw(&mut ui, &scene, &mut buffer);
    ui.model.select_end(true);
    let mut buffer = Buffer::empty(Rect::new(0, 0, 200, 12));
    let frame = draw(&mut ui, &scene, &mut buffer);
    assert_eq!(frame.previews.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [HostNo(1).task(id(1))]);
    let text: String = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
    assert!(text.contains("me@a-very-long-name 00000001 running old") && text.contains("from the other one"));
    assert!(!text.contains("from build1"));
    for key in [Key::Char('/'), Key::Paste("make".into()), Key::Enter, Key::End] {
        ui.key(key);
    }
    let mut buffer = Buffer::empty(Rect::new(0, 0, 200, 12));
    let frame = draw(&mut ui, &scene, &mut buffer);
    assert_eq!(frame.previews.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [HostNo(0).task(id(1))]);
}

proptest! {
    #[test]
    fn r163_any_terminal_size_and_keys_are_drawn_within_bounds(
        rows in 1u16..40, cols in 1u16..140, keys in "[jkG/?:vfghxXynor \t<>a-c]{0,12}", texts in ".{0,30}",
    ) {
        let mut ui = ui();
        ui.model.put(HostNo::default(), &task(6, Status::Running, &texts), &Clock::of_tests());
        let mut pane = Pane::default();
        pane.set_output(0, texts.as_bytes());
        let panes = HashMap::from([(id(1), pane)]);
        for key in keys.chars() {
            drawn(&mut ui, &panes, (rows, cols));
            ui.key(match key {
                '\t' => Key::Tab,
                '<' => Key::Left,
                '>' => Key::Help,
                c => Key::Char(c),
            });
        }
        let (lines, frame) = drawn(&mut ui, &panes, (rows, cols));
        prop_assert_eq!(lines.len(), usize::from(rows));
        prop_assert!(frame.cursor.is_none_or(|(x, y)| x < cols && y < rows));
        prop_assert!(frame.previews.iter().all(|(_, area)| area.right() <= cols && area.bottom() <= rows));
    }
}
