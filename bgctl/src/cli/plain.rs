//! The command lines without options that scripts and shells run most. Reading one here spares the definition of all
//! options of its verb, which takes longer than the rest of a short call. May accept nothing that the definitions don't,
//! and must read it as they do: the test compares them.

use std::ffi::OsString;

use super::{BlockArgs, Globals, RunArgs, ShellPromptArgs, SubmitArgs, Verb, is_option};

/// Reads a whole command line. Returns `None` if it has options, is wrong, or is of another verb.
pub fn parse(args: &[OsString]) -> Option<(Globals, Verb)> {
    read(args).map(|verb| (Globals::default(), verb))
}

fn read(args: &[OsString]) -> Option<Verb> {
    let (verb, words) = args.get(1..)?.split_first()?;
    match verb.to_str()? {
        "submit" => {
            let command = command(words)?.to_vec();
            Some(Verb::Submit(Box::new(SubmitArgs { command, ..SubmitArgs::default() })))
        }
        "run" => {
            let command = command(words)?.to_vec();
            Some(Verb::Run(Box::new(RunArgs { command, ..RunArgs::default() })))
        }
        "block" if !words.is_empty() => {
            let ids = words.iter().map(|word| word.to_str()?.parse().ok()).collect::<Option<_>>()?;
            Some(Verb::Block(BlockArgs { ids, ..BlockArgs::default() }))
        }
        "shell-prompt" if words.is_empty() => Some(Verb::ShellPrompt(ShellPromptArgs::default())),
        _ => None,
    }
}

/// Returns the command if there is no option before it.
fn command(words: &[OsString]) -> Option<&[OsString]> {
    let (first, rest) = words.split_first()?;
    if first == "--" {
        return (!rest.is_empty()).then_some(rest);
    }
    (!is_option(first)).then_some(words)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;
    use crate::cli::{command_of_verb, parse_as};

    fn line(text: &str) -> Vec<OsString> {
        std::iter::once("bgctl")
            .chain(text.split(' ').filter(|word| !word.is_empty()))
            .map(Into::into)
            .collect()
    }

    /// Checks that a line is read, and as by the definitions.
    fn compare(args: &[OsString]) {
        let plain = read(args).unwrap_or_else(|| panic!("{args:?} is not read"));
        let mut defined = command_of_verb(args).expect("a verb");
        let (globals, verb) = parse_as(&mut defined, args, false).expect("a valid line");
        assert_eq!(format!("{plain:?}"), format!("{verb:?}"), "{args:?}");
        assert_eq!(format!("{globals:?}"), format!("{:?}", Globals::default()), "{args:?}");
    }

    #[test]
    fn plain_command_lines_are_read_as_by_the_definitions() {
        for text in [
            "submit true",
            "submit -- true",
            "submit make -j8 --json",
            "submit -- make -j8 --json",
            "submit -- -x",
            "submit -- --",
            "submit -- make -- all",
            "submit make -- all",
            "submit make --",
            "run true",
            "run -- sh -c exit",
            "run vim -H x",
            "block 3f2a",
            "block 3f2a @ @2 @9c1e 724fede0-9209-4435-bc37-e308e63f1f21",
            "shell-prompt",
        ] {
            compare(&line(text));
        }
        let not_text = || OsString::from_vec(b"\xff".to_vec());
        for words in [
            vec!["submit".into(), OsString::new()],
            vec!["submit".into(), OsString::new(), "--json".into()],
            vec!["run".into(), "--".into(), OsString::new()],
            vec!["run".into(), not_text(), "--json".into()],
        ] {
            compare(&[vec!["bgctl".into()], words].concat());
        }
    }

    #[test]
    fn anything_else_is_left_to_the_definitions() {
        for text in [
            "",
            "submit",
            "submit --",
            "submit --json true",
            "submit -d x true",
            "submit --help",
            "submit -",
            "run",
            "run --direct true",
            "block",
            "block --",
            "block -- 3f2a",
            "block 3f2a --timeout 1s",
            "block 3f2a xyz",
            "wait 3f2a",
            "shell-prompt --timeout 1s",
            "--json submit true",
            "list",
            "help",
        ] {
            assert!(read(&line(text)).is_none(), "{text:?}");
        }
        let not_text = OsString::from_vec(vec![0xff, b'a', b'b', b'c', b'd']);
        assert!(read(&["bgctl".into(), "block".into(), not_text.clone()]).is_none());
        assert!(read(&["bgctl".into(), not_text]).is_none());
    }
}
