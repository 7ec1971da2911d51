//! Parses pages back from their roff, so that tests can check what they say.

/// The first bold word of the tag of every entry (`.TP`) in a section (`.SH`) of a page, or only in a
/// subsection (`.SS`) of it.
pub fn bold_tags_of_section(page: &str, section: &str, subsection: Option<&str>) -> Vec<String> {
    let heading = |line: &str, request: &str| -> Option<String> {
        line.strip_prefix(request).map(|title| title.trim().trim_matches('"').to_owned())
    };
    let (mut in_section, mut in_part) = (false, subsection.is_none());
    let mut tags = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = heading(line, ".SH ") {
            in_section = title == section;
            in_part = subsection.is_none();
        } else if let Some(title) = heading(line, ".SS ") {
            in_part = subsection.is_none_or(|part| title == part);
        } else if line == ".TP" && in_section && in_part {
            tags.extend(lines.next().and_then(bold_word));
        }
    }
    tags
}

/// The titles of a section's subsections.
pub fn subsections(page: &str, section: &str) -> Vec<String> {
    let mut inside = false;
    let mut titles = Vec::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix(".SH ") {
            inside = title.trim_matches('"') == section;
        } else if let Some(title) = line.strip_prefix(".SS ").filter(|_| inside) {
            titles.push(plain(title.trim_matches('"')));
        }
    }
    titles
}

/// The text of the entry with this tag, up to the next request.
pub fn text_of_tag(page: &str, tag: &str) -> Option<String> {
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line == ".TP" && lines.next().and_then(bold_word).as_deref() == Some(tag) {
            return Some(plain(
                &lines.take_while(|line| !line.starts_with('.')).collect::<Vec<_>>().join(" "),
            ));
        }
    }
    None
}

/// The words of a page without roff escapes, split at characters that names do not contain.
pub fn names(page: &str) -> Vec<String> {
    let text = plain(page);
    let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '-');
    let words = text.split(|character| !is_part(character));
    words
        .map(|word| word.trim_end_matches(['.', '-']).trim_start_matches('-').to_owned())
        .filter(|word| !word.is_empty())
        .collect()
}

fn bold_word(tag: &str) -> Option<String> {
    let rest = match tag.strip_prefix(".B ").or_else(|| tag.strip_prefix(".BR ")) {
        Some(rest) => rest.split(' ').next()?,
        None => tag.strip_prefix("\\fB")?.split("\\fR").next()?,
    };
    Some(plain(rest.trim_matches('"')))
}

/// Text without fonts and escapes.
fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for (escape, meaning) in
        [("\\fB", ""), ("\\fI", ""), ("\\fR", ""), ("\\fP", ""), ("\\-", "-"), ("\\&", ""), ("\\ ", " ")]
    {
        text = text.replace(escape, meaning);
    }
    text
}

/// The code blocks in this language in a section (`##`) of a Markdown text.
pub fn code_blocks<'text>(text: &'text str, section: &str, language: &str) -> Vec<&'text str> {
    let heading = format!("\n## {section}\n");
    let Some((_, rest)) = text.split_once(&heading) else { return Vec::new() };
    let section = rest.split("\n## ").next().unwrap_or_default();
    let fence = format!("```{language}\n");
    section.split(&fence).skip(1).filter_map(|block| block.split("```").next()).collect()
}
