//! Interprets Slurm's states for a task (R148).

use bgd_shared::task::Exit;

use crate::core::{Cause, Verdict};

/// The standing of a job on the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The job waits, for the first time or again.
    Waiting,
    Running,
    /// The job is stopped, but keeps its place on the nodes.
    Stopped,
    /// The job has ended on its node, and the cluster is still cleaning up. How it ended is not reported yet, apart
    /// from the reason.
    Leaving,
    /// The job was preempted. It waits again if the cluster is configured so; otherwise this is its end.
    Preempted,
    Ended(End),
    /// An unknown state. The job is taken for running until its state changes.
    Unknown,
}

/// How a job has ended, according to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The script exited with 0.
    Completed,
    /// The script exited with another code or was killed, or could not be launched.
    Failed,
    /// The job was cancelled.
    Cancelled,
    /// The job exceeded its time limit.
    TimeLimit,
    /// The job could not begin early enough to end before its deadline, or did not end in time.
    Deadline,
    /// The job used more memory than it was given.
    Memory,
    /// One of the job's nodes failed.
    Node,
    /// The job's nodes could not be booted.
    Boot,
    /// Another cluster of the federation took the job.
    Revoked,
}

/// The reason of a job that depends on a job without success.
pub const NEVER: &str = "DependencyNeverSatisfied";

/// Returns whether a waiting job is held by its user, according to its reason.
pub fn is_held(reason: &str) -> bool {
    reason.starts_with("JobHeldUser")
}

/// Interprets a state as printed by `squeue` and `sacct`. `sacct` adds who cancelled a job.
pub fn standing(state: &str) -> Standing {
    match state.split([' ', '+']).next().unwrap_or_default() {
        // The nodes of a configuring job are not up yet.
        "PENDING" | "CONFIGURING" | "POWER_UP_NODE" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD"
        | "RESV_DEL_HOLD" | "SPECIAL_EXIT" | "EXPEDITING" => Standing::Waiting,
        "RUNNING" | "RESIZING" | "SIGNALING" => Standing::Running,
        "SUSPENDED" | "STOPPED" => Standing::Stopped,
        "COMPLETING" | "STAGE_OUT" => Standing::Leaving,
        "PREEMPTED" => Standing::Preempted,
        "COMPLETED" => Standing::Ended(End::Completed),
        "FAILED" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => Standing::Ended(End::Failed),
        "CANCELLED" => Standing::Ended(End::Cancelled),
        "TIMEOUT" => Standing::Ended(End::TimeLimit),
        "DEADLINE" => Standing::Ended(End::Deadline),
        "OUT_OF_MEMORY" => Standing::Ended(End::Memory),
        "NODE_FAIL" => Standing::Ended(End::Node),
        "BOOT_FAIL" => Standing::Ended(End::Boot),
        "REVOKED" => Standing::Ended(End::Revoked),
        _ => Standing::Unknown,
    }
}

/// Returns the end of a leaving job if its reason implies it.
pub fn end_by_reason(reason: &str) -> Option<End> {
    match reason {
        "TimeLimit" => Some(End::TimeLimit),
        "OutOfMemory" => Some(End::Memory),
        "NodeDown" | "NodeFail" => Some(End::Node),
        _ => None,
    }
}

/// Returns whether the reason of a failed job that had started does not explain the failure. Slurm also reports a
/// launch failure if the job's script was killed.
pub fn tells_nothing(reason: &str) -> bool {
    matches!(reason, "" | "None" | "NonZeroExitCode" | "JobLaunchFailure" | "RaisedSignal")
}

