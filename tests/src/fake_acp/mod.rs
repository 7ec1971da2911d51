//! A fake agent that speaks the Agent Client Protocol (version 1) on its stdin and stdout, for tests of the daemon's
//! side of the protocol. It has no model: a prompt is a list of commands, one per line or separated by `;`, which the
//! agent carries out in order. The commands are in the table `script::COMMANDS`, the flags of the process are in
//! `options::Options`, and `fake_acp --help` shows both.
//!
//! It writes its JSON by hand and may use neither a library of the protocol nor anything of the daemon: two sides that
//! share code would agree on its mistakes. Nor may it be lenient: it refuses everything that the protocol forbids a
//! client to do, and records it as a violation.
//!
//! Files below `$FAKE_ACP_HOME`:
//!
//! | path | contents |
//! |---|---|
//! | `journal` | a JSON line for the start of each process, for everything it receives and for every violation |
//! | `sessions/ID` | the conversation as JSON lines; a test may delete it, which makes the session unknown |
//! | `child.PID` | the pid of the child that `--child` has started for the process PID |
//! | `spawned` | the pids of the processes that the command `spawn` has started, one per line |
//!
//! The lines of the journal, all with a `pid`: `{"started":true,"argv":[…],"cwd":…}`, `{"received":{…}}`,
//! `{"received_garbage":…}`, `{"violation":"second prompt",…}` and `{"eof":true}`.

mod agent;
mod options;
mod recorded;
mod script;
mod store;
mod turn;
mod wire;

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::{env, panic, process, thread};

use clap::Parser as _;
use nix::sys::signal::{SigSet, Signal};
use serde_json::json;

use self::agent::Agent;
use self::options::Options;
use self::store::Store;
use self::wire::Wire;

/// Runs the program. It ends when its input ends, unless a flag says otherwise.
pub fn run() -> ExitCode {
    panics_end_the_process();
    let options = Options::parse();
    let done = if options.sleeper { be_the_child() } else { serve(options) };
    done.unwrap_or_else(|error| {
        eprintln!("fake_acp: {error}");
        ExitCode::from(2)
    })
}

fn serve(options: Options) -> io::Result<ExitCode> {
    let home = env::var_os("FAKE_ACP_HOME").ok_or_else(|| io::Error::other("FAKE_ACP_HOME is not set"))?;
    let home = PathBuf::from(home);
    if options.ignore_sigterm {
        // Block the signal rather than ignore it, which needs no handler: it is never handled, and every thread and
        // child inherits the mask.
        SigSet::from(Signal::SIGTERM).thread_block()?;
    }
    let wire = Wire::open(&home)?;
    let argv: Vec<String> = env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    wire.note(json!({ "started": true, "argv": argv, "cwd": env::current_dir()? }));
    if let Some(text) = &options.stderr {
        eprintln!("{text}");
    }
    for line in &options.greeting {
        wire.raw(format!("{line}\n").as_bytes());
    }
    if let Some(code) = options.exit_at_start {
        return Ok(ExitCode::from(code));
    }
    if options.child {
        start_child(&home)?;
    }
    if let Some(file) = &options.recorded {
        return recorded::replay(file, &home, &wire);
    }
    let ignores_eof = options.ignore_eof;
    let agent = Arc::new(Agent::new(options, wire, Store::open(&home)?, home));
    let mut input = BufReader::new(io::stdin());
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        agent.receive(&line);
        line.clear();
    }
    agent.wire.note(json!({ "eof": true }));
    if ignores_eof {
        sleep_for_ever();
    }
    // Running turns end with the process.
    Ok(ExitCode::SUCCESS)
}

/// Starts this program again as a process that does nothing, in a session of its own. It keeps stderr open,
/// as the children of real adapters do.
fn start_child(home: &Path) -> io::Result<()> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("--sleeper").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    // The child reports that it has left this session; only then may a test look for it.
    let mut word = child.stdout.take().ok_or_else(|| io::Error::other("the child has no stdout"))?;
    word.read_exact(&mut [0])?;
    let name = format!("child.{}", process::id());
    let unfinished = home.join(format!("{name}.new"));
    fs::write(&unfinished, child.id().to_string())?;
    fs::rename(unfinished, home.join(name))
}

fn be_the_child() -> io::Result<ExitCode> {
    nix::unistd::setsid()?;
    io::stdout().write_all(b"\n")?;
    // Close the pipe, which is no longer needed.
    nix::unistd::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    sleep_for_ever();
}

fn sleep_for_ever() -> ! {
    loop {
        thread::park();
    }
}

/// Makes a panicking thread take the process down: a turn that ends silently could seem intended.
fn panics_end_the_process() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        process::exit(101);
    }));
}
