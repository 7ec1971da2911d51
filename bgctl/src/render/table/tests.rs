//! Lists, as tables and as columns.

use super::*;
use std::collections::HashMap;

use bgd_shared::id::TaskId;
use bgd_shared::order::{Condition, Dependency, Waiting, WaitingFor};
use bgd_shared::task::{Attempt, Kind, Progress};
use clap::ValueEnum as _;

use crate::render::samples::{question, task};

fn at(second: i64) -> Timestamp {
    Timestamp::from_unix_ms(second * 1000)
}

fn plain() -> ListFormat {
    ListFormat::of_tests()
}

fn status_of_task(task: &Task) -> String {
    status(task, &Clock::of_tests())
}

#[test]
fn plain_list_is_tab_separated_without_header() {
    let failed = Task {
        status: Status::Failed,
        exit: Some(Exit::Code(3)),
        started_at: Some(at(1_010)),
        completed_at: Some(at(1_075)),
        ..task()
    };
    assert_eq!(
        list(&[task(), failed], &plain()),
        "3f2a9c1e\tpending\t1m 40s\t-\tmake -j8\n3f2a9c1e\tfailed (3)\t1m 40s\t1m 05s\tmake -j8\n"
    );
}

#[test]
fn table_drops_and_truncates_columns_to_fit_the_width() {
    let late = Task {
        status: Status::Failed,
        error: Some("timed out after 10s".into()),
        timed_out: true,
        time_limit_ms: Some(10_000),
        description: "a description of some length".into(),
        ..task()
    };
    let table = |width| {
        let text = list(std::slice::from_ref(&late), &ListFormat { table: true, width, ..plain() });
        let most = width.map_or(usize::MAX, usize::from);
        assert!(text.lines().all(|line| line.chars().count() <= most), "{most}: {text}");
        text
    };
    let all = "3f2a9c1e  failed (timed out after 10s)  1m 40s  -     a description of some length";
    for width in [None, Some(200), Some(100)] {
        assert_eq!(table(width).lines().nth(1), Some(all));
    }
    for (width, row) in [
        (80, "3f2a9c1e  failed (timed out after 10s)  1m 40s  -     a description of some len…"),
        (50, "3f2a9c1e  failed (time…  1m 40s  -     a descript…"),
        (40, "3f2a9c1e  failed (ti…  -     a descript…"),
        (36, "3f2a9c1e  failed (time…  a descript…"),
        (30, "3f2a9c1e  failed (timed out a…"),
    ] {
        assert_eq!(table(Some(width)).lines().nth(1), Some(row), "{width}");
    }
}

#[test]
fn r166_wide_characters_are_measured_in_columns() {
    let wide = Task {
        description: "漢字の説明がとても長いのでここに入らない🦀🦀🦀🦀".into(),
        tags: vec!["漢字漢字漢字漢字漢字".into()],
        session: Some("会話会話会話会話会話会話".into()),
        ..task()
    };
    for columns in [
        &[Field::Description, Field::Id, Field::Status][..],
        &[Field::Tags, Field::Session, Field::Description, Field::Id],
        &Field::DEFAULT,
    ] {
        for at_most in [20, 33, 34, 40, 80] {
            let format =
                ListFormat { table: true, width: Some(at_most), columns: columns.to_vec(), ..plain() };
            let text = list(std::slice::from_ref(&wide), &format);
            let widest = text.lines().map(width).max();
            assert!(widest <= Some(usize::from(at_most)), "{at_most}: {widest:?}\n{text}");
        }
    }
    let columns = vec![Field::Description, Field::Id];
    let format = ListFormat { table: true, width: Some(24), columns, ..plain() };
    let text = list(std::slice::from_ref(&wide), &format);
    assert_eq!(text.lines().nth(1), Some("漢字の説明が…  3f2a9c1e"), "{text}");
}

