//! Asks several hosts at the same time, so that an unresponsive host does not delay the answers of the others (R144).

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::request::Method;

use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{Link, time_left, together};

/// How long an ssh may take to exit after its timeout.
const ENDING: Duration = Duration::from_secs(6);

/// How long to wait for the next answer before the answers so far may be shown: most hosts answer at once.
const PAUSE: Duration = Duration::from_millis(200);

/// Maximum number of answers queued for the receiver.
const WAITING: usize = 4;

/// Makes calls to one of the hosts.
pub struct Asked<'a> {
    client: Client,
    link: &'a Link,
    within: Duration,
    deadline: Instant,
}

impl Asked<'_> {
    /// Makes a call.
    ///
    /// # Errors
    /// The host does not answer in time, the connection broke, or the daemon refused the call.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        self.within_deadline(|client| client.call::<M>(params))
    }

    /// Makes several calls at once. Returns `None` for those that the daemon refuses.
    ///
    /// # Errors
    /// The host does not answer in time, or the connection broke.
    pub fn call_together<M: Method>(&mut self, all: &[M::Params]) -> Result<Vec<Option<M::Result>>, Failure> {
        self.within_deadline(|client| together::<M>(client, all))
    }

    fn within_deadline<T>(
        &mut self,
        call: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, Failure> {
        self.client.wait_at_most(time_left(self.deadline));
        call(&mut self.client).map_err(|error| match error {
            ClientError::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                late(self.link, self.within)
            }
            error => error.into(),
        })
    }
}

/// News while hosts are asked.
pub enum News<T> {
    /// A part of the answer of the host at this index.
    Part(usize, T),
    /// Nothing more comes from the host at this index: its answer is complete, or it failed.
    End(usize, Result<(), Failure>),
    /// No news has arrived for a short time, and some hosts have not answered yet.
    Pause,
}

/// Calls `ask` for each host on its own thread. `ask` passes parts of the answer to its last argument, which returns
/// false when they are no longer wanted. Passes the news to `report`, and returns when all hosts have answered or timed
/// out.
///
/// # Errors
/// Those of `report`.
pub fn ask<T: Send + 'static>(
    links: Vec<Link>,
    within: Duration,
    ask: impl Fn(&mut Asked<'_>, &dyn Fn(T) -> bool) -> Result<(), Failure> + Clone + Send + 'static,
    mut report: impl FnMut(News<T>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + within;
    let (sender, receiver) = mpsc::sync_channel(WAITING);
    let mut overdue: Vec<Option<Failure>> = links.iter().map(|link| Some(late(link, within))).collect();
    for (index, link) in links.into_iter().enumerate() {
        let (sender, ask) = (sender.clone(), ask.clone());
        let thread = thread::Builder::new().name("host".to_owned()).spawn(move || {
            let outcome = link.connect().and_then(|client| {
                let mut asked = Asked { client, link: &link, within, deadline };
                ask(&mut asked, &|part| sender.send(News::Part(index, part)).is_ok())
            });
            let outcome = outcome.map_err(|failure| link.name_host(failure));
            // The receiver is gone if this took too long.
            let _ = sender.send(News::End(index, outcome));
        });
        if let Err(error) = thread {
            overdue[index] = None;
            report(News::End(index, Err(Failure::io("can't start a thread", &error))))?;
        }
    }
    let end = deadline + ENDING;
    let mut has_news = false;
    while overdue.iter().any(Option::is_some) {
        let until = if has_news { end.min(Instant::now() + PAUSE) } else { end };
        let news = receiver.recv_timeout(time_left(until));
        has_news = news.is_ok();
        match news {
            Ok(news) => {
                if let News::End(index, _) = news {
                    overdue[index] = None;
                }
                report(news)?;
            }
            Err(_) if Instant::now() >= end => break,
            Err(_) => report(News::Pause)?,
        }
    }
    for (index, failure) in overdue.into_iter().enumerate() {
        if let Some(failure) = failure {
            report(News::End(index, Err(failure)))?;
        }
    }
    Ok(())
}

/// Returns the exit code after these failures of this many hosts: one that has answered is enough, and hosts that all fail
/// in the same way have the exit code of one alone.
pub fn code(failures: &[&Failure], hosts: usize) -> Code {
    match failures {
        _ if failures.len() < hosts => Code::OK,
        [first, others @ ..] if others.iter().all(|other| other.code == first.code) => first.code,
        _ => Code::NO_DAEMON,
    }
}

fn late(link: &Link, within: Duration) -> Failure {
    let message = format!("no answer within {} ms", within.as_millis());
    link.name_host(Failure::new(Code::NO_DAEMON, "no_answer", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r144_exit_code_for_several_hosts_is_the_one_they_share() {
        let failure = |code| Failure::new(code, "any", "why");
        let (gone, none, wrong) = (failure(Code::NO_DAEMON), failure(Code::NO_TASK), failure(Code::USAGE));
        assert_eq!(code(&[], 2), Code::OK);
        assert_eq!(code(&[&none], 2), Code::OK);
        assert_eq!(code(&[&none, &none], 2), Code::NO_TASK);
        assert_eq!(code(&[&wrong, &wrong], 2), Code::USAGE);
        assert_eq!(code(&[&gone, &gone], 2), Code::NO_DAEMON);
        assert_eq!(code(&[&none, &gone], 2), Code::NO_DAEMON);
    }
}
