//! Detects jobs that can't work before they are submitted: a missing program or folder, or a whole command line in
//! quotes. The daemon detects the same problems when the job starts, which may be much later.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bgd_shared::request::{ChannelStatus, DaemonStatusOf, NoParams, SubmitParams};
use bgd_shared::show;
use bgd_shared::text::OsText;
use nix::unistd::{AccessFlags, access};

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::{bounded_line, clean};

/// Maximum length of text quoted in a message, in characters.
const SHOWN_CHARS: usize = 80;

/// Returns a warning of one sentence for each likely failure.
///
/// # Errors
/// The command is a whole line in quotes that matches no program; `code` is the verb's exit code for this.
pub fn check(params: &SubmitParams, verb: &str, code: Code) -> Result<Vec<String>, Failure> {
    let Some(folder) = params.cwd.as_ref().filter(|_| !params.inherit && params.on.is_none()) else {
        return Ok(Vec::new());
    };
    let folder = Path::new(OsStr::from_bytes(folder.as_bytes()));
    if !folder.is_dir() {
        let shown = shown(&folder.to_string_lossy());
        return Ok(vec![format!(
            "there is no folder {shown}: the task will fail unless it is created in time"
        )]);
    }
    let Some([program, arguments @ ..]) = params.argv.as_deref() else { return Ok(Vec::new()) };
    let name = shown(&program.to_string_lossy());
    match find(program, params, folder) {
        Found::Program => return Ok(Vec::new()),
        Found::NoProgram => return Ok(vec![format!("{name} is not executable: the task will fail")]),
        Found::Nothing => {}
    }
    if arguments.is_empty() && program.as_bytes().contains(&b' ') {
        let message = format!("no program \"{name}\": the quotes make it a single word");
        return Err(Failure::new(code, "usage", message).hint(suggestion(verb, &name)));
    }
    let place = if program.as_bytes().contains(&b'/') { "" } else { " in PATH" };
    Ok(vec![format!(
        "no program {name}{place}: the task will fail unless it is installed before the task starts"
    )])
}

/// Characters that only a shell interprets.
const OF_SHELLS: &[char] = &['|', '&', ';', '<', '>', '$', '*', '`'];

/// First words that are shell keywords or builtins, not programs, or that behave differently as programs.
const BUILTINS: &[&str] = &[
    ".", "alias", "case", "cd", "eval", "exec", "exit", "export", "for", "if", "popd", "pushd", "read",
    "set", "source", "trap", "ulimit", "umask", "unset", "until", "wait", "while",
];

/// Suggests how to write a line that was taken for a program name.
fn suggestion(verb: &str, line: &str) -> String {
    let by_shell = format!("`bgctl {verb} --shell {}`", show::quoted(line));
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_variable = |word: &&str| word.split_once('=').is_some_and(|(name, _)| is_name(name));
    let variables = words.iter().copied().take_while(is_variable).count();
    let (set, command) = words.split_at(variables);
    let first = command.first().copied().unwrap_or_default();
    if command.is_empty() || line.contains(OF_SHELLS) || BUILTINS.contains(&first) {
        return format!("run the line in a shell: {by_shell}");
    }
    let set: String = set.iter().flat_map(|variable| ["--env ", variable, " "]).collect();
    format!(
        "drop the quotes: `bgctl {verb} {set}-- {}`; or run the line in a shell: {by_shell}",
        command.join(" ")
    )
}

/// Returns whether `word` is a valid shell variable name.
fn is_name(word: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || c == '_';
    word.chars().all(is_of_names) && word.starts_with(|c: char| !c.is_ascii_digit())
}

/// Checks that the folder of a job that starts at once can be entered: a wrong folder is a mistake of the caller, not
/// an internal error of bgd.
///
/// # Errors
/// The folder can't be entered.
pub fn folder(params: &SubmitParams) -> Result<(), Failure> {
    let Some(folder) = params.cwd.as_ref().filter(|_| !params.inherit) else { return Ok(()) };
    let path = Path::new(OsStr::from_bytes(folder.as_bytes()));
    // The trailing slash makes the check fail for anything but a folder.
    let Err(error) = access(&path.join(""), AccessFlags::X_OK) else { return Ok(()) };
    let message = format!("cannot enter the folder {}: {}", shown(&folder.to_string_lossy()), error.desc());
    Err(Failure::new(Code::NOT_EXECUTABLE, "usage", message).hint("give another folder with --cwd"))
}

/// Returns why a task's channel can't deliver, as far as the daemon knows.
///
/// # Errors
/// The daemon is gone.
pub fn channel(name: &str, context: &mut Context) -> Result<Option<String>, Failure> {
    let channels = context.call::<DaemonStatusOf>(&NoParams {})?.channels;
    let problem = channels.into_iter().find(|channel| channel.name == name).and_then(problem);
    Ok(problem.map(|problem| format!("the channel {} can't deliver: {}", shown(name), clean(&problem))))
}

/// Returns why the channel is unlikely to deliver anything.
fn problem(channel: ChannelStatus) -> Option<String> {
    // A channel that has failed and never delivered is treated as misconfigured. `tty` covers many terminals: an error
    // of another one proves nothing about this one.
    let is_one = channel.kind != "tty";
    channel.problem.or_else(|| channel.last_error.filter(|_| is_one && channel.sent == 0))
}

