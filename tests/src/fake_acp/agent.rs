//! The agent's side of the protocol: accepts every message of the client, answers at once if possible, and starts a
//! thread for each turn. It must not block itself, so that a waiting session does not hold up the others.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::options::{Fault, Options};
use super::store::{Conversation, Store};
use super::turn::Turn;
use super::wire::Wire;

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;
const AUTH_REQUIRED: i64 = -32000;

/// How often to check whether a file exists. No event covers a file that may be anywhere, in a folder that
/// may not exist yet.
const LOOK: Duration = Duration::from_millis(2);

pub struct Agent {
    pub options: Options,
    pub wire: Wire,
    pub store: Store,
    pub home: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub struct State {
    initialized: bool,
    sessions: HashMap<String, Session>,
    /// Requests to the client, with their answers once these have arrived.
    calls: HashMap<u64, Option<Value>>,
    last_number: u64,
    /// Number of sessions requested so far.
    wanted_sessions: u64,
}

struct Session {
    cwd: PathBuf,
    /// False after `session/close`, although a turn may still be about to end.
    open: bool,
    turn: TurnState,
    /// The settings that the client has made in this session.
    settings: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnState {
    None,
    Runs,
    IsCancelled,
}

impl State {
    /// Reports whether the client has cancelled the running turn of a session.
    pub fn is_cancelled(&self, session: &str) -> bool {
        self.sessions.get(session).is_some_and(|session| session.turn == TurnState::IsCancelled)
    }

