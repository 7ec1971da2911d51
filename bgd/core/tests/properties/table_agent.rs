//! A table of every input in every state of an agent task.

use bgd_core::{
    Begin, Cancel, Command, Control, Core, Effect, Fact, Input, LeavePolicy, Note, Reply, Request, Selection,
};
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::task::Status;

use super::support::{
    Desk, KILL, STALLED_AFTER, TERM, asked, configure, consumed, denied, id, ids, limits, of_session,
    planned, prompt, refs, refused, tools, turn_ended, turn_failed,
};
use super::table::{SESSION, compare, word};

/// How long a question waits here, in milliseconds: less than the agent may be silent.
const ASK_TIMEOUT: u64 = 1500;

/// The states:
///
/// | word   | state                                                                      |
/// |--------|----------------------------------------------------------------------------|
/// | `wait` | queued                                                                     |
/// | `spwn` | starting                                                                   |
/// | `sp-x` | starting, and told to end                                                  |
/// | `run`  | running                                                                    |
/// | `asks` | the same, with an open question                                            |
/// | `mute` | the same, silent for too long                                              |
/// | `stop` | stopping: told to end, SIGKILL will come                                   |
/// | `kill` | stopping, SIGKILL was sent                                                 |
/// | `done` `fail` `canc` | finished                                                     |
/// | `way`  | completed, with a follow-up prompt in flight                               |
/// | `wy-x` | the same, and told to end                                                  |
/// | `more` | running again: resumed                                                     |
/// | `gone` | cleared                                                                    |
///
/// `!` marks a refused request, `+` that the agent was told to end, `>` that it was sent a prompt, `?` that its
/// question was answered, and `*` that its question was denied and it was told to end.
const TABLE: &str = "
input             | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
started           | wait  | run   | stop+ | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | more  | stop+ | more
refused           | wait  | fail  | canc  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | done! | done! | more
session           | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
tool              | wait  | spwn  | sp-x  | run   | asks  | run   | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
consumed          | wait  | spwn  | sp-x  | run   | asks  | run   | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
planned           | wait  | spwn  | sp-x  | run   | asks  | run   | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
denied            | wait  | spwn  | sp-x  | run   | asks  | run   | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
noted             | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
moved             | wait  | spwn  | sp-x  | run   | asks  | run   | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
asked             | wait  | spwn? | sp-x? | asks  | asks  | asks  | stop? | kill? | done  | fail  | canc  | way?  | wy-x? | more
withdrawn         | wait  | spwn  | sp-x  | run   | run   | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
turn ended        | wait  | spwn  | sp-x  | done  | done  | done  | canc  | canc  | done  | fail  | canc  | way   | wy-x  | done
turn failed       | wait  | spwn  | sp-x  | fail  | fail  | fail  | canc  | canc  | done  | fail  | canc  | way   | wy-x  | fail
output            | wait  | spwn  | sp-x  | run   | asks  | run   | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
an earlier run    | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
a later run       | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
resume            | wait! | spwn! | sp-x! | run!  | asks! | mute! | stop! | kill! | way>  | fail! | canc! | way!  | wy-x! | more!
answer            | wait! | spwn! | sp-x! | run!  | run?  | mute! | stop! | kill! | done! | fail! | canc! | way!  | wy-x! | more!
answer, unknown   | wait! | spwn! | sp-x! | run!  | asks! | mute! | stop! | kill! | done! | fail! | canc! | way!  | wy-x! | more!
retrieve          | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
result            | wait! | spwn! | sp-x! | run!  | asks! | mute! | stop! | kill! | done  | fail! | canc! | way   | wy-x  | more!
block             | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
cancel            | canc  | sp-x+ | sp-x+ | stop+ | stop* | stop+ | stop+ | kill  | done  | fail  | canc  | wy-x+ | wy-x+ | stop+
cancel, SIGKILL   | canc  | sp-x+ | sp-x+ | kill+ | kill* | kill+ | kill+ | kill  | done  | fail  | canc  | wy-x+ | wy-x+ | kill+
cancel all        | canc  | sp-x+ | sp-x+ | stop+ | stop* | stop+ | stop+ | kill  | done  | fail  | canc  | wy-x+ | wy-x+ | stop+
cancel session    | canc  | sp-x+ | sp-x+ | stop+ | stop* | stop+ | stop+ | kill  | done  | fail  | canc  | wy-x+ | wy-x+ | stop+
clear             | wait! | spwn! | sp-x! | run!  | asks! | mute! | stop! | kill! | gone  | gone  | gone  | way!  | wy-x! | more!
clear all         | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | gone  | gone  | gone  | way   | wy-x  | more
clear active too  | gone  | sp-x+ | sp-x+ | stop+ | stop* | stop+ | stop+ | kill  | gone  | gone  | gone  | wy-x+ | wy-x+ | stop+
signal            | wait! | spwn! | sp-x! | run!  | asks! | mute! | stop! | kill! | done! | fail! | canc! | way!  | wy-x! | more!
end of session    | gone  | sp-x+ | sp-x+ | stop+ | stop* | stop+ | stop+ | kill  | gone  | gone  | gone  | wy-x+ | wy-x+ | stop+
shutdown          | canc  | sp-x+ | sp-x+ | stop+ | stop* | stop+ | stop+ | kill  | done  | fail  | canc  | wy-x+ | wy-x+ | stop+
detach            | wait! | spwn! | sp-x! | run!  | asks! | mute! | stop! | kill! | done! | fail! | canc! | way!  | wy-x! | more!
adopt             | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
disconnected      | wait  | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
more slots        | spwn> | spwn  | sp-x  | run   | asks  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
silence           | wait  | spwn  | sp-x  | mute  | run?  | mute  | stop  | kill  | done  | fail  | canc  | way   | wy-x  | more
time limit        | wait  | spwn  | sp-x  | stop+ | stop* | stop+ | kill+ | kill  | done  | fail  | canc  | way   | wy-x  | stop+
";

