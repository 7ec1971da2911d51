//! Failures of lost connections, mainly to remote machines: how they are recognised and reported, and which calls are
//! repeated.

use bgd_shared::client::ClientError;
use bgd_shared::error::ErrorKind;
use bgd_shared::request::{
    AgentList, DaemonStatusOf, ExecutorList, GroupContinue, GroupList, GroupPause, GroupSet, InboxAck,
    InboxList, InboxRead, Method as _, TaskClear, TaskContinue, TaskEdit, TaskGet, TaskHold, TaskList,
    TaskOutput, TaskPause, TaskResultOf, TaskSignal, TaskSubmit, TaskSubmitMany, TaskWrite,
};
use bgd_shared::show::missing_journal;
use bgd_shared::ssh::program;

use super::host::Host;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::{clean, shortened};

/// Adds the host's name to a failure.
pub fn named(host: &Host, failure: Failure) -> Failure {
    // The usual message and hint are about a daemon on this machine.
    let (message, hint) = match failure.kind {
        CONNECTION_LOST => ("the connection is lost".to_owned(), None),
        "no_answer" => (failure.message, None),
        _ => (failure.message, failure.hint),
    };
    let message = format!("{host}: {message}");
    let check = || format!("check it with: {} {host} bgctl daemon status", program().display());
    let hint = hint.or_else(|| LOST.contains(&failure.kind).then(check)).map(|hint| on_host(host, &hint));
    let Failure { code, kind, rpc_code, candidates, .. } = failure;
    Failure { code, kind, rpc_code, message, hint, candidates }
}

/// Makes the commands that a hint suggests talk to the same host.
fn on_host(host: &Host, hint: &str) -> String {
    let named = format!("`bgctl -H {host} ");
    hint.replace("`bgctl ", &named).replace(&format!("{named}-H "), "`bgctl -H ")
}

/// Maximum length of a reason on one line, in characters.
const REASON_CHARS: usize = 120;

/// Returns why a host did not answer, as one short line that is safe to show, without the host's name.
pub fn reason(host: &str, failure: &Failure) -> String {
    let text = failure.message.strip_prefix(host).and_then(|text| text.strip_prefix(": "));
    let line = text.unwrap_or(&failure.message).lines().map(str::trim).filter(|line| !line.is_empty());
    shortened(&clean(&line.collect::<Vec<_>>().join("; ")), REASON_CHARS)
}

/// Describes in a word or two what a host did in place of an answer: a daemon that refuses the call has answered.
pub fn outcome(failure: &Failure) -> &'static str {
    if failure.rpc_code.is_some() { "refused" } else { "no answer" }
}

/// Reports whether the daemon closes the connection after this refusal.
pub fn is_closing(error: &ClientError) -> bool {
    matches!(error, ClientError::Rpc(error) if error.kind() == ErrorKind::TooManyConnections)
}

/// Methods that change nothing, or nothing more when repeated: such a call is repeated if the connection was lost
/// before the answer arrived, and the tasks were not.
pub const REPEATABLE: [&str; 17] = [
    TaskGet::NAME,
    TaskList::NAME,
    TaskOutput::NAME,
    TaskResultOf::NAME,
    InboxRead::NAME,
    InboxAck::NAME,
    InboxList::NAME,
    AgentList::NAME,
    ExecutorList::NAME,
    GroupList::NAME,
    GroupSet::NAME,
    GroupPause::NAME,
    GroupContinue::NAME,
    TaskHold::NAME,
    TaskPause::NAME,
    TaskContinue::NAME,
    DaemonStatusOf::NAME,
];

/// Failure kind: a connection broke.
pub const CONNECTION_LOST: &str = "connection_lost";

/// Failure kind: no daemon accepts requests.
pub const NO_DAEMON: &str = "no_daemon";

/// Failure kind: the daemon of the remote machine is not the one that this link was connected to first.
pub const OTHER_INSTANCE: &str = "other_instance";

/// Failure kind: a call was sent, and its answer did not arrive.
pub const MAYBE_DONE: &str = "maybe_done";

/// Failure kinds for a connection that broke, or is silent because the network is.
const LOST: [&str; 3] = [CONNECTION_LOST, "no_answer", MAYBE_DONE];

/// Reports whether the connection broke, or is silent.
pub fn is_lost(failure: &Failure) -> bool {
    LOST.contains(&failure.kind)
}

/// Reports whether the daemon refused the parameters, as an older daemon does with those that it does not know.
pub fn may_be_older(failure: &Failure) -> bool {
    failure.kind == ErrorKind::InvalidParams.as_str()
}

/// Creates a failure for a call of this method that was sent, but whose answer is lost.
pub fn maybe_done(method: &str) -> Failure {
    let message = "the connection was lost before the answer came: the request may have been carried out";
    Failure::new(Code::NO_DAEMON, MAYBE_DONE, message).hint(how_to_check(method))
}

/// Returns how users find out whether a call of this method was carried out.
fn how_to_check(method: &str) -> &'static str {
    match method {
        // Neither input nor signals are recorded.
        TaskWrite::NAME | TaskSignal::NAME => {
            "only the task itself can show whether it was, for example by its output: check that before you repeat it"
        }
        TaskClear::NAME => "repeat it: it deletes what is left",
        TaskEdit::NAME => "`bgctl status ID` shows whether it was",
        TaskSubmit::NAME | TaskSubmitMany::NAME => {
            "`bgctl list` shows whether it was; a submit with --key can be repeated"
        }
        _ => "`bgctl list` shows whether it was",
    }
}

/// Creates a failure for a durable daemon that was stopped while a client waited.
pub fn stopped() -> Failure {
    let message =
        "the daemon was stopped; tasks it did not cancel keep running, and the next daemon takes them over";
    Failure::new(Code::NO_DAEMON, CONNECTION_LOST, message).hint("repeat the command to continue")
}

/// Creates a failure for a durable daemon that was stopped while a client waited, and whose journal is not at this path.
pub fn without_journal(path: &str) -> Failure {
    let message = format!("the daemon was stopped, and its tasks are lost: {}", missing_journal(path));
    Failure::new(Code::NO_DAEMON, CONNECTION_LOST, message)
        .hint("put the journal's folder back before the next daemon starts, so that it finds them again")
}

/// Creates a failure: `what` does not work with a daemon on a remote machine.
pub fn not_over_remote(what: &str) -> Failure {
    Failure::new(
        Code::USAGE,
        "not_over_remote",
        format!("{what} is not possible with a daemon on another machine"),
    )
    .hint("run it there, by ssh, or without -H and BGD_HOST")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_after_a_lost_answer_names_only_what_shows_the_outcome() {
        let hint = |method| maybe_done(method).hint.unwrap();
        assert!(hint(TaskSubmit::NAME).contains("--key"));
        for method in [TaskWrite::NAME, TaskSignal::NAME, TaskClear::NAME, TaskEdit::NAME] {
            assert!(!hint(method).contains("`bgctl list`") && !hint(method).contains("--key"), "{method}");
        }
    }
}