#[test]
fn r166_chosen_columns_shrink_before_the_last_is_left_out_and_named() {
    let tagged = Task {
        description: "a description of some length".into(),
        tags: vec!["nightly".into(), "long-running".into()],
        ..task()
    };
    let drawn = |columns: &[Field], width, lines| {
        let columns = columns.to_vec();
        let format = ListFormat { table: true, is_chosen: true, width: Some(width), columns, ..plain() };
        let drawn =
            listings(&[Listing { host: None, tasks: Ok(std::slice::from_ref(&tagged)) }], lines, &format);
        assert!(drawn.text.lines().all(|line| line.chars().count() <= usize::from(width)), "{}", drawn.text);
        drawn
    };
    let fields = [Field::Id, Field::Description, Field::Group, Field::Tags, Field::Batch, Field::Progress];
    for (width, header, left_out) in [
        (120, "ID DESCRIPTION GROUP TAGS BATCH PROGRESS", None),
        (60, "ID DESCRIPTION GROUP TAGS BATCH PROGRESS", None),
        (59, "ID DESCRIPTION GROUP TAGS BATCH", Some("no room for progress: ")),
        (40, "ID DESCRIPTION GROUP", Some("no room for tags, batch, progress: ")),
        (21, "ID DESCRIPTION", Some("no room for group, tags, batch, progress: ")),
        (12, "ID", Some("no room for description, group, tags, batch, progress: ")),
    ] {
        let drawn = drawn(&fields, width, None);
        let shown: Vec<&str> = drawn.text.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(shown.join(" "), header, "{width}");
        let remark = drawn.remark();
        assert_eq!(remark.is_some(), left_out.is_some(), "{width}: {remark:?}");
        assert!(left_out.is_none_or(|words| remark.unwrap().starts_with(words)), "{width}");
    }
    let narrow = drawn(&fields, 40, None).text;
    assert!(
        narrow.lines().nth(1).unwrap().starts_with("3f2a9c1e  a description of som…  default"),
        "{narrow}"
    );
    let tree = drawn(&[Field::Description, Field::Group, Field::Id], 24, Some(crate::render::tree::ASCII));
    assert_eq!(tree.left_out, [Field::Group], "the tree stays");
    let plain = ListFormat { table: true, width: Some(30), ..plain() };
    let all = [Listing { host: None, tasks: Ok(std::slice::from_ref(&tagged)) }];
    assert_eq!(listings(&all, None, &plain).remark(), None, "nobody has asked for these");
}

#[test]
fn r144_list_of_several_hosts_has_a_host_column() {
    let tasks = [task()];
    let all = [
        Listing { host: Some("far"), tasks: Ok(&tasks) },
        Listing { host: Some("me@gone"), tasks: Err(Missing { outcome: "no answer", reason: "no route" }) },
    ];
    assert_eq!(
        listings(&all, None, &plain()).text,
        "far\t3f2a9c1e\tpending\t1m 40s\t-\tmake -j8\nme@gone\t-\tno answer\t-\t-\tno route\n"
    );
    let table = listings(&all, None, &ListFormat { table: true, ..plain() }).text;
    assert_eq!(
        table.lines().map(str::trim_end).collect::<Vec<_>>(),
        [
            "HOST     ID        STATUS     AGE     TIME  DESCRIPTION",
            "far      3f2a9c1e  pending    1m 40s  -     make -j8",
            "me@gone  -         no answer  -       -     no route"
        ]
    );
}

#[test]
fn r166_columns_can_be_chosen_in_any_order() {
    let columns = vec![Field::Description, Field::Group, Field::Id, Field::Progress, Field::Tags];
    let percents = HashMap::from([(task().id, 42)]);
    let format = ListFormat { columns, percents, ..plain() };
    let tagged = Task { tags: vec!["a".into(), "b".into()], ..task() };
    assert_eq!(list(std::slice::from_ref(&tagged), &format), "make -j8\tdefault\t3f2a9c1e\t42%\ta,b\n");
    let table = list(&[tagged], &ListFormat { table: true, ..format });
    assert!(table.starts_with("DESCRIPTION  GROUP    ID        PROGRESS  TAGS"), "{table}");
}

#[test]
fn r38_resumed_task_is_marked_after_its_id() {
    let resumed = Task { resume_count: 2, status: Status::Completed, ..task() };
    for format in [plain(), ListFormat { table: true, ..plain() }] {
        assert!(list(std::slice::from_ref(&resumed), &format).contains("3f2a9c1e (resumed)"));
        assert!(!list(&[task()], &format).contains("resumed"));
    }
}

