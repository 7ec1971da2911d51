//! `answer`: shows an agent's question, or answers it.

use bgd_shared::agent::{AnswerParams, NeedsInput};
use bgd_shared::request::{AgentAnswer, IdParams, TaskGet};
use bgd_shared::task::{Kind, Task};
use bgd_shared::time::Timestamp;

use crate::cli::AnswerArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::Listener;
use crate::options::pick;
use crate::pick::one;
use crate::render::clean;
use crate::render::question::{options, question};

/// Prints the question, or answers it and prints the chosen option.
pub fn run(args: AnswerArgs, context: &mut Context) -> Result<Code, Failure> {
    let id = one(args.id, context)?;
    let mut found = context.call::<TaskGet>(&IdParams { id })?;
    if args.wait {
        let asks = |task: &Task| task.progress.needs_input.is_some() || !task.status.is_active();
        found.task =
            context.recovering(|context| Listener::until(context.link.existing()?, found.task.id, asks))?;
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
        .hint(
            "give the id or full name of an option; deny always works, and allow if there is such an option",
        )
    })?;
    // Given the number, the daemon refuses the answer if the agent asks a different question by now.
    let chosen = option.map(|option| option.id.clone());
    let params = AnswerParams { id: task.id.into(), request: asked.request, option: chosen };
    let result = context.call::<AgentAnswer>(&params)?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        let name = option.map_or_else(|| "denied".into(), |option| clean(&option.name));
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

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::task::Status;

    use crate::render::samples;

    #[test]
    fn answer_without_matching_open_question_is_refused() {
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
