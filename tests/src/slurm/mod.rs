//! A real Slurm cluster of one node: munged, slurmctld and slurmd with a configuration of their own, so that many
//! clusters run side by side and none touches the installed one.
//!
//! All its processes live in a PID namespace, so no job can outlive it. It ends with the test.

mod conf;
mod programs;
mod site;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use tempfile::TempDir;

use self::conf::Conf;
pub use self::programs::Programs;
pub use self::site::{Hidden, Site, unknown};
use crate::cgroups;
use crate::outcome::Outcome;
use crate::user::must_be_root;
use crate::wait;

/// Script of the first process of the namespace.
const BOOT: &str = include_str!("boot.sh");

/// Log line of the controller when it accepts orders.
const READY: &str = "Running as primary controller";

/// A cluster with one node of [`conf::CPUS`] processors, which need not be real.
pub struct Cluster {
    home: TempDir,
    conf: Conf,
    programs: Programs,
    unshare: Child,
    shell: Mutex<Shell>,
    /// Number of starts of the controller.
    starts: Mutex<u64>,
    has_mount: bool,
}

/// The pipes to the first process of the namespace.
struct Shell {
    input: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Selects the features of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    lines: String,
    accounting: bool,
    memory_limits: bool,
    work_bytes: Option<u64>,
    has_gpu: bool,
}

impl Builder {
    /// Adds lines to `slurm.conf`.
    #[must_use]
    pub fn conf(mut self, lines: &str) -> Self {
        self.lines.push_str(lines);
        self.lines.push('\n');
        self
    }

    /// Adds a database of ended jobs, which `sacct` reads.
    #[must_use]
    pub fn accounting(mut self) -> Self {
        self.accounting = true;
        self
    }

    /// Kills jobs that use more memory than requested, as the kernel does in a cgroup.
    #[must_use]
    pub fn memory_limits(mut self) -> Self {
        self.memory_limits = true;
        self
    }

    /// Gives the work folder a file system of this size, in bytes.
    #[must_use]
    pub fn work_bytes(mut self, bytes: u64) -> Self {
        self.work_bytes = Some(bytes);
        self
    }

    /// Gives the node a graphics processor, which need not be real.
    #[must_use]
    pub fn gpu(mut self) -> Self {
        self.has_gpu = true;
        self
    }

    /// Starts the cluster and waits until its node is idle.
    #[track_caller]
    pub fn start(self) -> Cluster {
        must_be_root();
        let home = tempfile::Builder::new().prefix("bgd-slurm-").tempdir_in("/tmp").expect("a folder");
        let conf = Conf::write(home.path(), &self);
        let programs = Programs::write(home.path());
        let has_mount = self.work_bytes.is_some();
        if let Some(bytes) = self.work_bytes {
            let size = format!("size={bytes},mode=700");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(home.path().join("work"));
            Outcome::of(&mut mount).success();
        }
        let mut command = Command::new("unshare");
        command.args(["-pf", "--mount-proc", "--kill-child", "/bin/sh", "-c", BOOT, "sh"]).arg(home.path());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("SLURM_CONF", conf.path());
        command.current_dir(home.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut unshare = command.spawn().expect("unshare can be run");
        let shell = Shell {
            input: unshare.stdin.take(),
            answers: BufReader::new(unshare.stdout.take().expect("a pipe")),
        };
        let cluster =
            Cluster { home, conf, programs, unshare, shell: shell.into(), starts: 0.into(), has_mount };
        wait::for_socket(&cluster.path("munge.socket"));
        if self.accounting {
            cluster.start_accounting();
        }
        cluster.start_controller();
        cluster.start_node();
        cluster.idle();
        cluster
    }
}

impl Cluster {
    /// Starts a cluster without accounting.
    #[track_caller]
    pub fn start() -> Self {
        Builder::default().start()
    }

    /// Returns a builder for a cluster with more features.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the path of a file of the cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns the folder that all its nodes share with the submitting machine.
    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    pub fn conf(&self) -> &Path {
        self.conf.path()
    }

    pub fn node(&self) -> &str {
        self.conf.node()
    }

    /// Returns Slurm's commands for a program under test, which record their calls.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Prepares one of Slurm's commands, as another user of the cluster would run it.
    pub fn command(&self, words: &[&str]) -> Command {
        let (program, arguments) = words.split_first().expect("a command");
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.work());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("SLURM_CONF", self.conf());
        command
    }

