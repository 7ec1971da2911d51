//! Tests the whole back end against a scripted server.

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bgd_shared::error::ErrorKind;
    use bgd_shared::id::TaskId;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;

    use super::super::super::connection::{Ask, TurnEnd, UPDATES, Update, Wanted};
    use super::super::Opencode;
    use super::super::scripted::server::{Server, State};
    use super::super::session::Timing;

    /// A session whose prompt has reached the server.
    struct Run {
        server: Arc<Server>,
        opencode: Arc<Opencode>,
        key: Arc<str>,
        updates: mpsc::Receiver<Update>,
        turn: JoinHandle<TurnEnd>,
        prompt: String,
    }

    fn wanted(session: Option<&str>) -> Wanted {
        Wanted {
            task: TaskId::random(),
            run: 1,
            session: session.map(Arc::from),
            cwd: "/d".into(),
            title: None,
            settings: crate::agents::Settings::default(),
        }
    }

    fn slow() -> Timing {
        Timing { poll: Duration::from_mins(10), ..Timing::default() }
    }

    fn fast() -> Timing {
        let [poll, grace, stall] = [20, 60, 60_000].map(Duration::from_millis);
        Timing { poll, grace, stall, waits: [Duration::from_millis(1), poll] }
    }

    impl Run {
        async fn start(timing: Timing) -> Self {
            let server = Server::start().await;
            let opencode = Arc::new(Opencode::connect_timed(&server.url, None, timing).await.unwrap());
            let (sender, updates) = mpsc::channel(UPDATES);
            let opened = opencode.open(&wanted(None), sender).await.unwrap();
            server.state.lock().unwrap().busy = vec!["ses_1".to_owned()];
            let (prompting, key) = (Arc::clone(&opencode), Arc::clone(&opened.key));
            let turn = tokio::spawn(async move { prompting.prompt(&key, "do it").await });
            let sent = server.asked("POST /session/ses_1/prompt_async", 1).await;
            assert_eq!(sent["parts"], json!([{ "type": "text", "text": "do it" }]));
            let prompt = sent["messageID"].as_str().unwrap().to_owned();
            let run = Self { server, opencode, key: opened.key, updates, turn, prompt };
            run.write(&[]);
            run.tell("message.updated", &json!({ "info": run.user() }));
            run
        }

        fn user(&self) -> Value {
            json!({ "id": self.prompt, "role": "user", "time": { "created": 10 } })
        }

        /// Sets the server's messages after the prompt.
        fn write(&self, messages: &[Value]) {
            let mut all = vec![json!({ "info": self.user(), "parts": [] })];
            all.extend_from_slice(messages);
            self.server.state.lock().unwrap().messages = all;
        }

        fn answer(&self, text: &str, more: &Value) -> Value {
            let mut info = json!({ "id": "msg_a", "role": "assistant", "parentID": self.prompt,
                "time": { "created": 11 } });
            info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "info": info, "parts": [{ "id": "prt_1", "type": "text", "text": text }] })
        }

        fn done(&self, text: &str) -> Value {
            self.answer(text, &json!({ "time": { "created": 11, "completed": 12 }, "finish": "stop" }))
        }

        fn tell(&self, kind: &str, properties: &Value) {
            let mut properties = properties.clone();
            properties["sessionID"] = json!("ses_1");
            self.server.tell(kind, &properties);
        }

        fn begin_text(&self) {
            self.tell("message.updated", &json!({ "info": self.answer("", &json!({}))["info"] }));
            let part = json!({ "id": "prt_1", "messageID": "msg_a", "type": "text", "text": "" });
            self.tell("message.part.updated", &json!({ "part": part }));
        }

        fn grow(&self, piece: &str) {
            let delta = json!({ "messageID": "msg_a", "partID": "prt_1", "field": "text", "delta": piece });
            self.tell("message.part.delta", &delta);
        }

        fn idle(&self) {
            self.server.state.lock().unwrap().busy.clear();
            self.tell("session.idle", &json!({}));
        }

        async fn text(&mut self) -> String {
            loop {
                if let Update::Text(text) = self.updates.recv().await.unwrap() {
                    return text;
                }
            }
        }

        async fn ask(&mut self) -> Ask {
            loop {
                if let Update::Ask(ask) = self.updates.recv().await.unwrap() {
                    return ask;
                }
            }
        }

        /// Returns the end of the turn, and the text that was in the channel by then.
        async fn end(mut self) -> (TurnEnd, String) {
            let end = self.turn.await.unwrap();
            let mut text = String::new();
            while let Ok(update) = self.updates.try_recv() {
                if let Update::Text(more) = update {
                    text.push_str(&more);
                }
            }
            (end, text)
        }
    }

    fn completed(text: &str) -> (TurnEnd, String) {
        (TurnEnd::Completed, text.to_owned())
    }

    #[tokio::test]
    async fn idle_event_ends_the_turn_after_streaming_its_text() {
        let mut run = Run::start(slow()).await;
        run.begin_text();
        run.grow("hello ");
        assert_eq!(run.text().await, "hello");
        run.grow("world");
        run.write(&[run.done("hello world!")]);
        run.idle();
        assert_eq!(run.end().await, completed(" world!"));
    }

    #[tokio::test]
    async fn texts_of_other_messages_and_parts_are_passed_on_apart() {
        let run = Run::start(slow()).await;
        let mut first = run.done("one");
        let part = json!({ "id": "prt_2", "type": "text", "text": "two" });
        first["parts"].as_array_mut().unwrap().push(part);
        let mut second = run.done("three");
        second["info"]["id"] = json!("msg_b");
        run.write(&[first, second]);
        run.idle();
        let Run { turn, mut updates, .. } = run;
        assert_eq!(turn.await.unwrap(), TurnEnd::Completed);
        let mut received = Vec::new();
        while let Ok(update) = updates.try_recv() {
            match update {
                Update::Text(text) => received.push(text),
                Update::Part => received.push("part".to_owned()),
                Update::Message => received.push("message".to_owned()),
                _ => {}
            }
        }
        assert_eq!(received, ["one", "part", "two", "message", "three"]);
    }

    #[tokio::test]
    async fn poll_detects_a_lost_idle_event() {
        let run = Run::start(fast()).await;
        run.server.asked("GET /session/status", 2).await;
        run.write(&[run.done("answer")]);
        run.server.state.lock().unwrap().busy.clear();
        assert_eq!(run.end().await, completed("answer"));
    }

    #[tokio::test]
    async fn no_requests_are_sent_while_no_turn_runs() {
        let mut run = Run::start(fast()).await;
        run.write(&[run.done("answer")]);
        run.server.state.lock().unwrap().busy.clear();
        assert_eq!((&mut run.turn).await.unwrap(), TurnEnd::Completed);
        let before = run.server.state.lock().unwrap().requests.len();
        run.server.cut();
        run.server.heard().await;
        // Once this late event has been passed on, the session has handled the gap before it.
        let status = json!({ "type": "retry", "attempt": 2, "message": "429", "next": 0 });
        run.tell("session.status", &json!({ "sessionID": "ses_1", "status": status }));
        while !matches!(run.updates.recv().await.unwrap(), Update::Retries(_)) {}
        // Let several looks come due, if there are any. Each takes its turn before the next prompt does.
        tokio::time::pause();
        for _ in 0..5 {
            tokio::time::advance(fast().poll).await;
        }
        tokio::time::resume();
        let (prompting, key) = (Arc::clone(&run.opencode), Arc::clone(&run.key));
        let turn = tokio::spawn(async move { prompting.prompt(&key, "do more").await });
        run.server.asked("POST /session/ses_1/prompt_async", 2).await;
        let next = run.server.state.lock().unwrap().requests[before].0.clone();
        assert!(next.starts_with("POST /session/ses_1/prompt_async"), "{next}");
        turn.abort();
    }

    #[tokio::test]
    async fn broken_stream_loses_and_repeats_no_text() {
        let mut run = Run::start(slow()).await;
        run.begin_text();
        run.grow("one");
        assert_eq!(run.text().await, "one");
        let looks = run.server.state.lock().unwrap().requests.len();
        run.write(&[run.answer("one two", &json!({}))]);
        run.server.cut();
        run.server.heard().await;
        assert_eq!(run.text().await, " two");
        assert!(run.server.state.lock().unwrap().requests.len() > looks);
        // The client can't know where this belongs: the text before it was lost with the stream.
        run.grow(" four");
        run.write(&[run.done("one two three four")]);
        run.idle();
        assert_eq!(run.end().await, completed(" three four"));
    }

    #[tokio::test]
    async fn end_during_stream_outage_is_detected_after_reconnect() {
        let run = Run::start(slow()).await;
        run.begin_text();
        run.grow("one");
        run.server.cut();
        run.write(&[run.done("one two")]);
        run.server.state.lock().unwrap().busy.clear();
        let (end, text) = run.end().await;
        assert_eq!((end, text.as_str()), (TurnEnd::Completed, "one two"));
    }

    #[tokio::test]
    async fn premature_idle_event_does_not_end_the_turn() {
        let run = Run::start(slow()).await;
        // The idle event of an earlier run: the server has not started with the prompt yet.
        run.idle();
        run.server.asked("GET /session/status", 1).await;
        // An error: the first idle event comes before the message contains it.
        run.begin_text();
        run.write(&[run.answer("", &json!({}))]);
        run.tell("session.error", &json!({ "error": { "name": "APIError", "data": { "message": "no" } } }));
        run.idle();
        run.server.asked("GET /session/ses_1/message", 2).await;
        assert!(!run.turn.is_finished());
        let error = json!({ "name": "APIError", "data": { "message": "model says 400", "statusCode": 400 } });
        run.write(&[run.answer("", &json!({ "error": error }))]);
        run.idle();
        run.idle();
        assert_eq!(run.end().await.0, TurnEnd::Failed("APIError: model says 400".into()));
    }

    #[tokio::test]
    async fn idle_event_of_previous_turn_does_not_end_the_next() {
        let mut run = Run::start(slow()).await;
        run.write(&[run.done("first")]);
        run.idle();
        assert_eq!((&mut run.turn).await.unwrap(), TurnEnd::Completed);
        let (opencode, key) = (Arc::clone(&run.opencode), Arc::clone(&run.key));
        run.turn = tokio::spawn(async move { opencode.prompt(&key, "do it").await });
        let sent = run.server.asked("POST /session/ses_1/prompt_async", 2).await;
        let old = std::mem::replace(&mut run.prompt, sent["messageID"].as_str().unwrap().to_owned());
        assert_ne!(old, run.prompt);
        let looks = run.server.state.lock().unwrap().requests.len();
        run.idle();
        run.server.until(|state| (state.requests.len() > looks + 1).then_some(())).await;
        assert!(!run.turn.is_finished());
        run.write(&[run.done("second")]);
        run.begin_text();
        run.idle();
        assert_eq!(run.end().await, completed("firstsecond"));
    }

    #[tokio::test]
    async fn deleted_session_is_reported_as_expired() {
        let run = Run::start(fast()).await;
        run.server.state.lock().unwrap().deleted = true;
        let (server, opencode) = (Arc::clone(&run.server), Arc::clone(&run.opencode));
        assert_eq!(run.end().await.0, TurnEnd::Forgotten("NotFoundError: gone".into()));
        let (sender, _updates) = mpsc::channel(UPDATES);
        let refusal = opencode.open(&wanted(Some("ses_1")), sender).await.unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::SessionExpired);
        server.state.lock().unwrap().deleted = false;
        let (sender, _updates) = mpsc::channel(UPDATES);
        let opened = opencode.open(&wanted(Some("ses_1")), sender).await.unwrap();
        assert_eq!(opened.session.as_deref(), Some("ses_1"));
    }

    fn permission(session: &str) -> Value {
        json!({ "id": "per_1", "sessionID": session, "permission": "bash", "patterns": ["echo"],
            "metadata": { "filepath": "/d/x", "diff": "-a\n+b\n" }, "always": ["echo *"], "tool": { "messageID": "msg_a" } })
    }

    #[tokio::test]
    async fn permission_request_is_asked_once_and_answered() {
        let mut run = Run::start(slow()).await;
        run.tell("permission.asked", &permission("ses_1"));
        run.tell("permission.asked", &permission("ses_1"));
        let ask = run.ask().await;
        assert_eq!(ask.question, "bash: echo\nchanges: -a\n  +b\ninput: {\"filepath\":\"/d/x\"}");
        let ids: Vec<&str> = ask.options.iter().map(|option| option.id.as_str()).collect();
        assert_eq!(ids, ["once", "always", "reject"]);
        ask.answer.send(Some("always".to_owned())).unwrap();
        let reply = run.server.asked("POST /permission/per_1/reply?directory=%2Fd", 1).await;
        assert_eq!(reply, json!({ "reply": "always" }));
        run.write(&[run.done("")]);
        run.idle();
        run.begin_text();
        assert_eq!(run.end().await.0, TurnEnd::Completed);
    }

    #[tokio::test]
    async fn model_retries_are_reported() {
        let mut run = Run::start(slow()).await;
        let status = json!({ "type": "retry", "attempt": 2, "message": "429 Too Many Requests", "next": 0 });
        run.tell("session.status", &json!({ "sessionID": "ses_1", "status": status }));
        loop {
            match run.updates.recv().await.unwrap() {
                Update::Retries(why) => break assert_eq!(why, "429 Too Many Requests (attempt 2)"),
                other => assert!(matches!(other, Update::Activity | Update::Consumed(_)), "{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn dropped_question_is_denied_with_a_message_to_the_model() {
        let mut run = Run::start(slow()).await;
        run.server.tell(
            "session.created",
            &json!({ "sessionID": "ses_child", "info": { "id": "ses_child", "parentID": "ses_1" } }),
        );
        run.server.tell("permission.asked", &permission("ses_child"));
        drop(run.ask().await);
        let reply = run.server.asked("POST /permission/per_1/reply", 1).await;
        assert_eq!(reply["reply"], json!("reject"));
        assert!(reply["message"].is_string());
    }

    #[tokio::test]
    async fn poll_finds_permission_with_lost_event_but_ignores_stale_ones() {
        let mut run = Run::start(fast()).await;
        let mut relic = permission("ses_1");
        relic["id"] = json!("per_0");
        relic["tool"]["messageID"] = json!("msg_old");
        {
            let mut state = run.server.state.lock().unwrap();
            state.busy.push("ses_child".to_owned());
            state.permissions = vec![relic, permission("ses_child")];
        }
        let ask = run.ask().await;
        run.server.state.lock().unwrap().permissions.clear();
        let mut answer = ask.answer;
        answer.closed().await;
        let asked = run.server.state.lock().unwrap();
        assert!(!asked.requests.iter().any(|(line, _)| line.contains("/reply")));
    }

    #[tokio::test]
    async fn abort_ends_the_turn_and_withdraws_its_question() {
        let mut run = Run::start(slow()).await;
        run.begin_text();
        run.tell("permission.asked", &permission("ses_1"));
        let mut ask = run.ask().await;
        run.opencode.cancel(&run.key).await;
        run.server.asked("POST /session/ses_1/abort", 1).await;
        // Aborting the retry of a model request leaves neither an error nor a finish reason.
        run.write(&[run.answer("", &json!({ "time": { "created": 11, "completed": 12 } }))]);
        run.idle();
        ask.answer.closed().await;
        assert_eq!(run.end().await.0, TurnEnd::Cancelled);
    }

    #[tokio::test]
    async fn premature_abort_is_repeated() {
        let run = Run::start(fast()).await;
        run.opencode.cancel(&run.key).await;
        run.server.asked("POST /session/ses_1/abort", 3).await;
        run.server.state.lock().unwrap().busy.clear();
        assert_eq!(run.end().await.0, TurnEnd::Cancelled);
    }

    #[tokio::test]
    async fn dead_server_breaks_the_connection() {
        let run = Run::start(Timing { poll: slow().poll, ..fast() }).await;
        run.server.die();
        let why = run.opencode.closed().await;
        assert!(why.contains("no longer answers"), "{why}");
        assert!(matches!(run.end().await.0, TurnEnd::Broken(_)));
    }

    #[tokio::test]
    async fn invalid_server_address_is_refused() {
        for url in ["http://127.0.0.1:1", "https://127.0.0.1", "nothing"] {
            let refusal = Opencode::connect(url, None).await.unwrap_err();
            assert_eq!(refusal.kind, ErrorKind::AgentUnavailable, "{url}");
        }
    }

    #[tokio::test]
    async fn r121_server_that_does_not_answer_delays_no_upgrade() {
        let mut run = Run::start(fast()).await;
        run.server.state.lock().unwrap().is_mute = true;
        let looks = |state: &State| {
            state.requests.iter().filter(|(line, _)| line.starts_with("GET /session/status")).count()
        };
        let before = run.server.until(|state| Some(looks(state))).await;
        // The one before may have been answered.
        run.server.until(|state| (looks(state) > before).then_some(())).await;
        run.opencode.hold(true);
        let carried = async {
            while run.opencode.state().is_none() {
                while run.updates.try_recv().is_ok() {}
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), carried).await.expect("its state");
        // The look is made up for.
        run.server.state.lock().unwrap().is_mute = false;
        run.write(&[run.done("there")]);
        run.server.state.lock().unwrap().busy.clear();
        run.opencode.hold(false);
        assert_eq!(run.turn.await.unwrap(), TurnEnd::Completed);
    }
}
