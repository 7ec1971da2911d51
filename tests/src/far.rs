//! Another machine: a real `sshd`, reached via the real `ssh`, in front of a daemon of its own. No port is used, as
//! each connection starts its own sshd (`ProxyCommand`), and no file of the user's is read.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bgd_shared::id::TaskId;
use bgd_shared::proc;
use bgd_shared::request::{ListParams, TaskList};
use bgd_shared::task::{Status, Task};
use rustix::process::Signal;

use crate::wire::Wire;
use crate::{Outcome, Process, Terminal, TestDaemon, bgctl_path, executable, wait};

/// The name of the remote machine in the client's configuration.
pub const HOST: &str = "far";

const SSHD: &str = "/usr/sbin/sshd";

/// A remote machine with a daemon, and a local one without from which it is used.
pub struct Far {
    /// The daemon of the remote machine.
    pub daemon: TestDaemon,
    here: TestDaemon,
    name: String,
}

impl Far {
    /// Starts a daemon on the remote machine, and prepares the connection to it.
    #[track_caller]
    pub fn start() -> Self {
        Self::of(TestDaemon::start())
    }

    /// Starts a daemon on either machine; this one's has these lines in its configuration, and the remote machine as
    /// an executor.
    #[track_caller]
    pub fn with_here(more: &str) -> Self {
        let mut far = Self::start();
        far.start_here(more);
        far
    }

    /// Starts daemons on two remote machines, [`HOST`] and `near`, both known to the first one.
    #[track_caller]
    pub fn pair() -> (Self, Self) {
        let (far, near) = (Self::start(), Self::named("near", TestDaemon::start()));
        far.join(&near);
        (far, near)
    }

    /// Prepares the connection to the machine of this daemon, which need not run.
    #[track_caller]
    pub fn of(daemon: TestDaemon) -> Self {
        Self::named(HOST, daemon)
    }

    /// Like [`Self::of`], with another host name than [`HOST`].
    #[track_caller]
    pub fn named(name: &str, daemon: TestDaemon) -> Self {
        Self::between(name, daemon, TestDaemon::home_only())
    }

    /// Prepares the connection from the machine of one daemon, `here`, to that of another one.
    #[track_caller]
    pub fn between(name: &str, daemon: TestDaemon, here: TestDaemon) -> Self {
        let far = Self { daemon, here, name: name.to_owned() };
        fs::create_dir_all("/run/sshd").unwrap_or_else(|error| {
            // Only root's sshd needs this folder.
            assert!(!nix::unistd::Uid::effective().is_root(), "/run/sshd: {error}");
        });
        far.make_key("host");
        far.make_key("user");
        far.set_session(&[]);
        fs::write(far.path("known"), format!("{name} {}", far.read("host.pub"))).expect("a file");
        far.surround("exec");
        fs::write(
            far.path("ssh.conf"),
            format!(
                "Host {name}\nProxyCommand {}\nIdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\n\
                 GlobalKnownHostsFile /dev/null\nBatchMode yes\nHostKeyAlias {name}\n",
                far.path("proxy").display(),
                far.path("user").display(),
                far.path("known").display(),
            ),
        )
        .expect("a file");
        far.wrap("");
        far
    }

    /// Adds the remote machine of `other` to the ssh configuration of this one.
    #[track_caller]
    pub fn join(&self, other: &Self) {
        fs::write(self.path("ssh.conf"), self.read("ssh.conf") + &other.read("ssh.conf")).expect("a file");
    }

    /// Runs these lines of shell before each ssh; `$SSH` is the program with its configuration.
    #[track_caller]
    pub fn wrap(&self, lines: &str) {
        let conf = self.path("ssh.conf");
        let text = format!("#!/bin/sh\nSSH='ssh -F {}'\n{lines}\nexec $SSH \"$@\"\n", conf.display());
        executable::write(&self.path("ssh"), &text);
    }

    /// Replaces a part of each request on its way, as if the remote machine's daemon were one that doesn't know it.
    /// Returns the file that lists the requests as they arrive there.
    #[track_caller]
    pub fn replace_in_requests(&self, part: &str, other: &str) -> PathBuf {
        let requests = self.path("requests");
        // ssh makes its own standard output non-blocking, so it gets a pipe: that of the wrapper is the socket that
        // sed reads.
        self.wrap(&format!(
            "case \"$*\" in *dial*) sed -u 's/{part}/{other}/' | tee -a {} | $SSH \"$@\" | cat; exit;; esac",
            requests.display()
        ));
        requests
    }

    /// Starts each sshd with these words of shell; the default is `exec`.
    #[track_caller]
    pub fn surround(&self, words: &str) {
        // Each connection appends a line, so that connections can be counted.
        let proxy = format!(
            "#!/bin/sh\necho >>{connections}\n{words} {SSHD} -i -e -f {conf} 2>>{log}\n",
            connections = self.path("connections").display(),
            conf = self.path("sshd.conf").display(),
            log = self.path("sshd.log").display(),
        );
        executable::write(&self.path("proxy"), &proxy);
    }

