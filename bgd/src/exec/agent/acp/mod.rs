//! The Agent Client Protocol over a program's standard input and output. Only this folder uses the protocol's crate,
//! because that crate changes faster than the daemon.
//!
//! The caller owns the process behind the pipes, and all time limits: every future here may be dropped at any time,
//! without leaving anything behind that could disturb a later turn. While a prompt is in flight, the session's channel
//! has to be read; `reader` explains what happens when the channel is full.

mod asks;
mod calls;
mod carry;
mod error;
mod hello;
mod lines;
mod outbox;
mod question;
mod questions;
mod reader;
mod routes;
mod settings;
mod setup;
mod spent;
mod state;
#[cfg(test)]
mod tests;
mod updates;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_client_protocol::v1::schema::{
    CancelNotification, CloseSessionRequest, ContentBlock, ListSessionsRequest, LoadSessionRequest,
    NewSessionRequest, PromptRequest, ResumeSessionRequest, SessionId, StopReason,
};
use bgd_shared::agent::{AgentCheck, Continuation};
use bgd_shared::error::ErrorKind;
use bgd_shared::mutex::Mutex;
use bgd_shared::text::truncated_to_bytes;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use self::calls::Outcome;
use self::error::{Asked, Meaning, RequestError};
use self::hello::Hello;
use self::routes::{NotBegun, Routes};
use self::setup::Setup;
use self::wire::{Wire, WireState};
use super::connection::{Opened, TurnEnd, Update, Updates, Wanted};
use super::signs::{self, Model};
use crate::core::{Refusal, Report};

pub use self::lines::{LINE_BYTES, all as all_lines};
pub use self::state::AcpState;
pub use self::updates::{News, of_line as update_of};

/// How many pages of an agent's list of sessions are searched for a session.
const LIST_PAGES: usize = 32;

/// The maximum length of the failure reason taken from an agent's own fields, in bytes.
const WHY_BYTES: usize = 2 << 10;

/// How long an agent must be silent after its answer to `session/load` before it gets the prompt: some agents replay
/// the conversation only then.
const QUIET: Duration = Duration::from_millis(300);

/// The longest wait for that silence. An agent that keeps sending for longer is not replaying.
const QUIET_PATIENCE: Duration = Duration::from_secs(10);

/// How long an agent has to list its sessions after it rejected a prompt.
const LIST_PATIENCE: Duration = Duration::from_secs(10);

/// A connection that speaks the Agent Client Protocol. Dropping it closes the connection.
#[derive(Debug)]
pub struct Acp {
    wire: Wire,
    routes: Arc<Routes>,
    hello: Hello,
    /// The setup of the session that was opened last.
    last: Mutex<Arc<Setup>>,
    /// The pending answers to prompts that were sent before an upgrade, until [`Acp::prompt`] waits for them.
    prompted: Mutex<HashMap<Arc<str>, oneshot::Receiver<Outcome>>>,
}

impl Acp {
    /// Connects to a program that has just been started, and performs the handshake.
    ///
    /// # Errors
    /// The program does not speak the protocol, or requires a login first.
    pub async fn connect(stdin: pipe::Sender, stdout: pipe::Receiver) -> Result<Self, Refusal> {
        let started = Instant::now();
        let routes = Arc::new(Routes::default());
        let wire = Wire::start(stdin, stdout, Arc::clone(&routes), WireState::default());
        let mut hello = hello::greet(&wire).await?;
        hello.about.started_in_ms = u64::try_from(started.elapsed().as_millis()).ok();
        Ok(Self { wire, routes, hello, last: Mutex::default(), prompted: Mutex::default() })
    }

    /// Opens a new session, or resumes the wanted one. From now on its updates go to this channel only. The agent's
    /// replay of an earlier conversation is discarded.
    ///
    /// # Errors
    /// The session is gone, or the agent refuses for another reason; the refusal names it.
    pub async fn open(&self, wanted: &Wanted, updates: Updates) -> Result<Opened, Refusal> {
        // The protocol's strings are UTF-8, and working in a wrong folder would be worse than refusing.
        let Some(cwd) = wanted.cwd.as_os_str().to_str() else {
            let message = "this agent can't work in a folder whose name is not UTF-8";
            return Err(Refusal::new(ErrorKind::Unsupported, message));
        };
        let held = wanted.session.as_ref().and_then(|session| self.routes.setup(session));
        let (key, warning) = match (&wanted.session, held) {
            (None, _) => {
                let (key, answer) = self.new_session(cwd).await?;
                let setup = Setup::of(&answer, &self.last);
                let warning = self.settle(&key, &setup, &wanted.settings, true).await?;
                self.routes.open(&key, updates, false, setup);
                (key, warning)
            }
            (Some(session), Some(setup)) => {
                let warning = self.settle(session, &setup, &wanted.settings, false).await?;
                self.routes.open(session, updates, false, setup);
                (Arc::clone(session), warning)
            }
            (Some(session), None) => {
                let answer = self.take_up(session, cwd).await?;
                let setup = Setup::of(&answer, &self.last);
                let warning = self.settle(session, &setup, &wanted.settings, true).await?;
                // Before this, the session had no route, so the replay was discarded.
                self.routes.open(session, updates, true, setup);
                if self.hello.about.continuation == Continuation::Load {
                    // Times out if the agent is never silent; then it gets its prompt anyway.
                    let _ = tokio::time::timeout(QUIET_PATIENCE, self.routes.quiet(session, QUIET)).await;
                }
                (Arc::clone(session), warning)
            }
        };
        Ok(Opened { session: Some(Arc::clone(&key)), key, warning })
    }

