//! What Slurm's own commands print. Whatever it is, reading it takes bounded time and memory, and what makes no sense is
//! left out: sites wrap these commands, and versions differ.

use super::job::JobId;

/// The longest line that is read, in bytes; longer ones are left out.
const LINE_BYTES: usize = 4096;

/// The maximum number of lines that are read.
const LINES: usize = 1_000_000;

/// The longest reason that is kept, in characters. Some list all nodes that are down.
const REASON_CHARS: usize = 200;

/// A job in the answer to a query for states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Its id.
    pub id: JobId,
    /// Its state.
    pub state: &'a str,
    /// The key of its submission, unless somebody has changed its comment.
    pub key: &'a str,
    /// Why it is in that state.
    pub reason: &'a str,
}

/// Reads the answer to [`super::commands::queue`].
pub fn queue(output: &str) -> impl Iterator<Item = Listed<'_>> {
    lines(output).filter_map(|line| {
        let mut fields = line.splitn(4, '|');
        let id = JobId::parse(fields.next()?.trim())?;
        let (state, key) = (fields.next()?.trim(), fields.next()?.trim());
        let reason = beginning(fields.next()?.trim());
        (!state.is_empty()).then_some(Listed { id, state, key, reason })
    })
}

/// Reads the answer to [`super::commands::keys`]: jobs with the keys of their submissions.
pub fn keys(output: &str) -> impl Iterator<Item = (JobId, &str)> {
    lines(output).filter_map(|line| {
        let (id, key) = line.split_once('|')?;
        Some((JobId::parse(id.trim())?, key.trim()))
    })
}

/// Reads the answer to [`super::commands::exits`]: the numbers are those of wait(2).
pub fn exits(output: &str) -> impl Iterator<Item = (JobId, ScriptExit)> {
    lines(output).filter_map(|line| {
        let mut fields = line.split('|');
        let id = JobId::parse(fields.next()?.trim())?;
        let status: i32 = fields.next()?.trim().parse().ok()?;
        Some((id, ScriptExit { code: (status >> 8) & 0xff, signal: status & 0x7f }))
    })
}

/// The exit code and the signal of a job's script, as the cluster has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptExit {
    /// The exit code.
    pub code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
}

/// A job in the accounting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its id.
    pub id: JobId,
    /// Its state.
    pub state: &'a str,
    /// How its script ended, if it has.
    pub exit: Option<ScriptExit>,
}

/// Reads the answer to [`super::commands::records`].
pub fn records(output: &str) -> impl Iterator<Item = Record<'_>> {
    lines(output).filter_map(|line| {
        let mut fields = line.split('|');
        let id = JobId::parse(fields.next()?.trim())?;
        let state = fields.next()?.trim();
        let exit = fields.next().and_then(|exit| exit.trim().split_once(':'));
        let exit = exit.and_then(|(code, signal)| {
            Some(ScriptExit { code: code.parse().ok()?, signal: signal.parse().ok()? })
        });
        (!state.is_empty()).then_some(Record { id, state, exit })
    })
}

/// Reads the answer to a submission: the number of the job or of the array. Sites print words of their own before it,
/// and in a federation the name of the cluster follows the number.
pub fn submitted(output: &str) -> Option<u64> {
    let line = lines(output).filter(|line| !line.trim().is_empty()).last()?;
    let id = line.trim().split(';').next()?;
    JobId::parse(id).filter(|id| id.index.is_none()).map(|id| id.job)
}

/// Settings of a cluster that decide how it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The version of Slurm.
    pub version: Option<String>,
    /// The name of the cluster.
    pub cluster: Option<String>,
    /// Arrays have fewer elements than this; 0 or 1: there are none.
    pub max_array_size: Option<u32>,
    /// How long the controller remembers ended jobs, in seconds.
    pub min_job_age: Option<u64>,
    /// Whether ended jobs are recorded.
    pub has_accounting: bool,
}

impl Settings {
    /// Returns how many elements an array may have; at least 1.
    pub fn max_elements(&self) -> u32 {
        self.max_array_size.unwrap_or(1).saturating_sub(1).max(1)
    }
}

/// Reads the answer to [`super::commands::settings`].
pub fn settings(output: &str) -> Settings {
    let mut settings = Settings::default();
    for line in lines(output) {
        let Some((name, value)) = line.split_once('=') else { continue };
        let (name, value) = (name.trim(), value.trim());
        let number = || value.split_whitespace().next().and_then(|number| number.parse::<u32>().ok());
        match name {
            "SLURM_VERSION" => settings.version = Some(value.to_owned()),
            "ClusterName" => settings.cluster = Some(value.to_owned()),
            "MaxArraySize" => settings.max_array_size = number(),
            "MinJobAge" => settings.min_job_age = number().map(u64::from),
            "AccountingStorageType" => {
                settings.has_accounting = !matches!(value, "" | "(null)" | "accounting_storage/none");
            }
            _ => {}
        }
    }
    settings
}

fn lines(output: &str) -> impl Iterator<Item = &str> {
    output.lines().take(LINES).filter(|line| line.len() <= LINE_BYTES)
}

