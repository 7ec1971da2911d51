//! Example tests of the settings of an agent's session, and of its limits, from one run to the next.

use bgd_core::{Begin, Effect, Fact, Note, Request, Work};
use bgd_shared::agent::AgentSettings;

use super::support::{
    ASK_TIMEOUT, Desk, STALLED_AFTER, asked, decisions, id, prompt, refused, settings, turn_ended,
};

#[test]
fn r30_session_settings_change_only_with_an_accepted_resume() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    let set = |effects: &[Effect]| match effects {
        [Effect::Start { begin: Begin::Prompt { settings, .. }, .. }] => AgentSettings::clone(settings),
        other => panic!("{other:?}"),
    };
    let (first, second) = (settings(7), AgentSettings { mode: Some("other".into()), ..settings(4) });
    assert_eq!(set(&desk.resume_with(task, first.clone())), first);
    assert_eq!(*desk.task(task).agent.unwrap().settings, AgentSettings::default(), "it is not accepted yet");
    desk.fact_of_run(task, 2, Fact::Started { pid: None });
    desk.fact_of_run(task, 2, turn_ended());
    assert_eq!(*desk.task(task).agent.unwrap().settings, first);
    let both = AgentSettings { mode: Some("other".into()), config: second.config.clone(), ..first.clone() };
    assert_eq!(set(&desk.resume_with(task, second)), both);
    desk.fact_of_run(task, 3, refused());
    assert_eq!(set(&desk.resume(task)), first, "as if it had not been asked for");
}

#[test]
fn limits_of_a_run_replace_those_of_its_submission() {
    let mut desk = Desk::new(1);
    let limits = |ask_timeout_ms| Fact::Limits { stalled_after_ms: 50, ask_timeout_ms };
    let task = desk.prompted(1);
    for fact in [limits(20), Fact::Session { id: "s".into() }, Fact::Started { pid: None }, asked(1)] {
        desk.fact(task, fact);
    }
    assert_eq!(decisions(&desk.wait(19)), []);
    assert_eq!(decisions(&desk.wait(1)), [(1, None)]);
    desk.wait(50);
    assert!(desk.task(task).agent.unwrap().stalled, "it was silent for too long");
    desk.fact(task, limits(1000));
    desk.fact(task, asked(2));
    assert_eq!(decisions(&desk.wait(20)), [(2, None)], "the limits of a run do not change");
    desk.fact(task, turn_ended());
    desk.resume(task);
    for fact in [limits(30), Fact::Started { pid: None }, asked(3)] {
        desk.fact_of_run(task, 2, fact);
    }
    assert_eq!(decisions(&desk.wait(29)), []);
    assert_eq!(decisions(&desk.wait(1)), [(3, None)]);
}

#[test]
fn warning_known_at_submit_holds_for_a_run_only_if_it_is_reported_again() {
    for again in [None, Some("asks nobody")] {
        let mut desk = Desk::new(1);
        let mut command = prompt(id(1), STALLED_AFTER, ASK_TIMEOUT);
        if let Work::Agent(work) = &mut command.spec.work {
            work.warning = Some("asks nobody".into());
        }
        desk.ask(Request::Submit(Box::new(command)));
        desk.fact(id(1), Fact::Limits { stalled_after_ms: STALLED_AFTER, ask_timeout_ms: ASK_TIMEOUT });
        if let Some(text) = again {
            desk.fact(id(1), Fact::Noted { note: Note::Warning, text: text.into() });
        }
        desk.fact(id(1), Fact::Started { pid: None });
        assert_eq!(desk.task(id(1)).agent.unwrap().notes.warning.as_deref(), again);
    }
}