    async fn new_session(&self, cwd: &str) -> Result<(Arc<str>, Value), Refusal> {
        let answer = self.wire.call("session/new", NewSessionRequest::new(cwd)).await;
        let answer = answer.map_err(|trouble| self.refusal("could not begin a session", &trouble))?;
        let key = answer["sessionId"].as_str().map(Arc::from).ok_or_else(|| {
            let message = "the agent began a session without giving its id";
            Refusal::new(ErrorKind::AgentUnavailable, message)
        })?;
        Ok((key, answer))
    }

    /// Makes the agent resume or load an earlier session.
    async fn take_up(&self, session: &str, cwd: &str) -> Result<Value, Refusal> {
        let id = SessionId::new(session);
        let answer = match self.hello.about.continuation {
            Continuation::Resume => {
                self.wire.call("session/resume", ResumeSessionRequest::new(id, cwd)).await
            }
            Continuation::Load => self.wire.call("session/load", LoadSessionRequest::new(id, cwd)).await,
            Continuation::None | Continuation::Unknown => {
                let message = "the agent can't resume an earlier conversation, and its process is gone";
                return Err(Refusal::new(ErrorKind::SessionExpired, message).hint("submit a new task"));
            }
        };
        let trouble = match answer {
            Ok(answer) => return Ok(answer),
            Err(trouble) => trouble,
        };
        let is_gone = match &trouble {
            RequestError::Gone(_) => false,
            RequestError::Refused(error) => match error::meaning(error, Asked::Session) {
                Meaning::NoSuchSession => true,
                Meaning::LoggedOut => false,
                Meaning::Other => !self.lists(session, Some(cwd)).await,
            },
        };
        if is_gone {
            let message = format!("its agent no longer has the session: {}", trouble.words());
            return Err(Refusal::new(ErrorKind::SessionExpired, message).hint("submit a new task"));
        }
        Err(self.refusal("could not resume the session", &trouble))
    }

    /// Returns whether the agent may still have a session: `false` only if its complete list lacks the session.
    async fn lists(&self, session: &str, cwd: Option<&str>) -> bool {
        if !self.hello.lists {
            return true;
        }
        let mut cursor: Option<String> = None;
        for _ in 0..LIST_PAGES {
            let request =
                ListSessionsRequest::new().cwd(cwd.map(std::path::PathBuf::from)).cursor(cursor.take());
            let Ok(page) = self.wire.call("session/list", request).await else { return true };
            let Some(sessions) = page["sessions"].as_array() else { return true };
            if sessions.iter().any(|entry| entry["sessionId"].as_str() == Some(session)) {
                return true;
            }
            cursor = page["nextCursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return false;
            }
        }
        true
    }

    /// Like [`Self::lists`], but with a time limit, because the turn is already over.
    async fn still_lists(&self, session: &str) -> bool {
        tokio::time::timeout(LIST_PATIENCE, self.lists(session, None)).await.unwrap_or(true)
    }

    /// Sends a prompt to an open session, and waits for the end of the turn; for a turn carried over an upgrade, only
    /// waits. When this returns, all output from before the end is in the session's channel. If the future is dropped
    /// earlier, the agent is asked to stop, and a later prompt to the session waits until the turn has ended.
    pub async fn prompt(&self, key: &Arc<str>, prompt: &str) -> TurnEnd {
        let prompted = self.prompted.lock().remove(key);
        let (mut turn, answer) = if let Some(prompted) = prompted {
            let turn = TurnGuard { acp: self, key, is_over: false };
            (turn, self.wire.outcome(prompted).await)
        } else {
            let gate = match self.routes.begin(key).await {
                Ok(gate) => gate,
                Err(NotBegun::Cancelled) => return TurnEnd::Cancelled,
                Err(NotBegun::NotOpen) => return TurnEnd::Failed("the session is not open".into()),
            };
            let turn = TurnGuard { acp: self, key, is_over: false };
            let request = PromptRequest::new(SessionId::new(&**key), vec![ContentBlock::from(prompt)]);
            (turn, self.wire.prompt(key, "session/prompt", request, gate).await)
        };
        turn.is_over = true;
        match answer {
            Ok(answer) => {
                self.tell_tokens(key, &answer).await;
                turn_end(&answer)
            }
            Err(RequestError::Gone(why)) => TurnEnd::Broken(why),
            Err(RequestError::Refused(error)) => {
                let words = error::words(&error);
                match error::meaning(&error, Asked::Within) {
                    Meaning::NoSuchSession => {
                        // Without a route, the next turn resumes the session, if possible.
                        self.routes.close(key);
                        TurnEnd::Forgotten(words.into())
                    }
                    Meaning::LoggedOut => TurnEnd::LoggedOut(format!("{words}; {}", self.hello.login).into()),
                    Meaning::Other => TurnEnd::Rejected(words.into()),
                }
            }
        }
    }

