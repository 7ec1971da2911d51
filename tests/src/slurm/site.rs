//! A daemon with a cluster for its executor `hpc`, on the same machine or behind a login node, and the queries of
//! tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bgd_shared::id::TaskId;
use bgd_shared::task::{Status, Task};

use super::{Builder, Cluster};
use crate::far::{Far, HOST};
use crate::{Outcome, Process, TestDaemon, wait};

/// A daemon with a cluster configured as the executor `hpc`. The daemon ends first.
pub struct Site {
    pub daemon: TestDaemon,
    pub cluster: Cluster,
    /// The login node, if the daemon's machine lacks Slurm's commands.
    pub login: Option<Far>,
}

/// Unreadable notes. Dropping this makes them readable again.
#[must_use = "dropping it lets the notes be read again"]
pub struct Hidden(Vec<PathBuf>);

impl Drop for Hidden {
    fn drop(&mut self) {
        for mounted in self.0.iter().rev() {
            Outcome::of(Command::new("umount").arg("--lazy").arg(mounted));
        }
    }
}

impl Site {
    /// Starts a cluster, and a daemon on the same machine.
    #[track_caller]
    pub fn start() -> Self {
        Self::of(Builder::default(), "")
    }

    /// Like [`Self::start`], with this cluster, and these lines in the executor's table.
    #[track_caller]
    pub fn of(builder: Builder, keys: &str) -> Self {
        Self::with(builder, "", keys)
    }

    /// Like [`Self::start`], with this cluster, and a durable daemon.
    #[track_caller]
    pub fn durable(builder: Builder) -> Self {
        Self::with(builder, "durable = true", "")
    }

    #[track_caller]
    fn with(builder: Builder, daemon: &str, keys: &str) -> Self {
        let cluster = builder.start();
        let config = format!(
            "{daemon}\n{}\n{keys}\n[executors.hpc.env]\nPATH = \"{}:/usr/bin:/bin\"\n",
            table(&cluster),
            cluster.programs().path().display(),
        );
        Self { daemon: TestDaemon::builder().config(config).start(), cluster, login: None }
    }

    /// Starts a cluster, and a daemon that can only reach its login node.
    #[track_caller]
    pub fn far(builder: Builder) -> Self {
        Self::far_with(builder, "")
    }

    /// Like [`Self::far`], with a durable daemon.
    #[track_caller]
    pub fn far_durable(builder: Builder) -> Self {
        Self::far_with(builder, "durable = true")
    }

    #[track_caller]
    fn far_with(builder: Builder, daemon: &str) -> Self {
        let (cluster, login, config) = behind_a_login_node(builder);
        let config = format!("{daemon}\n{config}");
        Self { daemon: TestDaemon::builder().config(config).start(), cluster, login: Some(login) }
    }

    /// Like [`Self::far`], with a daemon that is already running.
    #[track_caller]
    pub fn far_of(builder: Builder, daemon: TestDaemon) -> Self {
        let (cluster, login, config) = behind_a_login_node(builder);
        daemon.write_config(&config);
        daemon.run(&["daemon", "reload"]).success();
        Self { daemon, cluster, login: Some(login) }
    }

    #[track_caller]
    pub fn login(&self) -> &Far {
        self.login.as_ref().expect("a cluster behind a login node")
    }

    /// Cuts the connection to the login node, which stays unreachable until [`Self::mend`].
    #[track_caller]
    pub fn cut(&self) {
        let refuse = "echo 'ssh: connect to host far port 22: No route to host' >&2; exit 255";
        self.login().wrap(refuse);
        let all: Vec<Process> = self.connections();
        assert!(!all.is_empty(), "no connection");
        all.iter().for_each(Process::kill);
    }

    /// Makes the login node reachable again.
    #[track_caller]
    pub fn mend(&self) {
        self.login().wrap("");
    }

