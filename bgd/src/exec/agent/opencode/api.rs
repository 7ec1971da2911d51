//! The requests to opencode's server, each as a function. Decides nothing.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::wire::{Fault, Health, Message, Permission, Questions, SessionInfo, Status};
use crate::exec::http::{FullResponse, Http, HttpError, Streamed, escaped};

/// The longest answer in bytes. A longer page of messages is requested message by message, and a longer message can't
/// be read.
const ANSWER: usize = 32 << 20;

/// The user name that the server expects with its password.
const USER: &str = "opencode";

/// How many messages are requested at a time. Most looks at a turn need only the newest one or two.
const PAGE: usize = 8;

/// The maximum number of pages read; older messages are ignored.
const PAGES: usize = 1024;

/// How long an answer may take, if the caller has no time limit of its own.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a request failed.
#[derive(Debug)]
pub enum ApiError {
    /// There was no answer.
    Http(HttpError),
    /// The session, or another requested object, does not exist.
    NotFound(Box<str>),
    /// The password is missing or wrong.
    Unauthorized,
    /// The server refuses the request, for this reason.
    Refused(Box<str>),
    /// The answer can't be parsed.
    Strange(Box<str>),
    /// The answer takes too long.
    Late,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(error) => error.fmt(f),
            Self::NotFound(why) | Self::Refused(why) | Self::Strange(why) => f.write_str(why),
            Self::Unauthorized => f.write_str("the server rejects the password"),
            Self::Late => write!(f, "no answer within {PATIENCE:?}"),
        }
    }
}

impl From<HttpError> for ApiError {
    fn from(error: HttpError) -> Self {
        Self::Http(error)
    }
}

/// A client of one server.
#[derive(Debug)]
pub struct Api {
    http: Http,
}

impl Api {
    /// Creates a client of the server at this address, or explains why the address is invalid.
    pub fn new(url: &str, password: Option<&str>) -> Result<Self, String> {
        Ok(Self { http: Http::new(url, password.map(|password| (USER, password)))? })
    }

    /// Checks that the server is up, and returns its version.
    pub async fn health(&self) -> Result<Health, ApiError> {
        with_timeout(self.get("/global/health")).await
    }

    /// Opens the stream of the events of all folders.
    pub async fn events(&self) -> Result<Streamed, ApiError> {
        let streamed = with_timeout(async { Ok(self.http.stream("/global/event").await?) }).await?;
        match streamed.status() {
            StatusCode::OK => Ok(streamed),
            StatusCode::UNAUTHORIZED => Err(ApiError::Unauthorized),
            other => Err(ApiError::Refused(format!("no events: the server answers {other}").into())),
        }
    }

    /// Creates a session. There is no time limit: the first session of a folder waits until the server has prepared the
    /// folder.
    pub async fn create(&self, title: &str, directory: &str) -> Result<SessionInfo, ApiError> {
        let target = format!("/session?directory={}", escaped(directory));
        self.post(&target, &json!({ "title": title })).await
    }

    /// Returns an existing session.
    pub async fn session(&self, id: &str, directory: &str) -> Result<SessionInfo, ApiError> {
        with_timeout(self.get(&at("/session", id, "", directory))).await
    }

    /// Sends a prompt to a session, without waiting for its answer.
    pub async fn prompt(&self, on: SessionAddress<'_>, message: &str, prompt: &str) -> Result<(), ApiError> {
        let content = json!({ "messageID": message, "parts": [{ "type": "text", "text": prompt }] });
        with_timeout(self.tell(&on.target("/prompt_async"), &content)).await
    }

    /// Aborts a session's turn.
    pub async fn abort(&self, on: SessionAddress<'_>) -> Result<(), ApiError> {
        with_timeout(self.tell(&on.target("/abort"), &json!({}))).await
    }

    /// Returns the ids of the sessions of a folder that are busy.
    pub async fn busy(&self, directory: &str) -> Result<Vec<String>, ApiError> {
        let target = format!("/session/status?directory={}", escaped(directory));
        let all: HashMap<String, Status> = with_timeout(self.get(&target)).await?;
        Ok(all.into_iter().filter(|(_, status)| status.kind != "idle").map(|(id, _)| id).collect())
    }

