//! The language of the prompts: the commands, and how a prompt is parsed. It does not run them; that is for
//! [`turn`](super::turn).

use std::fmt::Write as _;
use std::path::PathBuf;

use super::options::Fault;

/// Every command and its effect. A test checks that the parser knows all of them.
pub const COMMANDS: &[(&str, &str)] = &[
    ("say TEXT", "a chunk of the answer"),
    ("settings", "says what the client has set in the session"),
    ("message ID", "what is said from now on has this messageId"),
    ("stream N TEXT", "N such chunks"),
    ("think TEXT", "a chunk of thought"),
    ("tool TITLE", "a tool call in progress, then its completion"),
    (
        "flood N",
        "N tool calls named by their numbers from 1, each with a plan and a usage_update of it; 0: until a cancel",
    ),
    ("plan", "a plan"),
    ("long-plan N", "a plan of N steps, each of two lines of 1000 letters"),
    ("usage JSON", "a usage_update with these fields"),
    ("tokens JSON", "the answer to the prompt says that these are the turn's tokens"),
    ("history", "says the earlier prompts, one a line, their line breaks as \\n"),
    ("count", "says how many prompts the session has had, this one included"),
    ("await FILE", "waits until the file exists, or for a cancel"),
    ("touch FILE", "makes a file"),
    ("hang", "waits for a cancel"),
    ("ignore-cancel", "from now on this turn ignores a cancel"),
    ("cancel-as-end-turn", "a cancel of this turn ends it as end_turn"),
    ("ask QUESTION", "asks for permission; says 'allowed: ID', 'denied' or 'cancelled'"),
    ("ask-call JSON", "the same with this as the request's toolCall"),
    ("ask-forever", "asks again and again, until a cancel"),
    ("ask-many N", "asks N times at once, then says all answers, one a line"),
    ("mute", "a turn in which nothing was said ends without a sign that anything was done"),
    ("model-status TYPE", "says in fields of its own that its thread is in this status, as codex-acp does"),
    ("garbage TEXT", "a line on stdout that is no JSON"),
    ("bytes", "a line on stdout that is no UTF-8"),
    ("line N", "a chunk with a text of N bytes, which is not kept in the conversation"),
    ("junk-line N", "a line of N bytes that is no JSON"),
    ("answer-twice", "the prompt will be answered twice"),
    ("answer-other", "an answer to a request that there never was, at once"),
    ("no-answer", "the turn never ends, whatever comes"),
    ("die CODE", "the process exits"),
    ("abort", "the process dies of SIGABRT"),
    ("stderr TEXT", "a line on stderr"),
    ("close-stdout", "closes stdout"),
    ("stop REASON", "ends the turn with this stopReason, whatever it is"),
    ("error CODE TEXT", "ends the turn with this error"),
    ("late TEXT", "after the answer of the turn, a chunk of it"),
    ("unknown-update", "an update of a kind that does not exist"),
    ("client-request METHOD", "calls a method of the client; says 'ok' or the code of the error"),
    ("spawn", "starts `sleep 1000000` with nothing open; pid to FAKE_ACP_HOME/spawned"),
];

/// One step of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Say(String),
    Settings,
    Message(String),
    Stream(u64, String),
    Think(String),
    Tool(String),
    Flood(u64),
    Plan,
    LongPlan(usize),
    Usage(String),
    Tokens(String),
    History,
    Count,
    Await(PathBuf),
    Touch(PathBuf),
    Hang,
    IgnoreCancel,
    CancelAsEndTurn,
    Ask(String),
    AskCall(String),
    AskForever,
    AskMany(u64),
    Mute,
    ModelStatus(String),
    Garbage(String),
    Bytes,
    Line(u64),
    JunkLine(u64),
    AnswerTwice,
    AnswerOther,
    NoAnswer,
    Die(i32),
    Abort,
    Stderr(String),
    CloseStdout,
    Stop(String),
    Error(Fault),
    Late(String),
    UnknownUpdate,
    ClientRequest(String),
    Spawn,
}

/// Formats the commands for `--help`.
pub fn help() -> String {
    let mut text = String::from(
        "Commands of a prompt, one a line or separated by ';' (in texts \\n, \\t, \\; and \\\\ stand for what \
         can't be written there); any other text T is answered by 'you said: T':\n",
    );
    for (usage, meaning) in COMMANDS {
        let _ = write!(text, "\n  {usage:<22} {meaning}");
    }
    text
}

/// Parses a prompt.
pub fn parse(prompt: &str) -> Vec<Command> {
    let pieces = split(prompt);
    let steps = pieces.iter().map(|piece| command(piece).unwrap_or_else(|| echoed(piece)));
    let steps: Vec<Command> = steps.collect();
    // Even an empty prompt gets an answer.
    if steps.is_empty() { vec![echoed("")] } else { steps }
}

