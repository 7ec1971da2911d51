//! The handshake, and sessions: new, resumed, gone.

use super::*;

async fn greeted(answer: Value) -> Result<Acp, Refusal> {
    let (mut agent, stdin, stdout) = pipes();
    let script = async {
        let asked = agent.expect("initialize").await;
        match answer.get("code") {
            Some(_) => agent.refuse(&asked, answer.clone()).await,
            None => agent.answer(&asked, answer.clone()).await,
        }
    };
    tokio::join!(Acp::connect(stdin, stdout), script).0
}

#[tokio::test]
async fn initialize_reports_name_version_and_continuation() {
    let (acp, _agent) = connected(able()).await;
    let about = acp.about();
    assert_eq!((about.name.as_deref(), about.version.as_deref()), (Some("Played"), Some("7")));
    assert_eq!(about.continuation, Continuation::Resume);
    let (acp, _agent) = connected(json!({"loadSession": true})).await;
    assert_eq!(acp.about().continuation, Continuation::Load);
    let acp = greeted(json!({"protocolVersion": 1, "authMethods": 7, "new": {}})).await.unwrap();
    assert_eq!(acp.about().continuation, Continuation::None);
    assert_eq!(acp.about().name, None);
}

#[tokio::test]
async fn program_not_speaking_acp_is_unavailable_and_its_output_quoted() {
    for (answer, word) in [
        (json!({"protocolVersion": 2}), "protocol version 2"),
        (json!({"protocolVersion": "1"}), "\"1\""),
        (json!("hello"), "null"),
        (json!({"code": -32601, "message": "Method not found"}), "Method not found"),
    ] {
        let refusal = greeted(answer).await.unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::AgentUnavailable);
        assert!(
            refusal.message.contains("did not speak ACP") && refusal.message.contains(word),
            "{refusal:?}"
        );
    }
    let refusal = greeted(json!({"code": -32000, "message": "log in"})).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::AuthenticationRequired);

    let (mut agent, stdin, stdout) = pipes();
    let script = async {
        agent.expect("initialize").await;
        agent.raw(b"usage: x [--help]\n\n[1]\n").await;
        drop(agent);
    };
    let refusal = tokio::join!(Acp::connect(stdin, stdout), script).0.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::AgentUnavailable);
    assert!(refusal.message.contains("usage: x [--help] / [1]"), "{refusal:?}");
    assert!(refusal.message.contains("ended"), "{refusal:?}");
}

/// Opens a session while the agent plays this script.
async fn open(
    acp: &Acp,
    session: Option<&str>,
    script: impl Future<Output = ()>,
) -> (Result<Opened, Refusal>, mpsc::Receiver<Update>) {
    let (updates, received) = mpsc::channel(UPDATES);
    let wanted = wanted(session);
    (tokio::join!(acp.open(&wanted, updates), script).0, received)
}

#[tokio::test]
async fn session_is_resumed_once_and_then_only_rerouted_until_forgotten() {
    let (acp, mut agent) = connected(able()).await;
    let (opened, _first) = open(&acp, Some("old"), async {
        let asked = agent.expect("session/resume").await;
        assert_eq!(asked.params, json!({"sessionId": "old", "cwd": "/work"}));
        agent.answer(&asked, json!({})).await;
    })
    .await;
    let key = opened.unwrap().key;
    let (opened, mut second) = open(&acp, Some("old"), async {}).await;
    assert_eq!(opened.unwrap().key, key);
    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent.text("old", "hello").await;
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    assert_eq!(tokio::join!(acp.prompt(&key, "go"), script).0, TurnEnd::Completed);
    assert_eq!(drained(&mut second), ["hello"]);

    acp.forget(&key).await;
    let asked = agent.expect("session/close").await;
    agent.answer(&asked, json!({})).await;
    let (opened, _third) = open(&acp, Some("old"), async {
        let asked = agent.expect("session/resume").await;
        agent.answer(&asked, json!({})).await;
    })
    .await;
    opened.unwrap();
}

#[tokio::test]
async fn replay_of_a_loaded_session_is_hidden() {
    let (acp, mut agent) = connected(json!({"loadSession": true})).await;
    let (opened, mut received) = open(&acp, Some("old"), async {
        let asked = agent.expect("session/load").await;
        assert_eq!(asked.params, json!({"sessionId": "old", "cwd": "/work", "mcpServers": []}));
        agent.text("old", "long ago").await;
        agent.answer(&asked, Value::Null).await;
        agent.text("old", "still long ago").await;
        // The client's answer shows that it has read all earlier messages.
        agent.ask(json!(1), "old", &["allow_once"]).await;
        agent.next().await;
    })
    .await;
    let key = opened.unwrap().key;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent.text("old", "now").await;
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    assert_eq!(tokio::join!(acp.prompt(&key, "go"), script).0, TurnEnd::Completed);
    assert_eq!(drained(&mut received), ["now"]);

    // This agent can't be asked to release a session. But the conversation may continue elsewhere, so the session has
    // to be loaded again.
    acp.forget(&key).await;
    assert!(received.recv().await.is_none());
    let (opened, _received) = open(&acp, Some("old"), async {
        let asked = agent.expect("session/load").await;
        agent.answer(&asked, Value::Null).await;
    })
    .await;
    opened.unwrap();
}

