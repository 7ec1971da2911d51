//! Replays a recorded real agent: answers each request with the lines that the agent wrote when it got a request of
//! that method, in order, without interpreting them.
//!
//! A recording is a file of JSON lines: `{"request":METHOD,…}`, followed by a `{"line":…}` for each line of the agent
//! until the next request, and `{"ends":true}` where its process ended. In the lines, the id of an answer is `"ID"`.

use std::fs;
use std::io::{self, BufRead as _};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::options::Fault;
use super::wire::Wire;

/// The lines of the agent after a request.
struct Part {
    method: String,
    lines: Vec<Value>,
    /// Whether it has been replayed.
    is_over: bool,
}

/// Replays the agent until the input ends. Each process that is started replays the next process of the recording.
pub fn replay(file: &Path, home: &Path, wire: &Wire) -> io::Result<ExitCode> {
    let journal = fs::read_to_string(home.join("journal"))?;
    // The count includes this process.
    let started = journal.lines().filter(|line| line.contains(r#""started":true"#)).count();
    let mut parts = read(&fs::read_to_string(file)?, started.saturating_sub(1))?;
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        wire.note(json!({ "received": message }));
        let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else { continue };
        // A method that is called more often than recorded gets its last answer again.
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

/// Returns the parts of the process with this index, or of the last one in the recording.
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
