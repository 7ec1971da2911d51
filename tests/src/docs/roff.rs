//! Text as roff: escaped, one sentence per line, and no line wider than a terminal.

use std::fmt::Write as _;

/// The maximum length of a line of text.
const WIDTH: usize = 78;

/// The maximum length of a bold span that is kept on one line.
const UNBROKEN: usize = 40;

/// Renders prose: text in backticks becomes bold, everything else stays unchanged.
pub fn prose(text: &str) -> String {
    let mut lines = String::new();
    for sentence in sentences(text) {
        wrap(&marked(&sentence), &mut lines);
    }
    lines
}

/// Renders a paragraph of prose.
pub fn paragraph(text: &str) -> String {
    format!(".PP\n{}", prose(text))
}

/// Renders a list entry: a tag, which is roff already, and prose.
pub fn entry(tag: &str, text: &str) -> String {
    format!(".TP\n{tag}\n{}", prose(text))
}

/// Renders a list entry without a tag.
pub fn bullet(text: &str) -> String {
    format!(".IP \\(bu 2\n{}", prose(text))
}

/// Renders the text of a table's cell. A long text becomes a block, which is wrapped.
pub fn cell(text: &str) -> String {
    let text = marked(text);
    if text.len() > 40 { format!("T{{\n{text}\nT}}") } else { text }
}

/// Renders a bold word, for a tag.
pub fn bold(word: &str) -> String {
    format!("\\fB{}\\fR", literal(word))
}

/// Renders lines verbatim, except that comments too long for a terminal are moved above their lines.
pub fn example<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = ".in +4n\n.EX\n".to_owned();
    for line in lines.into_iter().flat_map(|line| comment_above(line.trim_end())) {
        let line = literal(&line);
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        let _ = writeln!(text, "{guard}{line}");
    }
    text + ".EE\n.in\n"
}

/// The width of a terminal without the indentation of an example.
const EXAMPLE_WIDTH: usize = 80 - 7 - 4;

/// Moves the comment of a line that is too long above it, in as many lines as necessary.
fn comment_above(line: &str) -> Vec<String> {
    let Some((command, comment)) = line.split_once("  # ").filter(|_| line.len() > EXAMPLE_WIDTH) else {
        return vec![line.to_owned()];
    };
    let begin = format!("{:indent$}#", "", indent = indent(line));
    let mut lines = vec![begin.clone()];
    for word in comment.split_whitespace() {
        match lines.last_mut() {
            Some(last) if last.len() + 1 + word.len() <= EXAMPLE_WIDTH || *last == begin => {
                *last += &[" ", word].concat();
            }
            _ => lines.push(format!("{begin} {word}")),
        }
    }
    lines.push(command.trim_end().to_owned());
    lines
}

/// Renders lines of a shell verbatim, except that comments and the ends of commands that are too long for a terminal
/// get lines of their own.
pub fn shell<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let lines = lines.into_iter().flat_map(|line| comment_above(line.trim_end()));
    let lines: Vec<String> = lines.flat_map(|line| continued(&line)).collect();
    example(lines.iter().map(String::as_str))
}

/// Splits a command into lines that fit, if it has blanks outside quotes for that.
fn continued(line: &str) -> Vec<String> {
    let begin = " ".repeat(indent(line) + 4);
    let (mut lines, mut rest) = (Vec::new(), line.to_owned());
    while rest.len() > EXAMPLE_WIDTH && !rest.trim_start().starts_with('#') {
        let mut blanks = blanks(&rest).into_iter();
        let Some(at) = blanks.rfind(|at| (begin.len()..=EXAMPLE_WIDTH - 2).contains(at)) else {
            break;
        };
        lines.push(format!("{} \\", &rest[..at]));
        rest = format!("{begin}{}", &rest[at + 1..]);
    }
    lines.push(rest);
    lines
}

/// Returns the positions of the blanks outside quotes.
fn blanks(line: &str) -> Vec<usize> {
    let mut blanks = Vec::new();
    let mut quote = None;
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None | Some('"'), '\\') => drop(chars.next()),
            (None, ' ') => blanks.push(at),
            _ => {}
        }
    }
    blanks
}

/// Renders the text that clap shows after a command's options: paragraphs, and headings followed by indented lines.
/// `headings` determines whether a heading opens a section or is an ordinary line.
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

/// Cleans up roff from `clap_mangen`: wraps long lines of text, and leaves tags and requests unchanged.
pub fn tidied<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut is_tag = false;
    for line in lines {
        // clap_mangen's quote needs a definition at the head of the page.
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

/// How [`help`] renders a heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headings {
    /// As a section of the page.
    Sections,
    /// As a line before the text it belongs to.
    Lines,
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Escapes text to be shown literally: a hyphen remains one that can be pasted into a shell.
pub fn literal(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    symbols(&escaped.replace('`', "\\(ga").replace('^', "\\(ha").replace('~', "\\(ti").replace('\'', "\\(aq"))
}

/// Escapes characters that are not ASCII.
fn symbols(text: &str) -> String {
    let escape = |character: char| match character {
        '…' => "...".to_owned(),
        '→' => "\\(->".to_owned(),
        '–' => "\\(en".to_owned(),
        other if other.is_ascii() => other.to_string(),
        other => format!("\\[u{:04X}]", u32::from(other)),
    };
    text.chars().map(escape).collect()
}

fn marked(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(place, part)| {
        if place % 2 == 0 {
            return symbols(&part.replace('\\', "\\e"));
        }
        // Keep text that a reader copies on one line, if it fits.
        if part.len() <= UNBROKEN { bold(part).replace(' ', "\\ ") } else { bold(part) }
    });
    parts.collect()
}

/// Splits a paragraph into sentences. A period inside backticks does not end one.
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

/// Splits a line where it may be broken: a blank after a backslash does not break.
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
    fn overlong_comment_moves_above_its_line() {
        let short = "  make    # a note";
        assert_eq!(comment_above(short), [short]);
        let words = "word ".repeat(20);
        let lines = comment_above(&format!("  make -j8    # {words}"));
        assert_eq!(lines.last().unwrap(), "  make -j8");
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= EXAMPLE_WIDTH), "{lines:#?}");
        assert!(lines[..2].iter().all(|line| line.starts_with("  # word")), "{lines:#?}");
        let command = "x".repeat(100);
        assert_eq!(comment_above(&command), [command.as_str()]);
    }

    #[test]
    fn overlong_command_is_continued_outside_quotes() {
        let (long, quoted) = ("--option ".repeat(6), format!("\"a \\\" b {}\"", "c ".repeat(20)));
        let line = format!("  make {long}{quoted} 'd e'");
        let lines = continued(&line);
        assert_eq!(lines[0], format!("  make {long}\\"));
        assert_eq!(lines[1], format!("      {quoted} 'd e'"));
        let unbroken = format!("'{}'", "a ".repeat(60));
        assert_eq!(continued(&unbroken), [unbroken.as_str()]);
        assert_eq!(continued(&format!("# {unbroken}")).len(), 1);
    }

    #[test]
    fn headings_and_indented_lines_are_converted_to_examples() {
        let roff = help("EXAMPLES:\n  a\n    b\n\nSome\ntext.", Headings::Lines);
        assert_eq!(roff, ".PP\nExamples:\n.PP\n.in +4n\n.EX\na\n  b\n.EE\n.in\n.PP\nSome text.\n");
        assert!(help("EXAMPLES:\n  a", Headings::Sections).starts_with(".SH EXAMPLES\n"));
    }
}
