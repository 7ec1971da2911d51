//! A program for upgrades in the tests: a bgd that fails in the way that its file name indicates, or saves the state
//! that it is given for a trial, and otherwise behaves like the real one.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{IntoRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use bgd::carry::handover::go_back;
use bgd::carry::image::{self, Head, Image};
use bgd::carry::program::{CARRIED, FORMATS, Formats, Found, REFUSED, TRY};
use bgd::os::inherited::set_inheritable;
use nix::sys::stat::Mode;
use rustix::process::{Signal, getpid, kill_process};

fn main() -> ExitCode {
    let own = std::env::current_exe().unwrap_or_default();
    let name = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let args: Vec<String> = std::env::args().collect();
    let has = |option: &str| args.iter().any(|arg| arg == option);
    match &*name {
        "older" if has(FORMATS) => {
            say(&Formats { bgd: "0.0.9".into(), reads: vec![0], ..Formats::own(&[1]) })
        }
        "journal-less" if has(FORMATS) => say(&Formats { bgd: "0.0.9".into(), ..Formats::own(&[0]) }),
        "silent" if has(FORMATS) => loop {
            std::thread::park();
        },
        "stuck" if has(TRY) => {
            say_trying(&own);
            loop {
                std::thread::park();
            }
        }
        "shot" if has(TRY) => {
            let _ = kill_process(getpid(), Signal::KILL);
            ExitCode::FAILURE
        }
        "another" if has(TRY) => say(&Found { digest: "none".into(), tasks: 0, connections: 0 }),
        "dying" if has(TRY) => {
            let _ = writeln!(std::io::stderr(), "bgd: no memory is left");
            ExitCode::FAILURE
        }
        "keeping" if has(TRY) => match keep(&own.with_extension("state")) {
            Ok(()) => bgd::startup::main(),
            Err(_) => ExitCode::FAILURE,
        },
        "slow" if has(TRY) => {
            wait_beside(&own);
            bgd::startup::main()
        }
        "hanging" if has(CARRIED) && !has(REFUSED) => hang(),
        "killed" if has(CARRIED) => {
            let _ = kill_process(getpid(), Signal::KILL);
            ExitCode::FAILURE
        }
        "turning-back" if has(CARRIED) => turn_back(&args),
        "removing" if has(CARRIED) => {
            if !has(REFUSED) {
                let _ = fs::remove_dir_all(bgd_tests::shared::dirs::state().join("instances"));
            }
            fail_late(&args, has(REFUSED))
        }
        "late" if has(CARRIED) => fail_late(&args, has(REFUSED)),
        "nameless" if has(CARRIED) => forget_pid(&args),
        _ => bgd::startup::main(),
    }
}

/// Copies the state on standard input to this path.
fn keep(path: &Path) -> io::Result<()> {
    io::copy(&mut File::open("/dev/stdin")?, &mut File::create(path)?).map(drop)
}

fn say(what: &impl serde::Serialize) -> ExitCode {
    let line = serde_json::to_vec(what).unwrap_or_default();
    let _ = std::io::stdout().write_all(&line);
    ExitCode::SUCCESS
}

/// Records in the folder of this program that it was asked for a trial, with its pid. Returns the folder.
fn say_trying(own: &Path) -> &Path {
    let folder = own.parent().unwrap_or(Path::new("/"));
    let draft = folder.join("trying.draft");
    let _ = fs::write(&draft, std::process::id().to_string());
    let _ = fs::rename(draft, folder.join("trying"));
    folder
}

/// Records that it was asked for a trial, and waits until it may continue.
fn wait_beside(own: &Path) {
    let _ = fs::read(say_trying(own).join("go"));
}

/// Makes a bgd hang while it builds the daemon: its log is a pipe without a reader.
fn hang() -> ExitCode {
    let log = bgd_tests::shared::dirs::state().join(bgd::os::log::FILE);
    let _ = fs::remove_file(&log);
    let _ = nix::unistd::mkfifo(&log, Mode::S_IRWXU);
    bgd::startup::main()
}

