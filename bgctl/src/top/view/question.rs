//! An agent's question as lines of a given width, with nothing left out: it is read before it is allowed. No I/O.

use bgd_shared::question::NeedsInput;

use super::text::broken;
use crate::options::pick;
use crate::render::question::{behind, options};
use crate::render::{clean, clean_lines};

/// Returns the text of a question, safe to show, with blanks for tabs, which the cells of a screen can't hold.
pub fn text(asked: &NeedsInput) -> String {
    clean_lines(asked.question.trim_end()).replace('\t', " ")
}

/// Returns the whole question and its options as lines of this many columns.
pub fn lines(asked: &NeedsInput, columns: usize) -> Vec<String> {
    let text = format!("{}\n\n{}", text(asked), options(asked));
    let after = behind(asked).map(|words| format!("\n{words}")).unwrap_or_default();
    (text + &after).lines().flat_map(|line| broken(line, columns)).collect()
}

/// Says what the keys do: `y` allows only if the end of the question is visible.
pub fn keys(asked: &NeedsInput, shows_end: bool) -> String {
    let named = |word| match pick(&asked.options, word) {
        Ok(Some(option)) => clean(&option.name),
        Ok(None) => "deny".to_owned(),
        Err(why) => why,
    };
    let y = if shows_end { named("allow") } else { "show the rest".to_owned() };
    format!("y {y}  n {}  any other key returns", named("deny"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    #[test]
    fn r162_question_is_shown_whole_with_its_options() {
        let asked = NeedsInput {
            question: "Run `rm -rf /`?\nIn \x1b[2J/src.\n".into(),
            waiting: 1,
            ..samples::question()
        };
        let wanted = [
            "Run `rm -rf",
            " /`?",
            "In \u{fffd}[2J/src",
            ".",
            "",
            "  once    A",
            "llow once (",
            "allows it o",
            "nce)",
            "  reject  N",
            "o (denies i",
            "t once)",
            "",
            "1 more ques",
            "tion is wai",
            "ting",
        ];
        assert_eq!(lines(&asked, 11), wanted);
        assert_eq!(keys(&asked, true), "y Allow once  n No  any other key returns");
        assert_eq!(keys(&asked, false), "y show the rest  n No  any other key returns");
        let none = NeedsInput { options: Vec::new(), ..asked };
        assert_eq!(keys(&none, true), "y no option can allow it  n deny  any other key returns");
    }
}
