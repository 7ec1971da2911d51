//! Parsers for the output of Slurm's own commands. Whatever the output is, parsing takes bounded time and memory, and
//! invalid parts are skipped: sites wrap these commands, and versions differ.

use bgd_shared::text::beginning;
use bgd_shared::usage::Usage;

use super::job::JobId;
use super::states::{self, Standing};

/// The maximum length of a parsed line, in bytes; longer lines are skipped.
const LINE_BYTES: usize = 4096;

/// The maximum number of parsed lines.
const LINES: usize = 1_000_000;

/// The maximum length of a reason, in bytes. Some reasons list all nodes that are down.
const REASON_BYTES: usize = 200;

/// A job in the answer to a query for states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    pub id: JobId,
    pub state: &'a str,
    /// The key of its submission, unless the job's comment was changed.
    pub key: &'a str,
    /// Why it is in this state.
    pub reason: &'a str,
}

/// Parses the answer to [`super::commands::queue`].
pub fn queue(output: &str) -> impl Iterator<Item = Listed<'_>> {
    lines(output).filter_map(|line| {
        let mut fields = line.splitn(4, '|');
        let id = JobId::parse(fields.next()?.trim())?;
        let (state, key) = (fields.next()?.trim(), fields.next()?.trim());
        let reason = beginning(fields.next()?.trim(), REASON_BYTES);
        (!state.is_empty()).then_some(Listed { id, state, key, reason })
    })
}

/// Parses the answer to [`super::commands::keys`]: jobs with the keys of their submissions.
pub fn keys(output: &str) -> impl Iterator<Item = (JobId, &str)> {
    lines(output).filter_map(|line| {
        let (id, key) = line.split_once('|')?;
        Some((JobId::parse(id.trim())?, key.trim()))
    })
}

/// Parses the answer to [`super::commands::exits`]: the numbers are those of wait(2).
pub fn exits(output: &str) -> impl Iterator<Item = (JobId, ScriptExit)> {
    lines(output).filter_map(|line| {
        let mut fields = line.split('|');
        let id = JobId::parse(fields.next()?.trim())?;
        let status: i32 = fields.next()?.trim().parse().ok()?;
        Some((id, ScriptExit { code: (status >> 8) & 0xff, signal: status & 0x7f }))
    })
}

/// The exit code and the signal of a job's script, according to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptExit {
    pub code: i32,
    /// The signal that ended the script, or 0.
    pub signal: i32,
}

/// A job in the accounting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub id: JobId,
    pub state: &'a str,
    /// How its script has ended; `None` if it has not.
    pub exit: Option<ScriptExit>,
    /// Its usage so far; `None` before the first of its steps is recorded.
    pub used: Option<Usage>,
    /// Whether the record is final: the job and all its steps have ended.
    pub is_final: bool,
}

/// Parses the answer to [`super::commands::records`]: a line for each job, followed by those of its steps, such as
/// `7.batch`. A job's time includes its steps' times; its line contains neither their memory nor what they wrote.
pub fn records(output: &str) -> Vec<Record<'_>> {
    let mut records: Vec<Record<'_>> = Vec::new();
    let mut times = Usage::default();
    for line in lines(output) {
        let mut fields = line.split('|').map(str::trim);
        let (Some(name), Some(state)) = (fields.next(), fields.next()) else { continue };
        let has_ended = matches!(states::standing(state), Standing::Ended(_));
        if let Some((job, _)) = name.split_once('.') {
            let job = JobId::parse(job);
            let Some(record) = records.last_mut().filter(|record| Some(record.id) == job) else { continue };
            record.is_final &= has_ended;
            let used = record.used.get_or_insert(times);
            let mut of_step = fields.skip(3);
            used.peak_memory_bytes = used.peak_memory_bytes.max(of_step.next().and_then(bytes));
            let written = of_step.next().and_then(written).unwrap_or(0);
            used.written_bytes = used.written_bytes.saturating_add(written);
        } else if let Some(id) = JobId::parse(name).filter(|_| !state.is_empty()) {
            let exit = fields.next().and_then(|exit| exit.split_once(':')).and_then(|(code, signal)| {
                Some(ScriptExit { code: code.parse().ok()?, signal: signal.parse().ok()? })
            });
            let mut time = || fields.next().and_then(milliseconds).unwrap_or(0);
            times = Usage { user_ms: time(), system_ms: time(), ..Usage::default() };
            records.push(Record { id, state, exit, used: None, is_final: has_ended });
        }
    }
    records
}

