//! Messages of agents: over the Agent Client Protocol, over opencode's HTTP, and on the output of command lines.

use std::path::Path;
use std::sync::Arc;

use bgd::agents::Agent;
use bgd::exec::agent::acp::{LINE_BYTES, update_of};
use bgd::exec::agent::connection::Update;
use bgd::exec::agent::opencode::{Event, bounded, event};
use bgd::exec::agent::template::Printed;
use bgd_shared::task::Exit;
use serde_json::Value;
use tempfile::TempDir;

/// The most characters of a text for people, with its ellipsis.
const WORDS: usize = 2001;

/// Updates belong to the session that the line names, and contain no more text than the line.
pub fn acp(line: &[u8]) {
    assert!(line.len() < LINE_BYTES);
    let Some(news) = update_of(line) else { return };
    let text = String::from_utf8_lossy(line);
    let said: Value = serde_json::from_str(&text).expect("news is JSON");
    assert_eq!(said["method"], "session/update");
    assert_eq!(said["params"]["sessionId"], *news.session);
    match news.update {
        Some(Update::Text(said)) => assert!(said.len() <= text.len() + "[content]".len()),
        Some(Update::Plan(steps)) => {
            assert!(steps.iter().all(|step| !step.text.chars().any(char::is_control)), "{steps:?}");
        }
        Some(Update::Ask(_) | Update::Session(_) | Update::Answer(_)) => panic!("no update says that"),
        Some(_) | None => {}
    }
    assert!(news.message.is_none_or(|message| message.len() <= 256));
}

/// Lines read from a stream equal those of its whole.
pub fn lines(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let expected: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let expected = match expected.split_last() {
        Some((&[], whole)) => whole,
        _ => &expected[..],
    };
    for capacity in [1, 3, 64] {
        let (mut agent, stdout) = tokio::io::duplex(capacity);
        let said = bytes.to_vec();
        let read = runtime.block_on(async move {
            let writes = async move {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut agent, &said).await;
            };
            tokio::join!(writes, bgd::exec::agent::acp::all_lines(stdout)).1
        });
        assert_eq!(read, expected, "through {capacity} bytes");
    }
}

/// An event belongs to the session that it names, and its text for people is short.
pub fn opencode(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Some((session, event)) = event(&text) else { return };
    let said: Value = serde_json::from_str(&text).expect("an event is JSON");
    let properties = &said["payload"]["properties"];
    match event {
        Event::Child(child) => {
            assert_eq!(properties["info"]["parentID"], *session);
            assert_eq!(properties["info"]["id"], *child.id);
            return;
        }
        Event::Fault(fault) => assert!(fault.words().chars().count() <= WORDS),
        Event::Busy(Some(why)) => assert!(why.chars().count() <= WORDS),
        Event::Message(info) => {
            // An amount that is not a number does not count.
            let _ = (info.taken(), info.is_done(), info.is_summary(), info.is_assistant());
            assert!(!info.id.is_empty() || properties["info"]["id"] == "");
        }
        _ => {}
    }
    assert_eq!(properties["sessionID"], *session);
    assert!(bounded(&text).chars().count() <= WORDS);
}

fn agent() -> Agent {
    Agent { result: Some("/result".into()), session: Some("/session_id".into()), ..Agent::new("x") }
}

/// The answer is a text contained in the output, or an error explains its absence.
pub fn template(bytes: &[u8]) {
    thread_local!(static FOLDER: TempDir = tempfile::tempdir().unwrap());
    FOLDER.with(|folder| {
        let (out, err) = (folder.path().join("out"), folder.path().join("err"));
        std::fs::write(&out, bytes).unwrap();
        std::fs::write(&err, bytes).unwrap();
        for exit in [Exit::Code(0), Exit::Code(3), Exit::Signal(9)] {
            printed(&out, &err, &exit, bytes.len());
        }
    });
}

fn printed(out: &Path, err: &Path, exit: &Exit, length: usize) {
    let printed = Printed::read(&agent(), out, err, [0, 0], exit).unwrap();
    match printed.answer {
        Ok(answer) => {
            assert_eq!(*exit, Exit::Code(0));
            assert!(answer.len() <= 12 * length, "{} bytes of {length}", answer.len());
        }
        Err(why) => assert!(!why.is_empty() && why.chars().count() < 1200, "{why}"),
    }
    let session: Option<Arc<str>> = printed.session;
    assert!(session.is_none_or(|session| session.len() <= 12 * length));
}
