//! A real agent, as it was recorded: each request is answered by the lines that the agent wrote when it got one of
//! this method, in their order. It knows nothing of what they mean.
//!
//! A recording is a file of JSON lines: `{"request":METHOD,…}`, behind it a `{"line":…}` for each line of the agent
//! until the next request, and `{"ends":true}` where its process ended. The id of an answer is `"ID"` in it.

use std::fs;
use std::io::{self, BufRead as _};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::options::Fault;
use super::wire::Wire;

/// What the agent wrote behind a request.
struct Part {
    method: String,
    lines: Vec<Value>,
    /// It was played.
    is_over: bool,
}

/// Plays the agent until its input ends: the next process of the recording with each process that is started.
pub fn replay(file: &Path, home: &Path, wire: &Wire) -> io::Result<ExitCode> {
    let journal = fs::read_to_string(home.join("journal"))?;
    // This one is among them.
    let started = journal.lines().filter(|line| line.contains(r#""started":true"#)).count();
    let mut parts = read(&fs::read_to_string(file)?, started.saturating_sub(1))?;
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        wire.note(json!({ "received": message }));
        let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else { continue };
        // What comes more often than it was recorded is answered as the last time.
        let place = parts.iter().position(|part| part.method == method && !part.is_over);
        let place = place.or_else(|| parts.iter().rposition(|part| part.method == method));
        let Some(part) = place.and_then(|place| parts.get_mut(place)) else {
            wire.answer(id, &Err(Fault::new(-32601, "this was not recorded")));
            continue;
        };
        part.is_over = true;
        for mut line in part.lines.clone() {
            if line["id"] == "ID" {
                line["id"] = id.clone();
            }
            wire.send(&line);
        }
    }
    wire.note(json!({ "eof": true }));
    Ok(ExitCode::SUCCESS)
}

/// The parts of this process of a recording, or of its last one.
fn read(text: &str, process: usize) -> io::Result<Vec<Part>> {
    let mut processes: Vec<Vec<Part>> = vec![Vec::new()];
    for line in text.lines() {
        let mut line: Value = serde_json::from_str(line)?;
        let parts = processes.last_mut().expect("there is always one");
        if let Some(method) = line["request"].as_str() {
            parts.push(Part { method: method.to_owned(), lines: Vec::new(), is_over: false });
        } else if line["ends"] == true {
            processes.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.lines.push(line["line"].take());
        }
    }
    let last = processes.len() - 1;
    Ok(processes.swap_remove(process.min(last)))
}
