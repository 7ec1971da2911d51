//! Explains why one of Slurm's own commands failed, from its output, with advice for people.

use std::fmt;

use bgd_shared::show;
use bgd_shared::text::truncated;

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// The cluster could not be asked; nothing was done, and the same command may work later.
    Unreachable(String),
    /// The login node can't be used until a person intervenes; nothing was done.
    NoAccess(String),
    /// It is not known whether the cluster has executed the command: it was sent, but its answer is missing.
    Unanswered(String),
    /// The cluster accepts no more jobs at the moment; the same command may work later.
    Full(String),
    /// There is no such job, or it has ended.
    Gone,
    /// The cluster refuses, and will refuse again. The text explains why, with advice.
    Refused(String),
}

impl fmt::Display for CommandError {
    /// Writes the reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable(why)
            | Self::NoAccess(why)
            | Self::Unanswered(why)
            | Self::Full(why)
            | Self::Refused(why) => why,
            Self::Gone => "it does not know its jobs",
        })
    }
}

/// Messages of a cluster that could not be asked.
const UNREACHABLE: [&str; 20] = [
    "Unable to contact slurm controller",
    "Unable to establish controller machine",
    "Could not establish a configuration source",
    "Unable to process configuration file",
    "fetch_config: DNS SRV lookup failed",
    "Slurm backup controller in standby mode",
    "Controller is in standby mode",
    "Communication connection failure",
    "Connection timed out establishing",
    "Rate limit exceeded, please retry",
    "Munge encode failed",
    "Munge decode failed",
    "Protocol authentication error",
    "Invalid authentication credential",
    "Authentication credential expired",
    "Incompatible versions of client and server code",
    "Connection refused",
    "No route to host",
    "Unable to connect to database",
    "Could not resolve hostname",
];

/// Messages about a command that was sent without an answer.
const UNANSWERED: [&str; 11] = [
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "Unexpected message received",
    "Message send failure",
    "Message receive failure",
    "Unable to contact slurm controller (receive failure)",
    "Unable to contact slurm controller (shutdown failure)",
    "Connection timed out writing",
    "Connection timed out reading",
    "Kernel reported delayed socket error",
    "Header lengths are longer than data received",
];

/// Messages of a cluster that accepts no more jobs at the moment, at least of this user or for this partition.
const FULL: [&str; 15] = [
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
    "System is in maintenance",
    "System submissions disabled",
    "Required partition not available (inactive or drain)",
    "Partition in DOWN state",
    "Unable to create job record, try again",
    "MaxJobCount limit reached",
    // The controller's disk is full.
    "I/O error writing script/environment to file",
    // Usage decays.
    "Requested account has breached requested QOS usage threshold",
    // The limits on the number of jobs that are waiting or running. The sentence after them also stands for limits that
    // the same job exceeds for ever.
    "AssocMaxSubmitJobLimit",
    "AssocGrpSubmitJobsLimit",
    "QOSMaxSubmitJobPerUserLimit",
    "QOSGrpSubmitJobsLimit",
    "MaxSubmitJobsPerAccount",
];

/// Messages about jobs that don't exist or have ended.
const GONE: [&str; 6] = [
    "Invalid job id specified",
    "Job/step already completing or completed",
    "Job has already finished",
    "Job is no longer pending execution",
    "Job/step already completing",
    "No active jobs",
];

/// Messages of refusals, each with the option concerned and advice.
const REFUSED: [(&str, &str, &str); 11] = [
    ("invalid partition specified", "partition", "`sinfo` lists the partitions"),
    ("Invalid partition name", "partition", "`sinfo` lists the partitions"),
    ("Invalid account", "account", "`sacctmgr show associations user=$USER` lists your accounts"),
    ("Invalid qos", "qos", "`sacctmgr show qos` lists them"),
    ("Memory specification can not be satisfied", "memory", "no node has that much"),
    ("CPU count specification invalid", "cpus", "`sinfo -o '%P %c'` shows the processors of the nodes"),
    (
        "Requested node configuration is not available",
        "cpus, memory, gpus",
        "`sinfo -o '%P %c %m %G'` shows what the nodes of the partitions have",
    ),
    ("Invalid generic resource", "gpus", "`sinfo -o '%P %G'` shows the graphics processors of the nodes"),
    (
        "Requested time limit is invalid",
        "time-limit",
        "`sinfo -o '%P %l'` shows the limits of the partitions",
    ),
    ("Invalid --time specification", "time-limit", "`sinfo -o '%P %l'` shows the limits of the partitions"),
    ("unrecognized option", "options", "`man sbatch` lists the options of the cluster's version"),
];

