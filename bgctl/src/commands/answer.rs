//! `answer`: shows an agent's question, or answers it.

use bgd_shared::agent::{AnswerParams, InputOption, NeedsInput, OptionKind};
use bgd_shared::request::{AgentAnswer, IdParams, TaskGet};
use bgd_shared::task::{Kind, Task};
use bgd_shared::time::Timestamp;

use crate::cli::AnswerArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::Listener;
use crate::pick::one;
use crate::render::clean;
use crate::render::question::{options, question};

/// Prints the question, or answers it and prints the chosen option.
pub fn run(args: AnswerArgs, context: &mut Context) -> Result<Code, Failure> {
    let id = one(args.id, context)?;
    let mut found = context.call::<TaskGet>(&IdParams { id })?;
    if args.wait {
        let asks = |task: &Task| task.progress.needs_input.is_some() || !task.status.is_active();
        found.task = loop {
            match context.link.existing().and_then(|news| Listener::until(news, found.task.id, asks)) {
                Err(failure) => context.link.recover(failure)?,
                Ok(task) => break task,
            }
        };
    }
    let task = &found.task;
    let asked = asked(task, args.request)?;
    let Some(word) = args.option else {
        if context.json() {
            context.print_json(&found)?;
        } else {
            context.print(&question(task.id, asked, Timestamp::now()))?;
        }
        return Ok(Code::OK);
    };
    let option = pick(&asked.options, &word).map_err(|what| {
        Failure::usage(format!(
            "{what}; the options of question {} are:\n{}",
            asked.request,
            options(asked).trim_end()
        ))
        .hint("give the id or full name of an option; allow and deny work if there is such an option")
    })?;
    // With the number, the daemon refuses the answer if the agent asks a different question by now.
    let params = AnswerParams { id: task.id.into(), request: asked.request, option: option.id.clone() };
    let result = context.call::<AgentAnswer>(&params)?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        let name = clean(&option.name);
        context.print(&format!("{} answered question {}: {name}\n", task.id, asked.request))?;
    }
    Ok(Code::OK)
}

/// Returns the task's open question, if it is the one that the caller means.
fn asked(task: &Task, request: Option<u64>) -> Result<&NeedsInput, Failure> {
    let refuse = |kind, message: String| Failure::new(Code::WRONG_STATE, kind, message);
    match (&task.progress.needs_input, request) {
        (Some(asked), Some(request)) if asked.request != request => {
            let message = format!("task {} now asks question {}, not {request}", task.id, asked.request);
            Err(refuse("no_question", message)
                .hint(format!("`bgctl answer {}` shows the question", task.id.short())))
        }
        (Some(asked), _) => Ok(asked),
        (None, _) if task.kind == Kind::Process => {
            let message = format!("task {} runs a command; only agent tasks ask questions", task.id);
            Err(refuse("no_question", message)
                .hint("`bgctl write` writes to the standard input of a command"))
        }
        (None, _) => {
            let message = format!("task {} has no open question; it is {}", task.id, task.status);
            Err(refuse("no_question", message)
                .hint("`bgctl list` marks tasks with an open question as `(asks)`"))
        }
    }
}

/// Finds the option for a word: by id, by name, or by what it does (`allow`, `deny`).
fn pick<'a>(options: &'a [InputOption], word: &str) -> Result<&'a InputOption, String> {
    if let Some(option) = options.iter().find(|option| option.id == word) {
        return Ok(option);
    }
    let wanted = word.to_lowercase();
    let mut named = options.iter().filter(|option| option.name.to_lowercase() == wanted);
    match (named.next(), named.next()) {
        (Some(option), None) => return Ok(option),
        (Some(_), Some(_)) => return Err(format!("several options are called `{word}`")),
        (None, _) => {}
    }
    let kinds = match word {
        "allow" => [OptionKind::AllowOnce, OptionKind::AllowAlways],
        "deny" => [OptionKind::RejectOnce, OptionKind::RejectAlways],
        _ => return Err(format!("`{word}` is not one of the options")),
    };
    kinds
        .iter()
        .find_map(|kind| options.iter().find(|option| option.kind == *kind))
        .ok_or_else(|| format!("no option can {word} it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::task::Status;

    use crate::render::samples;

    fn option(id: &str, name: &str, kind: OptionKind) -> InputOption {
        InputOption { id: id.into(), name: name.into(), kind }
    }

    #[test]
    fn a_word_means_an_id_before_a_name_before_what_it_does() {
        let options = [
            option("always", "Always allow", OptionKind::AllowAlways),
            option("deny", "Allow", OptionKind::AllowOnce),
            option("never", "Never", OptionKind::RejectAlways),
            option("no", "Not now", OptionKind::RejectOnce),
        ];
        let picked = |word| pick(&options, word).map(|option| option.id.as_str());
        assert_eq!(picked("always"), Ok("always"));
        assert_eq!(picked("ALWAYS ALLOW"), Ok("always"));
        assert_eq!(picked("deny"), Ok("deny"));
        assert_eq!(picked("not now"), Ok("no"));
        assert!(picked("Always").unwrap_err().contains("`Always` is not one"));
    }

    #[test]
    fn allow_and_deny_mean_once_where_that_can_be_had() {
        let all = [
            option("1", "a", OptionKind::RejectAlways),
            option("2", "b", OptionKind::AllowAlways),
            option("3", "c", OptionKind::RejectOnce),
            option("4", "d", OptionKind::AllowOnce),
        ];
        let picked = |options: &[InputOption], word| pick(options, word).map(|option| option.id.clone());
        assert_eq!(picked(&all, "allow"), Ok("4".into()));
        assert_eq!(picked(&all, "deny"), Ok("3".into()));
        assert_eq!(picked(&all[..2], "allow"), Ok("2".into()));
        assert_eq!(picked(&all[..2], "deny"), Ok("1".into()));
        assert!(picked(&all[..1], "allow").unwrap_err().contains("can allow it"));
        assert!(picked(&[], "deny").is_err());
    }

    #[test]
    fn a_name_that_two_have_is_not_guessed() {
        let options =
            [option("1", "Yes", OptionKind::AllowOnce), option("2", "yes", OptionKind::AllowAlways)];
        assert!(pick(&options, "YES").unwrap_err().contains("several"));
        assert_eq!(pick(&options, "2").map(|option| option.id.as_str()), Ok("2"));
    }

    #[test]
    fn what_is_not_asked_is_not_answered() {
        let mut task = Task { kind: Kind::Agent, status: Status::Running, ..samples::task() };
        let failure = asked(&task, None).unwrap_err();
        assert_eq!(failure.code, Code::WRONG_STATE);
        assert!(failure.message.contains("has no open question; it is running"), "{failure}");
        task.progress.needs_input = Some(samples::question());
        assert_eq!(asked(&task, None), Ok(&samples::question()));
        assert_eq!(asked(&task, Some(7)), Ok(&samples::question()));
        let failure = asked(&task, Some(6)).unwrap_err();
        assert_eq!(failure.code, Code::WRONG_STATE);
        assert!(failure.message.contains("asks question 7, not 6"), "{failure}");
        assert!(asked(&samples::task(), None).unwrap_err().message.contains("runs a command"));
    }
}
