//! Feeds arbitrary bytes to the daemon's parsers (R134): hand-overs with their descriptors, output of jobs to
//! terminals, the streams of agents, states carried by an upgrade, journals, a keeper's records, configurations. Each
//! target asserts what must hold for every input; `edits` documents what a target is.

#[macro_use]
#[path = "../../../shared/tests/fuzz/edits.rs"]
mod edits;
mod agents;
mod configuration;
mod handoff;
mod image;
mod left;
mod terminal;

targets! {
    r134_any_handoff_is_refused_or_checked_and_leaves_no_descriptor: handoff::handoff,
    r134_any_call_is_refused_or_keeps_within_its_limits: handoff::call,
    r134_any_output_of_a_job_gives_the_same_screen_in_any_pieces: terminal::screen,
    r134_any_line_of_an_agent_is_news_of_its_session_or_noise: agents::acp,
    r134_any_lines_of_an_agent_are_the_same_in_any_pieces: agents::lines,
    r134_any_event_of_a_server_is_of_a_session_or_skipped: agents::opencode,
    r134_any_output_of_a_template_is_an_answer_or_a_reason: agents::template,
    r134_any_image_is_refused_or_the_state_that_it_says: image::state,
    r134_any_journal_is_read_as_far_as_it_can_be_and_is_whole_then: left::journal,
    r134_anything_held_for_a_run_is_refused_or_of_that_run: left::run,
    r134_any_configuration_is_refused_with_its_place_or_means_the_same_again: configuration::configuration,
}

/// Otherwise the edits would only be tried on refused inputs.
#[test]
fn seeds_are_valid_inputs() {
    use bgd::config::Config;
    use bgd_shared::message::parse_request;
    let of = edits::seeds;
    let text = |seed: &[u8]| String::from_utf8(seed.to_vec()).unwrap();
    for seed in of("r134_any_configuration_is_refused_with_its_place_or_means_the_same_again") {
        Config::parse("a file".as_ref(), &text(&seed)).unwrap();
    }
    for seed in of("r134_any_image_is_refused_or_the_state_that_it_says") {
        assert_eq!(image::tasks(&seed), Some(2));
    }
    for seed in of("r134_any_journal_is_read_as_far_as_it_can_be_and_is_whole_then") {
        assert!(left::tasks(&seed).is_some_and(|tasks| tasks >= 2));
    }
    for seed in of("r134_anything_held_for_a_run_is_refused_or_of_that_run") {
        assert!(left::is_run(&seed), "{}", text(&seed));
    }
    for seed in of("r134_any_line_of_an_agent_is_news_of_its_session_or_noise") {
        assert!(bgd::exec::agent::acp::update_of(&seed).is_some(), "{}", text(&seed));
    }
    for seed in of("r134_any_event_of_a_server_is_of_a_session_or_skipped") {
        assert!(bgd::exec::agent::opencode::event(&text(&seed)).is_some(), "{}", text(&seed));
    }
    for seed in of("r134_any_call_is_refused_or_keeps_within_its_limits") {
        let body = bgd::wire::calls::Body::read(&parse_request(&seed).unwrap(), Vec::new(), None);
        assert!(!matches!(body, bgd::wire::calls::Body::Refused(_)), "{body:?}");
    }
    let reaches = of("r134_any_handoff_is_refused_or_checked_and_leaves_no_descriptor");
    assert!(reaches.iter().filter(|seed| handoff::is_offered(seed)).count() >= 2);
}