    /// Removes and returns the answer to a request, if it has arrived.
    pub fn take_answer(&mut self, call: u64) -> Option<Value> {
        let answer = self.calls.get_mut(&call)?.take()?;
        self.calls.remove(&call);
        Some(answer)
    }
}

impl Agent {
    pub fn new(options: Options, wire: Wire, store: Store, home: PathBuf) -> Self {
        Self { options, wire, store, home, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Handles a line from the client.
    pub fn receive(self: &Arc<Self>, line: &[u8]) {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            self.wire.note(json!({ "received_garbage": String::from_utf8_lossy(line) }));
            self.wire.answer(&Value::Null, &Err(Fault::new(PARSE_ERROR, "parse error")));
            return;
        };
        self.wire.note(json!({ "received": message }));
        if message["jsonrpc"] != "2.0" {
            self.wire.violation("no JSON-RPC 2.0", &message);
        }
        match (message["method"].as_str(), message.get("id")) {
            (Some(method), Some(id)) => self.request(method, id, &message),
            (Some(method), None) => self.notification(method, &message["params"]),
            (None, _) => self.answered(&message),
        }
    }

    fn request(self: &Arc<Self>, method: &str, id: &Value, message: &Value) {
        if method == "initialize" {
            return self.initialize(id, message);
        }
        if !self.lock().initialized {
            self.wire.violation("not initialized", message);
            return self.wire.answer(id, &Err(Fault::new(INVALID_REQUEST, "not initialized")));
        }
        let params = &message["params"];
        let options = &self.options;
        if method == "session/new" && self.is_tired_of_sessions() {
            return;
        }
        let result = match method {
            "session/new" => self.new_session(message),
            "session/load" if !options.no_load => self.load(message),
            "session/resume" if !options.no_resume => self.open(message).map(|_| self.offers()),
            "session/set_mode" if !options.modes.is_empty() => {
                self.set(params, "mode", "modeId", &options.modes)
            }
            "session/set_config_option" if params["configId"] == "model" => {
                self.set(params, "model", "value", &options.models)
            }
            "session/set_config_option" if params["configId"] == "quiet" && params["type"] == "boolean" => {
                self.set(params, "quiet", "value", &[])
            }
            "session/list" if !options.no_list => self.list(params),
            "session/close" if !options.no_close => self.close(params),
            "session/prompt" => match self.prompt(id, message) {
                // The turn sends the answer when it ends.
                Ok(()) => return,
                Err(fault) => Err(fault),
            },
            "authenticate" => Ok(json!({})),
            _ => Err(Fault::new(METHOD_NOT_FOUND, "method not found")),
        };
        self.wire.answer(id, &result);
        if method == "session/load" && result.is_ok() {
            for _ in 0..options.late_replay.unwrap_or_default() {
                self.replay(message);
            }
        }
    }

    fn notification(&self, method: &str, params: &Value) {
        if method == "session/cancel"
            && let Some(session) = params["sessionId"].as_str()
        {
            self.cancel(session);
        }
    }

    fn answered(&self, message: &Value) {
        let mut state = self.lock();
        let call = message["id"].as_u64().and_then(|id| state.calls.get_mut(&id));
        match call {
            Some(answer @ None) => *answer = Some(message.clone()),
            // Either answered already, or never asked.
            Some(Some(_)) | None => self.wire.violation("an answer that nobody waits for", message),
        }
        self.changed.notify_all();
    }

    fn initialize(self: &Arc<Self>, id: &Value, message: &Value) {
        if std::mem::replace(&mut self.lock().initialized, true) {
            self.wire.violation("initialized twice", message);
        }
        if self.options.initialize_never {
            return;
        }
        let answer = Ok(self.capabilities());
        if self.options.initialize_after.is_none() {
            return self.wire.answer(id, &answer);
        }
        let (agent, id) = (Arc::clone(self), id.clone());
        thread::spawn(move || {
            if let Some(file) = &agent.options.initialize_after {
                agent.wait_for_file(file, |_| false);
            }
            agent.wire.answer(&id, &answer);
        });
    }

    fn capabilities(&self) -> Value {
        let options = &self.options;
        // A capability without options of its own is an empty object, or absent.
        let mut of_sessions = json!({});
        let optional =
            [("list", options.no_list), ("resume", options.no_resume), ("close", options.no_close)];
        for (name, _) in optional.into_iter().filter(|(_, is_absent)| !is_absent) {
            of_sessions[name] = json!({});
        }
        let mut capabilities = json!({
            "promptCapabilities": { "image": false, "audio": false, "embeddedContext": false },
            "mcpCapabilities": { "http": false, "sse": false },
            "sessionCapabilities": of_sessions,
        });
        if !options.no_load {
            capabilities["loadSession"] = true.into();
        }
        let (name, version) = options.version_name.split_once('/').unwrap_or((&options.version_name, ""));
        let login = json!([{ "id": "fake-login", "name": "Fake login" }]);
        json!({
            "protocolVersion": options.protocol_version,
            "agentCapabilities": capabilities,
            "agentInfo": { "name": name, "version": version },
            "authMethods": if options.auth_required { login } else { json!([]) },
        })
    }

    /// Counts a requested session. Reports whether to leave the request unanswered.
    fn is_tired_of_sessions(&self) -> bool {
        let mut state = self.lock();
        state.wanted_sessions += 1;
        self.options.new_sessions.is_some_and(|most| state.wanted_sessions > most)
    }

    fn new_session(&self, message: &Value) -> Result<Value, Fault> {
        if self.options.auth_required {
            return Err(Fault::new(AUTH_REQUIRED, "Authentication required"));
        }
        let cwd = self.cwd(message)?;
        self.want(message["params"]["mcpServers"].is_array(), "mcpServers is no list", message)?;
        let created = self.store.create(cwd);
        let id = created.map_err(|error| Fault::new(INTERNAL_ERROR, &error.to_string()))?;
        self.enter(&id, cwd);
        let mut answer = self.offers();
        answer["sessionId"] = id.into();
        Ok(answer)
    }

    fn load(&self, message: &Value) -> Result<Value, Fault> {
        self.want(message["params"]["mcpServers"].is_array(), "mcpServers is no list", message)?;
        self.open(message)?;
        if self.options.late_replay.is_none() {
            self.replay(message);
        }
        Ok(if self.options.null_load { Value::Null } else { self.offers() })
    }

    /// Returns the settings that a session offers.
    fn offers(&self) -> Value {
        let mut offers = json!({});
        if let Some(first) = self.options.modes.first() {
            let modes = self.options.modes.iter().map(|mode| json!({ "id": mode, "name": mode }));
            offers["modes"] = json!({ "currentModeId": first, "availableModes": modes.collect::<Vec<_>>() });
        }
        if let Some(first) = self.options.models.first() {
            let models = self.options.models.iter().map(|model| json!({ "value": model, "name": model }));
            offers["configOptions"] = json!([
                {
                    "id": "model", "name": "Model", "category": "model", "type": "select",
                    "currentValue": first, "options": models.collect::<Vec<_>>(),
                },
                { "id": "quiet", "name": "Quiet", "type": "boolean", "currentValue": false },
            ]);
        }
        offers
    }

    fn set(&self, params: &Value, what: &str, key: &str, offered: &[String]) -> Result<Value, Fault> {
        let value = &params[key];
        if !offered.is_empty() && offered.iter().all(|known| value != known.as_str()) {
            return Err(Fault::new(INVALID_PARAMS, "no such value"));
        }
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut state = self.lock();
        let session = state.sessions.get_mut(params["sessionId"].as_str().unwrap_or_default());
        let session = session.ok_or_else(|| self.options.unknown_session.clone())?;
        session.settings.push(format!("{what}={value}"));
        Ok(json!({}))
    }

    /// Returns the settings that the client has made in a session, in order.
    pub fn settings(&self, session: &str) -> String {
        self.lock().sessions.get(session).map(|session| session.settings.join(" ")).unwrap_or_default()
    }

    fn replay(&self, message: &Value) {
        let id = message["params"]["sessionId"].as_str().unwrap_or_default();
        for (role, text) in self.store.read(id).map(|conversation| conversation.messages).unwrap_or_default()
        {
            let kind = if role == "user" { "user_message_chunk" } else { "agent_message_chunk" };
            self.wire.chunk(id, kind, &text);
        }
    }

    /// Opens a stored session in this process.
    fn open(&self, message: &Value) -> Result<(String, Conversation), Fault> {
        let cwd = self.cwd(message)?;
        let id = message["params"]["sessionId"].as_str().unwrap_or_default();
        let conversation = self.store.read(id).ok_or_else(|| self.options.unknown_session.clone())?;
        self.enter(id, cwd);
        Ok((id.to_owned(), conversation))
    }

    fn enter(&self, id: &str, cwd: &str) {
        let mut state = self.lock();
        let turn = state.sessions.get(id).map_or(TurnState::None, |session| session.turn);
        let settings = Vec::new();
        state.sessions.insert(id.to_owned(), Session { cwd: cwd.into(), open: true, turn, settings });
    }

    fn list(&self, params: &Value) -> Result<Value, Fault> {
        if let Some(file) = &self.options.list_after {
            self.wait_for_file(file, |_| false);
        }
        let sessions = self.store.ids().into_iter().filter_map(|id| {
            let conversation = self.store.read(&id)?;
            let is_wanted = params["cwd"].as_str().is_none_or(|cwd| cwd == conversation.cwd);
            let mut session = json!({ "sessionId": id, "cwd": conversation.cwd });
            if let Some(first) = conversation.prompts().first() {
                session["title"] = (*first).into();
            }
            is_wanted.then_some(session)
        });
        let mut sessions: Vec<Value> = sessions.collect();
        let invalid = || Fault::new(INVALID_PARAMS, "invalid cursor");
        let from = match params["cursor"].as_str() {
            Some(cursor) => cursor.parse::<usize>().map_err(|_| invalid())?,
            None => 0,
        };
        if from > sessions.len() {
            return Err(invalid());
        }
        let mut page = sessions.split_off(from);
        let mut answer = json!({});
        if let Some(most) = self.options.page.filter(|most| page.len() > *most) {
            page.truncate(most);
            answer["nextCursor"] = (from + most).to_string().into();
        }
        answer["sessions"] = page.into();
        Ok(answer)
    }

    fn close(&self, params: &Value) -> Result<Value, Fault> {
        let id = params["sessionId"].as_str().unwrap_or_default();
        self.cancel(id);
        let mut state = self.lock();
        let session = state.sessions.get_mut(id).filter(|session| session.open);
        session.ok_or_else(|| self.options.unknown_session.clone())?.open = false;
        Ok(json!({}))
    }

    fn prompt(self: &Arc<Self>, id: &Value, message: &Value) -> Result<(), Fault> {
        let params = &message["params"];
        let session = params["sessionId"].as_str().unwrap_or_default();
        let blocks = params["prompt"].as_array().map(Vec::as_slice);
        self.want(blocks.is_some(), "prompt is no list", message)?;
        let texts = blocks.unwrap_or_default().iter().filter_map(|block| block["text"].as_str());
        let text = texts.collect::<Vec<_>>().join("\n");
        let is_stored = self.store.read(session).is_some();
        let mut state = self.lock();
        let known = state.sessions.get_mut(session).filter(|session| session.open && is_stored);
        let known = known.ok_or_else(|| self.options.unknown_session.clone())?;
        self.want(known.turn == TurnState::None, "second prompt", message)?;
        known.turn = TurnState::Runs;
        let cwd = known.cwd.clone();
        drop(state);
        self.store.append(session, "user", &text);
        let turn = Turn::new(Arc::clone(self), session, id, cwd);
        thread::spawn(move || turn.run(&text));
        Ok(())
    }

    /// Ends the turn of a session. Must be called before the client is notified, because the client may then send the
    /// next prompt at once.
    pub fn turn_ended(&self, session: &str) {
        if let Some(session) = self.lock().sessions.get_mut(session) {
            session.turn = TurnState::None;
        }
    }

    /// Marks the running turn of a session, if there is one, as cancelled.
    pub fn cancel(&self, session: &str) {
        if let Some(session) = self.lock().sessions.get_mut(session)
            && session.turn == TurnState::Runs
        {
            session.turn = TurnState::IsCancelled;
        }
        self.changed.notify_all();
    }

    pub fn number(&self) -> u64 {
        let mut state = self.lock();
        state.last_number += 1;
        state.last_number
    }

    /// Sends a request to the client and returns its number.
    pub fn call(&self, method: &str, params: &Value) -> u64 {
        let number = self.number();
        self.lock().calls.insert(number, None);
        self.wire.send(&json!({ "jsonrpc": "2.0", "id": number, "method": method, "params": params }));
        number
    }

    /// Waits until `check` returns a value for the state.
    pub fn wait<T>(&self, mut check: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut state = self.lock();
        loop {
            if let Some(found) = check(&mut state) {
                return found;
            }
            state = self.changed.wait(state).expect("the state");
        }
    }

    /// Waits for a file, or until `is_over` holds for the state.
    pub fn wait_for_file(&self, file: &Path, is_over: impl Fn(&State) -> bool) {
        let mut state = self.lock();
        while !is_over(&state) && !file.exists() {
            state = self.changed.wait_timeout(state, LOOK).expect("the state").0;
        }
    }

    /// Returns the working directory of a request, which must be absolute.
    fn cwd<'m>(&self, message: &'m Value) -> Result<&'m str, Fault> {
        let cwd = message["params"]["cwd"].as_str().unwrap_or_default();
        self.want(cwd.starts_with('/'), "cwd is no absolute path", message)?;
        Ok(cwd)
    }

    /// Refuses a message that breaks the protocol and records the violation.
    fn want(&self, is_right: bool, otherwise: &str, message: &Value) -> Result<(), Fault> {
        if is_right {
            return Ok(());
        }
        self.wire.violation(otherwise, message);
        Err(Fault::new(INVALID_PARAMS, otherwise))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("the state")
    }
}
