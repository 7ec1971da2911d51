//! Example tests of the settings of an agent's session, from one run to the next.

use bgd_core::{Begin, Effect, Fact};
use bgd_shared::agent::AgentSettings;

use super::support::{Desk, refused, settings, turn_ended};

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