    /// Returns the newest messages of a session, oldest first, at least back to one for which `knows` is true.
    pub async fn messages(
        &self,
        on: SessionAddress<'_>,
        knows: impl Fn(&str) -> bool,
    ) -> Result<Vec<Message>, ApiError> {
        let mut newest_first = Vec::new();
        let mut before = None;
        for _ in 0..PAGES {
            let (page, next) = match self.page(on, PAGE, before.as_deref()).await {
                Err(ApiError::Http(HttpError::TooLarge(_))) => self.page(on, 1, before.as_deref()).await?,
                page => page?,
            };
            let is_known = page.iter().any(|message| knows(&message.info.id));
            newest_first.extend(page.into_iter().rev());
            before = next;
            if is_known || before.is_none() {
                break;
            }
        }
        newest_first.reverse();
        Ok(newest_first)
    }

    async fn page(
        &self,
        on: SessionAddress<'_>,
        limit: usize,
        before: Option<&str>,
    ) -> Result<(Vec<Message>, Option<String>), ApiError> {
        let before = before.map(|before| format!("&before={}", escaped(before))).unwrap_or_default();
        let target = format!("{}&limit={limit}{before}", on.target("/message"));
        with_timeout(async {
            let answer = self.http.ask(Method::GET, &target, None, ANSWER).await?;
            Ok((understood(&answer)?, answer.next.filter(|next| !next.is_empty())))
        })
        .await
    }

    /// Returns the pending permission requests of a folder. Some stay pending forever: an abort does not remove them.
    pub async fn permissions(&self, directory: &str) -> Result<Vec<Permission>, ApiError> {
        with_timeout(self.get(&format!("/permission?directory={}", escaped(directory)))).await
    }

    /// Answers a permission request with `once`, `always` or `reject`, and optionally with a message to the model.
    pub async fn permit(
        &self,
        id: &str,
        directory: &str,
        reply: &str,
        message: Option<&str>,
    ) -> Result<(), ApiError> {
        let mut content = json!({ "reply": reply });
        if let Some(message) = message {
            content["message"] = message.into();
        }
        with_timeout(self.tell(&at("/permission", id, "/reply", directory), &content)).await
    }

    /// Returns the pending questions of a folder.
    pub async fn questions(&self, directory: &str) -> Result<Vec<Questions>, ApiError> {
        with_timeout(self.get(&format!("/question?directory={}", escaped(directory)))).await
    }

    /// Answers questions, each with the labels of the chosen options; `None` reports that there will be no answer.
    pub async fn answer(
        &self,
        id: &str,
        directory: &str,
        answers: Option<&[Vec<String>]>,
    ) -> Result<(), ApiError> {
        let (verb, content) = match answers {
            Some(answers) => ("/reply", json!({ "answers": answers })),
            None => ("/reject", json!({})),
        };
        with_timeout(self.tell(&at("/question", id, verb, directory), &content)).await
    }

    async fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, ApiError> {
        understood(&self.http.ask(Method::GET, target, None, ANSWER).await?)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        target: &str,
        content: &serde_json::Value,
    ) -> Result<T, ApiError> {
        understood(&self.http.ask(Method::POST, target, Some(content.to_string()), ANSWER).await?)
    }

    async fn tell(&self, target: &str, content: &serde_json::Value) -> Result<(), ApiError> {
        refusal(&self.http.ask(Method::POST, target, Some(content.to_string()), ANSWER).await?)
    }
}

/// A session, and the folder that the server keeps the session under. Without the folder, the server looks for the
/// session elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct SessionAddress<'a> {
    pub session: &'a str,
    pub directory: &'a str,
}

impl SessionAddress<'_> {
    fn target(&self, verb: &str) -> String {
        at("/session", self.session, verb, self.directory)
    }
}

fn at(what: &str, id: &str, verb: &str, directory: &str) -> String {
    format!("{what}/{}{verb}?directory={}", escaped(id), escaped(directory))
}

async fn with_timeout<T>(work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or(Err(ApiError::Late))
}

fn understood<T: DeserializeOwned>(answer: &FullResponse) -> Result<T, ApiError> {
    refusal(answer)?;
    serde_json::from_slice(&answer.body)
        .map_err(|error| ApiError::Strange(format!("the server's answer can't be parsed: {error}").into()))
}

fn refusal(answer: &FullResponse) -> Result<(), ApiError> {
    if answer.status.is_success() {
        return Ok(());
    }
    let fault: Fault = serde_json::from_slice(&answer.body).unwrap_or_default();
    let why = match &fault.data.message {
        Some(_) => fault.words(),
        None => format!("the server answers {}", answer.status).into(),
    };
    Err(match answer.status {
        StatusCode::NOT_FOUND => ApiError::NotFound(why),
        StatusCode::UNAUTHORIZED => ApiError::Unauthorized,
        _ => ApiError::Refused(why),
    })
}
