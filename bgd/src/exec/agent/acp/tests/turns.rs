//! Turns: their reports, their ends, and an agent's questions meanwhile.

use super::super::super::connection::Ask;
use super::*;

#[tokio::test]
async fn prompt_delivers_text_in_order() {
    let (acp, mut agent, key, mut received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        assert_eq!(asked.params["prompt"], json!([{"type": "text", "text": "go"}]));
        for part in 0..100 {
            agent.text("s1", &part.to_string()).await;
        }
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
        agent.text("s1", "late").await;
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
    assert_eq!(end, TurnEnd::Completed);
    let parts: Vec<String> = (0..100).map(|part| part.to_string()).collect();
    let mut texts: Vec<String> = Vec::new();
    for _ in 0..101 {
        texts.push(shown(&received.recv().await.unwrap()));
    }
    assert_eq!(texts[..100], parts);
    assert_eq!(texts[100], "late");
}

#[tokio::test]
async fn updates_sent_before_the_response_precede_the_end_of_prompt() {
    let (acp, mut agent, key, mut received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent.text("s1", "last words").await;
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    tokio::join!(acp.prompt(&key, "go"), script);
    assert_eq!(drained(&mut received), ["last words"]);
}

#[tokio::test]
async fn every_update_kind_is_handled_or_tolerated() {
    let (acp, mut agent, key, mut received) = with_session().await;
    let text = json!({"type": "text", "text": "t"});
    let script = async {
        let asked = agent.expect("session/prompt").await;
        for update in [
            json!({"sessionUpdate": "user_message_chunk", "content": text}),
            json!({"sessionUpdate": "agent_thought_chunk", "content": text}),
            json!({"sessionUpdate": "tool_call", "toolCallId": "1", "title": "bash", "kind": "execute"}),
            json!({"sessionUpdate": "tool_call", "toolCallId": "1", "title": "", "kind": "execute"}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}),
            json!({"sessionUpdate": "plan", "entries": []}),
            json!({"sessionUpdate": "usage_update", "used": 1, "size": 2}),
            json!({"sessionUpdate": "brand_new", "x": 1}),
            json!({"no tag": 1}),
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "hologram"}}),
            json!({"sessionUpdate": "agent_message_chunk",
                   "content": {"type": "image", "data": "", "mimeType": "image/png"}}),
            json!({"sessionUpdate": "agent_message_chunk", "content": text, "messageId": 7, "new": []}),
        ] {
            agent.update("s1", update).await;
        }
        agent.text("another", "nobody's").await;
        agent.send(json!({"method": "_vendor/note", "params": {"sessionId": "s1"}})).await;
        agent.send(json!({"method": "session/update"})).await;
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
    assert_eq!(end, TurnEnd::Completed);
    let expected = [
        "moved",
        "tool bash",
        "tool execute",
        "worked",
        "plan of 0",
        "consumed",
        "moved",
        "moved",
        "[hologram]",
        "[image]",
        "message",
        "t",
    ];
    assert_eq!(drained(&mut received), expected);
}

#[tokio::test]
async fn every_stop_reason_maps_to_a_turn_end() {
    let (acp, mut agent, key, _received) = with_session().await;
    for (reason, expected) in [
        (json!("end_turn"), None),
        (json!("refusal"), Some("refused")),
        (json!("max_tokens"), Some("max_tokens")),
        (json!("max_turn_requests"), Some("max_turn_requests")),
        (json!("brand_new"), Some("brand_new")),
        (json!(null), Some("without a reason")),
    ] {
        let script = async {
            let asked = agent.expect("session/prompt").await;
            agent.answer(&asked, json!({"stopReason": reason})).await;
        };
        let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
        match (end, expected) {
            (TurnEnd::Completed, None) => {}
            (TurnEnd::Failed(why), Some(word)) => assert!(why.contains(word), "{why}"),
            (end, _) => panic!("{reason} gives {end:?}"),
        }
    }
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), agent.turn("cancelled"));
    assert_eq!(end, TurnEnd::Cancelled);
}

