//! A turn: carries out the commands of a prompt one after the other, in a thread of its own. It may block as long as
//! necessary, but must notice a cancel meanwhile unless the command says otherwise.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::Arc;
use std::thread;

use nix::sys::resource::{Resource, setrlimit};
use serde_json::{Value, json};

use super::agent::{Agent, State};
use super::options::Fault;
use super::script::{self, Command};

/// The id of an answer to a request that was never made.
const NOBODYS: u64 = 4_000_000_007;

type End = Result<String, Fault>;
type Flow = ControlFlow<End>;

const GO_ON: Flow = ControlFlow::Continue(());

pub struct Turn {
    agent: Arc<Agent>,
    session: String,
    /// The id of the prompt's request.
    request: Value,
    cwd: PathBuf,
    /// The text to be stored in the conversation.
    said: String,
    /// The message id of its chunks.
    message: Option<String>,
    is_mute: bool,
    ignores_cancel: bool,
    cancelled_is: &'static str,
    answers: usize,
    late: Vec<String>,
    /// Token usage in the answer of the turn.
    tokens: Value,
}

impl Turn {
    pub fn new(agent: Arc<Agent>, session: &str, request: &Value, cwd: PathBuf) -> Self {
        let (session, request) = (session.to_owned(), request.clone());
        let cancelled_is = "cancelled";
        let (said, late) = (String::new(), Vec::new());
        Self {
            agent,
            session,
            request,
            cwd,
            said,
            message: None,
            is_mute: false,
            ignores_cancel: false,
            cancelled_is,
            answers: 1,
            late,
            tokens: Value::Null,
        }
    }

    /// Runs the whole turn, up to its answer.
    pub fn run(mut self, prompt: &str) {
        let mut flow = GO_ON;
        for command in script::parse(prompt) {
            // Apply the commands that define what a cancel does before checking for one, however early it came.
            let settles = matches!(command, Command::IgnoreCancel | Command::CancelAsEndTurn);
            if !settles {
                flow = self.unless_cancelled();
            }
            if flow.is_continue() {
                flow = self.perform(command);
            }
            if flow.is_break() {
                break;
            }
        }
        if flow.is_continue() {
            flow = self.unless_cancelled();
        }
        // Report work without output, such as waiting for a file, as a finished tool call: a turn without any output is
        // an error.
        if flow.is_continue() && self.said.is_empty() && !self.is_mute {
            self.update(
                &json!({ "sessionUpdate": "tool_call_update", "toolCallId": "done", "status": "completed" }),
            );
        }
        self.finish(match flow {
            ControlFlow::Break(end) => end,
            ControlFlow::Continue(()) => Ok("end_turn".to_owned()),
        });
    }

    fn finish(self, end: End) {
        let Self { agent, session, tokens, .. } = &self;
        if !self.said.is_empty() {
            agent.store.append(session, "agent", &self.said);
        }
        agent.turn_ended(session);
        let answer = end.map(|reason| match tokens {
            Value::Null => json!({ "stopReason": reason }),
            tokens => json!({ "stopReason": reason, "usage": tokens }),
        });
        for _ in 0..self.answers {
            agent.wire.answer(&self.request, &answer);
        }
        for text in &self.late {
            agent.wire.chunk(session, "agent_message_chunk", text);
        }
    }

