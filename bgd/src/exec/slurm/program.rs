//! Runs Slurm's own commands: one at a time for each caller, with a deadline, and with output of bounded size.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};

use super::commands::Words;
use super::trouble::{self, Trouble};
use crate::core::Spec;
use crate::exec::host::{Host, Launch, Leased, PipeEnd, pipe};
use crate::os::watch;
use crate::remotes::Slurm;

/// How long a command may take. While the controller is down they give up by themselves after about 20 s.
const DEADLINE: Duration = Duration::from_secs(30);

/// The most bytes of standard output; a line for each of a million jobs.
const OUTPUT_BYTES: u64 = 64 << 20;

/// The most bytes of standard error.
const ERROR_BYTES: u64 = 64 << 10;

/// The exit code of `env` if there is no such program.
const NOT_FOUND: i32 = 127;

/// The variables of the daemon that Slurm's commands get. The others are of whatever the daemon was started in, and
/// might be those of another job.
const OWN: [&str; 9] =
    ["HOME", "LOGNAME", "PATH", "SHELL", "SLURM_CONF", "TMPDIR", "TZ", "USER", "XDG_RUNTIME_DIR"];

/// What marks helpers of the daemon. Jobs get the environment of the command that submits them, and are none.
const MARKS: [&str; 2] = ["BGD_BRIDGE_ID", "BGD_INSTANCE"];

/// Runs commands.
#[derive(Clone, Debug)]
pub struct Programs {
    host: Host,
    env: Arc<Env>,
}

impl Programs {
    /// Creates a runner for this cluster.
    pub fn new(host: Host, settings: &Slurm) -> Self {
        let own = Env::of_this_process();
        let own =
            own.0.iter().filter(|(name, _)| OWN.contains(&&**name) && !settings.env.contains_key(&**name));
        let own = own.map(|(name, value)| (Box::from(&**name), value.clone()));
        // Their messages are read.
        let fixed = [("LC_ALL".into(), "C".into())];
        let given = settings.env.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into()));
        Self { host, env: Arc::new(own.chain(fixed).chain(given).collect()) }
    }

    /// Runs a command to its end and returns its standard output.
    ///
    /// # Errors
    /// It failed, took too long, or printed too much.
    pub async fn run(&self, words: Words) -> Result<String, Trouble> {
        let name = words.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let run = tokio::time::timeout(DEADLINE, self.run_to_end(&name, words));
        run.await.unwrap_or_else(|_| {
            Err(Trouble::Unanswered(format!("{name} did not end within {} s", DEADLINE.as_secs())))
        })
    }

    async fn run_to_end(&self, name: &str, words: Words) -> Result<String, Trouble> {
        let cant = |why: &str| Trouble::Unreachable(format!("cannot run {name}: {why}"));
        let failed = |error: io::Error| cant(&error.to_string());
        let stdin = fs::File::open("/dev/null").map_err(failed)?;
        let (their_output, output) = pipe(PipeEnd::Writing).map_err(failed)?;
        let (their_errors, errors) = pipe(PipeEnd::Writing).map_err(failed)?;
        let unset = MARKS.into_iter().flat_map(|mark| ["-u", mark]);
        let argv = ["/usr/bin/env"].into_iter().chain(unset).map(OsText::from);
        let launch = Launch {
            argv: argv.chain(words.into_iter().map(OsText::from)).collect(),
            cwd: "/".into(),
            env: Env::clone(&self.env),
            task: None,
            like: Arc::new(Spec::of_daemon()),
            streams: [stdin.into(), their_output, their_errors],
        };
        let process = Leased(self.host.start(launch).await.map_err(|why| cant(&why))?);
        let (output, errors) = tokio::join!(read(output, OUTPUT_BYTES), read(errors, ERROR_BYTES));
        let (output, errors) = (output.map_err(failed)?, errors.map_err(failed)?);
        match process.0.exited().await {
            Exit::Code(0) => Ok(output),
            Exit::Code(NOT_FOUND) => Err(Trouble::Refused(format!(
                "there is no program {name} in the daemon's PATH: set PATH by `env` of the executor, or run bgd on a \
                 machine that has Slurm's commands"
            ))),
            Exit::Code(_) => Err(trouble::of(&errors)),
            exit @ (Exit::Signal(_) | Exit::Unknown(_)) => {
                Err(Trouble::Unanswered(format!("{name} {}", crate::exec::host::how_ended(&exit))))
            }
        }
    }
}

/// Reads a pipe to its end.
async fn read(pipe: OwnedFd, limit: u64) -> io::Result<String> {
    let mut file = fs::File::from(pipe.try_clone()?);
    let readable = watch::readable(pipe)?;
    let mut bytes = Vec::new();
    let mut part = vec![0; 16 * 1024];
    loop {
        let mut ready = readable.readable().await?;
        match file.read(&mut part) {
            Ok(0) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > limit {
            return Err(io::Error::other(format!("it prints more than {limit} bytes")));
        }
    }
}
