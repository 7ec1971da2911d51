//! Renders the list of agents: a table with notes for people, tab-separated columns for programs.

use std::fmt::Write as _;

use bgd_shared::agent::{AgentCheck, AgentInfo, Continuation};
use comfy_table::Color;

use super::list_format::ListFormat;
use super::table::coloured;
use super::{clean, clean_lines, quoted};

const HEADER: [&str; 7] = ["NAME", "PROTOCOL", "STATE", "VERSION", "CONTINUES", "PERMISSIONS", "COMMAND"];

/// Indices of the columns that only a check fills.
const OF_CHECK: std::ops::Range<usize> = 3..5;

/// Index of the state column.
const STATE: usize = 2;

/// Lists the agents in the given order.
pub fn list(agents: &[AgentInfo], checked: bool, format: &ListFormat) -> String {
    if format.table {
        let left_out = (!checked).then_some(OF_CHECK);
        let rows = agents.iter().map(|agent| (columns(agent), colour(agent)));
        return coloured(HEADER, left_out.as_ref(), STATE, rows, format) + &notes(agents);
    }
    let mut text = String::new();
    for agent in agents {
        let mut columns = columns(agent);
        if let Some(why) = trouble(agent) {
            // Keep everything in one column, so that each agent stays on one line.
            let _ = write!(columns[STATE], ": {}", clean(why));
        }
        text.push_str(&columns.join("\t"));
        text.push('\n');
    }
    text
}

fn colour(agent: &AgentInfo) -> Color {
    match (agent.available, &agent.error) {
        (_, Some(_)) => Color::Red,
        (true, None) => Color::Green,
        (false, None) => Color::DarkGrey,
    }
}

/// Renders notes that do not fit into the table: how to install an agent, and why one does not start.
fn notes(agents: &[AgentInfo]) -> String {
    let mut text = String::new();
    for agent in agents {
        let Some(why) = trouble(agent) else { continue };
        if text.is_empty() {
            text.push('\n');
        }
        let what = match &agent.error {
            Some(_) => format!("does not start: {}", clean_lines(why)),
            None => format!("is not installed; install it with: {}", clean(why)),
        };
        let _ = writeln!(text, "{} {what}", clean(&agent.name));
    }
    text
}

/// Returns why an agent can't be used, or how to install it.
fn trouble(agent: &AgentInfo) -> Option<&str> {
    agent.error.as_deref().or(agent.install.as_deref().filter(|_| !agent.available))
}

/// Returns name, protocol, state, version, how a conversation is continued, permissions, and command or address.
fn columns(agent: &AgentInfo) -> [String; 7] {
    let default = if agent.default { " (default)" } else { "" };
    let check = agent.check.as_ref();
    let version = check.map_or("-", |check| check.version.as_deref().unwrap_or("unknown"));
    let continues = check.map_or("-", |check| match check.continuation {
        Continuation::Resume => "resume",
        Continuation::Load => "load",
        Continuation::None => "no",
        Continuation::Unknown => "unknown",
    });
    [
        format!("{}{default}", clean(&agent.name)),
        agent.protocol.as_str().to_owned(),
        state(agent),
        clean(version),
        continues.to_owned(),
        agent.permissions.as_str().to_owned(),
        clean(&command(agent)),
    ]
}

fn state(agent: &AgentInfo) -> String {
    match (&agent.error, &agent.check) {
        (Some(_), _) => "does not start".to_owned(),
        (None, Some(AgentCheck { started_in_ms: Some(ms), .. })) => format!("starts in {}", start_time(*ms)),
        // A template agent starts only for a prompt, so no check shows that it works.
        (None, Some(AgentCheck { started_in_ms: None, .. })) => "found, not started".to_owned(),
        (None, _) if agent.available => "ready".to_owned(),
        (None, _) => "not installed".to_owned(),
    }
}

/// Formats the start time. A native agent starts within milliseconds, which tenths of a second would round to zero.
fn start_time(ms: u64) -> String {
    if ms < 100 { format!("{ms} ms") } else { format!("{}.{} s", ms / 1000, ms % 1000 / 100) }
}

/// Returns the command that is started, or the address of a running server.
fn command(agent: &AgentInfo) -> String {
    match &agent.url {
        Some(url) => url.clone(),
        None => quoted(&agent.command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::agent::{AgentProtocol, Permissions};

    fn agent(name: &str) -> AgentInfo {
        AgentInfo {
            name: name.into(),
            protocol: AgentProtocol::Acp,
            command: vec![name.into(), "an acp".into()],
            url: None,
            configured: false,
            default: false,
            available: true,
            program: None,
            permissions: Permissions::Deny,
            install: Some("npm install -g it".into()),
            check: None,
            error: None,
        }
    }

    fn all() -> Vec<AgentInfo> {
        let check = |continuation, started_in_ms| {
            let started_in_ms = Some(started_in_ms);
            Some(AgentCheck { name: None, version: Some("1.18.33".into()), continuation, started_in_ms })
        };
        vec![
            AgentInfo { default: true, check: check(Continuation::Load, 1_260), ..agent("one") },
            AgentInfo { available: false, ..agent("two") },
            AgentInfo { error: Some("it ended\nwith 1".into()), ..agent("three") },
            AgentInfo {
                url: Some("http://127.0.0.1:4096".into()),
                protocol: AgentProtocol::Opencode,
                check: check(Continuation::None, 30),
                ..agent("four")
            },
            AgentInfo {
                protocol: AgentProtocol::Template,
                check: Some(AgentCheck {
                    name: None,
                    version: None,
                    continuation: Continuation::Resume,
                    started_in_ms: None,
                }),
                ..agent("five")
            },
        ]
    }

    fn format(table: bool) -> ListFormat {
        ListFormat { table, colour: false, ..ListFormat::of_tests() }
    }

    #[test]
    fn plain_agent_list_has_tab_separated_columns() {
        assert_eq!(
            list(&all(), true, &format(false)),
            "one (default)\tacp\tstarts in 1.2 s\t1.18.33\tload\tdeny\tone 'an acp'\n\
             two\tacp\tnot installed: npm install -g it\t-\t-\tdeny\ttwo 'an acp'\n\
             three\tacp\tdoes not start: it ended with 1\t-\t-\tdeny\tthree 'an acp'\n\
             four\topencode\tstarts in 30 ms\t1.18.33\tno\tdeny\thttp://127.0.0.1:4096\n\
             five\ttemplate\tfound, not started\tunknown\tresume\tdeny\tfive 'an acp'\n"
        );
    }

    #[test]
    fn agent_table_has_problems_listed_below() {
        let text = list(&all(), true, &format(true));
        assert!(text.starts_with("NAME"), "{text}");
        assert!(text.ends_with(
            "\n\ntwo is not installed; install it with: npm install -g it\nthree does not start: it ended\nwith 1\n"
        ));
        let unchecked = list(&[agent("five")], false, &format(true));
        assert_eq!(unchecked.lines().count(), 2, "{unchecked}");
        assert!(unchecked.contains("ready") && !unchecked.contains("VERSION"), "{unchecked}");
    }
}
