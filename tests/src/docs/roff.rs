//! Text as roff: escaped, with one sentence a line, and no line longer than a terminal is wide.

use std::fmt::Write as _;

/// The longest line of text.
const WIDTH: usize = 78;

/// The longest part in bold that is never broken into lines.
const UNBROKEN: usize = 40;

/// Prose: what stands between backticks becomes bold; everything else stays as it is.
pub fn prose(text: &str) -> String {
    let mut lines = String::new();
    for sentence in sentences(text) {
        wrap(&marked(&sentence), &mut lines);
    }
    lines
}

/// A paragraph of prose.
pub fn paragraph(text: &str) -> String {
    format!(".PP\n{}", prose(text))
}

/// An entry of a list: a tag that is roff already, and prose.
pub fn entry(tag: &str, text: &str) -> String {
    format!(".TP\n{tag}\n{}", prose(text))
}

/// An entry of a list without tags.
pub fn bullet(text: &str) -> String {
    format!(".IP \\(bu 2\n{}", prose(text))
}

/// A word in bold, for a tag.
pub fn bold(word: &str) -> String {
    format!("\\fB{}\\fR", literal(word))
}

/// Lines that are shown as they are.
pub fn example<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = ".in +4n\n.EX\n".to_owned();
    for line in lines {
        let line = literal(line.trim_end());
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        let _ = writeln!(text, "{guard}{line}");
    }
    text + ".EE\n.in\n"
}

/// What clap shows behind a command's options: paragraphs, and headings with indented lines below.
/// `headings` says whether a heading opens a section of its own or is just a line.
pub fn help(text: &str, headings: Headings) -> String {
    let mut roff = String::new();
    for block in text.split("\n\n") {
        let mut lines = block.lines().peekable();
        let first = block.lines().next().unwrap_or_default();
        let heading = first.strip_suffix(':').filter(|_| !first.starts_with(' '));
        if let Some(heading) = heading {
            lines.next();
            match headings {
                Headings::Sections => {
                    let _ = writeln!(roff, ".SH {}", heading.to_uppercase());
                }
                Headings::Lines => {
                    let heading = heading[..1].to_owned() + &heading[1..].to_lowercase();
                    let _ = write!(roff, ".PP\n{heading}:\n");
                }
            }
        }
        if lines.peek().is_some_and(|line| line.starts_with("  ")) {
            let least = block.lines().skip(usize::from(heading.is_some())).map(indent).min().unwrap_or(0);
            if heading.is_none() || headings == Headings::Lines {
                roff += ".PP\n";
            }
            roff += &example(lines.map(|line| line.get(least..).unwrap_or_default()));
        } else if lines.peek().is_some() {
            roff += &paragraph(&lines.collect::<Vec<_>>().join(" "));
        }
    }
    roff
}

/// Roff of another hand: long lines of text are wrapped, tags and requests stay as they are.
pub fn tidied<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut is_tag = false;
    for line in lines {
        // The quote of clap_mangen needs a definition at the head of the page.
        let line = line.trim_end().replace("\\*(Aq", "\\(aq");
        if line.is_empty() || (line == ".br" && text.ends_with("\n.br\n")) {
            continue;
        }
        if line.starts_with('.') || is_tag {
            text += &line;
            text.push('\n');
        } else {
            line.replace(". ", ".\n").lines().for_each(|sentence| wrap(sentence, &mut text));
        }
        is_tag = line == ".TP";
    }
    text
}

/// What becomes of a heading in [`help`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headings {
    /// A section of the page.
    Sections,
    /// A line before what follows.
    Lines,
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Characters that are meant as they are: a hyphen is one that can be copied into a shell.
pub fn literal(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    symbols(&escaped.replace('`', "\\(ga").replace('^', "\\(ha").replace('~', "\\(ti").replace('\'', "\\(aq"))
}

/// The characters beyond ASCII that the help texts use.
fn symbols(text: &str) -> String {
    text.replace('…', "...").replace('→', "\\(->").replace('–', "\\(en")
}

fn marked(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(place, part)| {
        if place % 2 == 0 {
            return symbols(&part.replace('\\', "\\e"));
        }
        // What a reader copies stays in one line, where it fits into one.
        if part.len() <= UNBROKEN { bold(part).replace(' ', "\\ ") } else { bold(part) }
    });
    parts.collect()
}

/// The sentences of a paragraph. A period inside of backticks ends none.
fn sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    let mut quoted = false;
    for word in text.split_whitespace() {
        let Some(sentence) = sentences.last_mut() else { continue };
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        quoted ^= word.matches('`').count() % 2 == 1;
        if !quoted && word.ends_with(['.', ':', ';']) {
            sentences.push(String::new());
        }
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// What a line may be broken between: a blank behind a backslash is one that stays.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut is_escaped = false;
    let is_end = move |c: char| {
        let ends = c == ' ' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    };
    text.split(is_end).filter(|word| !word.is_empty())
}

fn wrap(text: &str, into: &mut String) {
    let mut length = 0;
    for word in words(text) {
        if length > 0 && length + 1 + word.len() > WIDTH {
            into.push('\n');
            length = 0;
        }
        if length > 0 {
            into.push(' ');
            length += 1;
        } else if word.starts_with(['.', '\'']) {
            into.push_str("\\&");
        }
        into.push_str(word);
        length += word.len();
    }
    into.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_escaped_and_wrapped_by_sentences() {
        assert_eq!(prose("One `a-b` \\ two. Three."), "One \\fBa\\-b\\fR \\e two.\nThree.\n");
        assert_eq!(prose(".x 'y"), "\\&.x 'y\n");
        let line = format!("{} `bgctl daemon stop`.", "w".repeat(62));
        assert_eq!(prose(&line), format!("{}\n\\fBbgctl\\ daemon\\ stop\\fR.\n", "w".repeat(62)));
        assert!(prose(&"word ".repeat(40)).lines().all(|line| line.len() <= WIDTH));
    }

    #[test]
    fn headings_and_indented_lines_become_examples() {
        let roff = help("EXAMPLES:\n  a\n    b\n\nSome\ntext.", Headings::Lines);
        assert_eq!(roff, ".PP\nExamples:\n.PP\n.in +4n\n.EX\na\n  b\n.EE\n.in\n.PP\nSome text.\n");
        assert!(help("EXAMPLES:\n  a", Headings::Sections).starts_with(".SH EXAMPLES\n"));
    }
}