fn beginning(text: &str) -> &str {
    text.char_indices().nth(REASON_CHARS).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(text: &str) -> JobId {
        JobId::parse(text).unwrap()
    }

    #[test]
    fn the_queue_is_read_as_slurm_prints_it() {
        let output = "6_9999|PENDING|a-1|JobHeldUser,JobHeldAdmin\n\
                      24|PENDING|(null)|job requeued in held state\n\
                      25|TIMEOUT|a-1|TimeLimit\n\
                      26|PENDING||ReqNodeNotAvail, UnavailableNodes:n[1-4]\n\
                      27|RUNNING|a-1|None\n\
                      27.batch|RUNNING|a-1|None\n\
                      28+1|RUNNING|a-1|None\n\
                      6_[1-4]|PENDING|a-1|Resources\n\
                      slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n";
        let jobs: Vec<_> = queue(output).collect();
        let expected = [
            ("6_9999", "PENDING", "a-1", "JobHeldUser,JobHeldAdmin"),
            ("24", "PENDING", "(null)", "job requeued in held state"),
            ("25", "TIMEOUT", "a-1", "TimeLimit"),
            ("26", "PENDING", "", "ReqNodeNotAvail, UnavailableNodes:n[1-4]"),
            ("27", "RUNNING", "a-1", "None"),
        ];
        assert_eq!(
            jobs,
            expected.map(|(text, state, key, reason)| Listed { id: id(text), state, key, reason })
        );
        let keys: Vec<_> = keys("6_1|a-1\n9|(null)\nx\n").collect();
        assert_eq!(keys, [(id("6_1"), "a-1"), (id("9"), "(null)")]);
    }

    #[test]
    fn records_are_read_as_slurm_prints_them() {
        let exit = |code, signal| ScriptExit { code, signal };
        let read: Vec<_> = exits("15|9|\n6_1|1024|\nx|1|\n7||\n").collect();
        assert_eq!(read, [(id("15"), exit(0, 9)), (id("6_1"), exit(4, 0))]);
        let output =
            "1|FAILED|4:0\n6_1|CANCELLED by 0|0:15\n6_[2-9]|PENDING|0:0\n7|RUNNING|\n1.batch|FAILED|4:0\n";
        let records: Vec<_> = records(output).map(|record| (record.id, record.state, record.exit)).collect();
        let expected = [
            (id("1"), "FAILED", Some(exit(4, 0))),
            (id("6_1"), "CANCELLED by 0", Some(exit(0, 15))),
            (id("7"), "RUNNING", None),
        ];
        assert_eq!(records, expected);
    }

    #[test]
    fn the_number_of_a_submission_is_the_last_line() {
        assert_eq!(submitted("6\n"), Some(6));
        assert_eq!(submitted("Welcome to the cluster!\n12;west\n\n"), Some(12));
        for output in ["", "\n", "Submitted batch job 7\n", "7_1\n", "7\nsee the news\n", "-1"] {
            assert_eq!(submitted(output), None, "{output:?}");
        }
    }

    #[test]
    fn settings_are_found_among_all_others() {
        let output = "Configuration data as of 2026-11-24T00:27:42\n\
                      AccountingStorageType   = accounting_storage/none\n\
                      ClusterName             = test\n\
                      MaxArraySize            = 20001\n\
                      MinJobAge               = 300 sec\n\
                      SLURM_VERSION           = 22.05.8\n";
        let expected = Settings {
            version: Some("22.05.8".into()),
            cluster: Some("test".into()),
            max_array_size: Some(20_001),
            min_job_age: Some(300),
            has_accounting: false,
        };
        assert_eq!(settings(output), expected);
        assert!(settings("AccountingStorageType = accounting_storage/slurmdbd\n").has_accounting);
        assert_eq!(settings("MaxArraySize = many\n"), Settings::default());
    }

    #[test]
    fn long_reasons_are_cut() {
        let nodes = "ü".repeat(1000);
        let output = format!("1|PENDING|a-1|{nodes}\n2|PENDING|{}\n", "x".repeat(5000));
        let jobs: Vec<_> = queue(&output).collect();
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].reason.chars().count(), REASON_CHARS);
    }

    proptest! {
        #[test]
        fn whatever_is_printed_is_read(output in "([0-9_|:;=+. \n\r\t()\\[\\]a-zA-Z-]|\\PC){0,300}") {
            for job in queue(&output) {
                prop_assert!(!job.state.is_empty());
            }
            let _ = (keys(&output).count(), records(&output).count(), exits(&output).count());
            let _ = (submitted(&output), settings(&output));
        }

        #[test]
        fn what_is_written_is_read(job in 1_u64..u64::MAX, index in any::<Option<u32>>(), reason in "[a-zA-Z, ]{0,50}") {
            let id = JobId { job, index };
            let output = format!("{id}|RUNNING|a-1|{reason}\n");
            let jobs: Vec<_> = queue(&output).collect();
            prop_assert_eq!(jobs, [Listed { id, state: "RUNNING", key: "a-1", reason: reason.trim() }]);
        }
    }
}