    /// Makes all new connections through a wire, which can be slow or cut.
    #[track_caller]
    pub fn wire(&self) -> Wire {
        let wire = Wire::to(&self.path("proxy"));
        let text = self.read("ssh.conf");
        let lines = text.lines().map(|line| {
            if line.starts_with("ProxyCommand ") {
                format!("HostName 127.0.0.1\nPort {}\n", wire.port())
            } else {
                format!("{line}\n")
            }
        });
        fs::write(self.path("ssh.conf"), lines.collect::<String>()).expect("a file");
        wire
    }

    /// Adds a line to the configuration of the local ssh.
    #[track_caller]
    pub fn configure_ssh(&self, line: &str) {
        fs::write(self.path("ssh.conf"), self.read("ssh.conf") + line + "\n").expect("a file");
    }

    /// Adds a line to the configuration of the remote sshd.
    #[track_caller]
    pub fn configure(&self, line: &str) {
        fs::write(self.path("sshd.conf"), self.read("sshd.conf") + line + "\n").expect("a file");
    }

    /// Sets these variables in remote sessions, in addition to those of the daemon's home.
    #[track_caller]
    pub fn set_session(&self, variables: &[(&str, &str)]) {
        let programs = bgctl_path().parent().expect("programs are in a folder").as_os_str().to_owned();
        let mut path = programs;
        path.push(":/usr/bin:/bin");
        let mut pairs: Vec<(OsString, OsString)> = self.daemon.environment();
        pairs.push(("PATH".into(), path));
        pairs.extend(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        let mut set: Vec<(OsString, OsString)> = Vec::new();
        for (name, value) in pairs {
            set.retain(|(known, _)| *known != name);
            set.push((name, value));
        }
        let mut conf = format!(
            "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nSetEnv",
            self.path("host").display(),
            self.path("user.pub").display(),
        )
        .into_bytes();
        for (name, value) in set {
            conf.extend_from_slice(b" \"");
            conf.extend_from_slice(name.as_bytes());
            conf.push(b'=');
            conf.extend_from_slice(value.as_bytes());
            conf.push(b'"');
        }
        conf.push(b'\n');
        fs::write(self.path("sshd.conf"), conf).expect("a file");
    }

    fn make_key(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
        let made = Outcome::of(
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.path(name)),
        );
        made.success();
    }

    /// Replaces a key, `host` or `user`, with a new one that the other side has not recorded.
    #[track_caller]
    pub fn change_key(&self, name: &str) {
        let public = self.read(&format!("{name}.pub"));
        self.make_key(name);
        if name == "user" {
            fs::write(self.path("user.pub"), public).expect("a file");
        }
    }

    /// Returns the path of a file on this machine.
    pub fn path(&self, name: &str) -> PathBuf {
        self.here.home().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("a file of this machine")
    }

    /// Starts the daemon of this machine, with the remote one as its executor `far`.
    #[track_caller]
    pub fn start_here(&mut self, more: &str) -> &TestDaemon {
        self.configure_here(more);
        self.here.launch();
        &self.here
    }

    /// Returns lines of a configuration: another executor, `second`, that leads to the same machine as `far`.
    pub fn second_executor(&self) -> String {
        let ssh = self.path("ssh");
        format!("[executors.second]\ntype = \"ssh\"\nhost = \"{HOST}\"\nssh = \"{}\"\n", ssh.display())
    }

    /// Writes the configuration of this machine's daemon.
    #[track_caller]
    pub fn configure_here(&self, more: &str) {
        let ssh = self.path("ssh");
        let executor =
            format!("[executors.far]\ntype = \"ssh\"\nhost = \"{HOST}\"\nssh = \"{}\"\n", ssh.display());
        self.here.write_config(&format!("{more}\n{executor}"));
    }

    /// Changes the host of the executor in the configuration of this machine's daemon.
    #[track_caller]
    pub fn set_host(&self, host: &str) {
        let text = fs::read_to_string(self.here.config_path()).expect("a configuration");
        let lines = text.lines().map(|line| match line.strip_prefix("host = ") {
            Some(_) => format!("host = \"{host}\"\n"),
            None => format!("{line}\n"),
        });
        self.here.write_config(&lines.collect::<String>());
    }

    pub fn here(&mut self) -> &mut TestDaemon {
        &mut self.here
    }

    /// Runs a `bgctl` for this machine's daemon to its end.
    #[track_caller]
    pub fn run_here(&self, args: &[&str]) -> Outcome {
        self.here.run(args)
    }

    /// Submits a shell command line to this machine's daemon, with these options, for the remote machine.
    #[track_caller]
    pub fn submit_on(&self, options: &[&str], line: &str) -> TaskId {
        self.run_here(&[&["submit", "--on", HOST], options, &["--shell", line]].concat()).word()
    }

    /// Returns the tasks of the remote machine.
    #[track_caller]
    pub fn tasks_there(&self) -> Vec<Task> {
        self.daemon.client().call::<TaskList>(&ListParams::default()).expect("task.list").tasks
    }

