//! Parses a console line. Shell syntax is left to the shell: this only determines whether the line ends in `&`, and
//! whether it is one plain command that may be a built-in of the console.

use bgd_shared::id::TaskRef;

/// The meaning of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// An empty line or a comment.
    Nothing,
    Builtin(Builtin),
    /// A line for the shell.
    Job {
        /// The line, without the parts that are only for the console.
        text: String,
        /// Whether it begins with `!`, which starts it directly.
        direct: bool,
        /// Whether it ends in `&`, which runs it next to the prompt.
        beside: bool,
    },
    /// A prompt for an agent.
    Prompt {
        /// The name of the agent; `None` for the configured one.
        agent: Option<String>,
        text: String,
    },
}

/// A built-in of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// Changes the folder of later jobs. Contains the words after `cd`, for a shell.
    Cd(String),
    /// Leaves the console with this exit code.
    Exit(u8),
    /// Shows the help.
    Help,
    /// Lists the jobs.
    Jobs,
    /// Gives the terminal to a job.
    Fg(JobSelector),
}

/// A job as named by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobSelector {
    /// The latest job next to the prompt.
    Latest,
    /// The number shown in brackets.
    Number(usize),
    /// Any task.
    Task(TaskRef),
}

/// Parses a line.
///
/// # Errors
/// A message with the problem in the line, and how to fix it.
pub fn read(text: &str) -> Result<Line, String> {
    let text = text.trim();
    if let Some(prompt) = text.strip_prefix('@') {
        return read_prompt(prompt);
    }
    if let Some(line) = text.strip_prefix('!') {
        return match read_job(line.trim_start(), true) {
            Line::Nothing => Err("`!` needs a command: `!COMMAND` runs it directly".to_owned()),
            line => Ok(line),
        };
    }
    if let Some(own) = read_own(text)? {
        return Ok(Line::Builtin(own));
    }
    Ok(read_job(text, false))
}

fn read_prompt(text: &str) -> Result<Line, String> {
    let (agent, prompt) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let prompt = prompt.trim();
    if prompt.is_empty() {
        let advice = "use `@AGENT PROMPT`, or `@ PROMPT` for the default agent";
        return Err(format!("`@{agent}` needs a prompt: {advice}"));
    }
    let agent = (!agent.is_empty()).then(|| agent.to_owned());
    Ok(Line::Prompt { agent, text: prompt.to_owned() })
}

fn read_job(text: &str, direct: bool) -> Line {
    let shape = shape(text);
    if shape.end == 0 {
        return Line::Nothing;
    }
    let (text, beside) = match shape.ampersand.map(|at| text[..at].trim_end()) {
        // A lone `&` is left for the shell to reject.
        Some(before) if !before.is_empty() => (before, true),
        _ => (text, false),
    };
    Line::Job { text: text.to_owned(), direct, beside }
}

fn read_own(text: &str) -> Result<Option<Builtin>, String> {
    let shape = shape(text);
    if !shape.is_plain {
        return Ok(None);
    }
    let text = &text[..shape.end];
    let (verb, words) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let words = words.trim();
    Ok(Some(match (verb, words) {
        ("cd", words) => Builtin::Cd(words.to_owned()),
        ("exit", "") => Builtin::Exit(0),
        ("exit", code) => {
            let code = code.parse().map_err(|_| format!("exit takes a code from 0 to 255, not `{code}`"))?;
            Builtin::Exit(code)
        }
        ("help", "") => Builtin::Help,
        ("jobs", "") => Builtin::Jobs,
        ("fg", "") => Builtin::Fg(JobSelector::Latest),
        ("fg", word) => Builtin::Fg(read_which(word)?),
        _ => return Ok(None),
    }))
}

fn read_which(word: &str) -> Result<JobSelector, String> {
    let advice = "`fg %1` takes job 1, `fg ID` any task";
    let wrong = || format!("`{word}` is not a job: {advice}");
    match word.strip_prefix('%') {
        Some(number) => number.parse().map(JobSelector::Number).map_err(|_| wrong()),
        None => word.parse().map(JobSelector::Task).map_err(|_| wrong()),
    }
}

/// The outcome of a first scan of a line.
struct Shape {
    /// The end of the line, without a trailing comment and the blanks before it.
    end: usize,
    /// The position of the `&` that ends it.
    ampersand: Option<usize>,
    /// Whether it is one command, without pipes, redirections or parentheses.
    is_plain: bool,
}