/// Parses a time: `[DAYS-[HOURS:]]MINUTES:SECONDS[.FRACTION]`.
fn milliseconds(text: &str) -> Option<u64> {
    let (days, rest) = text.split_once('-').unwrap_or(("0", text));
    let (rest, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    let whole =
        rest.split(':').try_fold(0_u64, |sum, part| sum.checked_mul(60)?.checked_add(part.parse().ok()?));
    let fraction: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let days = days.parse::<u64>().ok()?.checked_mul(86_400)?;
    days.checked_add(whole?)?.checked_mul(1000)?.checked_add(fraction)
}

/// Parses a number of bytes: `145612800`, or `142200K` from versions without `--noconvert`.
fn bytes(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let power = match &text[number.len()..] {
        "" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let (whole, hundredths): (u64, u64) =
        (whole.parse().ok()?, format!("{fraction:0<2}").get(..2)?.parse().ok()?);
    let unit = 1024_u64.pow(power);
    whole.checked_mul(unit)?.checked_add(hundredths.checked_mul(unit)? / 100)
}

/// Extracts the bytes that a step wrote to disks from its usage: `energy=0,fs/disk=5000001`.
fn written(text: &str) -> Option<u64> {
    text.split(',').find_map(|one| bytes(one.strip_prefix("fs/disk=")?))
}

/// Parses the answer to a submission: the number of the job or of the array. Sites print other text before the number,
/// and in a federation the name of the cluster follows it.
pub fn submitted(output: &str) -> Option<u64> {
    let line = lines(output).filter(|line| !line.trim().is_empty()).last()?;
    let id = line.trim().split(';').next()?;
    JobId::parse(id).filter(|id| id.index.is_none()).map(|id| id.job)
}

/// Settings of a cluster that affect how it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub version: Option<String>,
    pub cluster: Option<String>,
    /// Arrays have fewer elements than this; 0 or 1: there are no arrays.
    pub max_array_size: Option<u32>,
    /// How long the controller remembers ended jobs, in seconds.
    pub min_job_age: Option<u64>,
    /// Whether ended jobs are recorded.
    pub has_accounting: bool,
    /// Whether the nodes measure the usage of jobs.
    pub is_measuring: bool,
}

impl Settings {
    /// Returns whether the accounting knows the usage of jobs.
    pub const fn keeps_costs(&self) -> bool {
        self.has_accounting && self.is_measuring
    }

    /// Returns the maximum number of elements of an array; at least 1.
    pub fn max_elements(&self) -> u32 {
        self.max_array_size.unwrap_or(1).saturating_sub(1).max(1)
    }
}

/// Parses the answer to [`super::commands::settings`].
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
            "JobAcctGatherType" => {
                settings.is_measuring = !matches!(value, "" | "(null)" | "jobacct_gather/none");
            }
            _ => {}
        }
    }
    settings
}

