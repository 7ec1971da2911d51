//! Agents that write invalid output, or end at the wrong moment.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::lines::Broken;
use super::*;

/// A watchdog: a test that runs into it has failed.
const PATIENCE: Duration = Duration::from_mins(1);

#[tokio::test]
async fn noise_between_messages_is_skipped() {
    let (acp, mut agent, key, mut received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent.raw(b"npm WARN a log line\n\n   \n[1,2]\n17\n\"str\"\n{\"a\":1}\n{broken\n").await;
        agent.raw(b"\xff\xfe\x00 no UTF-8\n").await;
        agent.raw(b"{\"id\":1,\"method\":\"no/version\"}\n").await;
        agent.raw(b"{\"jsonrpc\":\"2.0\",\"id\":77,\"method\":\"x\",\"params\":\"text\"}\n").await;
        agent.raw(&vec![b'['; 100_000]).await;
        agent.raw(b"\n").await;
        // Half a character does not invalidate the message, and a line may end with CRLF.
        agent
            .raw(b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"s1\",")
            .await;
        agent.raw(b"\"update\":{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{").await;
        agent.raw(b"\"type\":\"text\",\"text\":\"bad\xff8\"}}}}\r\n").await;
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
    assert_eq!(end, TurnEnd::Completed);
    assert_eq!(drained(&mut received), ["bad\u{fffd}8"]);
    let noise = acp.wire.noise.as_suffix();
    assert!(noise.contains("10 other lines") && noise.contains("no/version"), "{noise}");
    assert!(noise.len() < 2000, "{noise}");
}

#[tokio::test]
async fn duplicate_or_unsolicited_responses_are_ignored() {
    let (acp, mut agent, key, _received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        agent.send(json!({"id": "nobody", "result": {}})).await;
        agent.send(json!({"id": null, "error": {"code": -32600, "message": "null"}})).await;
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
        agent.answer(&asked, json!({"stopReason": "refusal"})).await;
        agent.refuse(&asked, json!({"code": -1, "message": "third"})).await;
        agent.turn("end_turn").await;
    };
    let prompts = async { [acp.prompt(&key, "one").await, acp.prompt(&key, "two").await] };
    let (ends, ()) = tokio::join!(prompts, script);
    assert_eq!(ends, [TurnEnd::Completed, TurnEnd::Completed]);
}

#[tokio::test]
async fn malformed_error_response_still_ends_the_turn() {
    let (acp, mut agent, key, _received) = with_session().await;
    for (error, words) in [
        (json!({"code": 99_999_999_999_u64, "message": "too far"}), "too far"),
        (json!({"code": -5}), "without a message"),
        (json!("a text"), "a text"),
    ] {
        let script = async {
            let asked = agent.expect("session/prompt").await;
            agent.raw(format!("{}\n", json!({"id": asked.id, "error": error})).as_bytes()).await;
            agent.list(&["s1"]).await;
        };
        let (end, ()) = tokio::join!(judged(&acp, &key), script);
        let TurnEnd::Failed(why) = end else { panic!("{end:?}") };
        assert!(why.contains(words), "{why}");
    }
}

#[tokio::test]
async fn response_without_result_or_error_answers_with_null() {
    let (acp, mut agent, key, _received) = with_session().await;
    for answer in [json!({"jsonrpc": "2.0"}), json!({"error": null}), json!({"result": null})] {
        let script = async {
            let asked = agent.expect("session/prompt").await;
            // A line of a log, which answers nothing.
            agent.raw(format!("{}\n", json!({"id": asked.id, "level": "info"})).as_bytes()).await;
            agent.text("s1", "text").await;
            let mut answer = answer.clone();
            answer["id"] = asked.id;
            agent.raw(format!("{answer}\n").as_bytes()).await;
        };
        let both = async { tokio::join!(acp.prompt(&key, "go"), script) };
        let ended = tokio::time::timeout(PATIENCE, both).await;
        let (end, ()) = ended.unwrap_or_else(|_| panic!("{answer} does not end the turn"));
        assert!(matches!(end, TurnEnd::Failed(_)), "{answer}: {end:?}");
    }
    assert!(acp.wire.noise.as_suffix().contains("info"));
}

#[tokio::test]
async fn agent_death_breaks_the_turn_after_delivering_last_text() {
    let (acp, mut agent, key, mut received) = with_session().await;
    let script = async {
        agent.expect("session/prompt").await;
        agent.text("s1", "last words").await;
        agent.raw(b"{\"jsonrpc\":\"2.0\",\"id\":\"").await;
        drop(agent);
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
    assert_eq!(end, TurnEnd::Broken("the agent's process ended, or closed its output".into()));
    assert_eq!(drained(&mut received), ["last words"]);
    assert!(acp.closed().await.contains("ended"));
    let end = acp.prompt(&key, "go").await;
    assert!(matches!(&end, TurnEnd::Broken(why) if why.contains("ended")), "{end:?}");
    let (updates, _received) = mpsc::channel(UPDATES);
    let refusal = acp.open(&wanted(None), updates).await.unwrap_err();
    assert!(refusal.message.contains("ended"), "{refusal:?}");
    // Without a connection these have no effect.
    acp.cancel(&key).await;
    acp.forget(&key).await;
}

/// Waits until nobody can read this pipe: children that other tests are starting have copies of its reading end for a
/// moment.
fn until_unread(pipe: &File) {
    let limit = PollTimeout::try_from(PATIENCE).unwrap();
    loop {
        match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::empty())], limit) {
            Err(Errno::EINTR) => {}
            outcome => {
                assert_eq!(outcome, Ok(1), "the pipe has a reader");
                return;
            }
        }
    }
}

