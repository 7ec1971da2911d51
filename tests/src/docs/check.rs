//! Parses pages back from their roff, so that tests can check their contents.

/// Returns the first bold word of the tag of every entry (`.TP`) in a section (`.SH`) of a page, or only in a
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

/// Returns the titles of a section's subsections.
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

/// Returns the text of the entry with this tag, up to the next request.
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

/// Returns the words of a page without roff escapes, split at characters that names do not contain.
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

/// Removes fonts and escapes from a text.
pub fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for (escape, meaning) in
        [("\\fB", ""), ("\\fI", ""), ("\\fR", ""), ("\\fP", ""), ("\\-", "-"), ("\\&", ""), ("\\ ", " ")]
    {
        text = text.replace(escape, meaning);
    }
    text
}

/// Returns the code blocks of a Markdown text: language (empty if it has none) and lines.
pub fn code_blocks(text: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some((_, block)) = rest.split_once("\n```") {
        let (language, block) = block.split_once('\n').unwrap_or_default();
        let (lines, after) = block.split_once("```").unwrap_or_default();
        blocks.push((language, lines));
        rest = after;
    }
    blocks
}

/// Returns the code blocks in this language of a file in the workspace.
pub fn blocks(path: &str, language: &str) -> Vec<String> {
    let text = super::read(path);
    let blocks = code_blocks(&text).into_iter().filter(|(of, _)| *of == language);
    blocks.map(|(_, lines)| lines.to_owned()).collect()
}