/// Returns the verdict on a task from the end of its job. `exit` is the exit of its program, if known: it takes
/// precedence over the cluster's report, unless the cluster has ended the program. `has_started`: whether the job has
/// started.
pub fn verdict(end: End, reason: &str, exit: Option<&Exit>, has_started: bool) -> Verdict {
    let failed = |cause, message: &str| Verdict::Failed(cause, message.into());
    match (end, exit) {
        (_, Some(Exit::Code(0))) | (End::Completed | End::Failed, Some(_)) => Verdict::ByExit,
        (End::TimeLimit, _) => failed(Cause::Timeout, "it exceeded its time limit on the cluster"),
        (End::Memory, _) => failed(Cause::Memory, "it used more memory than the cluster gave it"),
        (End::Node, _) => failed(Cause::Node, "its node failed"),
        (End::Boot, _) => failed(Cause::Node, "its nodes could not be booted"),
        (End::Deadline, _) => failed(Cause::Other, "it could not end before its deadline on the cluster"),
        (End::Revoked, _) => failed(Cause::Other, "another cluster of the federation took it"),
        (End::Cancelled, _) if reason == NEVER => {
            failed(Cause::Other, "its dependency can never be satisfied")
        }
        (End::Cancelled, _) => Verdict::Cancelled,
        (End::Completed, None) => failed(
            Cause::Other,
            "the cluster completed the job, but the job recorded no exit: is the work folder shared with its node?",
        ),
        (End::Failed, None) if has_started && tells_nothing(reason) => {
            failed(Cause::Other, "the whole job was killed at once, so it recorded no exit")
        }
        (End::Failed, None) => {
            let message = match reason {
                "" | "None" | "NonZeroExitCode" => {
                    "the job failed before it recorded anything: is the work folder shared with its node?"
                        .to_owned()
                }
                "JobLaunchFailure" => "the cluster could not launch the job (JobLaunchFailure)".to_owned(),
                other => format!("the cluster says {other}"),
            };
            failed(Cause::Other, &message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state that `squeue` of Slurm 22.05 prints, and those that later versions add.
    const STATES: [(&str, Standing); 30] = [
        ("PENDING", Standing::Waiting),
        ("CONFIGURING", Standing::Waiting),
        ("POWER_UP_NODE", Standing::Waiting),
        ("REQUEUED", Standing::Waiting),
        ("REQUEUE_FED", Standing::Waiting),
        ("REQUEUE_HOLD", Standing::Waiting),
        ("RESV_DEL_HOLD", Standing::Waiting),
        ("SPECIAL_EXIT", Standing::Waiting),
        ("EXPEDITING", Standing::Waiting),
        ("RUNNING", Standing::Running),
        ("RESIZING", Standing::Running),
        ("SIGNALING", Standing::Running),
        ("SUSPENDED", Standing::Stopped),
        ("STOPPED", Standing::Stopped),
        ("COMPLETING", Standing::Leaving),
        ("STAGE_OUT", Standing::Leaving),
        ("PREEMPTED", Standing::Preempted),
        ("COMPLETED", Standing::Ended(End::Completed)),
        ("FAILED", Standing::Ended(End::Failed)),
        ("LAUNCH_FAILED", Standing::Ended(End::Failed)),
        ("RECONFIG_FAIL", Standing::Ended(End::Failed)),
        ("CANCELLED", Standing::Ended(End::Cancelled)),
        ("CANCELLED by 1000", Standing::Ended(End::Cancelled)),
        ("TIMEOUT", Standing::Ended(End::TimeLimit)),
        ("DEADLINE", Standing::Ended(End::Deadline)),
        ("OUT_OF_MEMORY", Standing::Ended(End::Memory)),
        ("NODE_FAIL", Standing::Ended(End::Node)),
        ("BOOT_FAIL", Standing::Ended(End::Boot)),
        ("REVOKED", Standing::Ended(End::Revoked)),
        ("SOMETHING_NEW", Standing::Unknown),
    ];

    #[test]
    fn r148_every_slurm_state_is_classified() {
        for (state, meaning) in STATES {
            assert_eq!(standing(state), meaning, "{state}");
        }
        assert_eq!(standing(""), Standing::Unknown);
    }

    #[test]
    fn r148_man_page_lists_every_state_correctly() {
        let page = include_str!("../../../../man/bgd-executors.7");
        let clusters = page.split(".SH SLURM CLUSTERS").nth(1).unwrap();
        let table = clusters.split(".SS States").nth(1).unwrap().split(".TE").next().unwrap();
        let rows: Vec<(&str, &str)> = table.lines().filter_map(|line| line.split_once('\t')).collect();
        for (state, meaning) in STATES.iter().filter(|(state, _)| !state.contains(' ')) {
            let of_state = |row: &&(&str, &str)| row.0.split(", ").any(|name| name == *state);
            let name = if *meaning == Standing::Unknown { "any other" } else { state };
            let row = rows.iter().find(|row| of_state(row) || row.0 == name);
            let here = row.unwrap_or_else(|| panic!("{state} is not on the page")).1;
            let expected = match meaning {
                Standing::Waiting | Standing::Preempted => "pending",
                Standing::Running | Standing::Leaving | Standing::Unknown => "running",
                Standing::Stopped => "running, paused",
                Standing::Ended(End::Completed) => "completed",
                Standing::Ended(End::Failed) => {
                    if *state == "FAILED" {
                        "completed, or failed"
                    } else {
                        "failed"
                    }
                }
                Standing::Ended(End::Cancelled) => "cancelled",
                Standing::Ended(End::TimeLimit) => "failed (timeout)",
                Standing::Ended(End::Memory) => "failed (memory)",
                Standing::Ended(End::Node | End::Boot) => "failed (node)",
                Standing::Ended(End::Deadline | End::Revoked) => "failed, with that reason",
            };
            assert!(here.starts_with(expected), "{state}: {here}");
        }
    }

    #[test]
    fn r148_cluster_caused_ends_get_their_cause() {
        let killed = Exit::Signal(9);
        let cause = |end, exit| match verdict(end, "None", exit, true) {
            Verdict::Failed(cause, _) => Some(cause),
            Verdict::ByExit | Verdict::NotReady(_) | Verdict::Cancelled => None,
        };
        assert_eq!(cause(End::TimeLimit, Some(&Exit::Signal(15))), Some(Cause::Timeout));
        assert_eq!(cause(End::Memory, Some(&killed)), Some(Cause::Memory));
        assert_eq!(cause(End::Node, None), Some(Cause::Node));
        assert_eq!(verdict(End::Cancelled, "None", Some(&Exit::Signal(15)), true), Verdict::Cancelled);
        assert_eq!(verdict(End::Cancelled, "None", None, true), Verdict::Cancelled);
        assert_eq!(cause(End::Cancelled, None), None);
    }

    #[test]
    fn r147_noted_success_overrides_the_cluster_state() {
        let all = [End::Completed, End::Failed, End::TimeLimit, End::Memory, End::Cancelled, End::Node];
        for end in all {
            assert_eq!(verdict(end, "None", Some(&Exit::Code(0)), true), Verdict::ByExit);
            // Without an exit, no end counts as success.
            assert_ne!(verdict(end, "None", None, false), Verdict::ByExit);
        }
        assert_eq!(verdict(End::Failed, "NonZeroExitCode", Some(&Exit::Code(3)), true), Verdict::ByExit);
        let lines = verdict(End::Failed, "JobLaunchFailure", None, false);
        assert!(matches!(lines, Verdict::Failed(Cause::Other, text) if text.contains("JobLaunchFailure")));
        let lines = verdict(End::Failed, "JobLaunchFailure", None, true);
        assert!(matches!(lines, Verdict::Failed(Cause::Other, text) if text.contains("killed at once")));
        assert_eq!(end_by_reason("TimeLimit"), Some(End::TimeLimit));
        assert_eq!(end_by_reason("None"), None);
    }
}
