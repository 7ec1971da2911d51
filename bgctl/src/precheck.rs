//! Detects jobs that can't work before they are submitted: a missing program or folder, or a whole command line in
//! quotes. The daemon detects the same problems when the job starts, which may be much later.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bgd_shared::quote::quoted;
use bgd_shared::request::{ChannelStatus, DaemonStatusOf, NoParams, SubmitParams};
use bgd_shared::show::plain;
use bgd_shared::text::OsText;
use nix::unistd::{AccessFlags, access};

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::programs::{self, BUILTINS, Found, LINE_BYTES, is_variable};
use crate::render::{bounded_line, clean};

/// Maximum length of text quoted in a message, in characters.
const SHOWN_CHARS: usize = 80;

/// Returns a warning of one sentence for each likely failure.
///
/// # Errors
/// The command is a whole line in quotes that matches no program; `code` is the verb's exit code for this.
pub fn check(params: &SubmitParams, verb: &str, code: Code) -> Result<Vec<String>, Failure> {
    if let Some(line) = whole_line(params) {
        let name = shown(&line.to_string_lossy());
        let message = format!("no program \"{name}\": the quotes make it a single word");
        return Err(Failure::new(code, "usage", message).hint(suggestion(verb, line)));
    }
    Ok(warnings(params, verb))
}

/// Returns the command if it is a single word that matches no program, but looks like a command line.
pub fn whole_line(params: &SubmitParams) -> Option<&OsText> {
    let folder = own_folder(params).filter(|folder| folder.is_dir())?;
    let [program] = params.argv.as_deref()? else { return None };
    let has_space = program.as_bytes().iter().any(u8::is_ascii_whitespace);
    (has_space && find(program, params, folder) == Found::Nothing).then_some(program)
}

/// Returns a warning of one sentence for each likely failure, whether or not the command looks like a line in quotes.
pub fn warnings(params: &SubmitParams, verb: &str) -> Vec<String> {
    let Some(folder) = own_folder(params) else { return Vec::new() };
    if let Some(warning) = wrong_folder(folder) {
        return vec![warning];
    }
    let Some(program) = params.argv.as_deref().and_then(<[_]>::first) else { return Vec::new() };
    let name = shown(&program.to_string_lossy());
    let warning = match find(program, params, folder) {
        Found::Program => return missing_descriptor(params).into_iter().collect(),
        Found::Folder => format!("{name} is a directory: the task will fail"),
        Found::NoProgram => format!("{name} is not executable: the task will fail"),
        Found::Nothing => only_in_shells(params, verb).unwrap_or_else(|| {
            format!(
                "{}: the task will fail unless it is installed before the task starts",
                no_program(program)
            )
        }),
    };
    vec![warning]
}

/// Returns the folder of a command on this machine; another machine's folders and programs are unknown here.
fn own_folder(params: &SubmitParams) -> Option<&Path> {
    let folder = params.cwd.as_ref().filter(|_| !params.inherit && params.on.is_none());
    folder.map(|folder| Path::new(folder.as_os_str()))
}

/// Returns a warning if this is not a folder.
fn wrong_folder(folder: &Path) -> Option<String> {
    let name = shown(&folder.to_string_lossy());
    match folder.metadata() {
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some(format!("{name} is not a folder: the task will fail")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // As in `--cwd=~/src`, or in quotes.
            let has_tilde = folder.iter().any(|part| part == "~");
            let why = if has_tilde { "; only a shell replaces ~, at the beginning of a word" } else { "" };
            Some(format!("there is no folder {name}: the task will fail unless it is created in time{why}"))
        }
        Err(error) => {
            let error = error.to_string();
            Some(format!("cannot enter the folder {name}, so the task will fail: {}", plain(&error)))
        }
    }
}

/// States that a program was not found.
fn no_program(program: &OsText) -> String {
    let place = if program.as_bytes().contains(&b'/') { "" } else { " in PATH" };
    format!("no program {}{place}", shown(&program.to_string_lossy()))
}

