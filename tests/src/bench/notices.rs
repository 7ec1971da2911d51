//! Time from a task's real end to its announcement: to a subscriber, an exec hook, a webhook, an AI agent.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use bgd_shared::id::TaskId;
use bgd_shared::request::SubmitParams;
use serde_json::json;

use super::report::{Figure, Row, Unit};
use super::stats::percentile;
use super::timing::{Stamp, now_ns};
use super::{Bench, Result};
use crate::TestDaemon;
use crate::mcp::{Mcp, REVISION};
use crate::wait::PATIENCE;

/// The parent session of the agent.
const AGENTS: &str = "mcp:bench";

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let web = Web::start()?;
    let folder = tempfile::tempdir()?;
    let heard = Heard::new(folder.path())?;
    let config = format!(
        "[channels.hook]\ntype = \"exec\"\ncommand = [\"cp\", \"/dev/stdin\", \"{}\"]\nstarted = false\n\
         [channels.web]\ntype = \"webhook\"\nurl = \"http://{}/\"\nstarted = false\n",
        heard.fifo.display(),
        web.address
    );
    let daemon = TestDaemon::builder().config(config).start();
    let mut stamp = Stamp::new(daemon.home())?;
    let mut agent = Mcp::silent(&daemon, &["--session", AGENTS]);
    agent.initialize(REVISION, "claude-code", &json!({}));
    // The first call connects the agent to the daemon; before that it receives nothing.
    agent.done("background_list", &json!({}));
    let [mut subscriber, mut hook, mut webhook, mut bare] = [const { Vec::new() }; 4];
    let [mut event, mut block] = [const { Vec::new() }; 2];
    for _ in 0..bench.of(30, 300) {
        subscriber.push(of_subscriber(&daemon, &mut stamp)?);
        end(&daemon, &mut stamp, "hook")?;
        hook.push(stamp.micros_until(heard.next()?)?);
        bare.push(of_spawn(&heard)?);
        end(&daemon, &mut stamp, "web")?;
        webhook.push(stamp.micros_until(web.heard.recv_timeout(PATIENCE)?)?);
        event.push(of_event(&daemon, &mut stamp, &mut agent)?);
        block.push(of_block(&daemon, &mut stamp, &mut agent)?);
    }
    let rows = |what: &str, samples: &[f64]| {
        let p99 = Figure::new(percentile(samples, 99), Unit::Micros);
        [
            Row::new(format!("{what}, median")).bgd_samples(samples, Unit::Micros),
            Row::new(format!("{what}, p99")).bgd(p99),
        ]
    };
    let [of_hook, of_hook_p99] = rows("end to delivered exec hook", &hook);
    let of_hook = of_hook.peer_samples("the same command, bare", &bare, Unit::Micros);
    let mut all = vec![of_hook, of_hook_p99];
    all.extend(rows("end to delivered webhook", &webhook));
    all.extend(rows("end to a subscriber", &subscriber));
    all.extend(rows("end to an agent's event", &event));
    all.extend(rows("end to the answer of background_block", &block));
    Ok(all)
}

fn of_subscriber(daemon: &TestDaemon, stamp: &mut Stamp) -> Result<f64> {
    let mut watch = daemon.watch();
    end(daemon, stamp, "none")?;
    watch.until(|event| event.kind.is_terminal());
    stamp.micros_until(now_ns())
}

fn of_event(daemon: &TestDaemon, stamp: &mut Stamp, agent: &mut Mcp) -> Result<f64> {
    let id = begin(daemon, stamp, "inbox", Some(AGENTS)).to_string();
    stamp.trigger()?;
    agent.until(|message| message["params"]["meta"]["task_id"] == id.as_str());
    stamp.micros_until(now_ns())
}

fn of_block(daemon: &TestDaemon, stamp: &mut Stamp, agent: &mut Mcp) -> Result<f64> {
    let id = begin(daemon, stamp, "inbox", Some(AGENTS)).to_string();
    let params = json!({
        "name": "background_block",
        "arguments": {"task_ids": [id]},
        "_meta": {"progressToken": id},
    });
    let request = agent.ask("tools/call", &params);
    // From here on the agent waits.
    agent.until(|message| message["params"]["progressToken"] == id.as_str());
    stamp.trigger()?;
    agent.answer(request);
    stamp.micros_until(now_ns())
}

/// Runs a task with this channel to its end.
fn end(daemon: &TestDaemon, stamp: &mut Stamp, channel: &str) -> Result<()> {
    begin(daemon, stamp, channel, None);
    stamp.trigger()
}

/// Starts a task that ends when it is triggered, and waits until it runs.
fn begin(daemon: &TestDaemon, stamp: &mut Stamp, channel: &str, session: Option<&str>) -> TaskId {
    let argv = stamp.next_argv().into_iter().map(Into::into).collect();
    let params = SubmitParams {
        argv: Some(argv),
        channel: Some(channel.into()),
        session: session.map(str::to_owned),
        ..daemon.params()
    };
    let task = daemon.submit_with(&params);
    stamp.wait_started();
    task.id
}

/// Returns the time of the hook's own work when spawned by this process: from the spawn to its last byte, in
/// microseconds.
fn of_spawn(heard: &Heard) -> Result<f64> {
    let begin = now_ns();
    let mut copy = Command::new("cp");
    copy.args(["/dev/stdin".as_ref(), heard.fifo.as_os_str()]).stdin(Stdio::piped());
    let mut child = copy.spawn()?;
    child.stdin.take().ok_or("no pipe")?.write_all(b"{}\n")?;
    let nanos = u64::try_from(heard.next()? - begin)?;
    child.wait()?;
    Ok(super::stats::float(nanos) / 1000.0)
}

/// Reports when a line arrives through a FIFO.
struct Heard {
    fifo: PathBuf,
    lines: mpsc::Receiver<i64>,
}

impl Heard {
    fn new(folder: &Path) -> Result<Self> {
        let fifo = folder.join("heard");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU)?;
        // Open for writing too, so that it never reaches EOF.
        let file = File::options().read(true).write(true).open(&fifo)?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for _ in BufReader::new(file).lines().map_while(std::io::Result::ok) {
                if sender.send(now_ns()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { fifo, lines })
    }

    fn next(&self) -> Result<i64> {
        Ok(self.lines.recv_timeout(PATIENCE)?)
    }
}

/// A server that reports when a whole request has arrived.
struct Web {
    address: std::net::SocketAddr,
    heard: mpsc::Receiver<i64>,
}

impl Web {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (sender, heard) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(std::io::Result::ok) {
                let sender = sender.clone();
                thread::spawn(move || serve(stream, &sender));
            }
        });
        Ok(Self { address, heard })
    }
}

/// Answers every request of a connection. Returns at its end.
fn serve(stream: std::net::TcpStream, sender: &mpsc::Sender<i64>) -> Option<()> {
    let mut answers = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        sender.send(now_ns()).ok()?;
        answers.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok()?;
    }
}