fn echoed(text: &str) -> Command {
    Command::Say(format!("you said: {text}"))
}

/// Splits a prompt at line breaks and semicolons. Escapes stay unchanged.
fn split(prompt: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut escaped = false;
    for letter in prompt.chars() {
        if letter == '\n' || (letter == ';' && !escaped) {
            pieces.push(String::new());
        } else if let Some(last) = pieces.last_mut() {
            last.push(letter);
        }
        escaped = letter == '\\' && !escaped;
    }
    let trimmed = pieces.iter().map(|piece| piece.trim()).filter(|piece| !piece.is_empty());
    trimmed.map(str::to_owned).collect()
}

fn unescaped(text: &str) -> String {
    let mut result = String::new();
    let mut chars = text.chars();
    while let Some(letter) = chars.next() {
        if letter != '\\' {
            result.push(letter);
            continue;
        }
        match chars.next() {
            Some('n') => result.push('\n'),
            Some('t') => result.push('\t'),
            Some(other @ (';' | '\\')) => result.push(other),
            Some(other) => result.extend(['\\', other]),
            None => result.push('\\'),
        }
    }
    result
}

/// Parses a command. `None` if it does not match the table: then it is text, not a mistake.
fn command(piece: &str) -> Option<Command> {
    let (name, rest) = piece.split_once(char::is_whitespace).unwrap_or((piece, ""));
    if let Some(alone) = command_alone(name) {
        return rest.is_empty().then_some(alone);
    }
    if rest.is_empty() {
        return None;
    }
    let text = || unescaped(rest);
    Some(match name {
        "say" => Command::Say(text()),
        "message" => Command::Message(text()),
        "stream" => {
            let (count, text) = rest.split_once(' ')?;
            Command::Stream(count.parse().ok()?, unescaped(text))
        }
        "think" => Command::Think(text()),
        "tool" => Command::Tool(text()),
        "flood" => Command::Flood(rest.parse().ok()?),
        "long-plan" => Command::LongPlan(rest.parse().ok()?),
        "usage" => Command::Usage(rest.to_owned()),
        "tokens" => Command::Tokens(rest.to_owned()),
        "await" => Command::Await(text().into()),
        "touch" => Command::Touch(text().into()),
        "ask" => Command::Ask(text()),
        "ask-call" => Command::AskCall(rest.to_owned()),
        "ask-many" => Command::AskMany(rest.parse().ok()?),
        "model-status" => Command::ModelStatus(text()),
        "garbage" => Command::Garbage(text()),
        "line" => Command::Line(rest.parse().ok()?),
        "junk-line" => Command::JunkLine(rest.parse().ok()?),
        "die" => Command::Die(rest.parse().ok()?),
        "stderr" => Command::Stderr(text()),
        "stop" => Command::Stop(text()),
        "error" => {
            let (code, text) = rest.split_once(' ')?;
            Command::Error(Fault::new(code.parse().ok()?, &unescaped(text)))
        }
        "late" => Command::Late(text()),
        "client-request" => Command::ClientRequest(text()),
        _ => return None,
    })
}

fn command_alone(name: &str) -> Option<Command> {
    Some(match name {
        "plan" => Command::Plan,
        "history" => Command::History,
        "count" => Command::Count,
        "settings" => Command::Settings,
        "hang" => Command::Hang,
        "mute" => Command::Mute,
        "ignore-cancel" => Command::IgnoreCancel,
        "cancel-as-end-turn" => Command::CancelAsEndTurn,
        "ask-forever" => Command::AskForever,
        "bytes" => Command::Bytes,
        "answer-twice" => Command::AnswerTwice,
        "answer-other" => Command::AnswerOther,
        "no-answer" => Command::NoAnswer,
        "abort" => Command::Abort,
        "close-stdout" => Command::CloseStdout,
        "unknown-update" => Command::UnknownUpdate,
        "spawn" => Command::Spawn,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_is_parsed_as_a_list_of_commands() {
        let steps = parse("say a\\nb \\; c; stream 3 x\n\n  hang ;plan the day; error -32000 no, no");
        let error = Command::Error(Fault::new(-32000, "no, no"));
        let expected = [
            Command::Say("a\nb ; c".to_owned()),
            Command::Stream(3, "x".to_owned()),
            Command::Hang,
            echoed("plan the day"),
            error,
        ];
        assert_eq!(steps, expected);
        assert_eq!(parse("stream of thought"), [echoed("stream of thought")]);
        assert_eq!(parse(" \n;"), [echoed("")]);
        assert_eq!(unescaped(r"\\n\x\"), r"\n\x\");
    }

    #[test]
    fn every_listed_command_is_parsed() {
        for (usage, _) in COMMANDS {
            let example = usage.replace(" CODE", " 7").replace(" N", " 3");
            assert!(command(&example).is_some(), "{usage}");
            assert!(help().contains(usage), "{usage}");
        }
    }
}
