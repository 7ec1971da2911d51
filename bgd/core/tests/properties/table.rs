//! A table of every input in every state.

use std::fmt::Write as _;

use bgd_core::{
    Cancel, Command, Control, Core, Effect, Fact, Finished, GIVE_UP_MS, Input, LeavePolicy, Lingering,
    Outcome, Reply, Request, Selection, State,
};
use bgd_shared::ready::Ready;
use bgd_shared::request::{BlockMode, BlockUntil};

use super::support::{
    Desk, KILL, TERM, command, configure, exited, gave_up, id, ids, limits, of_session, refs,
};

/// The states:
///
/// | word   | state                                                                      |
/// |--------|----------------------------------------------------------------------------|
/// | `wait` | queued                                                                     |
/// | `spwn` | starting                                                                   |
/// | `sp-x` | starting, and told to end                                                  |
/// | `run`  | running                                                                    |
/// | `stop` | stopping: told to end, SIGKILL will come                                   |
/// | `st-x` | the same, with the leader gone and others left                             |
/// | `kill` | stopping, SIGKILL was sent                                                 |
/// | `ki-x` | the same, with the leader gone and others left                             |
/// | `done` `fail` `canc` | finished, nothing is left                                    |
/// | `ling` | finished, others live on and were not told to end                          |
/// | `li-x` | the same, told to end, SIGKILL will come                                   |
/// | `li-k` | the same, SIGKILL was sent                                                 |
/// | `li-s` | finished, others live on that SIGKILL does not end                         |
/// | `gone` | cleared                                                                    |
///
/// `!` marks a refused request, `+` that signals were sent.
const TABLE: &str = "
input             | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
started           | wait  | run   | stop+ | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
start failed      | wait  | fail  | canc  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | done
exited 0          | wait  | spwn  | sp-x  | done  | canc  | st-x  | canc  | ki-x  | done  | ling  | li-x  | li-k  | done
exited 3          | wait  | spwn  | sp-x  | fail  | canc  | st-x  | canc  | ki-x  | done  | ling  | li-x  | li-k  | done
exited 0, others  | wait  | spwn  | sp-x  | ling  | st-x  | st-x  | ki-x  | ki-x  | done  | ling  | li-x  | li-k  | li-s
tree empty        | wait  | spwn  | sp-x  | run   | stop  | canc  | kill  | canc  | done  | done  | done  | done  | done
gave up           | wait  | spwn  | sp-x  | run   | stop  | st-x  | li-s  | li-s  | done  | ling  | li-x  | li-s  | li-s
output            | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
another run's end | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
ready             | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
not ready         | wait  | spwn  | sp-x  | stop+ | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
retrieve          | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
result            | wait! | spwn! | sp-x! | run!  | stop! | st-x! | kill! | ki-x! | done  | ling  | li-x  | li-k  | li-s
block             | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
cancel            | canc  | sp-x  | sp-x  | stop+ | stop+ | st-x+ | kill  | ki-x  | done  | li-x+ | li-x+ | li-k  | li-s
cancel, SIGKILL   | canc  | sp-x  | sp-x  | kill+ | kill+ | ki-x+ | kill  | ki-x  | done  | li-k+ | li-k+ | li-k  | li-s
cancel all        | canc  | sp-x  | sp-x  | stop+ | stop+ | st-x+ | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
clear             | wait! | spwn! | sp-x! | run!  | stop! | st-x! | kill! | ki-x! | gone  | li-x+ | li-x+ | li-k  | gone
clear all         | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | gone  | ling  | li-x  | li-k  | li-s
clear active too  | gone  | sp-x  | sp-x  | stop+ | stop+ | st-x+ | kill  | ki-x  | gone  | li-x+ | li-x+ | li-k  | gone
signal            | wait! | spwn! | sp-x! | run+  | stop+ | st-x! | kill+ | ki-x! | done! | ling! | li-x! | li-k! | li-s!
signal to tree    | wait! | spwn! | sp-x! | run+  | stop+ | st-x+ | kill+ | ki-x+ | done! | ling+ | li-x+ | li-k+ | li-s+
pause             | wait! | spwn  | sp-x! | run+  | stop! | st-x! | kill! | ki-x! | done! | ling! | li-x! | li-k! | li-s!
continue          | wait! | spwn  | sp-x! | run+  | stop! | st-x! | kill! | ki-x! | done! | ling! | li-x! | li-k! | li-s!
pause all         | wait  | spwn  | sp-x  | run+  | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
end of session    | gone  | sp-x  | sp-x  | stop+ | stop+ | st-x+ | kill  | ki-x  | gone  | li-x+ | li-x+ | li-k  | gone
shutdown          | canc  | sp-x  | sp-x  | stop+ | stop+ | st-x+ | kill  | ki-x  | done  | li-x+ | li-x+ | li-k  | li-s
detach            | wait! | spwn! | sp-x! | run!  | stop! | st-x! | kill! | ki-x! | done! | ling! | li-x! | li-k! | li-s!
adopt             | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
disconnected      | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
more slots        | spwn  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
fewer slots       | wait  | spwn  | sp-x  | run   | stop  | st-x  | kill  | ki-x  | done  | ling  | li-x  | li-k  | li-s
deadline          | wait  | spwn  | sp-x  | stop+ | kill+ | ki-x+ | kill  | ki-x  | done  | ling  | li-k+ | li-k  | li-s
last deadline     | wait  | spwn  | li-s+ | stop+ | kill+ | ki-x+ | kill  | ki-x  | done  | ling  | li-k+ | li-k  | li-s
";