    /// Makes all attempts to read the notes of jobs fail, on this machine and on the login node, until the result is
    /// dropped. The jobs themselves have mounts of their own, and continue.
    #[track_caller]
    pub fn hide_notes(&self) -> Hidden {
        let folder = self.folders().remove(0);
        let real = self.cluster.path("real");
        fs::create_dir_all(&real).expect("a folder");
        let mount = |words: &[&str], from: &Path, to: &Path| {
            Outcome::of(Command::new("mount").args(words).arg(from).arg(to)).success();
        };
        mount(&["--bind"], &folder, &real);
        let mut hidden = Hidden(vec![real.clone()]);
        mount(&["-t", "tmpfs"], Path::new("tmpfs"), &folder);
        hidden.0.push(folder.clone());
        let output = folder.join("output");
        fs::create_dir(&output).expect("a folder");
        mount(&["--bind"], &real.join("output"), &output);
        hidden.0.push(output);
        // An existing path that is not a folder, so it can't be read.
        fs::write(folder.join("notes"), "").expect("a file");
        hidden
    }

    /// Returns the ssh processes that hold the connection to the login node.
    pub fn connections(&self) -> Vec<Process> {
        let mut all = self.daemon.processes();
        all.retain(|process| {
            let line = process.cmdline();
            line.starts_with("ssh ") && line.contains("ControlMaster=yes")
        });
        all
    }

    /// Runs a `bgctl` to its end.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Outcome {
        self.daemon.run(args)
    }

    /// Submits a shell command line for the cluster, with these options.
    #[track_caller]
    pub fn submit(&self, options: &[&str], line: &str) -> TaskId {
        self.run(&[&["submit", "--on", "hpc"], options, &["--shell", line]].concat()).word()
    }

    /// Waits for the end of a task.
    #[track_caller]
    pub fn ended(&self, id: TaskId) -> Task {
        self.daemon.block(&[id]).remove(0)
    }

    /// Waits until `is_so` holds for a task.
    #[track_caller]
    pub fn until(&self, id: TaskId, what: &str, is_so: impl Fn(&Task) -> bool) -> Task {
        wait::poll_until(what, || Some(self.daemon.task(id)).filter(&is_so))
    }

    /// Waits until the task runs, and returns the id of its job.
    #[track_caller]
    pub fn running(&self, id: TaskId) -> String {
        self.until(id, "it runs", |task| task.status == Status::Running);
        self.job(id)
    }

    /// Waits until the cluster has accepted the task, and returns the id of its job.
    #[track_caller]
    pub fn job(&self, id: TaskId) -> String {
        wait::poll_until("an id there", || self.daemon.task(id).elsewhere.and_then(|there| there.id))
    }

    pub fn output(&self, id: TaskId) -> String {
        String::from_utf8(self.daemon.output(id)).unwrap()
    }

    /// Returns the folders in the work folder: one for each daemon instance.
    pub fn folders(&self) -> Vec<PathBuf> {
        fs::read_dir(self.cluster.work()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

/// Starts a cluster and its login node. Returns them with the configuration of a daemon that can only reach the login
/// node.
#[track_caller]
fn behind_a_login_node(builder: Builder) -> (Cluster, Far, String) {
    let cluster = builder.start();
    let login = Far::of(TestDaemon::home_only());
    let path = format!("{}:/usr/bin:/bin", cluster.programs().path().display());
    login.set_session(&[("PATH", &path)]);
    let ssh = login.path("ssh");
    let config = format!("{}\nhost = \"{HOST}\"\nssh = \"{}\"\n", table(&cluster), ssh.display());
    (cluster, login, config)
}

/// Returns the table of the executor, without its variables.
fn table(cluster: &Cluster) -> String {
    format!("[executors.hpc]\ntype = \"slurm\"\nwork_folder = \"{}\"", cluster.work().display())
}

/// Returns why the task's state is unknown, if it is.
pub fn unknown(task: &Task) -> Option<&str> {
    task.elsewhere.as_ref()?.unknown_because.as_deref()
}