/// The maximum length of a command's message that is passed on, in characters.
const MESSAGE_CHARS: usize = 500;

/// Returns why a command with this standard error failed.
pub fn of(stderr: &str) -> CommandError {
    let has = |texts: &[&str]| texts.iter().any(|text| stderr.contains(text));
    let message = message(stderr);
    // Some outputs contain several messages. Checked first: a lost answer must not be overlooked.
    if has(&UNANSWERED) {
        CommandError::Unanswered(message)
    } else if has(&UNREACHABLE) {
        CommandError::Unreachable(message)
    } else if has(&FULL) {
        CommandError::Full(message)
    } else if has(&GONE) {
        CommandError::Gone
    } else {
        let known = REFUSED.iter().find(|(text, ..)| stderr.contains(text));
        CommandError::Refused(match known {
            Some((_, option, hint)) => format!("{message} (`{option}`: {hint})"),
            None if message.is_empty() => "the command failed without a message".to_owned(),
            None => message,
        })
    }
}

/// Returns whether a submission was refused because of its dependency on another job.
pub fn is_about_dependency(why: &str) -> bool {
    why.contains("dependency") || why.contains("Invalid job id")
}

/// Messages about jobs that can't be changed at the moment.
const BUSY: [&str; 2] =
    ["Job can not be altered now, try again later", "the DB index is being set, try again"];

/// Returns whether a change was refused for a reason that passes within moments.
pub fn is_about_moment(why: &str) -> bool {
    BUSY.iter().any(|text| why.contains(text))
}