#[test]
fn status_shows_how_task_ended_and_flags_lingering_and_lost_output() {
    let status_of = |status, exit, lingering| status_of_task(&Task { status, exit, lingering, ..task() });
    assert_eq!(status_of(Status::Completed, Some(Exit::Code(0)), true), "completed +lingering");
    assert_eq!(status_of(Status::Failed, Some(Exit::Signal(9)), false), "failed (SIGKILL)");
    assert_eq!(status_of(Status::Failed, Some(Exit::Signal(40)), false), "failed (signal 40)");
    assert_eq!(status_of(Status::Failed, None, false), "failed");
    assert_eq!(status_of(Status::Cancelled, Some(Exit::Signal(15)), false), "cancelled");
    for (code, errno, shown) in [
        (Some(127), Some(Errno::ENOENT as i32), "failed (not found)"),
        (Some(126), Some(Errno::EACCES as i32), "failed (no permission)"),
        (Some(126), Some(Errno::ENOEXEC as i32), "failed (not executable)"),
        (Some(126), Some(Errno::EISDIR as i32), "failed (is a directory)"),
        (Some(126), Some(Errno::E2BIG as i32), "failed (not started)"),
        (None, Some(Errno::ENOENT as i32), "failed (not started)"),
        (None, None, "failed (not started)"),
    ] {
        let failure = Some(Failure { code, errno, ..Failure::new(FailureKind::Spawn, "why") });
        assert_eq!(status_of_task(&Task { status: Status::Failed, failure, ..task() }), shown);
    }
    let late = Task {
        status: Status::Failed,
        exit: Some(Exit::Signal(15)),
        error: Some("timed out after 10s; its agent said nothing".into()),
        timed_out: true,
        time_limit_ms: Some(10_000),
        ..task()
    };
    assert_eq!(status_of_task(&late), "failed (timed out after 10s)");
    let unready = Task {
        timed_out: false,
        failure: Some(Failure::new(FailureKind::Timeout, "not ready after 10s")),
        ready: Some("line:up".parse().unwrap()),
        ready_timeout_ms: Some(10_000),
        ..late
    };
    assert_eq!(status_of_task(&unready), "failed (not ready after 10s)");
    let at = |second: i64| Some(Timestamp::from_unix_ms(second * 1000));
    let on_cluster = |seconds: i64, limit| Task {
        on: Some("cluster".into()),
        started_at: at(1000),
        completed_at: at(1000 + seconds),
        ready_timeout_ms: limit,
        ..unready.clone()
    };
    for (seconds, limit, shown) in [
        (11, Some(10_000), "failed (not ready after 10s)"),
        (9, Some(10_000), "failed (SIGTERM)"),
        (11, None, "failed (SIGTERM)"),
    ] {
        assert_eq!(status_of_task(&on_cluster(seconds, limit)), shown, "the cluster has a limit of its own");
    }
    let mut incomplete = Task { status: Status::Completed, lingering: true, ..task() };
    incomplete.output.lost_bytes = 1;
    assert_eq!(status_of_task(&incomplete), "completed +lingering +output-lost");
    let unknown = Some(Exit::Unknown("not a pidfd".into()));
    assert_eq!(status_of(Status::Completed, unknown, false), "completed (exit unknown)");
}

#[test]
fn status_shows_asking_stalled_and_suspect_agents() {
    let agent = |status, needs_input, stalled| {
        let progress = Progress { needs_input, stalled, ..Progress::default() };
        status_of_task(&Task { kind: Kind::Agent, status, progress, ..task() })
    };
    assert_eq!(agent(Status::Running, None, false), "running");
    assert_eq!(agent(Status::Running, None, true), "running (stalled)");
    assert_eq!(agent(Status::Resumed, Some(question()), true), "resumed (asks)");
    assert_eq!(agent(Status::Completed, Some(question()), true), "completed");
    let last_words = Some(format!("429,\n{}", "try again ".repeat(10)));
    let progress = Progress { stalled: true, last_words, ..Progress::default() };
    let stalled = status_of_task(&Task { status: Status::Running, progress, ..task() });
    assert!(stalled.starts_with("running (stalled: 429, try again") && stalled.len() < 70, "{stalled}");
    let suspect = Task { status: Status::Completed, suspect: Some("an error".into()), ..task() };
    assert_eq!(status_of_task(&suspect), "completed (suspect)");
}

#[test]
fn task_takes_one_line_whatever_its_description() {
    let odd = Task { description: "two\nlines\tand \x1b[31mred ".repeat(50), ..task() };
    assert_eq!(list(std::slice::from_ref(&odd), &plain()).matches('\n').count(), 1);
    let table = list(&[odd], &ListFormat { table: true, ..plain() });
    assert!(table.starts_with("ID"));
    assert_eq!(table.lines().count(), 2);
    assert!(!table.contains('\x1b'));
}

