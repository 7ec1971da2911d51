//! The command lines of Slurm's own commands. This module runs none of them.
//!
//! They contain nothing of a task's command and environment: every user of the machine may read command lines, and
//! every user of the cluster may read the command line of a job.

use std::ffi::OsString;
use std::path::Path;

use bgd_shared::resources::Resources;

use super::job::{JobId, words};

/// A command with its arguments.
pub type Argv = Vec<OsString>;

/// Bytes in a mebibyte, the unit of memory on command lines.
const MEBIBYTE: u64 = 1 << 20;

/// A job or a job array to submit.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// The resources requested from the cluster.
    pub resources: &'a Resources,
    /// The time limit, in milliseconds. Slurm rounds it up to minutes.
    pub time_limit_ms: Option<u64>,
    /// The name of all jobs of this daemon instance.
    pub name: &'a str,
    /// A unique text by which the job is found if the answer to its submission is lost.
    pub key: &'a str,
    /// The number of elements of the array; `None` for a single job.
    pub elements: Option<u32>,
    /// The jobs to wait for, in Slurm's syntax, such as `afterok:7:12_3`.
    pub dependency: Option<&'a str>,
    /// Whether it must not start until it is released.
    pub is_held: bool,
    /// How far its priority is lowered; 0 keeps the priority.
    pub nice: u32,
    pub script: &'a Path,
    /// The folder of the tasks' files.
    pub files: &'a Path,
    /// The folder for notes.
    pub notes: &'a Path,
}

/// Returns the user's requests to the cluster, as options of `sbatch`.
fn asked(resources: &Resources, time_limit_ms: Option<u64>) -> Vec<String> {
    let mut words = Vec::new();
    let mut option = |name: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("--{name}={value}")));
    };
    option("partition", resources.partition.clone());
    option("account", resources.account.clone());
    option("qos", resources.qos.clone());
    option("cpus-per-task", resources.cpus.map(|cpus| cpus.to_string()));
    option("mem", resources.memory_bytes.map(|bytes| format!("{}M", bytes.div_ceil(MEBIBYTE))));
    option("gpus", resources.gpus.map(|gpus| gpus.to_string()));
    option("time", time_limit_ms.map(minutes_and_seconds));
    words
}

/// Returns the command that asks whether the cluster would accept a job with these resources. It submits nothing.
pub fn trial(resources: &Resources, time_limit_ms: Option<u64>) -> Argv {
    let asked = asked(resources, time_limit_ms).into_iter().chain(resources.options.iter().cloned());
    let words = ["sbatch".to_owned(), "--test-only".to_owned()].into_iter().chain(asked);
    words.chain(["--chdir=/".to_owned(), "--wrap=true".to_owned()]).map(OsString::from).collect()
}

/// Returns the command that shows whether jobs could be cancelled: whether the program for that exists.
pub fn can_cancel() -> Argv {
    argv(&["scancel", "--version"])
}

/// Returns the command that submits jobs. Options that must not be changed follow the user's options, because the last
/// one counts.
pub fn submit(submission: &Submission<'_>) -> Argv {
    let Submission { resources, time_limit_ms, name, key, elements, dependency, .. } = submission;
    let mut words: Vec<String> = vec!["sbatch".to_owned()];
    words.extend(asked(resources, *time_limit_ms));
    words.extend(Some(submission.nice).filter(|nice| *nice > 0).map(|nice| format!("--nice={nice}")));
    words.extend(resources.options.iter().cloned());
    // The daemon marks its own processes by a resource limit, which jobs must not inherit.
    words.extend(
        ["--parsable", "--export=ALL", "--propagate=NONE", "--chdir=/", "--input=/dev/null"]
            .map(str::to_owned),
    );
    // The script redirects its task's output itself. The job's own output would be a file for each element.
    words.extend(["--output=/dev/null", "--error=/dev/null"].map(str::to_owned));
    words.push(format!("--job-name={name}"));
    words.push(format!("--comment={key}"));
    words.extend(elements.map(|count| format!("--array=0-{}", count.saturating_sub(1))));
    if let Some(dependency) = dependency {
        words.push(format!("--dependency={dependency}"));
        words.push("--kill-on-invalid-dep=yes".to_owned());
    }
    words.extend(submission.is_held.then(|| "--hold".to_owned()));
    let paths = [submission.script, submission.files, submission.notes];
    words.into_iter().map(OsString::from).chain(paths.map(OsString::from)).collect()
}