fn shape(text: &str) -> Shape {
    let mut shape = Shape { end: 0, ampersand: None, is_plain: true };
    let mut quote = None;
    // The previous character, if it combines with `&` into a different operator.
    let mut before = None;
    let mut at_word_start = true;
    let mut signs = text.char_indices();
    while let Some((at, sign)) = signs.next() {
        let was = before.take();
        match (quote, sign) {
            (None, '#') if at_word_start => {
                // Skip to the end of this line; another one may follow.
                if signs.by_ref().all(|(_, sign)| sign != '\n') {
                    break;
                }
                shape.is_plain = false;
                continue;
            }
            (None, sign) if sign.is_whitespace() => {
                shape.is_plain &= sign != '\n';
                at_word_start = true;
                continue;
            }
            (None | Some('"'), '\\') => drop(signs.next()),
            (None, '\'' | '"') => quote = Some(sign),
            (Some(open), sign) if sign == open => quote = None,
            (None, '&' | ';' | '|' | '<' | '>' | '(' | ')') => {
                shape.is_plain = false;
                before = Some(sign);
            }
            _ => {}
        }
        at_word_start = before.is_some();
        let is_alone = before == Some('&') && !matches!(was, Some('&' | '|' | '<' | '>'));
        shape.ampersand = is_alone.then_some(at);
        shape.end = signs.offset();
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(text: &str, direct: bool, beside: bool) -> Line {
        Line::Job { text: text.to_owned(), direct, beside }
    }

    #[track_caller]
    fn reads(text: &str, line: &Line) {
        assert_eq!(read(text).as_ref(), Ok(line), "{text}");
    }

    #[test]
    fn plain_line_is_a_shell_job() {
        for text in
            ["make -j8", "a | b && c", "for i in 1 2; do sleep $i & done", "echo 'a\nb'", "cd x # y\nmake"]
        {
            reads(text, &job(text, false, false));
        }
        reads("  make  ", &job("make", false, false));
        for text in ["", "   ", "# make", "  # a & b"] {
            reads(text, &Line::Nothing);
        }
        reads("# first\nmake", &job("# first\nmake", false, false));
    }

    #[test]
    fn trailing_ampersand_makes_a_console_background_job() {
        for text in ["make &", "make&", " make  & ", "make & # the build"] {
            reads(text, &job("make", false, true));
        }
        reads("a & b &", &job("a & b", false, true));
        reads("echo 'it # is' &", &job("echo 'it # is'", false, true));
        reads("echo a#b &", &job("echo a#b", false, true));
        reads("make >log 2>&1 &", &job("make >log 2>&1", false, true));
        for text in [
            "make \\&",
            "echo 'a &",
            "echo \"a &",
            "a &&",
            "a |&",
            "make >&",
            "make # and &",
            "echo 'a &'",
            "echo \"\\\" &",
            "&",
            "a & b",
            "a & # c\nb",
        ] {
            reads(text, &job(text, false, false));
        }
    }

    #[test]
    fn r64_exclamation_mark_makes_a_direct_job() {
        reads("!top", &job("top", true, false));
        reads("! make -j8 &", &job("make -j8", true, true));
        // This names a program, not a built-in.
        reads("!exit 3", &job("exit 3", true, false));
        for text in ["!", "!  ", "! # top"] {
            assert!(read(text).unwrap_err().contains("needs a command"), "{text}");
        }
    }

    #[test]
    fn r69_at_sign_makes_an_agent_prompt() {
        let prompt = |agent: Option<&str>, text: &str| Line::Prompt {
            agent: agent.map(str::to_owned),
            text: text.to_owned(),
        };
        reads("@codex why does it fail?", &prompt(Some("codex"), "why does it fail?"));
        reads("@ why?", &prompt(None, "why?"));
        // This is text, so shell syntax in it does not matter.
        reads("@codex fix a & b &", &prompt(Some("codex"), "fix a & b &"));
        reads("@codex two\nlines # all", &prompt(Some("codex"), "two\nlines # all"));
        for text in ["@", "@codex", "@codex  ", "@ "] {
            assert!(read(text).unwrap_err().contains("needs a prompt"), "{text}");
        }
    }

    #[test]
    fn builtins_are_recognized_only_as_plain_commands() {
        for (text, own) in [
            ("cd", Builtin::Cd(String::new())),
            ("cd ~/'my folder' # there", Builtin::Cd("~/'my folder'".to_owned())),
            ("exit", Builtin::Exit(0)),
            ("exit 3", Builtin::Exit(3)),
            ("help", Builtin::Help),
            (" jobs ", Builtin::Jobs),
            ("fg", Builtin::Fg(JobSelector::Latest)),
            ("fg %12", Builtin::Fg(JobSelector::Number(12))),
            ("fg 3f2a", Builtin::Fg(JobSelector::Task("3f2a".parse().unwrap()))),
        ] {
            reads(text, &Line::Builtin(own));
        }
        for text in ["cd /tmp && make", "cd x; y", "cdx", "jobs | wc", "help me", "exit >x"] {
            reads(text, &job(text, false, false));
        }
        for (text, advice) in
            [("exit 256", "0 to 255"), ("exit x", "not `x`"), ("fg %x", "fg %1"), ("fg !", "fg ID")]
        {
            assert!(read(text).unwrap_err().contains(advice), "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_line_never_panics(text in "[ a&|>'\"\\\\#!@%\n;(é]*") {
            if let Ok(Line::Job { text, .. }) = read(&text) {
                prop_assert!(!text.is_empty());
            }
        }
    }
}