/// Makes a bgd build the whole daemon from a state with one extra descriptor without an owner, which is noticed last.
/// That bgd goes back to the program before it, as far as it knows: this one. This program then goes back to the real
/// one with the original state.
fn fail_late(args: &[String], was_refused: bool) -> ExitCode {
    let Some((state, image)) = carried(args) else { return ExitCode::from(2) };
    let truth = image.head.version.strip_prefix(LATE).and_then(|number| number.parse().ok());
    let error = match truth {
        Some(truth) if was_refused => {
            let Some(before) = read(truth) else { return ExitCode::from(2) };
            // Descriptors that only the altered state has do not belong to the real program.
            let _ = set_inheritable(&[&image.head.descriptors[..], &[state]].concat(), false);
            go_back(&before.head, truth, "it failed late")
        }
        Some(_) => return bgd::startup::main(),
        None => {
            let Some((head, altered)) = altered(state, &image) else { return ExitCode::from(2) };
            go_on_with(&head, altered, args)
        }
    };
    let _ = writeln!(std::io::stderr(), "next_bgd: {error}");
    ExitCode::FAILURE
}

/// Prefix of the version in an altered state; the descriptor number of the original state follows.
const LATE: &str = "late ";

/// Returns a copy of a state with one more descriptor, and its descriptor number. The copy names this program as the
/// program before.
fn altered(state: RawFd, image: &Image) -> Option<(Head, RawFd)> {
    let open = |path: &str| Some(File::open(path).ok()?.into_raw_fd());
    let (own, more) = (open("/proc/self/exe")?, open("/dev/null")?);
    let mut text = Vec::new();
    File::open(fd_path(state)).ok()?.read_to_end(&mut text).ok()?;
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let mut head = serde_json::to_value(&image.head).ok()?;
    head["version"] = format!("{LATE}{state}").into();
    head["program"] = own.into();
    let numbers = head["descriptors"].as_array_mut()?;
    numbers.extend([own, more, state].map(Into::into));
    let file = nix::sys::memfd::memfd_create(c"altered", nix::sys::memfd::MFdFlags::empty()).ok()?;
    let mut file = File::from(file);
    serde_json::to_writer(&mut file, &head).ok()?;
    file.write_all(&text[end..]).ok()?;
    file.rewind().ok()?;
    Some((serde_json::from_value(head).ok()?, file.into_raw_fd()))
}

/// Executes this program again, with another state.
fn go_on_with(head: &Head, state: RawFd, args: &[String]) -> io::Error {
    if let Err(error) = set_inheritable(&[&head.descriptors[..], &[state]].concat(), true) {
        return error;
    }
    let place = args.iter().position(|arg| arg == CARRIED).map(|place| place + 1);
    let args = args.iter().enumerate().skip(1);
    let args = args.map(|(n, arg)| if Some(n) == place { state.to_string() } else { arg.clone() });
    Command::new("/proc/self/exe").args(args).exec()
}

/// Executes the previous program again, like a bgd that can't build the daemon from the state.
fn turn_back(args: &[String]) -> ExitCode {
    if let Some((state, image)) = carried(args) {
        let error = go_back(&image.head, state, "it can't be built again");
        let _ = writeln!(std::io::stderr(), "next_bgd: {error}");
    }
    ExitCode::FAILURE
}

/// Executes this program again with the state of a program that does not write its pid to its lock, and then takes over
/// with that state.
fn forget_pid(args: &[String]) -> ExitCode {
    let Some((own, image)) = carried(args) else { return ExitCode::from(2) };
    let state = image.decode::<serde_json::Value>().ok().and_then(|mut state| {
        let note = state.pointer_mut("/premises/note")?.as_object_mut()?;
        note.remove("pid").map(|_| state)
    });
    let Some(state) = state else { return bgd::startup::main() };
    let Ok((file, _)) = image::write(&state, image.head.program, &image.head.descriptors) else {
        return ExitCode::FAILURE;
    };
    let _ = set_inheritable(&[own], false);
    let error = go_on_with(&image.head, file.into_raw_fd(), args);
    let _ = writeln!(std::io::stderr(), "next_bgd: {error}");
    ExitCode::FAILURE
}

fn fd_path(number: RawFd) -> String {
    format!("/proc/self/fd/{number}")
}

fn read(state: RawFd) -> Option<Image> {
    Image::read(&mut File::open(fd_path(state)).ok()?).ok()
}

/// Returns the state that this program was executed with.
fn carried(args: &[String]) -> Option<(RawFd, Image)> {
    let state = args.iter().skip_while(|arg| *arg != CARRIED).nth(1)?.parse().ok()?;
    Some((state, read(state)?))
}
