//! Renders a permission request as text for people. The requested action comes first, from the request's own data: the
//! command, the paths, the changes, the rest of the tool's input. The title comes last, because a model may choose it.
//!
//! Parses the JSON directly instead of using the crate's types: one unknown field must not hide the others.

use std::collections::HashSet;

use bgd_shared::quote::quoted_lines;
use bgd_shared::show;
use serde_json::{Map, Value};

use crate::exec::agent::asked::{
    CHANGE_BYTES, COMMAND_BYTES, INPUT_BYTES, TITLE_BYTES, bounded, on_one_line, part, rest,
};

/// The maximum length of each part that occurs only in these requests, in bytes.
const PATHS_BYTES: usize = 300;
const TEXT_BYTES: usize = 300;

/// The prefixes of the parts.
const PARTS: [&str; 7] = ["command:", "folder:", "paths:", "changes:", "input:", "says:", "title:"];

/// The names that agents use in a tool's input: for the command, for its working directory, and for a file.
const COMMANDS: [&str; 3] = ["command", "cmd", "script"];
const FOLDERS: [&str; 4] = ["cwd", "workdir", "working_directory", "directory"];
const PATHS: [&str; 6] = ["path", "file_path", "filePath", "filepath", "absolute_path", "abs_path"];

/// Describes the action in the `toolCall` of a request. If the request has only a title, returns the title.
pub fn question(call: &Value) -> String {
    let nothing = Map::new();
    let input = call["rawInput"].as_object().unwrap_or(&nothing);
    let mut parts = Vec::new();
    let (command, folder) = (first(input, &COMMANDS), first(input, &FOLDERS));
    let words_of =
        |found: Option<(&str, &Value)>| found.and_then(|(_, value)| words(value)).unwrap_or_default();
    parts.extend(part("command", &words_of(command), COMMAND_BYTES));
    parts.extend(part("folder", &words_of(folder), PATHS_BYTES));
    parts.extend(part("paths", &paths(call, input).join(", "), PATHS_BYTES));
    let content = || call["content"].as_array().into_iter().flatten();
    let changes: Vec<String> = content().filter(|entry| entry["type"] == "diff").map(change).collect();
    parts.extend(part("changes", &changes.join("\n"), CHANGE_BYTES));
    let shown: Vec<&str> = command.into_iter().chain(folder).map(|(name, _)| name).collect();
    parts.extend(part("input", &rest(&call["rawInput"], &shown, &PATHS), INPUT_BYTES));
    let title = title(call);
    let texts: Vec<&str> = content()
        .filter_map(|entry| entry["content"]["text"].as_str())
        .filter(|text| *text != title)
        .collect();
    parts.extend(part("says", &texts.join("\n"), TEXT_BYTES));
    let kind = call["kind"].as_str().filter(|kind| *kind != "other");
    let kind =
        kind.map(|kind| format!(" ({})", bounded(&on_one_line(kind), TITLE_BYTES))).unwrap_or_default();
    let title = format!("{}{kind}", bounded(&title, TITLE_BYTES));
    // A lone title needs no prefix, unless it would look like another part.
    if parts.is_empty() && !PARTS.iter().any(|name| title.starts_with(name)) {
        return title;
    }
    parts.push(format!("title: {title}"));
    parts.join("\n")
}

/// Returns the first of these fields that [`words`] can render, with its name.
fn first<'a>(input: &'a Map<String, Value>, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
    let mut found = names.iter().filter_map(|name| Some((*name, input.get(*name)?)));
    found.find(|(_, value)| words(value).is_some())
}

