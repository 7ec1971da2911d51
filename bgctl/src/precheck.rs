//! Detects jobs that can't work before they are submitted: a missing program or folder, or a whole command line in
//! quotes. The daemon detects the same problems when the job starts, which may be much later.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bgd_shared::quote::quoted;
use bgd_shared::request::{ChannelStatus, DaemonStatusOf, NoParams, SubmitParams};
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
        Found::Program => return Ok(missing_descriptor(params).into_iter().collect()),
        Found::Folder => return Ok(vec![format!("{name} is a directory: the task will fail")]),
        Found::NoProgram => return Ok(vec![format!("{name} is not executable: the task will fail")]),
        Found::Nothing => {}
    }
    if arguments.is_empty() && program.as_bytes().contains(&b' ') {
        let message = format!("no program \"{name}\": the quotes make it a single word");
        return Err(Failure::new(code, "usage", message).hint(suggestion(verb, program)));
    }
    let place = if program.as_bytes().contains(&b'/') { "" } else { " in PATH" };
    Ok(vec![format!(
        "no program {name}{place}: the task will fail unless it is installed before the task starts"
    )])
}

/// Returns a warning if an argument names a descriptor of the caller, as `<(…)` and `--file=<(…)` do in a shell: a task
/// gets only the standard streams.
pub fn missing_descriptor(params: &SubmitParams) -> Option<String> {
    let is_descriptor = |argument: &str| {
        let path = argument.split_once('=').map_or(argument, |(_, value)| value);
        let number = ["/dev/fd/", "/proc/self/fd/"].iter().find_map(|folder| path.strip_prefix(folder));
        number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| number > 2)
    };
    let arguments = params.argv.iter().flatten().skip(1).map(OsText::to_string_lossy);
    let argument = arguments.into_iter().find(|argument| is_descriptor(argument))?;
    let path = shown(&argument);
    Some(format!(
        "the task does not get {path}, only standard input, output and error: for `<(…)` or `>(…)`, let a shell in the \
         task run the whole line, as in `-- bash -c '…'`"
    ))
}

/// Characters that only a shell interprets. It may interpret quotes, too, but does so wherever the line is pasted.
const OF_SHELLS: &[char] = &['|', '&', ';', '<', '>', '(', '$', '*', '?', '[', '`', '#', '!'];

/// First words that are shell keywords or builtins, not programs, or that behave differently as programs.
const BUILTINS: &[&str] = &[
    ".", "alias", "case", "cd", "eval", "exec", "exit", "export", "for", "if", "popd", "pushd", "read",
    "set", "source", "trap", "ulimit", "umask", "unset", "until", "wait", "while",
];

/// Maximum length of a line in a suggestion, in bytes.
const LINE_BYTES: usize = 1024;

/// Suggests how to write a line that was taken for a program name.
fn suggestion(verb: &str, line: &OsText) -> String {
    if line.as_bytes().len() > LINE_BYTES {
        return format!("run the line in a shell: `bgctl {verb} --shell LINE`");
    }
    let by_shell = format!("`bgctl {verb} --shell {}`", quoted(line.as_bytes()));
    let Ok(line) = std::str::from_utf8(line.as_bytes()) else {
        return format!("run the line in a shell: {by_shell}");
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_variable = |word: &&str| word.split_once('=').is_some_and(|(name, _)| is_name(name));
    let variables = words.iter().copied().take_while(is_variable).count();
    let (set, command) = words.split_at(variables);
    let first = command.first().copied().unwrap_or_default();
    if command.is_empty() || line.contains(OF_SHELLS) || clean(line) != line || BUILTINS.contains(&first) {
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
    let is_failing = channel.is_failing();
    channel.problem.or_else(|| channel.last_error.filter(|_| is_failing))
}

fn shown(text: &str) -> String {
    bounded_line(text, SHOWN_CHARS)
}

/// The file found under a program's name.
enum Found {
    Program,
    /// A file that can't be executed.
    NoProgram,
    Folder,
    Nothing,
}

/// Looks the job's program up as execvp(3) does.
fn find(program: &OsText, params: &SubmitParams, folder: &Path) -> Found {
    let name = OsStr::from_bytes(program.as_bytes());
    let is_program = |file: &Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
    if program.as_bytes().contains(&b'/') {
        return match folder.join(name).metadata() {
            Ok(file) if is_program(&file) => Found::Program,
            Ok(file) if file.is_dir() => Found::Folder,
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
            (&["./etc", "x"], "/", "./etc is a directory"),
            (&["etc"], "/", "no program etc in PATH"),
            (&["sh"], "/nowhere/at/all", "no folder /nowhere/at/all"),
        ] {
            let warnings = check(&params(argv, cwd, "/bin:/"), "submit", Code::USAGE).unwrap();
            assert!(matches!(&*warnings, [one] if one.contains(named)), "{warnings:?}");
        }
    }

    #[test]
    fn descriptor_that_a_task_does_not_get_is_named() {
        for (argument, is_warned) in [
            ("/dev/fd/63", true),
            ("/proc/self/fd/3", true),
            ("--file=/dev/fd/63", true),
            ("/dev/fd/0", false),
            ("/dev/fd/x", false),
            ("/dev/fd", false),
        ] {
            let warnings = check(&params(&["sh", argument], "/", "/bin"), "run", Code::USAGE).unwrap();
            assert_eq!(warnings.iter().any(|warning| warning.contains(argument)), is_warned, "{warnings:?}");
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
            ("echo a\nmake all", r"run the line in a shell: `bgctl run --shell $'echo a\nmake all'`"),
            ("1=a b", "drop the quotes: `bgctl run -- 1=a b`"),
        ] {
            let failure = check(&params(&[line], "/", "/bin"), "run", Code::NOT_FOUND).unwrap_err();
            assert_eq!(failure.code, Code::NOT_FOUND);
            assert!(failure.hint.as_deref().is_some_and(|text| text.contains(hint)), "{failure}");
            let is_for_shells = hint.starts_with("run the");
            assert_eq!(failure.to_string().contains("drop the quotes"), !is_for_shells, "{failure}");
        }
        assert!(check(&params(&["make -j8", "all"], "/", "/bin"), "submit", Code::USAGE).is_ok());
    }
}