#[tokio::test]
async fn prompt_error_keeps_details_and_is_classified() {
    let (acp, mut agent, key, _received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        let data = json!({"message": "model says 400", "codex_error_info": "other"});
        agent.refuse(&asked, json!({"code": -32603, "message": "Internal error", "data": data})).await;
        agent.list(&["s0", "s1"]).await;
    };
    let (end, ()) = tokio::join!(judged(&acp, &key), script);
    assert_eq!(end, TurnEnd::Failed("Internal error: model says 400".into()));

    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent.refuse(&asked, json!({"code": -32000, "message": "Authentication required"})).await;
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
    let TurnEnd::LoggedOut(words) = end else { panic!("{end:?}") };
    assert!(words.contains("Authentication required") && words.contains("run `x login`"), "{words}");

    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent
            .refuse(&asked, json!({"code": -32602, "message": "Invalid params: session not found: s1"}))
            .await;
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
    assert_eq!(end, TurnEnd::Forgotten("Invalid params: session not found: s1".into()));
}

#[tokio::test]
async fn unspecific_error_counts_as_expired_session_if_unlisted() {
    let (acp, mut agent, key, _received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent.refuse(&asked, json!({"code": -32603, "message": "Internal error"})).await;
        agent.list(&["s0"]).await;
    };
    let (end, ()) = tokio::join!(judged(&acp, &key), script);
    assert_eq!(end, TurnEnd::Forgotten("Internal error".into()));
}

async fn next_ask(received: &mut mpsc::Receiver<Update>) -> Ask {
    match received.recv().await {
        Some(Update::Ask(ask)) => ask,
        other => panic!("{other:?} is no question"),
    }
}

fn chose(option: &str) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": option}})
}

fn called_off() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

#[tokio::test]
async fn concurrent_questions_are_answered_in_any_order() {
    let (acp, mut agent, key, mut received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        // Some programs number their requests from zero, others use strings.
        agent.ask(json!(0), "s1", &["allow_once", "reject_once"]).await;
        agent.ask(json!("b"), "s1", &["allow_once", "new_kind", "reject_always"]).await;
        agent.ask(json!(2), "s1", &["allow_once"]).await;
        for (id, result) in
            [(json!("b"), chose("reject_always")), (json!(0), chose("allow_once")), (json!(2), called_off())]
        {
            let answer = agent.next().await;
            assert_eq!((&answer["id"], &answer["result"]), (&id, &result), "{answer}");
        }
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    let people = async {
        let first = next_ask(&mut received).await;
        assert_eq!(first.question, "rm -r / (execute)");
        assert_eq!(first.options[0].id, "allow_once");
        assert_eq!(first.options[0].kind, bgd_shared::agent::OptionKind::AllowOnce);
        let second = next_ask(&mut received).await;
        assert_eq!(second.options[1].kind, bgd_shared::agent::OptionKind::Other);
        let third = next_ask(&mut received).await;
        // Yield after each decision, so that the answers are sent in the order of the decisions.
        second.answer.send(None).unwrap();
        tokio::task::yield_now().await;
        first.answer.send(Some("allow_once".to_owned())).unwrap();
        tokio::task::yield_now().await;
        drop(third.answer);
    };
    let (end, (), ()) = tokio::join!(acp.prompt(&key, "go"), script, people);
    assert_eq!(end, TurnEnd::Completed);
}

#[tokio::test]
async fn cancel_notifies_agent_then_cancels_open_questions() {
    let (acp, mut agent, key, mut received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent.ask(json!(1), "s1", &["allow_once", "reject_once"]).await;
        agent.ask(json!(2), "s1", &["allow_once", "reject_once"]).await;
        agent.expect("session/cancel").await;
        for _ in 0..2 {
            assert_eq!(agent.next().await["result"], called_off());
        }
        // Asked before the agent received the cancel.
        agent.ask(json!(3), "s1", &["allow_once", "reject_once"]).await;
        assert_eq!(agent.next().await["result"], called_off());
        agent.answer(&asked, json!({"stopReason": "cancelled"})).await;
    };
    let people = async {
        let mut first = next_ask(&mut received).await;
        let mut second = next_ask(&mut received).await;
        acp.cancel(&key).await;
        first.answer.closed().await;
        second.answer.closed().await;
    };
    let (end, (), ()) = tokio::join!(acp.prompt(&key, "go"), script, people);
    assert_eq!(end, TurnEnd::Cancelled);
    assert!(drained(&mut received).is_empty());
}

#[tokio::test]
async fn question_outside_turn_or_withdrawn_is_cancelled() {
    let (acp, mut agent, key, mut received) = with_session().await;
    agent.ask(json!(1), "s1", &["allow_once", "reject_once"]).await;
    assert_eq!(agent.next().await["result"], called_off());
    agent.ask(json!(2), "unknown", &["allow_once", "reject_once"]).await;
    assert_eq!(agent.next().await["result"], called_off());

    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent.ask(json!(3), "s1", &["allow_once", "reject_once"]).await;
        agent.send(json!({"method": "$/cancel_request", "params": {"requestId": 3}})).await;
        assert_eq!(agent.next().await["result"], called_off());
        agent.ask(json!(4), "s1", &["allow_once", "reject_once"]).await;
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
        // The turn ended before the question was answered.
        assert_eq!(agent.next().await["result"], called_off());
    };
    let people = async {
        let mut withdrawn = next_ask(&mut received).await;
        withdrawn.answer.closed().await;
        let mut left = next_ask(&mut received).await;
        left.answer.closed().await;
    };
    let (end, (), ()) = tokio::join!(acp.prompt(&key, "go"), script, people);
    assert_eq!(end, TurnEnd::Completed);
}