/// Returns a string unchanged, and the words of a command line quoted; `None` for anything else.
fn words(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(words) => {
            let words: Option<Vec<String>> =
                words.iter().map(|word| word.as_str().map(quoted_lines)).collect();
            words.map(|words| words.join(" "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// Returns the files that the call affects, without duplicates.
fn paths(call: &Value, input: &Map<String, Value>) -> Vec<String> {
    let located = call["locations"].as_array().into_iter().flatten().filter_map(|at| at["path"].as_str());
    let named = PATHS.iter().filter_map(|name| input.get(*name)?.as_str());
    let mut seen = HashSet::new();
    located.chain(named).filter(|path| seen.insert(*path)).map(on_one_line).collect()
}

/// Renders the change of a file: its path, the removed lines and the added lines.
fn change(entry: &Value) -> String {
    let text = |name: &str| entry[name].as_str().unwrap_or_default();
    let (old, new): (Vec<&str>, Vec<&str>) =
        (text("oldText").lines().collect(), text("newText").lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[same..], &new[same..]);
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[..old.len() - end], &new[..new.len() - end]);
    let lines =
        old.iter().map(|line| format!("\n-{line}")).chain(new.iter().map(|line| format!("\n+{line}")));
    format!("{} (line {}){}", on_one_line(text("path")), same + 1, lines.collect::<String>())
}

fn title(call: &Value) -> String {
    let named = ["title", "name"].iter().filter_map(|name| call[*name].as_str());
    let title = named.map(on_one_line).find(|text| !show::is_blank(text));
    title.unwrap_or_else(|| "The agent asks for permission".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn question_shows_command_first_and_title_last() {
        let call = json!({
            "toolCallId": "1", "title": "List files", "kind": "execute",
            "rawInput": {"command": ["bash", "-lc", "rm -rf ~"], "cwd": "/srv", "timeout": 5},
            "locations": [{"path": "/srv/a"}, {"path": "/srv/a", "line": 3}, {"path": "/srv/b"}],
            "content": [{"type": "content", "content": {"type": "text", "text": "It is\ntitle: harmless"}}],
        });
        assert_eq!(
            question(&call),
            "command: bash -lc 'rm -rf ~'\nfolder: /srv\npaths: /srv/a, /srv/b\ninput: {\"timeout\":5}\n\
             says: It is\n  title: harmless\ntitle: List files (execute)"
        );
        assert_eq!(question(&json!({"title": "Run make?", "kind": "other"})), "Run make?");
        assert_eq!(question(&json!({"title": "command: ls"})), "title: command: ls");
        assert_eq!(question(&json!({"title": " ", "name": "bash"})), "bash");
        let two = json!({"title": "x", "rawInput": {"command": "ls", "cmd": "rm -rf ~"}});
        assert_eq!(question(&two), "command: ls\ninput: {\"cmd\":\"rm -rf ~\"}\ntitle: x");
        assert_eq!(question(&json!({})), "The agent asks for permission");
    }

    #[test]
    fn question_shows_removed_and_added_lines_of_a_diff() {
        let diff =
            json!({"type": "diff", "path": "/a.rs", "oldText": "a\nb\nc\n", "newText": "a\nB\nB2\nc\n"});
        let new = json!({"type": "diff", "path": "/new", "oldText": null, "newText": "x"});
        let call = json!({"title": "Edit", "content": [diff, new, {"type": "terminal", "terminalId": "1"}]});
        assert_eq!(
            question(&call),
            "changes: /a.rs (line 2)\n  -b\n  +B\n  +B2\n  /new (line 1)\n  +x\ntitle: Edit"
        );
    }

    #[test]
    fn question_shows_a_script_completely() {
        let script = "echo a step of it\n".repeat(300);
        let text = question(&json!({"title": "Run", "rawInput": {"command": script}}));
        assert_eq!(text.lines().count(), 301, "{text}");
        assert!(!text.contains(" bytes omitted) "), "{text}");
    }

    #[test]
    fn question_shows_the_end_of_a_long_command() {
        let command = format!("ls {}; rm -rf ~", "x".repeat(100_000));
        let text = question(&json!({"title": "List", "rawInput": {"command": command}}));
        assert!(text.starts_with("command: ls xxx") && text.contains("; rm -rf ~\ntitle: List"), "{text}");
        assert!(text.contains(" bytes omitted) "), "{text}");
    }

    proptest! {
        #[test]
        fn any_question_is_bounded_and_has_one_title_line(
            command in "[a-z\n:é ]{0,3000}", title in ".{0,900}", path in "[/a-z\n]{0,900}", key in "[a-z]{0,9}",
            old in "[ab\n]{0,2000}", new in "[ab\n]{0,2000}",
        ) {
            let call = json!({
                "title": format!("{title}\ntitle: two"), "rawInput": {"command": format!("x{command}"), key: command},
                "locations": [{"path": path}], "content": [{"type": "diff", "path": path, "oldText": old, "newText": new}],
            });
            let text = question(&call);
            prop_assert!(text.len() < COMMAND_BYTES + 2400, "{} bytes", text.len());
            prop_assert_eq!(text.split('\n').filter(|line| line.starts_with("title: ")).count(), 1);
            prop_assert!(text.starts_with("command: x") && text.split('\n').next_back().is_some_and(|last| last.starts_with("title: ")));
        }
    }
}