/// Returns a command's standard error as one sentence, without the name of the command.
pub fn message(stderr: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for line in stderr.lines().map(|line| line.trim_end_matches('.')) {
        let line = ["sbatch", "squeue", "scontrol", "scancel", "sacct"]
            .iter()
            .find_map(|name| line.strip_prefix(name)?.strip_prefix(": "))
            .unwrap_or(line);
        let line =
            ["error: ", "fatal: "].iter().find_map(|kind| line.strip_prefix(kind)).unwrap_or(line).trim();
        let is_hint = line.starts_with("Try \"");
        if !line.is_empty() && !is_hint && !parts.contains(&line) {
            parts.push(line);
        }
    }
    // The first message is specific; the last often says only that the command failed.
    show::line(&truncated(&parts.join("; "), MESSAGE_CHARS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn r151_connection_errors_are_classified_as_unreachable_or_unanswered() {
        for text in [
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
            "scancel: error: Kill job error on job id 20: Unable to contact slurm controller (connect failure)\n",
            "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n\
             squeue: error: fetch_config: DNS SRV lookup failed\n\
             squeue: error: _establish_config_source: failed to fetch config\n\
             squeue: fatal: Could not establish a configuration source\n",
            "squeue: error: ClusterName needs to be specified\nsqueue: fatal: Unable to process configuration file\n",
        ] {
            assert!(matches!(of(text), CommandError::Unreachable(_)), "{text}");
        }
        for why in [
            "Socket timed out on send/recv operation",
            // Its beginning is that of a cluster that could not be asked.
            "Unable to contact slurm controller (receive failure)",
        ] {
            let message = format!("Batch job submission failed: {why}");
            assert_eq!(of(&format!("sbatch: error: {message}\n")), CommandError::Unanswered(message));
        }
        let full = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n";
        assert!(matches!(of(full), CommandError::Full(_)));
    }

    #[test]
    fn r146_obstacle_that_is_none_of_the_job_s_fails_no_task() {
        let failed = |why: &str| of(&format!("sbatch: error: Batch job submission failed: {why}\n"));
        for why in [
            "Required partition not available (inactive or drain)",
            "System submissions disabled",
            "MaxJobCount limit reached",
            "I/O error writing script/environment to file",
        ] {
            let message = format!("Batch job submission failed: {why}");
            assert_eq!(failed(why), CommandError::Full(message));
        }
        for why in ["Rate limit exceeded, please retry later", "Invalid authentication credential"] {
            assert!(matches!(failed(why), CommandError::Unreachable(_)), "{why}");
        }
        for why in ["Access/permission denied", "Requested nodes not in this partition", "Invalid qos"] {
            assert!(matches!(failed(why), CommandError::Refused(_)), "{why}");
        }
    }

    #[test]
    fn r150_job_that_can_not_be_changed_now_is_changed_later() {
        for text in [
            "slurm_update error: Job update not available right now, the DB index is being set, try again in a bit\n",
            "Job can not be altered now, try again later for job 7\n",
        ] {
            let CommandError::Refused(why) = of(text) else { panic!("{text}") };
            assert!(is_about_moment(&why), "{why}");
        }
        assert!(!is_about_moment("Access/permission denied"));
    }

    #[test]
    fn r146_limit_on_number_of_jobs_passes_and_limit_on_size_does_not() {
        let refused = |limit: &str| {
            of(&format!(
                "sbatch: error: {limit}\nsbatch: error: Batch job submission failed: Job violates accounting/QOS \
                 policy (job submit limit, user's size and/or time limits)\n"
            ))
        };
        for limit in [
            "AssocMaxSubmitJobLimit",
            "AssocGrpSubmitJobsLimit",
            "QOSMaxSubmitJobPerUserLimit",
            "QOSGrpSubmitJobsLimit",
            "MaxSubmitJobsPerAccount",
        ] {
            let CommandError::Full(why) = refused(limit) else { panic!("{limit} passes") };
            assert!(why.starts_with(&format!("{limit}; ")), "{why}");
        }
        for limit in ["QOSMaxCpuPerJobLimit", "AssocMaxWallDurationPerJobLimit", "QOSMaxMemoryPerJob"] {
            assert!(matches!(refused(limit), CommandError::Refused(_)), "{limit} is exceeded for ever");
        }
    }

    #[test]
    fn r146_sbatch_refusal_names_the_problem_and_the_option() {
        let refused = |stderr: &str| match of(stderr) {
            CommandError::Refused(message) => message,
            other => panic!("{other:?}"),
        };
        let partition = "sbatch: error: invalid partition specified: nix\n\
                         sbatch: error: Batch job submission failed: Invalid partition name specified\n";
        assert_eq!(
            refused(partition),
            "invalid partition specified: nix; Batch job submission failed: Invalid partition name specified \
             (`partition`: `sinfo` lists the partitions)"
        );
        assert!(refused("sbatch: error: Memory specification can not be satisfied\n").contains("`memory`"));
        let option = "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n";
        assert!(refused(option).starts_with("unrecognized option '--bogus' (`options`:"));
        let account = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination \
                       specified\n";
        assert!(refused(account).contains("`account`"));
        let policy = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, \
                      user's size and/or time limits)\n";
        assert!(refused(policy).contains("violates accounting/QOS policy"));
        assert_eq!(refused(""), "the command failed without a message");
        assert_eq!(refused(&"ü".repeat(1000)), "ü".repeat(MESSAGE_CHARS) + "…");
    }

    #[test]
    fn error_about_an_ended_job_counts_as_gone() {
        for text in [
            "Invalid job id specified for job 9999\nslurm_suspend error: Invalid job id specified\n",
            "Job has already finished for job 1\nslurm_suspend error: Job has already finished\n",
            "Job/step already completing or completed for job 12\n",
            "slurm_load_jobs error: Invalid job id specified\n",
        ] {
            assert_eq!(of(text), CommandError::Gone, "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_error_output_becomes_one_bounded_line(stderr in "\\PC{0,200}(\n\\PC{0,200}){0,3}") {
            let message = message(&stderr);
            prop_assert!(message.chars().count() <= MESSAGE_CHARS + 1 && !message.contains('\n'));
            let _ = of(&stderr);
        }
    }
}
