//! A turn of an agent through the daemon, against the same agent driven directly.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use bgd_shared::client::Client;
use bgd_shared::request::{BlockMode, BlockParams, TaskBlock, TaskSubmit};
use serde_json::{Value, json};

use super::report::{Row, Target, Unit};
use super::stats::{median, micros};
use super::{Bench, Result};
use crate::prompts::fake_agent;
use crate::{TestDaemon, helper_path};

/// Maximum overhead of a turn through the daemon, in microseconds.
const OVERHEAD: f64 = 10_000.0;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let daemon = TestDaemon::builder().config(fake_agent(&[], "")).start();
    let mut client = daemon.client();
    let mut direct = Direct::start(&daemon)?;
    // The first turn starts the agent.
    by_daemon(&daemon, &mut client)?;
    let (mut through, mut straight) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(20, 200) {
        through.push(by_daemon(&daemon, &mut client)?);
        straight.push(direct.turn()?);
    }
    let more: Vec<f64> = through.iter().zip(&straight).map(|(daemon, direct)| daemon - direct).collect();
    let overhead = Row::new("agent turn: what the daemon adds, median").bgd_samples(&more, Unit::Micros);
    Ok(vec![
        Row::new("agent turn: new session, prompt, answer, median")
            .bgd_samples(&through, Unit::Micros)
            .peer_samples("direct", &straight, Unit::Micros),
        overhead
            .target(Target::AtMost(OVERHEAD, Unit::Micros))
            .note(format!("of {:.3} ms", median(&through) / 1000.0)),
    ])
}

fn by_daemon(daemon: &TestDaemon, client: &mut Client) -> Result<f64> {
    let params = daemon.prompt_params("say done");
    let begin = Instant::now();
    let id = client.call::<TaskSubmit>(&params)?.task.id;
    let block = BlockParams {
        ids: vec![id.into()],
        timeout_ms: Some(60_000),
        mode: BlockMode::All,
        ..BlockParams::default()
    };
    let task = client.call::<TaskBlock>(&block)?.tasks.remove(0);
    let taken = micros(begin.elapsed());
    match task.error {
        None => Ok(taken),
        Some(error) => Err(error.into()),
    }
}

/// The same agent, driven without a daemon.
struct Direct {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    last: u64,
}

impl Direct {
    fn start(daemon: &TestDaemon) -> Result<Self> {
        let home = daemon.home().join("direct");
        fs::create_dir_all(&home)?;
        let mut command = Command::new(helper_path("fake_acp"));
        command.env("FAKE_ACP_HOME", home).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().ok_or("no standard input")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut direct = Self { child, stdin, stdout, last: 0 };
        direct.call("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": {} }))?;
        Ok(direct)
    }

    fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.last += 1;
        let request = json!({ "jsonrpc": "2.0", "id": self.last, "method": method, "params": params });
        self.stdin.write_all(format!("{request}\n").as_bytes())?;
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line)? == 0 {
                return Err("the agent has ended".into());
            }
            let message: Value = serde_json::from_str(&line)?;
            if message["id"] == self.last {
                return Ok(message["result"].clone());
            }
        }
    }

    fn turn(&mut self) -> Result<f64> {
        let begin = Instant::now();
        let opened = self.call("session/new", &json!({ "cwd": "/", "mcpServers": [] }))?;
        let prompt = json!([{ "type": "text", "text": "say done" }]);
        self.call("session/prompt", &json!({ "sessionId": opened["sessionId"], "prompt": prompt }))?;
        Ok(micros(begin.elapsed()))
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