#[test]
fn r115_status_shows_waiting_reason_and_tree_shows_dependencies() {
    let first = Task { status: Status::Running, ..task() };
    let other = TaskId::from_u128(0x91bc_04d2 << 96);
    let on = |id| Dependency { id, condition: Condition::Ok, met: false };
    let waiting = Waiting { reason: WaitingFor::After, ids: vec![first.id, other], until: None };
    let second = Task {
        id: TaskId::from_u128(2 << 96),
        after: vec![on(first.id), on(other)],
        waiting: Some(waiting),
        ..task()
    };
    assert_eq!(status_of_task(&Task { paused: true, ..first.clone() }), "running (paused)");
    let held = Waiting { reason: WaitingFor::Held, ids: Vec::new(), until: None };
    assert_eq!(status_of_task(&Task { waiting: Some(held), ..task() }), "pending (held)");
    assert_eq!(status_of_task(&second), "pending (after 3f2a9c1e, 91bc04d2)");
    let both = [second, first];
    let all = [Listing { host: None, tasks: Ok(&both) }];
    let shown = listings(&all, Some(crate::render::tree::ASCII), &plain()).text;
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("3f2a9c1e\trunning\t"), "{shown}");
    assert!(lines[1].starts_with("`- 00000002 (also after 91bc04d2)\tpending (after "), "{shown}");
}

#[test]
fn r115_waiting_reason_leaves_room_for_the_description() {
    let ids = (1..=9).map(|number| TaskId::from_u128(number << 96)).collect();
    let waiting = |reason, ids| Some(Waiting { reason, ids, until: None });
    let mut group = "g".repeat(60);
    group.push_str("pu");
    for (task, state) in [
        (Task { waiting: waiting(WaitingFor::Slot, Vec::new()), ..task() }, "pending (slot) "),
        (
            Task { waiting: waiting(WaitingFor::After, ids), ..task() },
            "pending (after 00000001, 00000002 and ",
        ),
        (Task { waiting: waiting(WaitingFor::Paused, Vec::new()), group, ..task() }, "pending (ggg"),
    ] {
        let text = list(&[task], &ListFormat { table: true, width: Some(80), ..plain() });
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains(state) && text.trim_end().ends_with("make -j8"), "{text}");
    }
}

#[test]
fn each_field_has_one_column() {
    for field in Field::value_variants() {
        let columns = COLUMNS.iter().filter(|column| column.field == *field);
        assert_eq!(columns.count(), 1, "{field:?}");
    }
    assert_eq!(Field::value_variants().len(), COLUMNS.len());
}

#[test]
fn wait_for_another_attempt_is_no_run_time() {
    let (started_at, ended) = (at(10), at(13));
    let attempt = Attempt {
        attempt: 1,
        started_at,
        completed_at: ended,
        exit: Some(Exit::Code(1)),
        error: None,
        usage: None,
        offset: 0,
        stderr_offset: None,
    };
    let waited = Task {
        status: Status::Cancelled,
        started_at: Some(started_at),
        completed_at: Some(at(1000)),
        attempts: vec![attempt],
        ..task()
    };
    assert_eq!(run_time(&waited, at(2000)), show::elapsed(ended.millis_since(started_at)));
    let again = Task { started_at: Some(at(900)), ..waited.clone() };
    assert_eq!(run_time(&again, at(2000)), show::elapsed(at(1000).millis_since(at(900))));
    let runs = Task { status: Status::Running, completed_at: None, ..again };
    assert_eq!(run_time(&runs, at(2000)), show::elapsed(at(2000).millis_since(at(900))));
    let unstarted = Attempt {
        attempt: 2,
        started_at: at(500),
        completed_at: at(500),
        exit: None,
        ..waited.attempts[0].clone()
    };
    let given_up = Task { attempts: [&waited.attempts[..], &[unstarted]].concat(), ..waited };
    assert_eq!(run_time(&given_up, at(2000)), show::elapsed(ended.millis_since(started_at)));
    let brief = Attempt { completed_at: started_at, ..given_up.attempts[0].clone() };
    let failed = Task { attempts: vec![brief], ..given_up };
    assert_eq!(run_time(&failed, at(2000)), show::elapsed(0));
}