/// Applies an input to the task under test.
pub fn happen(desk: &mut Desk, input: &str) -> Vec<Effect> {
    let task = id(1);
    let run = desk.task(task).run;
    let (signal, grace_ms) = (None, None);
    let all = |session: Option<&str>| Selection::All { session: session.map(Into::into) };
    let fact = match input {
        "started" => Fact::Started { pid: None },
        "refused" => refused(),
        "session" => Fact::Session { id: "a name".into() },
        "tool" => tools(1, "read"),
        "consumed" => consumed(0),
        "planned" => planned(1),
        "denied" => denied(1, "run rm"),
        "noted" => Fact::Noted { note: Note::LastWords, text: "try 2".into() },
        "moved" => Fact::Activity,
        "asked" => asked(5),
        "withdrawn" => Fact::Withdrawn { key: 1 },
        "turn ended" => turn_ended(),
        "turn failed" => turn_failed("overloaded"),
        "output" => Fact::Output { bytes: [9, 0], dropped: [0; 2], publish: true },
        "asks" => asked(1),
        "an earlier run" => return desk.fact_of_run(task, run - 1, turn_ended()),
        "a later run" => return desk.fact_of_run(task, run + 1, turn_ended()),
        "disconnected" => return desk.input(Input::Disconnected { client: 1 }),
        "another is gone" => return desk.input(Input::Disconnected { client: 2 }),
        "another detaches" => return desk.ask_as(2, Request::Detach { id: task.into() }),
        "adopt" => return desk.adopt(3),
        "more slots" => return desk.input(configure(limits(2))),
        "silence" => return desk.wait(STALLED_AFTER),
        "time limit" => return desk.wait(10_000),
        _ => {
            let request = match input {
                "detach" | "detach, direct" => Request::Detach { id: task.into() },
                "resume" => {
                    Request::Resume { id: task.into(), prompt: "and now?".into(), settings: Box::default() }
                }
                "answer" => Request::Answer { id: task.into(), request: 1, option: Some("yes".into()) },
                "answer, unknown" => {
                    Request::Answer { id: task.into(), request: 1, option: Some("maybe".into()) }
                }
                "retrieve" => Request::Retrieve { id: task.into(), complete: false },
                "result" => Request::Retrieve { id: task.into(), complete: true },
                "block" => Request::Block {
                    which: Selection::Ids(refs(&[task])),
                    timeout_ms: None,
                    mode: BlockMode::All,
                    until: BlockUntil::Ended,
                },
                "cancel" => Request::Cancel(Cancel { which: ids(&[task]), signal, grace_ms }),
                "cancel, SIGKILL" => {
                    Request::Cancel(Cancel { which: ids(&[task]), signal: Some(KILL), grace_ms })
                }
                "cancel all" => Request::Cancel(Cancel { which: all(None), signal, grace_ms }),
                "cancel session" => Request::Cancel(Cancel { which: all(Some(SESSION)), signal, grace_ms }),
                "clear" => Request::Clear { which: ids(&[task]), active_too: false },
                "clear all" => Request::Clear { which: all(Some(SESSION)), active_too: false },
                "clear active too" => Request::Clear { which: ids(&[task]), active_too: true },
                "signal" => Request::Signal { id: task.into(), signal: TERM, tree: true },
                "end of session" => Request::EndSession { session: SESSION.into() },
                "shutdown" => Request::Shutdown { grace_ms, leaves: LeavePolicy::All },
                other => panic!("no such input: {other}"),
            };
            return desk.ask(request);
        }
    };
    desk.fact_of_run(task, run, fact)
}

