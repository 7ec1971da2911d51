//! Arguments for where a task runs, and what it requests from a cluster.

use bgd_shared::resources::Resources;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

/// Where a task runs, if not on the daemon's machine.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Where to run")]
pub struct ElsewhereArgs {
    /// Run it on this executor: local, or another machine or Slurm cluster that is configured as [executors.NAME]
    #[arg(long, value_name = "NAME", add = crate::candidates::executors(), value_parser = NonEmptyStringValueParser::new())]
    pub on: Option<String>,
    /// Processors to request from the cluster
    #[arg(long, value_name = "N", requires = "on", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub cpus: Option<u32>,
    /// Memory to request from the cluster: 512M, 8G
    #[arg(long, value_name = "SIZE", requires = "on", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// GPUs to request from the cluster
    #[arg(long, value_name = "N", requires = "on", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub gpus: Option<u32>,
    /// Partition of the cluster
    #[arg(long, value_name = "NAME", requires = "on", value_parser = NonEmptyStringValueParser::new())]
    pub partition: Option<String>,
    /// Account to charge
    #[arg(long, value_name = "NAME", requires = "on", value_parser = NonEmptyStringValueParser::new())]
    pub account: Option<String>,
    /// Quality of service of the cluster
    #[arg(long, value_name = "NAME", requires = "on", value_parser = NonEmptyStringValueParser::new())]
    pub qos: Option<String>,
    /// Further option of the cluster's submit command, as in --option=--nice=5; may be repeated
    #[arg(long = "option", value_name = "OPTION", requires = "on", allow_hyphen_values = true, value_parser = NonEmptyStringValueParser::new())]
    pub options: Vec<String>,
}

/// The names of these options, for arguments that conflict with them.
pub const ELSEWHERE: [&str; 8] = ["on", "cpus", "memory", "gpus", "partition", "account", "qos", "options"];

impl ElsewhereArgs {
    /// Returns the resources that the task requests from the cluster.
    pub fn resources(&self) -> Resources {
        let Self { on: _, cpus, memory, gpus, partition, account, qos, options } = self.clone();
        Resources { cpus, memory_bytes: memory, gpus, partition, account, qos, options }
    }
}

/// Arguments of `executors`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl executors
  bgctl executors --check             ask each of them whether it works
  bgctl executors --check cluster
  bgctl submit --on cluster -- ./train.sh

Executors are configured as [executors.NAME], see bgd-executors(7). --check connects to each \
machine, and asks each cluster for its version and limits; the exit code is 69 if one of \
them fails.")]
pub struct ExecutorsArgs {
    /// List only these executors
    #[arg(value_name = "NAME", add = crate::candidates::executors())]
    pub names: Vec<String>,
    /// Ask each of them whether tasks can run there now
    #[arg(long)]
    pub check: bool,
}

/// Parses an amount of memory: a number of bytes, or one with K, M, G or T, which are powers of 1024 as in Slurm.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not an amount of memory: use a number with K, M, G or T, such as 8G");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let power = ["", "K", "M", "G", "T"].iter().position(|known| *known == unit).ok_or_else(wrong)?;
    let factor = 1_u64 << (10 * power);
    number.checked_mul(factor).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r146_memory_sizes_are_parsed_in_powers_of_1024() {
        for (text, bytes) in [("1", 1), ("2K", 2048), ("512M", 512 << 20), ("8G", 8 << 30), ("8GiB", 8 << 30)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_bytes("1t"), Ok(1 << 40));
        for wrong in ["", "G", "0", "8X", "-1", "1.5G", "99999999999T"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