fn lines(output: &str) -> impl Iterator<Item = &str> {
    output.lines().take(LINES).filter(|line| line.len() <= LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(text: &str) -> JobId {
        JobId::parse(text).unwrap()
    }

    #[test]
    fn squeue_output_is_parsed() {
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
    fn exit_and_accounting_records_are_parsed() {
        let exit = |code, signal| ScriptExit { code, signal };
        let read: Vec<_> = exits("15|9|\n6_1|1024|\nx|1|\n7||\n").collect();
        assert_eq!(read, [(id("15"), exit(0, 9)), (id("6_1"), exit(4, 0))]);
        let output =
            "1|FAILED|4:0\n6_1|CANCELLED by 0|0:15\n6_[2-9]|PENDING|0:0\n7|RUNNING|\n1.batch|FAILED|4:0\n";
        let read = records(output);
        let records: Vec<_> = read.iter().map(|record| (record.id, record.state, record.exit)).collect();
        let expected = [
            (id("1"), "FAILED", Some(exit(4, 0))),
            (id("6_1"), "CANCELLED by 0", Some(exit(0, 15))),
            (id("7"), "RUNNING", None),
        ];
        assert_eq!(records, expected);
    }

    #[test]
    fn r164_job_usage_is_summed_from_its_steps() {
        let output = "1|COMPLETED|0:0|00:01.260|00:03.738||\n\
                      1.batch|COMPLETED|0:0|00:01.000|00:03.700|145612800|energy=0,fs/disk=5000001\n\
                      1.extern|COMPLETED|0:0|00:00.260|00:00.038||energy=0\n\
                      1.0|COMPLETED|0:0|00:00.260|00:00.038|142200K|fs/disk=1.50K\n\
                      6_1|CANCELLED by 0|0:15|1-00:00:01|00:00:00||\n\
                      6_1.batch|RUNNING|0:0|1-00:00:01|00:00:00||\n\
                      6_2.batch|COMPLETED|0:0|00:09:00|00:00:00|9|\n\
                      7|RUNNING|0:0|00:00.001|00:00:00||\n\
                      7.batch|COMPLETED|0:0|00:00.001|00:00:00|12.5M|\n\
                      8|CANCELLED by 0|0:0|00:00:00|00:00:00||\n";
        let read = records(output);
        let usage = |user_ms, system_ms, peak_memory_bytes, written_bytes| {
            Some(Usage { user_ms, system_ms, peak_memory_bytes, written_bytes })
        };
        let expected = [
            ("1", usage(1260, 3738, Some(145_612_800), 5_001_537), true),
            ("6_1", usage(86_401_000, 0, None, 0), false),
            ("7", usage(1, 0, Some(25 << 19), 0), false),
            ("8", None, true),
        ];
        let read: Vec<_> = read.iter().map(|record| (record.id, record.used, record.is_final)).collect();
        assert_eq!(read, expected.map(|(name, used, is_final)| (id(name), used, is_final)));
    }

    #[test]
    fn slurm_times_and_sizes_are_parsed() {
        let times =
            ["00:00:00", "00:01.5", "02:03", "01:02:03", "2-01:00:00.004", "", "x", "1-", "-1", "00:01.é"];
        let read =
            [Some(0), Some(1500), Some(123_000), Some(3_723_000), Some(176_400_004), None, None, None, None];
        assert_eq!(times.map(milliseconds), [&read[..], &[None]].concat()[..]);
        let sizes = ["0", "12", "1K", "1.25M", "2G", "1T", "", "K", "1X", "1.é", "99999999999T"];
        let read = [Some(0), Some(12), Some(1024), Some(5 << 18), Some(2 << 30), Some(1 << 40)];
        assert_eq!(sizes.map(bytes), [&read[..], &[None; 5]].concat()[..]);
    }

    #[test]
    fn submitted_job_number_is_read_from_the_last_line() {
        assert_eq!(submitted("6\n"), Some(6));
        assert_eq!(submitted("Welcome to the cluster!\n12;west\n\n"), Some(12));
        for output in ["", "\n", "Submitted batch job 7\n", "7_1\n", "7\nsee the news\n", "-1"] {
            assert_eq!(submitted(output), None, "{output:?}");
        }
    }

    #[test]
    fn cluster_settings_are_found_in_full_configuration() {
        let output = "Configuration data as of 2026-11-24T00:27:42\n\
                      AccountingStorageType   = accounting_storage/none\n\
                      ClusterName             = test\n\
                      MaxArraySize            = 20001\n\
                      MinJobAge               = 300 sec\n\
                      JobAcctGatherType       = jobacct_gather/none\n\
                      SLURM_VERSION           = 22.05.8\n";
        let expected = Settings {
            version: Some("22.05.8".into()),
            cluster: Some("test".into()),
            max_array_size: Some(20_001),
            min_job_age: Some(300),
            has_accounting: false,
            is_measuring: false,
        };
        assert_eq!(settings(output), expected);
        let accounting = "AccountingStorageType = accounting_storage/slurmdbd\n";
        let found = settings(accounting);
        assert!(found.has_accounting && !found.keeps_costs());
        assert!(settings(&format!("{accounting}JobAcctGatherType = jobacct_gather/cgroup\n")).keeps_costs());
        assert_eq!(settings("MaxArraySize = many\n"), Settings::default());
    }

    #[test]
    fn long_reasons_are_truncated() {
        let nodes = "ü".repeat(1000);
        let output = format!("1|PENDING|a-1|{nodes}\n2|PENDING|{}\n", "x".repeat(5000));
        let jobs: Vec<_> = queue(&output).collect();
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].reason.len(), REASON_BYTES);
    }

    proptest! {
        #[test]
        fn arbitrary_output_never_panics_the_parsers(output in "([0-9_|:;=+. \n\r\t()\\[\\]a-zA-Z-]|\\PC){0,300}") {
            for job in queue(&output) {
                prop_assert!(!job.state.is_empty());
            }
            let _ = (keys(&output).count(), records(&output).len(), exits(&output).count());
            let _ = (submitted(&output), settings(&output));
        }

        #[test]
        fn written_queue_line_is_read_back(job in 1_u64..u64::MAX, index in any::<Option<u32>>(), reason in "[a-zA-Z, ]{0,50}") {
            let id = JobId { job, index };
            let output = format!("{id}|RUNNING|a-1|{reason}\n");
            let jobs: Vec<_> = queue(&output).collect();
            prop_assert_eq!(jobs, [Listed { id, state: "RUNNING", key: "a-1", reason: reason.trim() }]);
        }
    }
}
