//! A program for upgrades in the tests: a bgd that fails in the way that its file is named after, and does everything else
//! as the real one does.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::RawFd;
use std::process::ExitCode;

use bgd::carry::handover::go_back;
use bgd::carry::image::Image;
use bgd::carry::program::{CARRIED, FORMATS, Formats, Found, TRY};

fn main() -> ExitCode {
    let own = std::env::current_exe().unwrap_or_default();
    let name = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let args: Vec<String> = std::env::args().collect();
    let has = |option: &str| args.iter().any(|arg| arg == option);
    match &*name {
        "older" if has(FORMATS) => say(&Formats { bgd: "0.0.9".into(), writes: 0, reads: vec![0] }),
        "silent" if has(FORMATS) => loop {
            std::thread::park();
        },
        "another" if has(TRY) => say(&Found { digest: "none".into(), tasks: 0, connections: 0 }),
        "dying" if has(TRY) => {
            let _ = writeln!(std::io::stderr(), "bgd: no memory is left");
            ExitCode::FAILURE
        }
        "turning-back" if has(CARRIED) => turn_back(&args),
        _ => bgd::startup::main(),
    }
}

fn say(what: &impl serde::Serialize) -> ExitCode {
    let line = serde_json::to_vec(what).unwrap_or_default();
    let _ = std::io::stdout().write_all(&line);
    ExitCode::SUCCESS
}

/// Executes the program before again, as a bgd does that can't build the daemon from the state.
fn turn_back(args: &[String]) -> ExitCode {
    let state: Option<RawFd> =
        args.iter().skip_while(|arg| *arg != CARRIED).nth(1).and_then(|n| n.parse().ok());
    let Some(state) = state else { return ExitCode::from(2) };
    let image =
        File::open(format!("/proc/self/fd/{state}")).ok().and_then(|mut file| Image::read(&mut file).ok());
    if let Some(image) = image {
        let error = go_back(&image.head, state, "it can't be built again");
        let _ = writeln!(std::io::stderr(), "next_bgd: {error}");
    }
    ExitCode::FAILURE
}