    fn perform(&mut self, command: Command) -> Flow {
        match command {
            Command::Say(text) => self.say(&text),
            Command::Settings => {
                let settings = self.agent.settings(&self.session);
                self.say(&format!("set: {settings}"));
            }
            Command::Message(id) => self.message = Some(id),
            Command::Stream(count, text) => {
                for _ in 0..count {
                    self.unless_cancelled()?;
                    self.say(&text);
                }
            }
            Command::Think(text) => self.agent.wire.chunk(&self.session, "agent_thought_chunk", &text),
            Command::Tool(title) => self.tool(&title),
            Command::Flood(calls) => self.flood(calls)?,
            Command::Plan | Command::LongPlan(_) | Command::Usage(_) | Command::Tokens(_) => {
                self.report_work(command);
            }
            Command::History => self.history(),
            Command::Count => self.say(&self.prompts().len().to_string()),
            Command::Await(file) => {
                let file = self.cwd.join(file);
                self.agent.wait_for_file(&file, |state| self.is_over(state));
            }
            Command::Touch(file) => touch(&self.cwd.join(file), ""),
            Command::Hang => self.agent.wait(|state| self.is_over(state).then_some(())),
            Command::Mute => self.is_mute = true,
            Command::ModelStatus(status) => self.update(&json!({
                "sessionUpdate": "session_info_update",
                "_meta": { "codex": { "threadStatus": { "type": status }, "usage": null } },
            })),
            Command::IgnoreCancel => self.ignores_cancel = true,
            Command::CancelAsEndTurn => self.cancelled_is = "end_turn",
            Command::Ask(question) => {
                let call = self.ask(&question);
                let answer = self.answer(call);
                self.say(&answer);
            }
            Command::AskCall(call) => {
                let mut call: Value = serde_json::from_str(&call).expect("the toolCall is JSON");
                call["toolCallId"] = format!("call-{}", self.agent.number()).into();
                let call = self.ask_for(&call);
                let answer = self.answer(call);
                self.say(&answer);
            }
            Command::AskForever => loop {
                self.unless_cancelled()?;
                let call = self.ask("Go on?");
                self.answer(call);
            },
            Command::AskMany(count) => {
                let calls: Vec<u64> = (1..=count).map(|n| self.ask(&format!("Question {n}?"))).collect();
                let answers: Vec<String> = calls.into_iter().map(|call| self.answer(call)).collect();
                self.say(&answers.join("\n"));
            }
            Command::ClientRequest(method) => return self.client_request(&method),
            Command::Late(text) => self.late.push(text),
            Command::AnswerTwice => self.answers = 2,
            Command::Stop(reason) => return ControlFlow::Break(Ok(reason)),
            Command::Error(fault) => return ControlFlow::Break(Err(fault)),
            other => self.misbehave(other),
        }
        GO_ON
    }

    /// Reports plans and consumption.
    fn report_work(&mut self, command: Command) {
        match command {
            Command::LongPlan(steps) => {
                let text = format!("{0}\n{0}", "x".repeat(1000));
                let step = json!({ "content": text, "priority": "low", "status": "pending" });
                self.update(&json!({ "sessionUpdate": "plan", "entries": vec![step; steps] }));
            }
            Command::Usage(fields) => {
                let mut update: Value = serde_json::from_str(&fields).expect("the fields are JSON");
                update["sessionUpdate"] = "usage_update".into();
                self.update(&update);
            }
            Command::Tokens(tokens) => self.tokens = serde_json::from_str(&tokens).expect("they are JSON"),
            Command::Plan => self.update(&json!({
                "sessionUpdate": "plan",
                "entries": [
                    { "content": "Read the prompt", "priority": "high", "status": "completed" },
                    { "content": "Do as it says", "priority": "medium", "status": "in_progress" },
                ],
            })),
            other => unreachable!("{other:?} tells of something else"),
        }
    }

    /// Carries out the commands that break the protocol.
    fn misbehave(&self, command: Command) {
        let wire = &self.agent.wire;
        match command {
            Command::Garbage(text) => wire.raw(format!("{text}\n").as_bytes()),
            Command::Bytes => wire.raw(b"\xff\xfe\x80bytes\xc3\n"),
            Command::Line(bytes) => wire.huge_chunk(&self.session, bytes),
            Command::JunkLine(bytes) => wire.filled("", b'j', bytes, "\n"),
            Command::AnswerOther => wire.answer(&NOBODYS.into(), &Ok(json!({ "stopReason": "end_turn" }))),
            Command::UnknownUpdate => self.update(&json!({
                "sessionUpdate": "fake_unheard_of",
                "content": { "type": "text", "text": "of no known kind" },
            })),
            Command::NoAnswer => loop {
                thread::park();
            },
            Command::Die(code) => process::exit(code),
            Command::Abort => {
                // Leave no core file in the working directory.
                let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
                process::abort();
            }
            Command::Stderr(text) => eprintln!("{text}"),
            Command::CloseStdout => wire.close(),
            Command::Spawn => self.spawn(),
            other => unreachable!("{other:?} is a part of the protocol"),
        }
    }

    fn say(&mut self, text: &str) {
        let content = json!({ "type": "text", "text": text });
        let mut update = json!({ "sessionUpdate": "agent_message_chunk", "content": content });
        if let Some(id) = &self.message {
            update["messageId"] = id.as_str().into();
        }
        self.update(&update);
        self.said.push_str(text);
    }

    fn update(&self, update: &Value) {
        self.agent.wire.update(&self.session, update);
    }

    fn tool(&self, title: &str) {
        let id = format!("call-{}", self.agent.number());
        self.update(&json!({
            "sessionUpdate": "tool_call",
            "toolCallId": id,
            "title": title,
            "kind": "execute",
            "status": "in_progress",
        }));
        self.update(&json!({
            "sessionUpdate": "tool_call_update",
            "toolCallId": id,
            "status": "completed",
            "content": [{ "type": "content", "content": { "type": "text", "text": "done" } }],
        }));
    }

