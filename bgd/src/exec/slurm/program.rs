//! Runs Slurm's own commands, on this machine or on a login node, with a deadline and with bounded output.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};

use super::commands::Argv;
use super::error::{self, CommandError};
use super::login::Login;
use super::pipe::read;
use super::remote_scripts;
use crate::exec::host::{Host, Launch, Leased, PipeEnd, pipe};
use crate::remotes::Slurm;

/// How long a command may take. While the controller is down, commands give up by themselves after about 20 s.
const DEADLINE: Duration = Duration::from_secs(30);

/// The maximum size of standard output, in bytes; enough for a line for each of a million jobs.
const OUTPUT_BYTES: u64 = 64 << 20;

/// The maximum size of standard error, in bytes.
const ERROR_BYTES: u64 = 64 << 10;

/// The daemon's variables that Slurm's commands get. The others come from the environment in which the daemon was
/// started, and may belong to another job.
const OWN: [&str; 9] =
    ["HOME", "LOGNAME", "PATH", "SHELL", "SLURM_CONF", "TMPDIR", "TZ", "USER", "XDG_RUNTIME_DIR"];

/// The variables that mark helpers of the daemon. Jobs get the environment of the command that submits them, and are
/// not helpers.
const MARKS: [&str; 2] = ["BGD_BRIDGE_ID", "BGD_INSTANCE"];

#[derive(Clone, Debug)]
pub struct Programs {
    host: Host,
    env: Arc<Env>,
    /// The variables configured for the commands.
    own: Arc<BTreeMap<String, String>>,
    login: Option<Arc<Login>>,
}

impl Programs {
    /// Creates a runner for this cluster. `socket` is the daemon's, `executor` the name of the cluster.
    pub fn new(host: Host, settings: &Slurm, socket: &Path, executor: &str) -> Self {
        let shell = settings.shell.clone();
        let login = shell.map(|shell| Arc::new(Login::new(host.clone(), shell, socket, executor)));
        let own = Env::of_this_process();
        let own =
            own.0.iter().filter(|(name, _)| OWN.contains(&&**name) && !settings.env.contains_key(&**name));
        let own = own.map(|(name, value)| (Box::from(&**name), value.clone()));
        // The commands' messages are parsed.
        let fixed = [("LC_ALL".into(), "C".into())];
        let given = settings.env.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into()));
        let env = Arc::new(own.chain(fixed).chain(given).collect());
        Self { host, env, own: Arc::new(settings.env.clone()), login }
    }

    /// Returns the login node that has the commands; `None` if this machine has them.
    pub fn login(&self) -> Option<&Arc<Login>> {
        self.login.as_ref()
    }

    /// Runs a command to its end and returns its standard output.
    ///
    /// # Errors
    /// The command failed, took too long, or printed too much.
    pub async fn run(&self, words: Argv) -> Result<String, CommandError> {
        let name = words.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(login) = &self.login {
            return self.run_there(login, &name, &words).await;
        }
        let run = tokio::time::timeout(DEADLINE, self.run_to_end(&name, words));
        run.await.unwrap_or_else(|_| {
            Err(CommandError::Unanswered(format!("{name} did not end within {} s", DEADLINE.as_secs())))
        })
    }

    async fn run_there(&self, login: &Login, name: &str, words: &Argv) -> Result<String, CommandError> {
        let env = self.own.iter().map(|(name, value)| (&**name, &**value));
        let ran = login.run(&remote_scripts::command(words, env), OUTPUT_BYTES).await?;
        match ran.code {
            0 => Ok(String::from_utf8_lossy(&ran.output).into_owned()),
            Exit::NOT_FOUND => Err(CommandError::Refused(format!(
                "there is no program {name} in the PATH of `ssh {}`: set PATH in `env` of the executor, or name a host \
                 that has Slurm's commands",
                login.host()
            ))),
            _ => Err(error::of(&ran.errors)),
        }
    }

    async fn run_to_end(&self, name: &str, words: Argv) -> Result<String, CommandError> {
        let cant = |why: &str| CommandError::Unreachable(format!("cannot run {name}: {why}"));
        let failed = |error: io::Error| cant(&error.to_string());
        let stdin = fs::File::open("/dev/null").map_err(failed)?;
        let (their_output, output) = pipe(PipeEnd::Writing).map_err(failed)?;
        let (their_errors, errors) = pipe(PipeEnd::Writing).map_err(failed)?;
        let unset = MARKS.into_iter().flat_map(|mark| ["-u", mark]);
        let argv = ["/usr/bin/env"].into_iter().chain(unset).map(OsText::from);
        let argv = argv.chain(words.into_iter().map(OsText::from)).collect();
        let streams = [stdin.into(), their_output, their_errors];
        let launch = Launch::of_daemon(argv, Env::clone(&self.env), streams);
        let process = Leased(self.host.start(launch).await.map_err(|why| cant(&why))?);
        let (output, errors) = tokio::join!(read(output, OUTPUT_BYTES), read(errors, ERROR_BYTES));
        let text = |bytes: io::Result<Vec<u8>>| {
            bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(failed)
        };
        let (output, errors) = (text(output)?, text(errors)?);
        match process.0.exited().await {
            Exit::Code(0) => Ok(output),
            Exit::Code(Exit::NOT_FOUND) => Err(CommandError::Refused(format!(
                "there is no program {name} in the daemon's PATH: set PATH in `env` of the executor, or run bgd on a \
                 machine that has Slurm's commands"
            ))),
            Exit::Code(_) => Err(error::of(&errors)),
            exit @ (Exit::Signal(_) | Exit::Unknown(_)) => {
                Err(CommandError::Unanswered(format!("{name} {}", crate::exec::host::how_ended(&exit))))
            }
        }
    }
}
