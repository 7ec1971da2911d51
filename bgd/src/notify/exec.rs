//! The channel `exec`: a user-defined command that receives each notice as one line of JSON on standard input.
//!
//! Its processes are helpers of the dispatcher's executor: the whole process tree is ended when the command
//! exits, when it times out, and when the daemon ends.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::notice::Notice;
use bgd_shared::show;
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use futures_util::future::{FusedFuture as _, FutureExt as _, LocalBoxFuture};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::AbortHandle;

use super::secrets::Secrets;
use super::{Adapter, Notification, Undelivered};
use crate::channels::Secret;
use crate::core::Spec;
use crate::exec::context::Context;
use crate::exec::host::{Host, Launch, Leased, PipeEnd, Purpose, SIGKILL, SIGTERM, how_ended, pipe};
use crate::exec::members::{AGENT_MARK, HOOK_MARK, INSTANCE_MARK, TASK_MARK};
use crate::os::dirs;

/// The time between SIGTERM and SIGKILL after a timeout.
const GRACE: Duration = Duration::from_secs(2);

/// How long to wait for output still in the pipe once every writer has ended.
const ON_THE_WAY: Duration = Duration::from_millis(200);

/// Variables in the daemon's own environment that describe whoever started it. They do not apply to the command.
const OF_OTHERS: [&str; 5] = [TASK_MARK, AGENT_MARK, HOOK_MARK, INSTANCE_MARK, "BGD_SESSION"];

/// The adapter that runs a command for each notice.
pub struct Exec {
    host: Host,
    command: Vec<OsText>,
    /// The daemon's environment, the configured variables, and the path of the daemon's socket.
    env: Env,
    /// The configured values, which are hidden in what the command writes.
    secrets: Secrets,
    timeout: Duration,
}

impl Exec {
    /// Creates the adapter for this command.
    pub fn new(
        command: &[String],
        env: &BTreeMap<String, Secret>,
        timeout: Duration,
        context: &Context,
    ) -> Self {
        let inherited = Env::of_this_process();
        let mut all: BTreeMap<Box<str>, OsText> =
            inherited.0.iter().filter(|(name, _)| !OF_OTHERS.contains(&&**name)).cloned().collect();
        all.extend(env.iter().map(|(name, value)| (name.as_str().into(), value.0.as_str().into())));
        all.insert("BGD_SOCKET".into(), context.socket.as_os_str().into());
        Self {
            host: Host::new(context.reports.clone(), Purpose::Hook),
            command: command.iter().map(|word| word.as_str().into()).collect(),
            env: all.into_iter().collect(),
            secrets: Secrets::new(env.values().map(|Secret(value)| value.clone())),
            timeout,
        }
    }

    /// Returns the environment for a notice.
    fn environment(&self, notice: &Notice) -> Env {
        let own = [("BGD_NOTICE_KEY", &*notice.key), ("BGD_NOTICE_KIND", notice.kind.as_str())];
        let others = self.env.0.iter().filter(|(name, _)| own.iter().all(|(own, _)| **name != **own));
        others.cloned().chain(own.map(|(name, value)| (name.into(), value.into()))).collect()
    }

    async fn run(&self, notice: &Notice) -> Result<(), Undelivered> {
        let name = self.command.first().map(OsText::to_string_lossy).unwrap_or_default();
        let pipes =
            Pipes::new().map_err(|error| Undelivered(format!("{name}: can't create pipes: {error}")))?;
        let Pipes { streams, stdin, output } = pipes;
        let launch = Launch {
            argv: self.command.clone(),
            cwd: dirs::home().into_os_string().into(),
            env: self.environment(notice),
            task: None,
            like: Arc::new(Spec::of_daemon()),
            streams,
        };
        let process = self.host.start(launch).await.map_err(|why| Undelivered(why.into()))?;
        let process = Leased(process);
        let _feeder = feed(stdin, notice);
        let mut words = Words::default();
        let ended = {
            let reading = words.read(output).fuse();
            tokio::pin!(reading);
            let ending = self.end_of(&process);
            tokio::pin!(ending);
            let ended = tokio::select! {
                biased;
                ended = &mut ending => ended,
                // The command has closed its output, but may still run.
                () = &mut reading => (&mut ending).await,
            };
            if !reading.is_terminated() {
                // No writer is left, but the pipe may still hold output.
                let _ = tokio::time::timeout(ON_THE_WAY, reading).await;
            }
            ended
        };
        let words = words.said(&self.secrets);
        match ended {
            Some(Exit::Code(0)) => Ok(()),
            Some(exit) => Err(Undelivered(format!("{name} {}{words}", how_ended(&exit)))),
            None => {
                let timeout = humantime::format_duration(self.timeout);
                Err(Undelivered(format!("{name} was ended: it ran longer than {timeout}{words}")))
            }
        }
    }