    /// Calls this many tools without a pause, each for another step of its plan.
    fn flood(&self, calls: u64) -> Flow {
        for number in 1..=if calls == 0 { u64::MAX } else { calls } {
            self.unless_cancelled()?;
            self.tool(&number.to_string());
            let step = json!({ "content": number.to_string(), "priority": "low", "status": "in_progress" });
            self.update(&json!({ "sessionUpdate": "plan", "entries": [step] }));
            self.update(&json!({ "sessionUpdate": "usage_update", "used": number, "size": 1_000_000 }));
        }
        GO_ON
    }

    fn history(&mut self) {
        let mut prompts = self.prompts();
        prompts.pop();
        let lines: Vec<String> = prompts.iter().map(|prompt| prompt.replace('\n', "\\n")).collect();
        self.say(&lines.join("\n"));
    }

    /// Returns the prompts of the session; the last one is this turn's.
    fn prompts(&self) -> Vec<String> {
        let conversation = self.agent.store.read(&self.session);
        conversation.iter().flat_map(|all| all.prompts()).map(str::to_owned).collect()
    }

    /// Asks for permission and returns the number of the request.
    fn ask(&self, question: &str) -> u64 {
        self.ask_for(&json!({
            "toolCallId": format!("call-{}", self.agent.number()),
            "title": question,
            "kind": "execute",
            "status": "pending",
        }))
    }

    fn ask_for(&self, call: &Value) -> u64 {
        let option = |id: &str, name: &str, kind: &str| json!({ "optionId": id, "name": name, "kind": kind });
        let mut options = vec![
            option("allow-once", "Allow once", "allow_once"),
            option("allow-always", "Allow always", "allow_always"),
        ];
        if !self.agent.options.no_reject {
            options.push(option("reject-once", "Reject", "reject_once"));
            options.push(option("reject-always", "Reject always", "reject_always"));
        }
        let params = json!({ "sessionId": self.session, "toolCall": call, "options": options });
        self.agent.call("session/request_permission", &params)
    }

    /// Waits for the answer to a question, even through a cancel: the client has to answer every question, and a turn
    /// that continued without the answer would hide a forgotten one.
    fn answer(&self, call: u64) -> String {
        let answer = self.agent.wait(|state| state.take_answer(call));
        if let Some(code) = answer["error"]["code"].as_i64() {
            return format!("error {code}");
        }
        let outcome = &answer["result"]["outcome"];
        match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
            (Some("cancelled"), _) if self.agent.options.no_reject => "denied".to_owned(),
            (Some("cancelled"), _) => {
                // Only a client that cancels the turn may answer this way; its notification may arrive later.
                self.agent.cancel(&self.session);
                "cancelled".to_owned()
            }
            (Some("selected"), Some(option @ ("allow-once" | "allow-always"))) => {
                format!("allowed: {option}")
            }
            (Some("selected"), Some("reject-once" | "reject-always")) => "denied".to_owned(),
            _ => {
                self.agent.wire.violation("no outcome of the question", &answer);
                "no outcome".to_owned()
            }
        }
    }

    fn client_request(&mut self, method: &str) -> Flow {
        let mut params = json!({ "sessionId": self.session });
        match method {
            "fs/read_text_file" => params["path"] = "/etc/passwd".into(),
            "fs/write_text_file" => {
                params["path"] = self.cwd.join("written-by-fake_acp").to_string_lossy().into();
                params["content"] = "written\n".into();
            }
            "terminal/create" => params["command"] = "true".into(),
            _ => {}
        }
        let call = self.agent.call(method, &params);
        let answer = self.agent.wait(|state| match state.take_answer(call) {
            Some(answer) => Some(Some(answer)),
            None => self.is_over(state).then_some(None),
        });
        if let Some(answer) = answer {
            let code = answer["error"]["code"].as_i64();
            self.say(&code.map_or_else(|| "ok".to_owned(), |code| code.to_string()));
        }
        GO_ON
    }

    fn spawn(&self) {
        let mut command = process::Command::new("sleep");
        command.arg("1000000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("sleep can be started");
        touch(&self.agent.home.join("spawned"), &format!("{}\n", child.id()));
        // Reap the child, so that its killer does not see a zombie.
        thread::spawn(move || child.wait());
    }

    fn is_over(&self, state: &State) -> bool {
        !self.ignores_cancel && state.is_cancelled(&self.session)
    }

    fn unless_cancelled(&self) -> Flow {
        if self.agent.wait(|state| Some(self.is_over(state))) {
            return ControlFlow::Break(Ok(self.cancelled_is.to_owned()));
        }
        GO_ON
    }
}

/// Appends to a file, creating it if necessary.
fn touch(path: &Path, text: &str) {
    let file = OpenOptions::new().append(true).create(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
