//! The files of a cluster's configuration, and its place on the machine: ports, the node's name, cgroups.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Builder;

/// The name of every cluster.
pub const CLUSTER: &str = "test";

/// Number of processors that the node claims to have.
pub const CPUS: u32 = 16;

/// Number of clusters that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// The hierarchies in which Slurm makes cgroups.
const HIERARCHIES: [&str; 3] = ["memory", "cpuset", "freezer"];

#[derive(Debug)]
pub struct Conf {
    path: PathBuf,
    node: String,
    ports: Ports,
}

/// Ports on which its daemons listen.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    controller: u16,
    node: u16,
    accounting: u16,
    pub database: u16,
}

impl Conf {
    /// Writes the files into the folder of the cluster.
    pub fn write(home: &Path, wanted: &Builder) -> Self {
        // The node's name is also that of its cgroups.
        let node = format!("bgd-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let conf = Self { path: home.join("slurm.conf"), node, ports: Ports::free() };
        for folder in ["work", "state", "spool"] {
            fs::create_dir(home.join(folder)).expect("a folder");
        }
        fs::set_permissions(home.join("work"), fs::Permissions::from_mode(0o700)).expect("a folder");
        let mut key = [0; 128];
        fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut key))
            .expect("random bytes");
        secret(&home.join("munge.key"), &key);
        fs::write(&conf.path, conf.slurm(home, wanted)).expect("a file");
        if wanted.memory_limits {
            let text =
                "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\nAllowedSwapSpace=0\n";
            fs::write(home.join("cgroup.conf"), text).expect("a file");
        }
        if wanted.has_gpu {
            fs::write(home.join("gres.conf"), "Name=gpu File=/dev/null\n").expect("a file");
        }
        if wanted.accounting {
            secret(&home.join("slurmdbd.conf"), conf.slurmdbd(home).as_bytes());
        }
        conf
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn node(&self) -> &str {
        &self.node
    }

    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// Returns the cgroups that Slurm leaves behind.
    pub fn cgroups(&self) -> impl Iterator<Item = PathBuf> {
        let paths =
            HIERARCHIES.map(|name| PathBuf::from(format!("/sys/fs/cgroup/{name}/slurm_{}", self.node)));
        paths.into_iter().filter(|path| path.exists())
    }

    fn slurm(&self, home: &Path, wanted: &Builder) -> String {
        let Self { node, ports, .. } = self;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("/proc is there");
        let host = host.trim();
        let tasks = if wanted.memory_limits { "task/cgroup" } else { "task/none" };
        let accounting = if wanted.accounting {
            format!(
                "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n\
                 AccountingStoragePort={}\nAccountingStoragePass={}/munge.socket\n",
                ports.accounting,
                home.display()
            )
        } else {
            String::new()
        };
        let (gres, of_node) = if wanted.has_gpu { ("GresTypes=gpu\n", " Gres=gpu:1") } else { ("", "") };
        // The scheduler runs every second instead of once a minute, and jobs that are to end have two seconds.
        format!(
            "ClusterName={CLUSTER}\nSlurmctldHost=localhost(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={home}/munge.socket\nCredType=cred/munge\nMailProg=/bin/true\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin={tasks}\nMpiDefault=none\nSwitchType=switch/none\n\
             JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=1\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\nDefMemPerCPU=10\n\
             SlurmctldPort={controller}\nSlurmdPort={slurmd}\nStateSaveLocation={home}/state\n\
             SlurmdSpoolDir={home}/spool\nSlurmctldPidFile={home}/slurmctld.pid\nSlurmdPidFile={home}/slurmd.pid\n\
             SlurmctldLogFile={home}/slurmctld.log\nSlurmdLogFile={home}/slurmd.log\n\
             SlurmdParameters=config_overrides\nReturnToService=2\nKillWait=2\nMinJobAge=300\nJobRequeue=1\n\
             MaxArraySize=20001\nMaxJobCount=30000\nSchedulerType=sched/backfill\n\
             SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=10000,\
             default_queue_depth=1000\n{accounting}{gres}\
             NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory=16000{of_node}\n\
             PartitionName=main Nodes={node} Default=YES State=UP\nPartitionName=other Nodes={node} State=UP\n{lines}",
            controller = ports.controller,
            slurmd = ports.node,
            home = home.display(),
            lines = wanted.lines,
        )
    }

    fn slurmdbd(&self, home: &Path) -> String {
        let home = home.display();
        format!(
            "AuthType=auth/munge\nAuthInfo=socket={home}/munge.socket\nDbdHost=localhost\nDbdAddr=127.0.0.1\n\
             DbdPort={}\nSlurmUser=root\nLogFile={home}/slurmdbd.log\nPidFile={home}/slurmdbd.pid\n\
             StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={}\nStorageUser=slurm\n\
             StoragePass=slurm\nStorageLoc=slurm\n",
            self.ports.accounting, self.ports.database
        )
    }
}

/// Writes a file that only its owner may read, as its readers require.
fn secret(path: &Path, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.expect("a new file").write_all(bytes).expect("a file");
}

/// The ports that this process has chosen.
static CHOSEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

impl Ports {
    /// Chooses unused ports. They are below the range from which the kernel assigns ports, and below that of
    /// [`crate::ports`], as some time passes until they are used.
    fn free() -> Self {
        let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
        let first = 10_000 + u16::try_from(std::process::id() % 500 * 16).expect("a small number");
        let mut free = (first..20_000)
            .filter(|port| !chosen.contains(port) && TcpListener::bind(("127.0.0.1", *port)).is_ok());
        let mut next = || free.next().expect("a free port");
        let ports = Self { controller: next(), node: next(), accounting: next(), database: next() };
        chosen.extend([ports.controller, ports.node, ports.accounting, ports.database]);
        ports
    }
}