fn shown(text: &str) -> String {
    bounded_line(text, SHOWN_CHARS)
}

/// The file found under a program's name.
enum Found {
    Program,
    /// A file that can't be executed, or a folder.
    NoProgram,
    Nothing,
}

/// Looks the job's program up as execvp(3) does.
fn find(program: &OsText, params: &SubmitParams, folder: &Path) -> Found {
    let name = OsStr::from_bytes(program.as_bytes());
    let is_program = |file: &Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
    if program.as_bytes().contains(&b'/') {
        return match folder.join(name).metadata() {
            Ok(file) if is_program(&file) => Found::Program,
            Ok(_) => Found::NoProgram,
            Err(_) => Found::Nothing,
        };
    }
    let path = params.env.as_ref().and_then(|env| env.get("PATH"));
    // Without PATH execvp(3) uses a default of the daemon's system, which is unknown here.
    let Some(path) = path else { return Found::Program };
    let is_there = std::env::split_paths(OsStr::from_bytes(path.as_bytes()))
        .any(|place| folder.join(place).join(name).metadata().is_ok_and(|file| is_program(&file)));
    if is_there { Found::Program } else { Found::Nothing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::text::Env;

    fn params(argv: &[&str], cwd: &str, path: &str) -> SubmitParams {
        SubmitParams {
            argv: Some(argv.iter().map(|word| (*word).into()).collect()),
            cwd: Some(cwd.into()),
            env: Some(Env([("PATH".into(), path.into())].into())),
            ..SubmitParams::default()
        }
    }

    #[test]
    fn existing_program_causes_no_warning() {
        for (argv, path) in [
            (&["sh", "-c", "true"][..], "/bin:/usr/bin"),
            (&["/bin/sh"], ""),
            (&["bin/sh"], "/nowhere"),
            (&["./bin/sh", "x"], ""),
            (&["sh"], "/nowhere:bin"),
        ] {
            assert_eq!(check(&params(argv, "/", path), "submit", Code::USAGE), Ok(Vec::new()), "{argv:?}");
        }
    }

    #[test]
    fn missing_program_or_folder_is_named() {
        for (argv, cwd, named) in [
            (&["nosuch", "x y"][..], "/", "no program nosuch in PATH"),
            (&["/bin/nosuch"], "/", "no program /bin/nosuch:"),
            (&["/etc/passwd"], "/", "/etc/passwd is not executable"),
            (&["./etc", "x"], "/", "./etc is not executable"),
            (&["etc"], "/", "no program etc in PATH"),
            (&["sh"], "/nowhere/at/all", "no folder /nowhere/at/all"),
        ] {
            let warnings = check(&params(argv, cwd, "/bin:/"), "submit", Code::USAGE).unwrap();
            assert!(matches!(&*warnings, [one] if one.contains(named)), "{warnings:?}");
        }
    }

    #[test]
    fn last_error_of_tty_channel_is_ignored() {
        let of = |name: &str, problem: Option<&str>| {
            let channel = ChannelStatus {
                name: name.into(),
                kind: name.into(),
                problem: problem.map(Into::into),
                last_error: Some("/dev/pts/3 is closed".into()),
                ..ChannelStatus::default()
            };
            super::problem(channel)
        };
        assert_eq!(of("exec", None).as_deref(), Some("/dev/pts/3 is closed"));
        assert_eq!(of("tty", None), None);
        assert_eq!(of("tty", Some("no terminal")).as_deref(), Some("no terminal"));
    }

    #[test]
    fn quoted_command_line_is_refused_with_advice() {
        let failure = check(&params(&["make -j8"], "/", "/bin"), "submit", Code::USAGE).unwrap_err();
        let text = failure.to_string();
        for part in ["\"make -j8\"", "`bgctl submit -- make -j8`", "--shell 'make -j8'"] {
            assert!(text.contains(part), "{text}");
        }
        for (line, hint) in [
            ("FOO=1 make all", "drop the quotes: `bgctl run --env FOO=1 -- make all`; or run the line"),
            ("make | tee log", "run the line in a shell: `bgctl run --shell 'make | tee log'`"),
            ("cd src && make", "run the line in a shell: `bgctl run --shell 'cd src && make'`"),
            ("source it", "run the line in a shell: `bgctl run --shell 'source it'`"),
            ("A=1 cd x", "run the line in a shell: `bgctl run --shell 'A=1 cd x'`"),
            ("echo 'a b'", "`bgctl run --shell 'echo '\\''a b'\\'''`"),
            ("1=a b", "drop the quotes: `bgctl run -- 1=a b`"),
        ] {
            let failure = check(&params(&[line], "/", "/bin"), "run", Code::NOT_FOUND).unwrap_err();
            assert_eq!(failure.code, Code::NOT_FOUND);
            assert!(failure.hint.as_deref().is_some_and(|told| told.contains(hint)), "{failure}");
            let is_for_shells = hint.starts_with("run the");
            assert_eq!(failure.to_string().contains("drop the quotes"), !is_for_shells, "{failure}");
        }
        assert!(check(&params(&["make -j8", "all"], "/", "/bin"), "submit", Code::USAGE).is_ok());
    }
}