fn minutes_and_seconds(ms: u64) -> String {
    let seconds = ms.div_ceil(1000).max(1);
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// Returns the query for the states and the keys of all jobs of these names, including ended ones for as long as the
/// controller remembers them.
///
/// The controller only searches the jobs of one user, and prints each element of an array separately.
pub fn queue(names: &[&str]) -> Argv {
    listing(names, "--format=%i|%T|%k|%r")
}

/// Returns the query for the keys of all submissions of this name.
pub fn keys(name: &str) -> Argv {
    listing(&[name], "--format=%i|%k")
}

/// Returns the query for how the scripts of all jobs of this name have ended, if they have.
pub fn exits(name: &str) -> Argv {
    listing(&[name], "--Format=JobArrayID:|,exit_code:|")
}

fn listing(names: &[&str], format: &str) -> Argv {
    let names = format!("--name={}", names.join(","));
    argv(&["squeue", "--me", "--noheader", "--array", "--states=all", &names, format])
}

/// The maximum number of jobs in one query of [`records`].
pub const RECORDS: usize = 1000;

/// Returns the query for the accounting's records of these jobs of this name, at most [`RECORDS`], and of their steps:
/// only steps contain the memory usage. After a reset of the controller the accounting may know other jobs by the same
/// ids.
pub fn records(name: &str, jobs: &[JobId]) -> Argv {
    let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    let format = "--format=JobID,State,ExitCode,UserCPU,SystemCPU,MaxRSS,TRESUsageOutTot";
    let jobs = format!("--jobs={}", jobs.join(","));
    let name = format!("--name={name}");
    argv(&["sacct", "--noheader", "--parsable2", "--noconvert", format, &name, &jobs])
}

/// Returns the query for the cluster's settings.
pub fn settings() -> Argv {
    argv(&["scontrol", "show", "config"])
}

/// Returns the commands that cancel jobs: each process gets SIGTERM and, after the cluster's own grace, SIGKILL.
pub fn cancel(jobs: Vec<JobId>) -> Vec<Argv> {
    commands(&["scancel"], jobs)
}

/// Returns the command that cancels all jobs of this name.
pub fn cancel_all(name: &str) -> Argv {
    argv(&["scancel", &format!("--name={name}")])
}

/// Returns the commands that end these jobs, except those with another name. None of them may be an element of an
/// array: `scancel` of Slurm 22.05 would cancel the whole array.
pub fn cancel_named(name: &str, jobs: Vec<JobId>) -> Vec<Argv> {
    commands(&["scancel", &format!("--name={name}")], jobs)
}

/// Returns the commands that send a signal to every process of these jobs.
pub fn signal(jobs: Vec<JobId>, signal: i32) -> Vec<Argv> {
    commands(&["scancel", "--full", &format!("--signal={signal}")], jobs)
}

/// Returns the commands that stop the processes of jobs, or continue them. The signals are named, as their numbers
/// differ between architectures, and those of the cluster count.
pub fn pause(jobs: Vec<JobId>, is_paused: bool) -> Vec<Argv> {
    let signal = if is_paused { "--signal=STOP" } else { "--signal=CONT" };
    commands(&["scancel", "--full", signal], jobs)
}

/// Returns the commands that hold waiting jobs, or release them.
pub fn hold(jobs: Vec<JobId>, is_held: bool) -> Vec<Argv> {
    commands(&["scontrol", if is_held { "uhold" } else { "release" }], jobs)
}

/// Returns the command that lowers the priority of a waiting job; 0 restores it.
pub fn nice(job: JobId, nice: u32) -> Argv {
    argv(&["scontrol", "update", &format!("JobId={job}"), &format!("Nice={nice}")])
}

/// The maximum number of words for jobs on one command line.
const JOB_WORDS: usize = 20;

fn commands(command: &[&str], jobs: Vec<JobId>) -> Vec<Argv> {
    let jobs = words(jobs);
    jobs.chunks(JOB_WORDS)
        .map(|jobs| {
            command.iter().copied().chain(jobs.iter().map(|job| &**job)).map(OsString::from).collect()
        })
        .collect()
}

fn argv(words: &[&str]) -> Argv {
    words.iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &Argv) -> String {
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn submission(resources: &Resources) -> Submission<'_> {
        Submission {
            resources,
            time_limit_ms: None,
            name: "bgd-a1",
            key: "k7",
            elements: None,
            dependency: None,
            is_held: false,
            nice: 0,
            script: Path::new("/w/job.sh"),
            files: Path::new("/w/jobs/k7"),
            notes: Path::new("/w/notes"),
        }
    }

    #[test]
    fn r146_task_resources_become_sbatch_options() {
        let none = Resources::default();
        assert_eq!(
            line(&submit(&submission(&none))),
            "sbatch --parsable --export=ALL --propagate=NONE --chdir=/ --input=/dev/null --output=/dev/null --error=/dev/null \
             --job-name=bgd-a1 --comment=k7 /w/job.sh /w/jobs/k7 /w/notes"
        );
        let resources = Resources {
            cpus: Some(4),
            memory_bytes: Some((8 << 30) + 1),
            gpus: Some(1),
            partition: Some("long".into()),
            account: Some("physics".into()),
            qos: Some("high".into()),
            options: vec!["--constraint=fast".into(), "--job-name=x".into()],
        };
        let all = Submission {
            time_limit_ms: Some(7_200_001),
            elements: Some(10_000),
            dependency: Some("afterok:7"),
            is_held: true,
            nice: 10,
            ..submission(&resources)
        };
        assert_eq!(
            line(&submit(&all)),
            "sbatch --partition=long --account=physics --qos=high --cpus-per-task=4 --mem=8193M --gpus=1 --time=120:01 \
             --nice=10 --constraint=fast --job-name=x --parsable --export=ALL --propagate=NONE --chdir=/ --input=/dev/null \
             --output=/dev/null --error=/dev/null --job-name=bgd-a1 --comment=k7 --array=0-9999 \
             --dependency=afterok:7 --kill-on-invalid-dep=yes --hold /w/job.sh /w/jobs/k7 /w/notes"
        );
    }

    #[test]
    fn r149_one_query_covers_all_jobs() {
        assert_eq!(
            line(&queue(&["bgd-a1", "bgd-b2"])),
            "squeue --me --noheader --array --states=all --name=bgd-a1,bgd-b2 --format=%i|%T|%k|%r"
        );
        assert_eq!(
            line(&exits("bgd-a1")),
            "squeue --me --noheader --array --states=all --name=bgd-a1 --Format=JobArrayID:|,exit_code:|"
        );
        assert_eq!(
            line(&records("bgd-a1", &[JobId { job: 6, index: Some(2) }, JobId { job: 9, index: None }])),
            "sacct --noheader --parsable2 --noconvert --format=JobID,State,ExitCode,UserCPU,SystemCPU,MaxRSS,TRESUsageOutTot \
             --name=bgd-a1 --jobs=6_2,9"
        );
    }

    #[test]
    fn r150_one_command_covers_many_jobs() {
        let jobs = || ["6_0", "6_1", "9"].map(|id| JobId::parse(id).unwrap()).to_vec();
        let lines = |all: Vec<Argv>| all.iter().map(line).collect::<Vec<_>>();
        assert_eq!(lines(cancel(jobs())), ["scancel 6_[0-1] 9"]);
        assert_eq!(lines(cancel_named("bgd-a1", jobs()[2..].to_vec())), ["scancel --name=bgd-a1 9"]);
        assert_eq!(lines(signal(jobs(), 10)), ["scancel --full --signal=10 6_[0-1] 9"]);
        assert_eq!(lines(pause(jobs(), true)), ["scancel --full --signal=STOP 6_[0-1] 9"]);
        assert_eq!(lines(pause(jobs(), false)), ["scancel --full --signal=CONT 6_[0-1] 9"]);
        assert_eq!(lines(hold(jobs(), true)), ["scontrol uhold 6_[0-1] 9"]);
        assert_eq!(lines(hold(jobs(), false)), ["scontrol release 6_[0-1] 9"]);
        assert_eq!(line(&nice(jobs()[0], 5)), "scontrol update JobId=6_0 Nice=5");
        assert_eq!(line(&cancel_all("bgd-a1")), "scancel --name=bgd-a1");
        assert!(cancel(Vec::new()).is_empty());
        let single = (0..50).map(|job| JobId { job, index: None }).collect();
        assert_eq!(cancel(single).len(), 3);
    }
}
