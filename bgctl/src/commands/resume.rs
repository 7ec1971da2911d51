//! `resume`: sends a follow-up prompt to the agent of a completed task (R30 to R36).

use bgd_shared::agent::ResumeParams;
use bgd_shared::request::TaskResume;

use crate::cli::ResumeArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::{pick, prompt};

/// Resumes the task, then prints its id.
pub fn run(args: ResumeArgs, context: &mut Context) -> Result<Code, Failure> {
    // Before the task is looked up, so that no connection is held open while somebody types.
    let prompt = prompt::read(args.prompt, context)?;
    let id = pick::one(args.id, context)?;
    let params = ResumeParams { id, prompt, settings: args.settings.settings() };
    let resumed = context.link.begin(|link| link.call::<TaskResume>(&params));
    let result = resumed.map_err(|failure| prompt::blamed(failure, Some(&params.prompt), &params))?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&format!("{}\n", result.task.id))?;
    }
    Ok(Code::OK)
}