#[tokio::test(start_paused = true)]
async fn replay_read_at_the_last_moment_is_no_silence() {
    let (routes, session) = (Arc::new(Routes::default()), Arc::<str>::from("old"));
    let (updates, _received) = mpsc::channel(UPDATES);
    routes.open(&session, updates, true, Arc::default());
    let begun = tokio::time::Instant::now();
    let (reading, replayed) = (Arc::clone(&routes), Arc::clone(&session));
    tokio::spawn(async move {
        tokio::time::sleep(QUIET).await;
        assert!(reading.updates(&replayed).is_none());
    });
    routes.quiet(&session, QUIET).await;
    assert!(begun.elapsed() >= 2 * QUIET);
}

#[tokio::test]
async fn expired_session_is_recognized_by_code_message_or_listing() {
    for (error, pages, expected) in [
        (json!({"code": -32002, "message": "Resource not found"}), vec![], ErrorKind::SessionExpired),
        (json!({"code": -32602, "message": "x", "data": "no rollout"}), vec![], ErrorKind::SessionExpired),
        (
            json!({"code": -32603, "message": "service failure"}),
            vec![json!({"sessions": [{"sessionId": "a"}], "nextCursor": "2"}), json!({"sessions": []})],
            ErrorKind::SessionExpired,
        ),
        (
            json!({"code": -32603, "message": "service failure"}),
            vec![json!({"sessions": [{"sessionId": "old"}], "nextCursor": "2"})],
            ErrorKind::AgentUnavailable,
        ),
        (json!({"code": -32000, "message": "log in"}), vec![], ErrorKind::AuthenticationRequired),
    ] {
        let (acp, mut agent) = connected(able()).await;
        let (opened, _received) = open(&acp, Some("old"), async {
            let asked = agent.expect("session/resume").await;
            agent.refuse(&asked, error.clone()).await;
            for page in pages {
                let asked = agent.expect("session/list").await;
                assert_eq!(asked.params["cwd"], "/work");
                agent.answer(&asked, page).await;
            }
        })
        .await;
        let refusal = opened.unwrap_err();
        assert_eq!(refusal.kind, expected, "{error}: {refusal:?}");
        assert!(refusal.message.contains(error["message"].as_str().unwrap()), "{refusal:?}");
        if expected == ErrorKind::SessionExpired {
            assert_eq!(refusal.hint.as_deref(), Some("submit a new task"));
        }
        if expected == ErrorKind::AuthenticationRequired {
            assert!(refusal.hint.unwrap().contains("Log in by x (run `x login`)"));
        }
    }
}

#[tokio::test]
async fn agent_without_continuation_reports_session_expired() {
    let (acp, _agent) = connected(json!({})).await;
    let (opened, _received) = open(&acp, Some("old"), async {}).await;
    assert_eq!(opened.unwrap_err().kind, ErrorKind::SessionExpired);
}

#[tokio::test]
async fn dropped_open_leaves_no_route() {
    let (acp, mut agent) = connected(able()).await;
    let (updates, mut received) = mpsc::channel(UPDATES);
    let wanted = wanted(Some("old"));
    let asked = tokio::select! {
        opened = acp.open(&wanted, updates) => panic!("{opened:?}"),
        asked = agent.expect("session/resume") => asked,
    };
    agent.answer(&asked, json!({})).await;
    agent.text("old", "nobody's").await;
    assert!(received.recv().await.is_none());
    let (opened, mut received) = open(&acp, Some("old"), async {
        let asked = agent.expect("session/resume").await;
        agent.answer(&asked, json!({})).await;
    })
    .await;
    opened.unwrap();
    assert!(drained(&mut received).is_empty());
}

#[test]
fn error_codes_and_messages_are_classified() {
    use agent_client_protocol::Error;

    let error = |code, message: &str, data: Option<Value>| {
        let error = Error::new(code, message);
        match data {
            Some(data) => error.data(data),
            None => error,
        }
    };
    for (code, message, asked, expected) in [
        (-32602, "Invalid params: session not found: x", Asked::Within, Meaning::NoSuchSession),
        (-32603, "no rollout found for this id", Asked::Within, Meaning::NoSuchSession),
        (-32603, "Unknown session", Asked::Within, Meaning::NoSuchSession),
        (-32603, "model `x` not found", Asked::Within, Meaning::Other),
        (-32603, "x does not exist", Asked::Session, Meaning::NoSuchSession),
        (-32603, "Internal error", Asked::Session, Meaning::Other),
        (-32603, "Authentication required", Asked::Within, Meaning::LoggedOut),
        (-32000, "", Asked::Within, Meaning::LoggedOut),
        (-32002, "", Asked::Within, Meaning::NoSuchSession),
    ] {
        assert_eq!(error::meaning(&error(code, message, None), asked), expected, "{code} {message}");
    }
    assert_eq!(error::words(&error(-5, "", None)), "error -5");
    assert_eq!(error::words(&error(-5, "a b", Some(json!("b")))), "a b");
    assert_eq!(error::words(&error(-5, "a", Some(json!({"n": 1})))), "a: {\"n\":1}");
    let long = error::words(&error(-5, &"ä".repeat(5000), None));
    assert!(long.len() <= 2051 && long.ends_with("ä…"));
}