#[tokio::test]
async fn dropped_prompt_is_cancelled_and_next_one_waits_for_its_end() {
    let (acp, mut agent, key, mut received) = with_session().await;
    let asked = {
        let prompt = acp.prompt(&key, "one");
        tokio::select! {
            end = prompt => panic!("{end:?}"),
            asked = agent.expect("session/prompt") => asked,
        }
    };
    agent.expect("session/cancel").await;
    let script = async {
        // Cancelling the first turn does not send the waiting prompt to the agent: the prompt is sent only when the
        // first turn ends.
        agent.answer(&asked, json!({"stopReason": "cancelled"})).await;
        let asked = agent.expect("session/prompt").await;
        assert_eq!(asked.params["prompt"][0]["text"], "two");
        agent.text("s1", "second").await;
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "two"), script);
    assert_eq!(end, TurnEnd::Completed);
    assert_eq!(drained(&mut received), ["second"]);
}

#[tokio::test]
async fn cancel_reaches_a_prompt_waiting_for_the_previous_turn() {
    let (acp, mut agent, key, _received) = with_session().await;
    let asked = tokio::select! {
        end = acp.prompt(&key, "one") => panic!("{end:?}"),
        asked = agent.expect("session/prompt") => asked,
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "two"), async {
        tokio::task::yield_now().await;
        acp.cancel(&key).await;
    });
    assert_eq!(end, TurnEnd::Cancelled);
    agent.expect("session/cancel").await;
    agent.expect("session/cancel").await;
    agent.answer(&asked, json!({"stopReason": "cancelled"})).await;
    let (end, ()) = tokio::join!(acp.prompt(&key, "three"), agent.turn("end_turn"));
    assert_eq!(end, TurnEnd::Completed);
}

#[tokio::test]
async fn unsupported_agent_requests_are_refused_without_delay() {
    let (acp, mut agent, key, _received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        for method in ["fs/write_text_file", "terminal/create", "initialize", "_odd/thing"] {
            agent.send(json!({"id": 9, "method": method, "params": {"sessionId": "s1"}})).await;
            let answer = agent.next().await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(9), &json!(-32601)), "{answer}");
        }
        agent.send(json!({"id": null, "method": "session/request_permission"})).await;
        assert_eq!(agent.next().await["error"]["code"], -32602);
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
    assert_eq!(end, TurnEnd::Completed);
}