/// Returns a warning if the command begins with a word that is no program, but that a shell would understand.
pub fn only_in_shells(params: &SubmitParams, verb: &str) -> Option<String> {
    let folder = own_folder(params)?;
    let argv = params.argv.as_deref()?;
    let program = argv.first().filter(|program| find(program, params, folder) == Found::Nothing)?;
    let line: Vec<&[u8]> = argv.iter().map(OsText::as_bytes).collect();
    let (set, command) = programs::split(&line);
    let is_builtin = |word: &&[u8]| BUILTINS.iter().any(|builtin| builtin.as_bytes() == *word);
    let advice = if command.first().is_some_and(is_builtin) {
        let line = line.iter().map(quoted).collect::<Vec<_>>().join(" ");
        let line = if line.len() > LINE_BYTES { "LINE".to_owned() } else { quoted(line) };
        format!("run the line in a shell: `bgctl {verb} --shell {line}`")
    } else if !set.is_empty() && command.is_empty() {
        "a variable is set with --env, before the command".to_owned()
    } else if !set.is_empty() {
        format!("a variable is set with --env: {}", programs::call(verb, &line))
    } else if program.as_bytes().starts_with(b"~") || program.as_bytes().starts_with(b"$") {
        "only a shell replaces ~ and $: leave out the quotes".to_owned()
    } else {
        return None;
    };
    Some(format!("{}: {advice}", no_program(program)))
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
    let variables = words.iter().take_while(|word| is_variable(word.as_bytes())).count();
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

/// Looks the job's program up as execvp(3) does.
fn find(program: &OsText, params: &SubmitParams, folder: &Path) -> Found {
    let name = program.as_os_str();
    match params.env.as_ref().and_then(|env| env.get("PATH")) {
        Some(path) => programs::find(name, path.as_os_str(), folder),
        None if program.as_bytes().contains(&b'/') => programs::find(name, OsStr::new(""), folder),
        // Without PATH execvp(3) uses a default of the daemon's system, which is unknown here.
        None => Found::Program,
    }
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
            (&["sh"], "/~/src", "only a shell replaces ~"),
            (&["sh"], "/etc/passwd", "/etc/passwd is not a folder"),
            (
                &["sh"],
                "/etc/passwd/x",
                "cannot enter the folder /etc/passwd/x, so the task will fail: Not a dir",
            ),
        ] {
            let warnings = check(&params(argv, cwd, "/bin:/"), "submit", Code::USAGE).unwrap();
            assert!(matches!(&*warnings, [one] if one.contains(named)), "{warnings:?}");
            assert!(!warnings[0].contains("os error"), "{warnings:?}");
        }
    }

    #[test]
    fn word_that_only_shells_understand_gets_advice() {
        for (argv, warning) in [
            (
                &["FOO=1", "sh", "-c", "a b"][..],
                "no program FOO=1 in PATH: a variable is set with --env: `bgctl submit --env FOO=1 -- sh -c 'a b'`",
            ),
            (&["FOO=1"], "no program FOO=1 in PATH: a variable is set with --env, before the command"),
            (
                &["cd", "/tmp"],
                "no program cd in PATH: run the line in a shell: `bgctl submit --shell 'cd /tmp'`",
            ),
            (
                &["A=1", "source", "it"],
                "no program A=1 in PATH: run the line in a shell: `bgctl submit --shell 'A=1 source it'`",
            ),
            (&["~/x"], "no program ~/x: only a shell replaces ~ and $: leave out the quotes"),
            (&["$HOME/x", "y"], "no program $HOME/x: only a shell replaces ~ and $: leave out the quotes"),
        ] {
            let params = params(argv, "/", "/nowhere");
            assert_eq!(check(&params, "submit", Code::USAGE).unwrap(), [warning]);
        }
        // With a program of this name, nothing is wrong.
        assert_eq!(only_in_shells(&params(&["sh"], "/", "/bin"), "run"), None);
        assert_eq!(only_in_shells(&params(&["nosuch"], "/", "/bin"), "run"), None);
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
