//! `daemon`: start, stop, status and reload. Only `start` starts one.

use bgd_shared::request::{DaemonReload, DaemonStatusOf, Hello, HelloParams, NoParams, ReloadResult};
use bgd_shared::time::Timestamp;

use super::stop;
use crate::cli::{DaemonArgs, DaemonVerb};
use crate::connect;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::{daemon as page, metrics};

/// Does what is asked of the daemon.
pub fn run(args: &DaemonArgs, context: &mut Context) -> Result<Code, Failure> {
    match args.verb {
        DaemonVerb::Start => start(context),
        DaemonVerb::Stop { grace } => stop::run(grace, context),
        DaemonVerb::Status { openmetrics } => status(openmetrics, context),
        DaemonVerb::Reload => reload(context),
    }
}

fn start(context: &mut Context) -> Result<Code, Failure> {
    let (mut client, started) = match context.running()? {
        Some(client) => (client, false),
        None => connect::start_daemon(&context.socket()?)?,
    };
    let client_name = concat!("bgctl ", env!("CARGO_PKG_VERSION")).to_owned();
    let params = HelloParams {
        client: Some(client_name),
        protocol: Some(bgd_shared::PROTOCOL),
        ..HelloParams::default()
    };
    let hello = client.call::<Hello>(&params)?;
    if context.json() {
        context.print_json(&hello)?;
    } else if started {
        context.print(&format!("started, pid {}\n", hello.pid))?;
    } else {
        context.print(&format!("already running, pid {}\n", hello.pid))?;
    }
    Ok(Code::OK)
}

fn status(openmetrics: bool, context: &mut Context) -> Result<Code, Failure> {
    if openmetrics && context.json() {
        return Err(Failure::usage("--json and --openmetrics are two forms of the same: take one of them"));
    }
    let status = context.existing()?.call::<DaemonStatusOf>(&NoParams {})?;
    if context.json() {
        context.print_json(&status)?;
    } else if openmetrics {
        context.print(&metrics::text(status))?;
    } else {
        context.print(&page::page(&status, Timestamp::now()))?;
    }
    Ok(Code::OK)
}

fn reload(context: &mut Context) -> Result<Code, Failure> {
    let result = context.existing()?.call::<DaemonReload>(&NoParams {})?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&reloaded(&result))?;
    }
    Ok(Code::OK)
}

fn reloaded(result: &ReloadResult) -> String {
    let line = |what: &str, keys: &[String]| match keys {
        [] => String::new(),
        keys => format!("{what}: {}\n", keys.join(", ")),
    };
    let text = line("in force now", &result.changed) + &line("need a restart", &result.needs_restart);
    if text.is_empty() { "nothing has changed\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_says_what_it_did() {
        assert_eq!(reloaded(&ReloadResult::default()), "nothing has changed\n");
        let result = ReloadResult { changed: vec!["a".into(), "b".into()], needs_restart: vec!["c".into()] };
        assert_eq!(reloaded(&result), "in force now: a, b\nneed a restart: c\n");
    }
}
