//! What a prompt says about the tasks that it came after (R104): `{after.result}`, `{after.output}`, `{after.file}` and
//! `{after.status}` for the first of them, `{after.2.result}` and so on for the others.

use std::sync::Arc;

use bgd_shared::limits::FRAME_BYTES;
use bgd_shared::request::Stream;

use crate::core::AfterTask;
use crate::exec::output::{OutputFolder, Part};
use crate::exec::results;

/// The bytes of an output or a result that a prompt gets: the last ones.
const SHOWN_BYTES: u64 = 32 * 1024;

/// The most bytes of a prompt with what was put in. A placeholder that would make it longer stays as it is.
const FILLED_BYTES: usize = FRAME_BYTES;

/// What every placeholder begins with.
const BEGINNING: &str = "{after.";

/// Whether a prompt may have placeholders.
pub fn has_any(prompt: &str) -> bool {
    prompt.contains(BEGINNING)
}

/// The prompt with what its placeholders stand for. What is none, or stands for a task that there is not, stays as it
/// is. What is put in is not looked at again. It reads files.
pub fn fill_in(prompt: &str, after: &[AfterTask], folder: &OutputFolder) -> Arc<str> {
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

/// What `2.result` or `result` stands for.
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
        "result" => text(results::result(task, folder)),
        _ => return None,
    })
}

/// The end of what was read.
fn text(part: std::io::Result<Part>) -> String {
    let bytes = match part {
        Ok(part) => part.bytes,
        Err(error) => return format!("(can't be read: {error})"),
    };
    #[allow(clippy::cast_possible_truncation, reason = "32 KiB")]
    let from = bytes.len().saturating_sub(SHOWN_BYTES as usize);
    String::from_utf8_lossy(&bytes[from..]).into_owned()
}
