//! What a client of the model server asked, in the same terms for both protocols. Nothing here answers.

use serde_json::Value;

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/responses`
    Responses,
}

/// Why an agent asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It works for the user.
    Turn,
    /// It wants a title for the session.
    Title,
    /// It makes its history shorter.
    Summary,
}

/// How far the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is not complete yet.
    Working,
    /// It is complete.
    Answered,
    /// The client has closed the connection before.
    Left,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The agent's instructions.
    System,
    /// The user, or the agent in the user's name.
    User,
    /// The model.
    Assistant,
    /// A tool, with its result.
    Tool,
}

/// A part of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// All of its text.
    pub text: String,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its protocol.
    pub api: Api,
    /// Why it was sent.
    pub purpose: Purpose,
    /// How far its answer is.
    pub progress: Progress,
    /// The agent's id of the session, which both agents send in a header.
    pub session: Option<String>,
    /// The name of the model.
    pub model: String,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The whole conversation.
    pub messages: Vec<Message>,
    /// The names of the tools that may be called. One in a namespace, which only Responses have, is
    /// `namespace/name`.
    pub tools: Vec<String>,
}

impl Request {
    /// Reads the body of a request; `None` if it has no conversation.
    pub(super) fn parse(api: Api, session: Option<String>, body: &Value) -> Option<Self> {
        let conversation = match api {
            Api::Chat => body["messages"].as_array()?,
            Api::Responses => body["input"].as_array()?,
        };
        let instructions = body["instructions"].as_str();
        let instructions = instructions.map(|text| Message { role: Role::System, text: text.to_owned() });
        let messages: Vec<_> =
            instructions.into_iter().chain(conversation.iter().filter_map(message)).collect();
        let tools: Vec<_> = body["tools"].as_array().into_iter().flatten().flat_map(tools).collect();
        let mut request = Self {
            api,
            purpose: Purpose::Turn,
            progress: Progress::Working,
            session,
            model: body["model"].as_str().unwrap_or_default().to_owned(),
            stream: body["stream"].as_bool().unwrap_or_default(),
            messages,
            tools,
        };
        request.purpose = request.guess_purpose();
        Some(request)
    }

    /// What the user has said so far. What an agent adds in the user's name, such as its surroundings,
    /// comes in the form of an element and is left out.
    pub fn user_texts(&self) -> Vec<String> {
        let said = self.messages.iter().filter(|message| message.role == Role::User);
        said.filter(|message| !is_element(&message.text)).map(|message| message.text.clone()).collect()
    }

    /// What the user has said last; empty if nothing.
    pub fn last_words(&self) -> &str {
        let mut said = self.messages.iter().rev().filter(|message| message.role == Role::User);
        said.find(|message| !is_element(&message.text)).map_or("", |message| &message.text)
    }

    /// The results of the tools that were called since the user's last words.
    pub fn tool_results(&self) -> Vec<&str> {
        let said = |message: &Message| message.role == Role::User && !is_element(&message.text);
        let last = self.messages.iter().rposition(said).unwrap_or(0);
        let since = self.messages[last..].iter();
        since.filter(|message| message.role == Role::Tool).map(|message| message.text.as_str()).collect()
    }

    /// A request without tools can't be a turn's step if its instructions name another purpose.
    fn guess_purpose(&self) -> Purpose {
        let instructed = |words: &[&str]| {
            let mut texts = self.messages.iter().filter(|message| message.role == Role::System);
            texts.any(|message| words.iter().any(|word| message.text.contains(word)))
        };
        if !self.tools.is_empty() {
            Purpose::Turn
        } else if instructed(&["title generator"]) {
            Purpose::Title
        } else if instructed(&["summarizing", "COMPACTION"]) {
            Purpose::Summary
        } else {
            Purpose::Turn
        }
    }
}

fn message(item: &Value) -> Option<Message> {
    let (role, text) = match item["type"].as_str() {
        None | Some("message") => {
            let role = match item["role"].as_str()? {
                "system" | "developer" => Role::System,
                "user" => Role::User,
                "tool" => Role::Tool,
                _ => Role::Assistant,
            };
            (role, &item["content"])
        }
        Some("function_call_output") => (Role::Tool, &item["output"]),
        Some("function_call") => (Role::Assistant, &item["name"]),
        Some(_) => return None,
    };
    Some(Message { role, text: text_of(text) })
}

/// A content is a text, or a list of parts that may have one.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// The names of a tool, or of all tools of a namespace.
fn tools(tool: &Value) -> Vec<String> {
    let name = tool["function"]["name"].as_str().or_else(|| tool["name"].as_str()).unwrap_or_default();
    if tool["type"] != "namespace" {
        return vec![name.to_owned()];
    }
    let inner = tool["tools"].as_array().into_iter().flatten().flat_map(tools);
    inner.map(|inner| format!("{name}/{inner}")).collect()
}

fn is_element(text: &str) -> bool {
    let text = text.trim();
    text.starts_with('<') && text.ends_with('>')
}