/// Returns the inputs of the table, or the agent's first question, that bring the task into a state.
fn way_to(state: &str) -> &'static [&'static str] {
    match state {
        "wait" | "spwn" => &[],
        "sp-x" => &["cancel"],
        "run" => &["started"],
        "asks" => &["started", "asks"],
        "mute" => &["started", "silence"],
        "stop" => &["started", "cancel"],
        "kill" => &["started", "cancel, SIGKILL"],
        "done" => &["session", "started", "turn ended"],
        "fail" => &["started", "turn failed"],
        "canc" => &["started", "cancel", "turn ended"],
        "way" => &["session", "started", "turn ended", "resume"],
        "wy-x" => &["session", "started", "turn ended", "resume", "cancel"],
        "more" => &["session", "started", "turn ended", "resume", "started"],
        other => panic!("no way to {other}"),
    }
}

/// Returns the task under test: `id(1)`, with a time limit of ten seconds.
pub fn looked_at() -> Command {
    let mut command = prompt(id(1), STALLED_AFTER, ASK_TIMEOUT);
    command.spec.session = Some(SESSION.into());
    command.spec.time_limit_ms = Some(10_000);
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
    assert_eq!(word_of_agent(&desk.core), state);
    desk
}

/// Returns the word for the state of the session's task.
pub fn word_of_agent(core: &Core) -> &'static str {
    let agent =
        core.list(&of_session(SESSION, 1)).unwrap().tasks.pop().map(|task| (task.status(), task.agent));
    match (word(core), agent) {
        ("run", Some((Status::Resumed, _))) => "more",
        ("run", Some((_, Some(agent)))) if !agent.questions.is_empty() => "asks",
        ("run", Some((_, Some(agent)))) if agent.stalled => "mute",
        (word, _) => word,
    }
}

pub fn mark(effects: &[Effect]) -> String {
    let marks = [
        ('!', has(effects, |effect| matches!(effect, Effect::Reply { reply: Reply::Error(_), .. }))),
        ('+', has(effects, |effect| matches!(effect, Effect::End { task, .. } if *task == id(1)))),
        ('>', has(effects, |effect| matches!(effect, Effect::Start { begin: Begin::Prompt { .. }, .. }))),
        (
            '?',
            has(effects, |effect| matches!(effect, Effect::Control { control: Control::Answer { .. }, .. })),
        ),
    ];
    let marks: String = marks.iter().filter(|(_, shown)| *shown).map(|(mark, _)| mark).collect();
    marks.replace("+?", "*")
}

fn has(effects: &[Effect], wanted: impl Fn(&Effect) -> bool) -> bool {
    effects.iter().any(wanted)
}

#[test]
fn every_agent_state_handles_every_input() {
    compare(TABLE, |state, input| {
        let mut desk = desk_in(state, looked_at());
        let effects = happen(&mut desk, input);
        format!("{}{}", word_of_agent(&desk.core), mark(&effects))
    });
}