pub const SESSION: &str = "s";

/// Applies an input to the task under test.
pub fn happen(desk: &mut Desk, input: &str) -> Vec<Effect> {
    let task = id(1);
    let (signal, grace_ms) = (None, None);
    let all = || Selection::All { session: Some(SESSION.into()) };
    let request = match input {
        "started" => return desk.fact(task, Fact::Started { pid: Some(5) }),
        "start failed" => return desk.fact(task, Fact::StartFailed { failure: "no".into() }),
        "exited 0" => return desk.fact(task, exited(0, false)),
        "exited 3" => return desk.fact(task, exited(3, false)),
        "exited 0, others" => return desk.fact(task, exited(0, true)),
        "tree empty" => return desk.fact(task, Fact::TreeEmpty),
        "gave up" => return desk.fact(task, gave_up()),
        "ready" => return desk.fact(task, Fact::Ready),
        "not ready" => return desk.fact(task, Fact::NotReady),
        "output" => return desk.fact(task, Fact::Output { bytes: [9, 0], dropped: [0; 2], publish: true }),
        "another run's end" => return desk.input(Input::Fact { task, run: 2, fact: exited(0, false) }),
        "disconnected" => return desk.input(Input::Disconnected { client: 1 }),
        "another is gone" => return desk.input(Input::Disconnected { client: 2 }),
        "another detaches" => return desk.ask_as(2, Request::Detach { id: task.into() }),
        "detach" | "detach, direct" => Request::Detach { id: task.into() },
        "adopt" => return desk.adopt(3),
        "more slots" => return desk.input(configure(limits(2))),
        "fewer slots" => return desk.input(configure(limits(1))),
        "deadline" => return desk.wait(5000),
        "last deadline" => return desk.wait(5000 + GIVE_UP_MS),
        "retrieve" => Request::Retrieve { id: task.into(), complete: false },
        "result" => Request::Retrieve { id: task.into(), complete: true },
        "block" => {
            let (mode, until) = (BlockMode::All, BlockUntil::Ended);
            Request::Block { which: Selection::Ids(refs(&[task])), timeout_ms: None, mode, until }
        }
        "pause" => Request::SetPaused { which: ids(&[task]), paused: true },
        "continue" => Request::SetPaused { which: ids(&[task]), paused: false },
        "pause all" => Request::SetPaused { which: all(), paused: true },
        "cancel" => Request::Cancel(Cancel { which: ids(&[task]), signal, grace_ms }),
        "cancel, SIGKILL" => Request::Cancel(Cancel { which: ids(&[task]), signal: Some(KILL), grace_ms }),
        "cancel all" => Request::Cancel(Cancel { which: all(), signal, grace_ms }),
        "clear" => Request::Clear { which: ids(&[task]), active_too: false },
        "clear all" => Request::Clear { which: all(), active_too: false },
        "clear active too" => Request::Clear { which: ids(&[task]), active_too: true },
        "signal" => Request::Signal { id: task.into(), signal: TERM, tree: false },
        "signal to tree" => Request::Signal { id: task.into(), signal: TERM, tree: true },
        "end of session" => Request::EndSession { session: SESSION.into() },
        "shutdown" => Request::Shutdown { grace_ms, leaves: LeavePolicy::All },
        other => panic!("no such input: {other}"),
    };
    desk.ask(request)
}