    /// Finds out whether a prompt was rejected because the agent has forgotten the session: some agents report only
    /// that something went wrong.
    pub async fn judge(&self, key: &Arc<str>, why: Box<str>) -> TurnEnd {
        if self.still_lists(key).await {
            return TurnEnd::Failed(why);
        }
        self.routes.close(key);
        TurnEnd::Forgotten(why)
    }

    /// Passes on the turn's token counts from the answer to its prompt.
    async fn tell_tokens(&self, key: &str, answer: &Value) {
        let updates = self.routes.updates(key);
        if let (Some(tokens), Some(updates)) = (spent::of_answer(answer), updates) {
            let report = Report { tokens: Some(tokens), ..Report::default() };
            // Fails if the receiver of the updates was dropped.
            let _ = updates.send(Update::Consumed(report)).await;
        }
    }

    /// Requests the end of the session's turn, then cancels the turn's questions, as the protocol requires.
    /// [`Self::prompt`] returns when the agent has ended the turn.
    #[expect(clippy::unused_async, reason = "every back end has this, and for some it takes time")]
    pub async fn cancel(&self, key: &Arc<str>) {
        self.stop(key);
    }

    fn stop(&self, key: &Arc<str>) {
        self.routes.cancel(key);
        self.wire.tell("session/cancel", CancelNotification::new(SessionId::new(&**key)));
        // After the cancel: a question that is called off first may end the turn as if it had not been cancelled.
        self.routes.call_off(key);
    }

    /// Releases a session that is no longer needed: its updates are discarded, and the agent drops it if it can.
    #[expect(clippy::unused_async, reason = "every back end has this, and for some it takes time")]
    pub async fn forget(&self, key: &Arc<str>) {
        // A session that is needed again is resumed: it may have continued elsewhere meanwhile.
        self.routes.close(key);
        if self.hello.closes {
            self.wire.send("session/close", CloseSessionRequest::new(SessionId::new(&**key)));
        }
    }

    /// Returns the agent's report about itself.
    pub fn about(&self) -> AgentCheck {
        self.hello.about.clone()
    }

    /// Waits until the connection is unusable, and returns the reason.
    pub async fn closed(&self) -> Box<str> {
        self.wire.ended().await
    }

    /// Builds the refusal for a session that could not be opened or set up.
    fn refusal(&self, what: &str, trouble: &RequestError) -> Refusal {
        let words = trouble.words();
        if let RequestError::Refused(error) = trouble
            && error::meaning(error, Asked::Within) == Meaning::LoggedOut
        {
            return hello::logged_out(&words, &self.hello.login);
        }
        Refusal::new(ErrorKind::AgentUnavailable, format!("{what}: {words}"))
    }
}

/// A turn in flight. Dropping it before its end cancels the turn.
struct TurnGuard<'a> {
    acp: &'a Acp,
    key: &'a Arc<str>,
    is_over: bool,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.acp.stop(self.key);
        }
        self.acp.routes.end(self.key);
    }
}

/// Returns how a turn ended, according to the agent's answer to the prompt.
fn turn_end(answer: &Value) -> TurnEnd {
    let named = &answer["stopReason"];
    let failed = |why: &str| TurnEnd::Failed(why.into());
    match StopReason::deserialize(named) {
        Ok(StopReason::EndTurn) => match signs::of_end(&answer["_meta"]) {
            Some(Model::Failed(why)) => failed(&truncated_to_bytes(&why, WHY_BYTES)),
            Some(Model::Works) | None => TurnEnd::Completed,
        },
        Ok(StopReason::Cancelled) => TurnEnd::Cancelled,
        Ok(StopReason::Refusal) => failed("the agent refused to continue (refusal)"),
        Ok(StopReason::MaxTokens) => failed("the agent used all the tokens allowed in a turn (max_tokens)"),
        Ok(StopReason::MaxTurnRequests) => {
            failed("the agent made all the requests allowed in a turn (max_turn_requests)")
        }
        // The enum is non-exhaustive.
        Ok(_) | Err(_) => match named.as_str() {
            Some(reason) => {
                TurnEnd::Failed(format!("the agent stopped for an unknown reason: {reason}").into())
            }
            None => failed("the agent ended its turn without a reason"),
        },
    }
}