    /// Waits for the command to exit, then kills what it leaves behind. `None`: it timed out.
    async fn end_of(&self, process: &Leased) -> Option<Exit> {
        let exit = tokio::time::timeout(self.timeout, process.0.exited()).await.ok();
        if exit.is_none() {
            process.0.end(SIGTERM);
            let _ = tokio::time::timeout(GRACE, process.0.gone()).await;
        }
        process.0.end(SIGKILL);
        process.0.gone().await;
        exit
    }
}

impl Adapter for Exec {
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
        Box::pin(self.run(&notification.notice))
    }
}

/// The command's standard streams, and the daemon's ends of them.
struct Pipes {
    streams: [OwnedFd; 3],
    stdin: Sender,
    /// Standard output and error combined, in their true order.
    output: Receiver,
}

impl Pipes {
    fn new() -> io::Result<Self> {
        let (their_in, stdin) = pipe(PipeEnd::Reading)?;
        let (their_out, output) = pipe(PipeEnd::Writing)?;
        let their_err = their_out.try_clone()?;
        Ok(Self {
            streams: [their_in, their_out, their_err],
            stdin: Sender::from_owned_fd(stdin)?,
            output: Receiver::from_owned_fd(output)?,
        })
    }
}

/// The task that writes a notice to the command; dropping this aborts it.
struct Feeder(AbortHandle);

impl Drop for Feeder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn feed(mut stdin: Sender, notice: &Notice) -> Feeder {
    let mut line = serde_json::to_vec(notice).unwrap_or_default();
    line.push(b'\n');
    let feeding = tokio::task::spawn_local(async move {
        // A command need not read its whole input.
        let _ = stdin.write_all(&line).await;
    });
    Feeder(feeding.abort_handle())
}

/// How many bytes are kept of the beginning of a command's output, and of its end.
const KEPT_BYTES: usize = 2048;

/// The beginning and the end of a command's output, however long it is.
#[derive(Debug, Default)]
struct Words {
    first: Vec<u8>,
    last: Vec<u8>,
    left_out: bool,
}

impl Words {
    /// Reads until no writer is left.
    async fn read(&mut self, mut pipe: Receiver) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count) = pipe.read(&mut buffer).await
            && count > 0
        {
            self.push(&buffer[..count]);
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(KEPT_BYTES - self.first.len()));
        self.first.extend_from_slice(first);
        // More than `KEPT_BYTES` of the rest can't be kept.
        self.left_out |= self.last.len() + rest.len() > KEPT_BYTES;
        self.last.extend_from_slice(&rest[rest.len().saturating_sub(KEPT_BYTES)..]);
        self.last.drain(..self.last.len().saturating_sub(KEPT_BYTES));
    }
}

impl Words {
    /// Formats the output as the end of a sentence, without secrets; empty if there is no output.
    fn said(&self, secrets: &Secrets) -> String {
        let text = if self.left_out {
            let [first, last] = [&self.first, &self.last].map(|part| String::from_utf8_lossy(part));
            format!("{}\n...\n{}", secrets.hide_in_beginning(&first), secrets.hide_in_end(&last))
        } else {
            secrets.hide(&String::from_utf8_lossy(&[&*self.first, &*self.last].concat()))
        };
        let lines: Vec<String> =
            text.lines().filter(|line| !show::is_blank(line)).map(|line| show::line(line.trim())).collect();
        if lines.is_empty() { String::new() } else { format!("; it wrote: {}", lines.join(" / ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &Words) -> String {
        words.said(&Secrets::new(["s3cret-value-of-it".to_owned()]))
    }

    #[test]
    fn of_many_words_the_first_and_the_last_are_kept() {
        let mut words = Words::default();
        assert_eq!(said(&words), "");
        words.push(b"one\r\n\n");
        words.push(b"\x1b[1mtwo\n");
        assert_eq!(said(&words), "; it wrote: one / \u{fffd}[1mtwo");
        for _ in 0..100 {
            words.push(&[b'x'; 1000]);
        }
        words.push(b"\nthe end\n");
        let text = said(&words);
        assert!(text.starts_with("; it wrote: one / \u{fffd}[1mtwo / xxx"), "{text}");
        assert!(text.contains("x / ... / x") && text.ends_with("x / the end"), "{text}");
        assert!(text.len() < 2 * KEPT_BYTES + 50, "{}", text.len());
    }
    #[test]
    fn a_secret_that_is_cut_in_two_is_not_said() {
        let mut words = Words::default();
        // The secret starts in the part kept first and continues in the rest.
        words.push(&[b'x'; KEPT_BYTES - 6]);
        words.push(b"s3cret-value-of-it");
        assert!(said(&words).ends_with("x(secret)"));
        words.push(&[b'y'; KEPT_BYTES - 12]);
        assert!(said(&words).ends_with('y') && said(&words).contains("x(secret)yyy"));
        words.push(b"\n");
        let text = said(&words);
        assert!(text.contains("x(secret) / ... / ") && !text.contains("s3cret"), "{text}");
        assert!(!text.contains("value-of"), "{text}");
    }
}
