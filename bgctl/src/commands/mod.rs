//! The verbs, one file each. A verb makes its requests, prints the results, and returns an exit code.

mod agents;
mod answer;
mod attach;
mod block;
mod cancel;
mod clear;
mod completions;
#[cfg(feature = "console")]
mod console;
mod daemon;
mod dial;
mod doctor;
mod edit;
mod events;
mod executors;
mod group;
mod handoff;
mod hold;
mod inbox;
mod install;
mod line;
mod list;
mod man;
#[cfg(feature = "mcp")]
mod mcp;
mod output;
mod overview;
mod removed;
mod rerun;
mod resume;
mod run;
mod session;
mod shell_init;
mod shell_prompt;
mod signal;
mod status;
mod stop;
mod submit;
#[cfg(feature = "top")]
mod top;
mod write;

pub use self::overview::run as overview;
pub use self::shell_prompt::run as shell_prompt;
use crate::cli::Verb;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// Runs the verb from the command line.
///
/// # Errors
/// The failure of the verb.
pub fn run(verb: Verb, context: &mut Context) -> Result<Code, Failure> {
    match verb {
        Verb::Submit(args) => submit::run(*args, context),
        Verb::Run(args) => run::run(*args, context),
        Verb::Resume(args) => resume::run(args, context),
        Verb::List(args) => list::run(args, context),
        #[cfg(feature = "top")]
        Verb::Top(args) => top::run(&args, context),
        #[cfg(not(feature = "top"))]
        Verb::Top(_) => Err(left_out("top")),
        Verb::Status(args) => status::run(args, context),
        Verb::Output(args) => output::run(args, context),
        Verb::Attach(args) => attach::run(args, context),
        Verb::Block(args) => block::run(args, context),
        Verb::Cancel(args) => cancel::run(args, context),
        Verb::Clear(args) => clear::run(args, context),
        Verb::Rerun(args) => rerun::run(args, context),
        Verb::Hold(args) => hold::hold(args, context),
        Verb::Release(args) => hold::release(args, context),
        Verb::Pause(args) => hold::pause(args, context),
        Verb::Continue(args) => hold::continue_tasks(args, context),
        Verb::Edit(args) => edit::run(args, context),
        Verb::Group(args) => group::run(args, context),
        #[cfg(feature = "console")]
        Verb::Console(args) => console::run(args, context),
        #[cfg(not(feature = "console"))]
        Verb::Console(_) => Err(left_out("console")),
        #[cfg(feature = "mcp")]
        Verb::Mcp(args) => mcp::run(args, context),
        #[cfg(not(feature = "mcp"))]
        Verb::Mcp(_) => Err(left_out("mcp")),
        Verb::Handoff(args) => handoff::run(args, context),
        Verb::Signal(args) => signal::run(args, context),
        Verb::Write(args) => write::run(args, context),
        Verb::Agents(args) => agents::run(args, context),
        Verb::Executors(args) => executors::run(args, context),
        Verb::Answer(args) => answer::run(args, context),
        Verb::Events(args) => events::run(args, context),
        Verb::Inbox(args) => inbox::run(&args, context),
        Verb::Session(args) => session::run(args, context),
        Verb::Daemon(args) => daemon::run(&args, context),
        Verb::Dial(args) => dial::run(&args, context),
        Verb::Doctor(args) => doctor::run(&args, context),
        Verb::Completions(args) => completions::run(&args, context),
        Verb::Man(args) => man::run(&args, context),
        Verb::ShellInit(args) => shell_init::run(&args, context),
        Verb::ShellPrompt(args) => shell_prompt(&args, context),
    }
}

/// The failure of a verb whose feature was disabled at build time.
#[cfg(not(all(feature = "console", feature = "mcp", feature = "top")))]
fn left_out(feature: &str) -> Failure {
    Failure::usage(format!("this bgctl was built without the feature `{feature}`"))
        .hint("build it with cargo's default features")
}
