//! Requests of clients of the model server, in the same terms for both protocols. Nothing here answers.

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/responses`
    Responses,
}

/// Why an agent sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To work for the user.
    Turn,
    /// To get a title for the session.
    Title,
    /// To shorten its history.
    Summary,
}

/// Progress of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Working,
    Answered,
    /// The client closed the connection before the answer was complete.
    Left,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The agent's instructions.
    System,
    /// The user, or the agent on the user's behalf.
    User,
    /// The model.
    Assistant,
    /// A tool, with its result.
    Tool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub api: Api,
    pub purpose: Purpose,
    pub progress: Progress,
    /// The agent's id of the session, which both agents send in a header.
    pub session: Option<String>,
    pub model: String,
    pub stream: bool,
    /// The whole conversation.
    pub messages: Vec<Message>,
    /// The names of the tools that may be called. A tool in a namespace, which only Responses have, is
    /// `namespace/name`.
    pub tools: Vec<String>,
}

impl Request {
    /// Parses the body of a request; `None` if it has no conversation.
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

    /// Returns the user's messages so far, without those that an agent adds on the user's behalf, such as its
    /// environment: they have the form of an element.
    pub fn user_texts(&self) -> Vec<String> {
        let said = self.messages.iter().filter(|message| message.role == Role::User);
        said.filter(|message| !is_element(&message.text)).map(|message| message.text.clone()).collect()
    }

    /// Returns the last message of the user; empty if there is none.
    pub fn last_words(&self) -> &str {
        let mut said = self.messages.iter().rev().filter(|message| message.role == Role::User);
        said.find(|message| !is_element(&message.text)).map_or("", |message| &message.text)
    }

    /// Returns the results of the tools called since the user's last message.
    pub fn tool_results(&self) -> Vec<&str> {
        let said = |message: &Message| message.role == Role::User && !is_element(&message.text);
        let last = self.messages.iter().rposition(said).unwrap_or(0);
        let since = self.messages[last..].iter();
        since.filter(|message| message.role == Role::Tool).map(|message| message.text.as_str()).collect()
    }

    /// Guesses the purpose. A request without tools is not a step of a turn if its instructions name another purpose.
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

/// Returns the text of a content, which is a string or a list of parts that may have one.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// Returns the name of a tool, or the names of all tools of a namespace.
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
