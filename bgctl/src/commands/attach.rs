//! `attach`: back into the terminal of a task. Where there is none, on either side, its output is followed.

use std::io::{self, IsTerminal as _};

use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskRef;
use bgd_shared::request::{AttachParams, TaskAttach};

use super::output;
use super::run::{ask_for_key, tell_end, told_key};
use crate::cli::{AttachArgs, OutputArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::terminal::{Left, Role, Screen, Show};

/// Shows the task's terminal until the task ends, or until the key is pressed.
pub fn run(args: AttachArgs, context: &mut Context) -> Result<Code, Failure> {
    if !io::stdout().is_terminal() {
        return follow(args.id, context);
    }
    let screen = Screen::open()?;
    let size = screen.size();
    let params = AttachParams { id: args.id.clone(), rows: Some(size.rows), cols: Some(size.cols) };
    let attached = context.exchange(|client| {
        let asked = ask_for_key(client, args.key)?;
        let call = client.send::<TaskAttach>(&params, &[])?;
        let key = told_key(client, asked)?;
        Ok((key, client.answer::<TaskAttach>(call)?.task))
    });
    let (key, task) = match attached {
        Err(failure) if failure.kind == ErrorKind::Unsupported.as_str() => return follow(args.id, context),
        Err(failure) if failure.kind == ErrorKind::NotRunning.as_str() => {
            return Err(failure.hint("`bgctl output` shows what it wrote"));
        }
        attached => attached?,
    };
    match Show::alone(context.polled()?, task.id, Role::Attached, key, screen, size)? {
        Left::Ended(task) => tell_end(*task, context),
        Left::HungUp => Ok(Code::HUNG_UP),
        Left::Signalled(code) => Ok(Code(code)),
        // Only foreground jobs are left by the last two.
        Left::Detached | Left::Backgrounded(_) | Left::Stopped(_) => Ok(Code::OK),
    }
}

/// Prints what the task has written, and what it writes until it ends.
fn follow(id: TaskRef, context: &mut Context) -> Result<Code, Failure> {
    let args =
        OutputArgs { id, follow: true, tail: None, since: None, stdout: false, stderr: false, result: false };
    output::run(&args, context)
}