    /// Runs one of Slurm's commands to its end.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> Outcome {
        Outcome::of(&mut self.command(words))
    }

    /// Returns a field of `scontrol show job`, such as `JobState`; `None` if the job no longer exists.
    pub fn field(&self, job: &str, name: &str) -> Option<String> {
        let shown = self.run(&["scontrol", "--oneliner", "show", "job", job]).stdout_text();
        let mut words = shown.split_whitespace();
        words.find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    /// Waits until a job has this state.
    #[track_caller]
    pub fn wait_for_state(&self, job: &str, state: &str) {
        let what = format!("job {job} to be {state}");
        wait::poll_until(&what, || self.field(job, "JobState").filter(|now| now == state));
    }

    /// Lets a requeued job start, for which Slurm waits for two minutes. It must not start in the second in which the
    /// previous run was ended: the node would refuse it ("Job credential revoked"), and the job would fail.
    #[track_caller]
    pub fn start_requeued(&self, job: &str) {
        // Before that, the previous run is still being ended.
        self.wait_for_state(job, "PENDING");
        self.run(&["scontrol", "update", &format!("JobId={job}"), "StartTime=now+2"]).success();
    }

    /// Returns the ids and states of all jobs that are known to the controller, including ended ones.
    #[track_caller]
    pub fn jobs(&self) -> Vec<(String, String)> {
        let all = self.run(&["squeue", "--noheader", "--array", "--states=all", "--format=%i %T"]).success();
        let pairs = all.stdout_text();
        pairs
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(id, state)| (id.into(), state.into()))
            .collect()
    }

    /// Starts the controller and waits until it accepts orders.
    #[track_caller]
    pub fn start_controller(&self) {
        let count = {
            let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
            *starts += 1;
            *starts
        };
        self.daemon("slurmctld", "slurmctld -D");
        wait::for_lines(&self.path("slurmctld.log"), count, READY);
    }

    /// Ends the controller, and waits for its exit.
    #[track_caller]
    pub fn stop_controller(&self) {
        self.end("slurmctld");
    }

    /// Makes the controller forget all its jobs, and restart their numbering at 1.
    #[track_caller]
    pub fn reset_controller(&self) {
        self.stop_controller();
        fs::remove_dir_all(self.path("state")).expect("the controller's state");
        fs::create_dir(self.path("state")).expect("a folder");
        self.start_controller();
    }

    /// Starts the node's daemon.
    #[track_caller]
    pub fn start_node(&self) {
        self.daemon("slurmd", &format!("slurmd -D -N {}", self.node()));
    }

    /// Ends the node's daemon, and waits for its exit. Its jobs keep running.
    #[track_caller]
    pub fn stop_node(&self) {
        self.end("slurmd");
    }

    /// Waits until no job step is left on the node.
    #[track_caller]
    pub fn steps_ended(&self) {
        wait::poll_until("the end of all steps", || {
            (self.run_in_namespace("pgrep slurmstepd >/dev/null") == 1).then_some(())
        });
    }

    /// Waits until the node accepts jobs and has none.
    #[track_caller]
    pub fn idle(&self) {
        let state = ["sinfo", "--noheader", "--format=%T"];
        wait::poll_until("an idle node", || {
            let shown = self.run(&state).stdout_text();
            (!shown.is_empty() && shown.lines().all(|line| line == "idle")).then_some(())
        });
    }

    fn start_accounting(&self) {
        let data = self.path("mariadb");
        let install =
            "mariadb-install-db --no-defaults --skip-test-db --auth-root-authentication-method=normal";
        let server = "--no-defaults --skip-log-bin --innodb-flush-log-at-trx-commit=0";
        // The server's temporary tables are named after its process id, which servers in other namespaces have as well:
        // in a shared folder they would use each other's, and then there is no user `root`.
        assert_eq!(
            self.run_in_namespace("mkdir mariadb.tmp && export TMPDIR=$PWD/mariadb.tmp"),
            0,
            "no folder"
        );
        let install = format!("{install} --user=root --datadir={} >mariadb.out 2>&1", data.display());
        assert_eq!(self.run_in_namespace(&install), 0, "the database can't be made");
        let socket = self.path("mariadb.socket");
        self.daemon(
            "mariadbd",
            &format!(
                "mariadbd {server} --user=root --bind-address=127.0.0.1 --port={} --datadir={} --socket={}",
                self.conf.ports().database,
                data.display(),
                socket.display()
            ),
        );
        wait::for_socket(&socket);
        let create =
            "CREATE USER slurm@127.0.0.1 IDENTIFIED BY 'slurm'; GRANT ALL ON slurm.* TO slurm@127.0.0.1";
        let client = format!(
            "mariadb --no-defaults --socket={} --execute=\"{create}\" >>mariadb.out 2>&1",
            socket.display()
        );
        assert_eq!(self.run_in_namespace(&client), 0, "the database can't be prepared");
        self.daemon("slurmdbd", "slurmdbd -D");
        wait::for_line(&self.path("slurmdbd.log"), "slurmdbd version");
        let add = ["sacctmgr", "--immediate", "add", "cluster", conf::CLUSTER];
        wait::poll_until("the accounting daemon", || (self.run(&add).code == 0).then_some(()));
    }

    /// Starts a daemon in the namespace, and stores its process id in a variable of the first process.
    fn daemon(&self, name: &str, line: &str) {
        self.run_in_namespace(&format!("{line} >>{name}.out 2>&1 </dev/null & {name}=$!"));
    }

    fn end(&self, name: &str) {
        self.run_in_namespace(&format!("kill ${name} && wait ${name}"));
    }

    /// Runs a line of shell in the namespace and returns its exit code.
    #[track_caller]
    fn run_in_namespace(&self, line: &str) -> i32 {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        let input = shell.input.as_mut().expect("the cluster runs");
        input.write_all(format!("{line}\n").as_bytes()).expect("the cluster runs");
        let mut answer = String::new();
        assert!(wait::readable(shell.answers.get_ref().as_fd(), wait::PATIENCE), "no end: {line}");
        shell.answers.read_line(&mut answer).expect("a pipe can be read");
        answer.trim().parse().unwrap_or_else(|_| panic!("{line}: {answer:?}"))
    }

    fn explain(&self) {
        for name in ["slurmctld", "slurmd", "slurmdbd", "munged", "mariadb", "mariadbd"] {
            for file in [format!("{name}.log"), format!("{name}.out")] {
                let text = fs::read(self.path(&file)).unwrap_or_default();
                let text = String::from_utf8_lossy(&text[text.len().saturating_sub(4000)..]).into_owned();
                eprintln!("--- end of {file}\n{text}");
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.explain();
        }
        // The end of `unshare` ends the first process, and that ends everything.
        let _ = self.unshare.kill().and_then(|()| self.unshare.wait());
        if self.has_mount {
            Outcome::of(Command::new("umount").arg("--lazy").arg(self.work()));
        }
        for cgroup in self.conf.cgroups() {
            wait::poll_until("the end of all jobs", || {
                cgroups::remove(&cgroup);
                (!cgroup.exists()).then_some(())
            });
        }
    }
}