/// Returns the inputs of the table that bring the task into a state.
fn way_to(state: &str) -> &'static [&'static str] {
    match state {
        "wait" | "spwn" => &[],
        "sp-x" => &["cancel"],
        "run" => &["started"],
        "stop" => &["started", "cancel"],
        "st-x" => &["started", "cancel", "exited 0, others"],
        "kill" => &["started", "cancel, SIGKILL"],
        "ki-x" => &["started", "cancel, SIGKILL", "exited 0, others"],
        "done" => &["started", "exited 0"],
        "ling" => &["started", "exited 0, others"],
        "li-x" => &["started", "exited 0, others", "cancel"],
        "li-k" => &["started", "exited 0, others", "cancel, SIGKILL"],
        "li-s" => &["started", "exited 0, others", "cancel, SIGKILL", "gave up"],
        other => panic!("no way to {other}"),
    }
}

/// Returns the task under test: `id(1)`, with a time limit of five seconds.
pub fn looked_at() -> Command {
    let mut command = command(id(1));
    command.spec.session = Some(SESSION.into());
    command.spec.time_limit_ms = Some(5000);
    command.spec.ready = Some(Box::new(Ready::Notify));
    command.spec.ready_timeout_ms = Some(5000);
    command
}

/// Returns a desk with the task in this state.
pub fn desk_in(state: &str, task: Command) -> Desk {
    let mut desk = Desk::new(1);
    if state == "wait" {
        desk.running(2);
    }
    assert!(!desk.ask(Request::Submit(Box::new(task))).is_empty());
    for input in way_to(state) {
        // The table checks these effects in the row and column where they belong.
        let _on_the_way = happen(&mut desk, input);
    }
    assert_eq!(word(&desk.core), state);
    desk
}

/// Returns the word for the state of the session's task.
pub fn word(core: &Core) -> &'static str {
    let Some(task) = core.list(&of_session(SESSION, 1)).unwrap().tasks.pop() else { return "gone" };
    match &task.state {
        State::Queued { .. } => "wait",
        State::Starting { stop: None, .. } => "spwn",
        State::Starting { stop: Some(_), .. } => "sp-x",
        State::Running { .. } => "run",
        State::Stopping { kill_at: Some(_), exit: None, .. } => "stop",
        State::Stopping { kill_at: Some(_), exit: Some(_), .. } => "st-x",
        State::Stopping { kill_at: None, exit: None, .. } => "kill",
        State::Stopping { kill_at: None, exit: Some(_), .. } => "ki-x",
        State::Resuming(resuming) => match resuming.stop {
            None => "way",
            Some(_) => "wy-x",
        },
        State::Finished(Finished { lingering: Lingering::Yes, .. }) => "ling",
        State::Finished(Finished { lingering: Lingering::Ending(Some(_)), .. }) => "li-x",
        State::Finished(Finished { lingering: Lingering::Ending(None), .. }) => "li-k",
        State::Finished(Finished { lingering: Lingering::Stuck, .. }) => "li-s",
        State::Finished(Finished { outcome: Outcome::Completed, .. }) => "done",
        State::Finished(Finished { outcome: Outcome::Failed(_), .. }) => "fail",
        State::Finished(Finished { outcome: Outcome::Cancelled(_), .. }) => "canc",
    }
}

pub fn mark(effects: &[Effect]) -> &'static str {
    let refused = |effect: &Effect| matches!(effect, Effect::Reply { reply: Reply::Error(_), .. });
    let signals = |effect: &Effect| matches!(effect, Effect::End { task, .. } | Effect::Control { task, control: Control::Signal { .. } | Control::Pause | Control::Continue, .. } if *task == id(1));
    match (effects.iter().any(refused), effects.iter().any(signals)) {
        (true, false) => "!",
        (false, true) => "+",
        (false, false) => "",
        (true, true) => panic!("refused and done: {effects:?}"),
    }
}

/// Checks every cell of a table. Panics with the corrected table.
pub fn compare(table: &str, cell: impl Fn(&str, &str) -> String) {
    let mut lines = table.trim().lines();
    let header = lines.next().unwrap_or_default();
    let states: Vec<&str> = header.split('|').skip(1).map(str::trim).collect();
    let width = header.split('|').nth(1).map_or(0, |cell| cell.len() - 2);
    let mut found = format!("\n{header}\n");
    for line in lines {
        let input = line.split('|').next().unwrap_or_default().trim();
        write!(found, "{input:<17}").unwrap();
        for state in &states {
            write!(found, " | {:<width$}", cell(state, input)).unwrap();
        }
        found.truncate(found.trim_end().len());
        found.push('\n');
    }
    assert!(found == table, "the table should be\n{table}\nbut it is\n{found}");
}

#[test]
fn every_task_state_handles_every_input() {
    compare(TABLE, |state, input| {
        let mut desk = desk_in(state, looked_at());
        let effects = happen(&mut desk, input);
        format!("{}{}", word(&desk.core), mark(&effects))
    });
}
