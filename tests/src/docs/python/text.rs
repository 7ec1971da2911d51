//! Text for Python sources: wrapped docstrings, and prose parsed back from a page.

use super::super::check;

/// The longest line of a generated source, in characters.
const WIDTH: usize = 100;

/// Wraps a text whose lines begin with this many spaces.
pub fn wrapped(text: &str, indent: usize, hanging: usize) -> String {
    let mut lines = String::new();
    let mut line = " ".repeat(indent);
    let mut is_empty = true;
    for word in escaped(text).split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += line.trim_end();
            lines.push('\n');
            line = " ".repeat(indent + hanging);
        } else if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    lines + &line + "\n"
}

/// Formats a docstring of one or more paragraphs, each wrapped.
pub fn docstring(text: &str, indent: usize) -> String {
    let space = " ".repeat(indent);
    let paragraphs: Vec<String> = text
        .split("\n\n")
        .filter(|part| !part.trim().is_empty())
        .map(|part| wrapped(part, indent, 0))
        .collect();
    let body = paragraphs.join("\n");
    let body = body.trim();
    if body.contains('\n') || body.len() + indent + 6 > WIDTH {
        format!("{space}\"\"\"{body}\n{space}\"\"\"\n")
    } else {
        format!("{space}\"\"\"{body}\"\"\"\n")
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace("\"\"\"", "'''")
}

/// Converts `needs_input` to `NeedsInput`.
pub fn camel_case(name: &str) -> String {
    let capital = |word: &str| {
        let mut chars = word.chars();
        chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
    };
    name.split(['_', '-']).map(capital).collect()
}

/// Returns the first paragraph of a method's description on the protocol's page.
///
/// # Panics
/// The page has no such paragraph.
pub fn summary(page: &str, method: &str) -> String {
    let heading = format!("\n.SS {method}\n");
    let (_, rest) =
        page.split_once(&heading).unwrap_or_else(|| panic!("the page does not describe {method}"));
    let lines = rest.lines().take_while(|line| !is_end(line));
    let text = lines.map(spoken).collect::<Vec<_>>().join(" ");
    assert!(!text.is_empty(), "the page says nothing about {method}");
    text
}

fn is_end(line: &str) -> bool {
    [".PP", ".SS", ".SH", ".TP", ".in", ".\\\""].iter().any(|request| line.starts_with(request))
}

/// Renders a line of roff as plain text. In requests for two alternating fonts the words are not separated.
fn spoken(line: &str) -> String {
    let line = check::plain(line);
    let Some((request, words)) = line.strip_prefix('.').and_then(|line| line.split_once(' ')) else {
        return line;
    };
    match request {
        "B" | "I" => format!("`{}`", words.trim_matches('"')),
        "BR" | "IR" => match words.split_once(' ') {
            Some((marked, plain)) => format!("`{marked}`{}", plain.replace([' ', '"'], "")),
            None => format!("`{words}`"),
        },
        "RB" | "RI" => match words.split_once(' ') {
            Some((plain, marked)) => {
                let (marked, end) = marked.split_once(' ').unwrap_or((marked, ""));
                format!("{}`{marked}`{}", plain.replace('"', ""), end.replace([' ', '"'], ""))
            }
            None => words.to_owned(),
        },
        _ => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roff_requests_are_converted_to_words() {
        assert_eq!(spoken(".BR task.block ,"), "`task.block`,");
        assert_eq!(spoken(".RB ( waiting )"), "(`waiting`)");
        assert_eq!(spoken(".B max\\-fails"), "`max-fails`");
        assert_eq!(spoken("Plain \\fBbold\\fR text"), "Plain bold text");
    }

    #[test]
    fn wrapped_lines_fit_the_width() {
        let text = wrapped(&"word ".repeat(100), 8, 4);
        assert!(text.lines().all(|line| line.len() <= WIDTH && line.starts_with("        ")), "{text}");
        assert_eq!(text.split_whitespace().count(), 100);
    }

    #[test]
    fn names_are_converted_to_class_names() {
        assert_eq!(camel_case("needs_input"), "NeedsInput");
        assert_eq!(camel_case("internal"), "Internal");
    }
}
