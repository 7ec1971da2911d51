//! The guides in `man/`: Markdown for readers of the repository, and the man pages made of it.
//!
//! A guide begins with `# name(7): what it is about`. It may use paragraphs, headings, lists of one level, tables,
//! blocks of code, and in its text code, bold words and links; [`page`] panics at anything else, so that nothing is
//! left out.

use std::fmt::Write as _;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::roff::{bold, bullet, cell, example, literal, paragraph, shell};
use super::{DATE, MANUAL};

/// The names of the guides: each is `man/NAME.md`, and `man/NAME.7` as a man page.
pub const GUIDES: [&str; 8] = [
    "bgd-agents",
    "bgd-authors",
    "bgd-guarantees",
    "bgd-mcp",
    "bgd-notifications",
    "bgd-order",
    "bgd-remote",
    "bgd-shell",
];

/// The other pages, with their sections.
const OTHERS: [(&str, u8); 5] =
    [("bgctl", 1), ("bgd", 1), ("bgd-config", 5), ("bgd-executors", 7), ("bgd-protocol", 7)];

/// Returns the section SEE ALSO of the page with this name: all other pages.
pub fn see_also(name: &str) -> String {
    let guides = GUIDES.iter().map(|guide| (*guide, 7));
    let pages = OTHERS.into_iter().chain(guides).filter(|(page, _)| *page != name);
    let lines: Vec<String> =
        pages.map(|(page, section)| format!(".BR {} ({section})", literal(page))).collect();
    format!(".SH \"SEE ALSO\"\n{}\n", lines.join(",\n"))
}

/// Returns the man page of a guide.
///
/// # Panics
/// The text contains something that the page can't have, such as characters that are not ASCII and have no name in
/// roff, or begins in another form than required.
pub fn page(name: &str, text: &str) -> String {
    let mut writer = Writer::default();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        writer.take(name, event);
    }
    // A terminal without UTF-8 would not show these characters, and man(1) warns.
    assert!(!writer.page.contains("\\[u"), "{name}: it has characters that not every terminal has");
    writer.page + &see_also(name)
}

#[derive(Debug, Default)]
struct Writer {
    page: String,
    /// Whether a section was opened; the text before the first heading is in DESCRIPTION.
    in_section: bool,
    /// Text of the current block, with code and bold words in backticks.
    text: String,
    is_bold: bool,
    /// Whether the current code is for a shell.
    is_shell: bool,
    /// Cells of the current row.
    row: Vec<String>,
}

impl Writer {
    fn take(&mut self, name: &str, event: Event<'_>) {
        match event {
            Event::Text(text) if self.is_bold => self.text += &["`", &text, "`"].concat(),
            Event::Text(text) => self.text += &text,
            Event::Code(code) => self.text += &["`", &code, "`"].concat(),
            Event::SoftBreak => self.text.push(' '),
            Event::Start(tag) => self.open(&tag),
            Event::End(tag) => self.close(name, tag),
            other => panic!("{name}: a man page can't have {other:?}"),
        }
    }

    fn open(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Strong | Tag::Emphasis => self.is_bold = true,
            Tag::Table(columns) => {
                self.describe();
                let widths: Vec<_> = (1..columns.len()).map(|_| "l2").chain(["lx."]).collect();
                self.page += &[".PP\n.TS\n", &widths.join(" "), "\n"].concat();
            }
            Tag::CodeBlock(kind) => {
                self.describe();
                self.text.clear();
                self.is_shell = matches!(kind, CodeBlockKind::Fenced(language) if &**language == "sh");
            }
            Tag::Paragraph | Tag::Heading { .. } | Tag::Item | Tag::TableCell => self.text.clear(),
            Tag::List(None) | Tag::TableHead | Tag::TableRow | Tag::Link { .. } => {}
            other => panic!("a man page can't have {other:?}"),
        }
    }

    fn close(&mut self, name: &str, tag: TagEnd) {
        match tag {
            TagEnd::Strong | TagEnd::Emphasis => self.is_bold = false,
            TagEnd::Heading(HeadingLevel::H1) => self.begin(name),
            TagEnd::Heading(level) => {
                self.in_section = true;
                let _ = match level {
                    HeadingLevel::H2 => {
                        writeln!(self.page, ".SH \"{}\"", literal(&self.text.to_uppercase()))
                    }
                    _ => writeln!(self.page, ".SS \"{}\"", literal(&self.text)),
                };
            }
            TagEnd::Paragraph => {
                self.describe();
                self.page += &paragraph(&self.text);
            }
            TagEnd::Item => {
                self.describe();
                self.page += &bullet(&self.text);
            }
            TagEnd::CodeBlock => {
                let lines = self.text.lines();
                let lines = if self.is_shell { shell(lines) } else { example(lines) };
                self.page += &[".PP\n", &lines].concat();
            }
            TagEnd::TableCell => self.row.push(std::mem::take(&mut self.text)),
            TagEnd::TableHead => {
                let head: Vec<String> = self.row.drain(..).map(|word| bold(&word)).collect();
                let _ = writeln!(self.page, "{}", head.join("\t"));
            }
            TagEnd::TableRow => {
                let cells: Vec<String> = self.row.drain(..).map(|text| cell(&text)).collect();
                let _ = writeln!(self.page, "{}", cells.join("\t"));
            }
            TagEnd::Table => self.page += ".TE\n",
            _ => {}
        }
    }

    /// Writes the head of the page, from the first line of the guide.
    fn begin(&mut self, name: &str) {
        let about = self.text.strip_prefix(&format!("{name}(7): "));
        let about = about.unwrap_or_else(|| panic!("{name}: it must begin with '# {name}(7): '"));
        let (refresh, name) = (super::REFRESH, literal(name));
        self.page = format!(
            "'\\\" t\n.\\\" Made by: {refresh}\n.TH {name} 7 {DATE} \"bgd\" \"{MANUAL}\"\n.SH NAME\n{name} \\- {about}\n"
        );
    }

    /// Opens the section for the text before the first heading.
    fn describe(&mut self) {
        if !std::mem::replace(&mut self.in_section, true) {
            self.page += ".SH DESCRIPTION\n";
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_is_converted_to_a_man_page() {
        let text = "# x(7): some\n\nIt is `a-b`, **so to say**, [here](x.md).\n\n## Two of\n\n- one\n  more\n- two\n\n\
            ```sh\n.a | b\n```\n\n| k | v |\n|---|---|\n| `c` | d |\n";
        let page = page("x", text);
        let (head, rest) = page.split_once(".SH DESCRIPTION\n").unwrap();
        assert!(head.ends_with(".SH NAME\nx \\- some\n"), "{head}");
        let (body, also) = rest.split_once(".SH \"SEE ALSO\"\n").unwrap();
        assert_eq!(
            body,
            ".PP\nIt is \\fBa\\-b\\fR, \\fBso\\ to\\ say\\fR, here.\n.SH \"TWO OF\"\n.IP \\(bu 2\none more\n\
             .IP \\(bu 2\ntwo\n.PP\n.in +4n\n.EX\n\\&.a | b\n.EE\n.in\n.PP\n.TS\nl2 lx.\n\\fBk\\fR\t\\fBv\\fR\n\
             \\fBc\\fR\td\n.TE\n"
        );
        assert!(also.contains(".BR bgd\\-protocol (7),\n"), "{also}");
        assert!(!see_also("bgd-mcp").contains("bgd\\-mcp"));
    }
}