#[tokio::test]
async fn agent_that_closed_its_input_is_still_read_to_the_end() {
    let (acp, mut agent, key, mut received) = with_session().await;
    let Agent { input, output } = agent;
    let stdin = format!("/proc/self/fd/{}", acp.wire.pipes[0]);
    let stdin = File::options().write(true).open(stdin).unwrap();
    drop(input);
    until_unread(&stdin);
    agent = Agent { input: Lines::new(pipe::pipe().unwrap().1), output };
    agent.text("s1", "already said").await;
    let end = acp.prompt(&key, "go").await;
    assert!(matches!(&end, TurnEnd::Broken(why) if why.contains("does not read")), "{end:?}");
    assert_eq!(drained(&mut received), ["already said"]);
    assert!(acp.closed().await.contains("does not read"));
}

#[tokio::test]
async fn endless_line_breaks_the_connection() {
    let (acp, mut agent, key, _received) = with_session().await;
    let script = async {
        agent.expect("session/prompt").await;
        let piece = vec![b'x'; 1 << 20];
        // The reader stops within the last piece, and the pipe accepts no more.
        for _ in 0..=LINE_BYTES >> 20 {
            if agent.output.write_all(&piece).await.is_err() {
                break;
            }
        }
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
    assert_eq!(end, TurnEnd::Broken("the agent wrote a line of more than 16 MiB".into()));
    assert_eq!(&*acp.closed().await, "the agent wrote a line of more than 16 MiB");
}

#[tokio::test]
async fn lines_up_to_the_limit_are_split_at_newlines() {
    let mut longest = vec![b'a'; LINE_BYTES];
    longest.extend_from_slice(b"\nlast");
    let mut lines = Lines::new(&longest[..]);
    assert_eq!(lines.next().await.unwrap().len(), LINE_BYTES);
    assert_eq!(lines.next().await.unwrap(), b"last");
    assert!(matches!(lines.next().await, Err(Broken::Ended)));
    longest[LINE_BYTES] = b'a';
    let mut lines = Lines::new(&longest[..]);
    assert!(matches!(lines.next().await, Err(Broken::TooLong)));
}

#[tokio::test]
async fn full_update_channel_blocks_agent_until_read_or_dropped() {
    let (acp, mut agent, key, received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        // More than the channel, the pipe and the reader's buffer hold together.
        for part in 0..10_000 {
            agent.text("s1", &part.to_string()).await;
        }
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    let mut received = Some(received);
    let reading = async {
        for part in 0..5_000 {
            let update = received.as_mut().unwrap().recv().await.unwrap();
            assert_eq!(shown(&update), part.to_string());
            assert!(received.as_ref().unwrap().len() <= UPDATES);
        }
        received = None;
    };
    let (end, (), ()) = tokio::join!(acp.prompt(&key, "go"), script, reading);
    assert_eq!(end, TurnEnd::Completed);
}

#[tokio::test]
async fn flood_of_agent_requests_is_answered_completely() {
    let (acp, mut agent, key, _received) = with_session().await;
    let script = async {
        let asked = agent.expect("session/prompt").await;
        let Agent { input, output } = &mut agent;
        let asking = async {
            for id in 0..2_000 {
                let line = json!({"jsonrpc": "2.0", "id": id, "method": "terminal/create"});
                output.write_all(format!("{line}\n").as_bytes()).await.unwrap();
            }
        };
        let answers = async {
            for id in 0..2_000 {
                let answer: Value = serde_json::from_slice(&input.next().await.unwrap()).unwrap();
                assert_eq!(answer["id"], id);
            }
        };
        tokio::join!(asking, answers);
        agent.answer(&asked, json!({"stopReason": "end_turn"})).await;
    };
    let (end, ()) = tokio::join!(acp.prompt(&key, "go"), script);
    assert_eq!(end, TurnEnd::Completed);
}

#[tokio::test]
async fn dropping_the_connection_closes_agent_input() {
    let (acp, mut agent, _key, _received) = with_session().await;
    drop(acp);
    assert!(matches!(agent.input.next().await, Err(Broken::Ended)));
}
