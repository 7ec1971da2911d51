//! The daemon: whether it answers, is the program on disk, has a valid configuration and room for output, and how it
//! keeps process trees together.

use std::path::Path;

use bgd_shared::proc;
use bgd_shared::request::{DaemonStatus, DaemonStatusOf, NoParams, ProgramState, ProgramStatus};
use bgd_shared::time::Timestamp;

use super::failed::{failed, unanswered};
use crate::context::Context;
use crate::render::daemon::shutting_down;
use crate::render::doctor::Check;
use crate::state::log_file;

const PART: &str = "daemon";

/// Adds the checks. Returns the daemon's status if it answers.
pub fn checks(checks: &mut Vec<Check>, context: &mut Context) -> Option<DaemonStatus> {
    let status = match context.call::<DaemonStatusOf>(&NoParams {}) {
        Ok(status) => status,
        Err(failure) => {
            let log = (!context.link.is_remote()).then(log_file);
            let failure = context.link.name_host(failure);
            checks.push(unanswered(PART, "answers", &failure, log.as_deref()));
            return None;
        }
    };
    let found = format!("version {}, pid {}, socket {}", status.version, status.pid, status.socket);
    checks.push(Check::ok(PART, "answers", found));
    checks.extend(shutting_down(&status).map(|found| {
        let hint = "bgctl daemon stop --grace 0     skips the rest of the tasks' grace period";
        Check::note(PART, "ending", found).hint(hint)
    }));
    checks.push(version(&status, env!("CARGO_PKG_VERSION")));
    checks.extend(status.program.as_ref().and_then(program));
    checks.push(match context.link.check_config() {
        Ok(()) if context.link.is_remote() => configuration(&status, status.config_modified),
        Ok(()) => configuration(&status, Timestamp::of_file(Path::new(&status.config))),
        Err(failure) => failed(PART, "configuration", &failure),
    });
    checks.push(tree(&status));
    if !context.link.is_remote() && status.tree == "cgroup" {
        checks.extend(accounting(&status));
    }
    let (past, present): (Vec<&String>, Vec<&String>) =
        status.warnings.iter().partition(|warning| status.notes.contains(warning));
    let durable = "`durable = true` in the configuration keeps tasks: bgd-guarantees(7)";
    checks.extend(past.into_iter().map(|note| Check::note(PART, "past", note).hint(durable)));
    if present.is_empty() {
        checks.push(Check::ok(PART, "output", format!("kept in {}", status.state_dir)));
    }
    let hint = "fix that, then run bgctl doctor again";
    checks.extend(present.into_iter().map(|warning| Check::fails(PART, "warning", warning, hint)));
    Some(status)
}

/// Checks whether a valid configuration is the one that the daemon has loaded. `modified` is when its file was last
/// changed.
fn configuration(status: &DaemonStatus, modified: Option<Timestamp>) -> Check {
    const NAME: &str = "configuration";
    let path = &status.config;
    let found = match (status.config_loaded, modified) {
        (false, None) => return Check::ok(PART, NAME, format!("none; {path} does not exist")),
        // Older daemons do not report the time.
        (true, Some(_)) if status.config_modified.is_none() || status.config_modified == modified => {
            return Check::ok(PART, NAME, path);
        }
        (false, Some(_)) => format!("{path} was written after the daemon started, and is not in effect"),
        (true, Some(_)) => format!("{path} was changed after the daemon had read it"),
        (true, None) => format!("{path} was removed, and is still in effect"),
    };
    Check::note(PART, NAME, found).hint("bgctl daemon reload")
}

fn version(status: &DaemonStatus, own: &str) -> Check {
    if status.version == own {
        return Check::ok(PART, "version", format!("the same as that of bgctl, {own}"));
    }
    let found = format!("bgctl is version {own}, the daemon {}", status.version);
    Check::note(PART, "version", found)
        .hint("bgctl daemon upgrade     ends no task; if it is refused, bgctl daemon restart")
}

/// Checks whether the running program is still the one on disk.
fn program(program: &ProgramStatus) -> Option<Check> {
    let path = &program.path;
    Some(match program.state {
        ProgramState::Unknown => return None,
        ProgramState::Current => Check::ok(PART, "program", path),
        ProgramState::Replaced => {
            Check::note(PART, "program", format!("{path} was replaced after the daemon started"))
                .hint("bgctl daemon upgrade     switches to the new one; no task ends")
        }
        ProgramState::Removed => {
            let hint =
                "install bgd again, or name another file: bgctl daemon upgrade --binary FILE; tasks run on";
            Check::fails(PART, "program", format!("{path} was removed"), hint)
        }
    })
}

fn tree(status: &DaemonStatus) -> Check {
    let why =
        if status.tree_reason.is_empty() { String::new() } else { format!(" ({})", status.tree_reason) };
    if status.tree == "cgroup" {
        return Check::ok(PART, "process trees", format!("tracked by cgroups{why}"));
    }
    Check::note(PART, "process trees", format!("tracked by sessions and marks, as there is no cgroup{why}"))
        .hint("with a delegated cgroup v2 (Delegate=yes) nothing can escape from a cancel, see bgd(1)")
}

/// Checks which controllers account for the usage of whole process trees. `None` if the daemon's cgroup can't be read.
fn accounting(status: &DaemonStatus) -> Option<Check> {
    const NAME: &str = "usage of trees";
    let own = proc::cgroup_folder(status.pid)?;
    let tasks = format!("bgd-{}/cgroup.subtree_control", status.instance);
    let enabled = own.ancestors().take(2).find_map(|unit| std::fs::read_to_string(unit.join(&tasks)).ok())?;
    let missing: Vec<&str> = ["memory", "io"]
        .into_iter()
        .filter(|name| !enabled.split_whitespace().any(|enabled| enabled == *name))
        .collect();
    if missing.is_empty() {
        return Some(Check::ok(PART, NAME, "CPU time, memory and written bytes of all their processes"));
    }
    let found = format!(
        "CPU time of all processes; the rest only of reaped processes, as {} is not delegated",
        missing.join(" and ")
    );
    Some(Check::note(PART, NAME, found).hint(
        "sudo systemctl edit user@.service, add [Service] Delegate=yes, log in again; then bgctl daemon restart",
    ))
}
