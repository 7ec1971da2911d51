//! The machine the figures were measured on.

use std::fs;
use std::path::Path;
use std::process::Command;

use bgd_shared::time::Timestamp;
use serde::Serialize;

/// The machine, and the commit that was measured.
#[derive(Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    memory_bytes: u64,
    filesystem: String,
    commit: String,
    at: Timestamp,
}

impl Machine {
    pub fn this() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = value(&cpuinfo, "model name").unwrap_or("unknown").to_owned();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_kb =
            value(&meminfo, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let git = Command::new("git").arg("-C").arg(here).args(["describe", "--always", "--dirty"]).output();
        Self {
            cpu,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            memory_bytes: memory_kb.unwrap_or(0) * 1024,
            filesystem: filesystem(Path::new("/tmp")),
            commit: first_line(git),
            at: Timestamp::now(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cores, kernel, memory_bytes, filesystem, commit, at } = self;
        let memory = memory_bytes >> 30;
        write!(
            f,
            "{cores} cores of {cpu}, {memory} GiB, Linux {kernel}, /tmp on {filesystem}; {commit}, {at}"
        )
    }
}

/// Returns the type of the file system that holds a folder.
fn filesystem(folder: &Path) -> String {
    first_line(Command::new("stat").args(["-f", "-c", "%T"]).arg(folder).output())
}

fn first_line(output: std::io::Result<std::process::Output>) -> String {
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim()))
}