    /// Waits until `is_so` holds for a task of this machine's daemon.
    #[track_caller]
    pub fn until(&mut self, id: TaskId, what: &str, is_so: impl Fn(&Task) -> bool) -> Task {
        wait::poll_until(what, || Some(self.here.task(id)).filter(&is_so))
    }

    /// Waits until a task of this machine's daemon runs on the remote machine.
    #[track_caller]
    pub fn running(&mut self, id: TaskId) -> Task {
        self.until(id, "it runs", |task| task.status == Status::Running)
    }

    /// Waits until the remote machine has no task left.
    #[track_caller]
    pub fn forgotten(&self) {
        wait::poll_until("the machine has forgotten all", || self.tasks_there().is_empty().then_some(()));
    }

    /// Waits for the end of a task of this machine's daemon.
    #[track_caller]
    pub fn ended(&mut self, id: TaskId) -> Task {
        self.here.block(&[id]).remove(0)
    }

    /// Returns the ssh processes through which this machine's daemon is connected to the remote one.
    pub fn bridges(&self) -> Vec<Process> {
        let is_bridge = |process: &Process| {
            let line = process.cmdline();
            line.starts_with("ssh ") && line.contains(" dial")
        };
        self.here.processes().into_iter().filter(is_bridge).collect()
    }

    /// Cuts the connection of this machine's daemon.
    #[track_caller]
    pub fn cut_here(&self) {
        let bridges = wait::poll_until("a connection", || Some(self.bridges()).filter(|all| !all.is_empty()));
        bridges.iter().for_each(Process::kill);
    }

    /// Returns the home of this machine, which has no daemon.
    pub fn home(&self) -> &Path {
        self.here.home()
    }

    /// Prepares a `bgctl` on this machine for the daemon of the remote one.
    pub fn bgctl(&self, args: &[&str]) -> Command {
        let mut command = self.here.bgctl(args);
        command.env("BGD_SSH", self.path("ssh")).env("BGD_HOST", &self.name).stdin(Stdio::null());
        command
    }

    /// Prepares an ssh that runs a line on the remote machine over the shared connection of `bgctl`, which must be
    /// open.
    #[track_caller]
    pub fn ssh(&self, line: &str) -> Command {
        let folder = self.here.socket().parent().expect("a socket is in a folder");
        let mut names = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let is_control = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().as_bytes();
            name.starts_with(b"ssh-") && path.extension().is_none()
        };
        let control = names.find(is_control).expect("an open connection");
        let mut command = Command::new(self.path("ssh"));
        command.arg("-T").arg("-o").arg(format!("ControlPath={}", control.display()));
        command.args(["--", &self.name, line]);
        command
    }

    /// Runs [`Self::bgctl`] to its end.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(&mut self.bgctl(args))
    }

    /// Runs [`Self::bgctl`] in a terminal of this machine.
    #[track_caller]
    pub fn terminal(&self, args: &[&str]) -> Terminal {
        Terminal::open(&self.bgctl(args))
    }

    /// Returns the number of connections to the remote machine so far.
    pub fn connections(&self) -> usize {
        fs::read_to_string(self.path("connections")).unwrap_or_default().lines().count()
    }

    /// Returns the ssh processes that hold the shared connections.
    fn masters(&self) -> Vec<Process> {
        let folder = self.here.socket().parent().expect("a socket is in a folder").to_owned();
        let control = [b"ControlPath=", folder.as_os_str().as_bytes()].concat();
        let is_master = |pid: &i32| {
            let arguments = proc::arguments(pid, 4096);
            let mut words = arguments.split(|byte| *byte == 0);
            words.clone().any(|word| word.starts_with(&control)) && words.any(|word| word == b"-N")
        };
        proc::processes().filter(is_master).filter_map(Process::open).collect()
    }

    /// Ends the shared connection, if there is one.
    pub fn hang_up(&self) {
        for master in self.masters() {
            // The process may be about to end by itself.
            let _ = master.signal(Signal::KILL);
            master.gone();
        }
    }

    /// Cuts the shared connection to `host`, and no other one.
    #[track_caller]
    pub fn cut_to(&self, host: &str) {
        let leads_there = |master: &Process| master.cmdline().ends_with(&format!("-- {host}"));
        let masters = || self.masters().into_iter().filter(leads_there).collect::<Vec<_>>();
        wait::poll_until("a connection", || Some(masters()).filter(|all| !all.is_empty()))
            .iter()
            .for_each(Process::kill);
    }

    /// Cuts all shared connections.
    #[track_caller]
    pub fn cut(&self) {
        let masters = wait::poll_until("a connection", || Some(self.masters()).filter(|all| !all.is_empty()));
        masters.iter().for_each(Process::kill);
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // A daemon of this machine ends its tasks on the remote one.
        if !std::thread::panicking() {
            self.here.end();
        }
        // The shared connection would stay open for a minute.
        self.masters().iter().for_each(Process::kill);
        if !std::thread::panicking() {
            let dials = || self.daemon.processes().iter().any(|process| process.cmdline().contains(" dial"));
            wait::poll_until("the end of the connections", || {
                (self.here.processes().is_empty() && !dials()).then_some(())
            });
        }
    }
}
