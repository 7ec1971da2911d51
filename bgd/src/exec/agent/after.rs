//! Placeholders in a prompt for the tasks that it ran after (R104): `{after.result}`, `{after.output}`,
//! `{after.file}` and `{after.status}` for the first task, `{after.2.result}` and so on for the others.

use std::sync::Arc;

use bgd_shared::limits::FRAME_BYTES;
use bgd_shared::request::Stream;

use super::order::TurnOrder;
use crate::core::AfterTask;
use crate::exec::context::Context;
use crate::exec::output::results;
use crate::exec::output::{OutputFolder, Part};

/// The maximum length of an output or a result in a prompt, in bytes; the beginning of a longer one is left out.
const SHOWN_BYTES: u64 = 32 * 1024;

/// The maximum length of a prompt after substitution, in bytes. A placeholder that would exceed this limit is left as
/// it is.
const FILLED_BYTES: usize = FRAME_BYTES;

/// The prefix of every placeholder.
const BEGINNING: &str = "{after.";

/// Fills in the prompt's placeholders for the tasks that it ran after.
pub async fn with_prompt(mut order: TurnOrder, context: &Context) -> TurnOrder {
    if order.after.is_empty() || !has_any(&order.prompt) {
        return order;
    }
    let (prompt, others) = (Arc::clone(&order.prompt), std::mem::take(&mut order.after));
    let folder = Arc::clone(&context.folder);
    // If the worker panics, the prompt is left as written: the unfilled placeholders show that something went wrong.
    if let Some(prompt) = context.workers.run(move || fill_in(&prompt, &others, &folder)).await {
        order.prompt = prompt;
    }
    order
}

/// Returns whether a prompt may contain placeholders.
fn has_any(prompt: &str) -> bool {
    prompt.contains(BEGINNING)
}

/// Substitutes the placeholders in a prompt. Unknown placeholders, and placeholders for a task that does not exist, are
/// left as they are. Substituted text is not scanned again. Reads files, so it blocks.
fn fill_in(prompt: &str, after: &[AfterTask], folder: &OutputFolder) -> Arc<str> {
    let mut filled = String::with_capacity(prompt.len());
    let mut rest = prompt;
    while let Some(place) = rest.find(BEGINNING) {
        let (before, from) = rest.split_at(place);
        filled.push_str(before);
        let found = from
            .find('}')
            .filter(|_| filled.len() < FILLED_BYTES)
            .and_then(|end| Some((end, stands_for(&from[BEGINNING.len()..end], after, folder)?)))
            .filter(|(_, text)| filled.len() + text.len() <= FILLED_BYTES);
        if let Some((end, text)) = found {
            filled.push_str(&text);
            rest = &from[end + 1..];
        } else {
            filled.push_str(BEGINNING);
            rest = &from[BEGINNING.len()..];
        }
    }
    filled.push_str(rest);
    filled.into()
}

/// Returns the text for a placeholder such as `result` or `2.result`; `None` if the placeholder is unknown.
fn stands_for(name: &str, after: &[AfterTask], folder: &OutputFolder) -> Option<String> {
    let (number, field) = match name.split_once('.') {
        Some((number, field)) => (number.parse::<usize>().ok()?, field),
        None => (1, name),
    };
    let other = after.get(number.checked_sub(1)?)?;
    let Some(task) = &other.task else {
        let is_known = ["status", "file", "output", "result"].contains(&field);
        return is_known.then(|| format!("(task {} was cleared)", other.id));
    };
    Some(match field {
        "status" => task.status().to_string(),
        "file" => folder.files_of(task.id, &task.spec).path(Stream::Stdout).to_string_lossy().into_owned(),
        "output" => text(results::end_of_output(task, folder, SHOWN_BYTES)),
        "result" if task.agent.as_deref().is_some_and(|agent| agent.answered == 0) => {
            format!("(task {} is {} and has given no answer)", task.id, task.status())
        }
        "result" => text(results::result(task, folder)),
        _ => return None,
    })
}

/// Returns the last [`SHOWN_BYTES`] of the text, or a note that it can't be read.
fn text(part: std::io::Result<Part>) -> String {
    let bytes = match part {
        Ok(part) => part.bytes,
        Err(error) => return format!("(can't be read: {error})"),
    };
    #[allow(clippy::cast_possible_truncation, reason = "32 KiB")]
    let from = bytes.len().saturating_sub(SHOWN_BYTES as usize);
    String::from_utf8_lossy(&bytes[from..]).into_owned()
}
