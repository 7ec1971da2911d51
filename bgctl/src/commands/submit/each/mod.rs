//! `submit --each`: submits a batch of tasks made from a command and items. All items are read before anything is
//! submitted. The tasks are sent in parts, and the daemon starts none of them before it has received the last part.

mod items;
mod template;

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::id::{TaskId, made_up_key};
use bgd_shared::limits::{BATCH_PART, FRAME_BYTES};
use bgd_shared::quote::quoted;
use bgd_shared::request::{Hello, HelloParams, Method as _, SubmitManyParams, SubmitParams, TaskSubmitMany};
use bgd_shared::text::OsText;
use serde::Serialize;

pub use items::Separator;
pub use template::placeholder;

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{is_lost, may_be_older, maybe_done};
use crate::precheck;
use crate::render::bounded_line;
use template::Template;

/// Maximum number of bytes of the commands in one part. The rest of the message is for their common parameters.
const PART_BYTES: usize = FRAME_BYTES / 2;

/// Maximum length of an item quoted in a message, in characters.
const SHOWN_CHARS: usize = 80;

/// The longest argument that a program can be given, in bytes (Linux: `MAX_ARG_STRLEN`, which includes the NUL).
const WORD_BYTES: usize = 128 * 1024 - 1;

/// The source and the limits of a batch.
#[derive(Debug)]
pub struct Each {
    /// The file with the items; `-` is standard input.
    pub file: OsString,
    /// The separator of items.
    pub end: Separator,
    /// Maximum number of tasks that run at once.
    pub jobs: Option<u32>,
    /// Number of failures after which the remaining tasks are cancelled.
    pub max_fails: Option<u32>,
}

/// The submitted batch.
#[derive(Debug, Serialize)]
pub struct Submitted {
    pub batch: TaskId,
    /// The tasks, in the order of the items.
    pub tasks: Vec<TaskId>,
    /// Whether a batch with the given key existed, so that nothing was submitted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub existing: bool,
}

/// Returns the commands, in parts that each fit into one message.
///
/// # Errors
/// The items can't be read, or one of them makes a command without a program, or one that is too long.
pub fn parts(each: &Each, command: &[OsString]) -> Result<Vec<Vec<Vec<OsText>>>, Failure> {
    let template = Template::new(command);
    let mut commands = Vec::new();
    for (place, item) in items::read(&each.file, each.end)?.iter().enumerate() {
        let argv: Vec<OsText> = template.expand(item, place + 1).into_iter().map(OsText::from).collect();
        if argv.first().is_none_or(|program| program.as_bytes().is_empty()) {
            return Err(no_program(place + 1, each.end));
        }
        let size = size_of(&argv);
        if size > PART_BYTES || argv.iter().any(|word| word.as_bytes().len() > WORD_BYTES) {
            return Err(too_long(place + 1));
        }
        commands.push(argv);
    }
    Ok(split(commands, PART_BYTES))
}

/// Returns a warning for each likely failure. `task` has the command as it was given, `parts` has those of the items.
///
/// # Errors
/// The items are whole command lines, or the command is one in quotes.
pub fn check(task: &SubmitParams, each: &Each, parts: &[Vec<Vec<OsText>>]) -> Result<Vec<String>, Failure> {
    let given = task.argv.as_deref().unwrap_or_default();
    // One item is enough: the first one, unless the programs differ and another one looks like a command line.
    let has_space = |argv: &Vec<OsText>| {
        argv.first().is_some_and(|program| program.as_bytes().iter().any(u8::is_ascii_whitespace))
    };
    let depends = given.first().is_some_and(|program| template::depends_on_item(program.as_os_str()));
    let doubtful = parts.iter().flatten().position(has_space).filter(|_| depends).unwrap_or(0);
    let argv = parts.iter().flatten().nth(doubtful).cloned();
    let checked = SubmitParams { argv, ..task.clone() };
    if let (Some(line), [word]) = (precheck::whole_line(&checked), given) {
        if word.as_bytes() == b"{}" {
            return Err(whole_lines(doubtful + 1, line, each));
        }
        if word.as_bytes().iter().any(u8::is_ascii_whitespace) {
            return Err(quoted_command(word, each));
        }
    }
    let mut warnings = precheck::warnings(&checked, "submit");
    warnings.extend(given.iter().find_map(|word| template::unknown(word.as_os_str())).map(|place| {
        let instead = if place == "{%}" {
            "each task finds the number of its slot in $BGD_SLOT"
        } else {
            "the placeholders are {}, {#}, {.}, {/}, {//} and {/.}"
        };
        format!("{place} is not replaced: {instead}")
    }));
    Ok(warnings)
}

/// Returns the call that `--each` is part of, without its command.
fn call_of(each: &Each) -> String {
    let null = match each.end {
        Separator::Nul => " -0",
        Separator::Newline => "",
    };
    format!("bgctl submit --each {}{null}", quoted(each.file.as_bytes()))
}

fn whole_lines(number: usize, line: &OsText, each: &Each) -> Failure {
    let line = bounded_line(&line.to_string_lossy(), SHOWN_CHARS);
    Failure::usage(format!("item {number} is a whole command line, not a program: \"{line}\""))
        .hint(format!("have a shell run each item: `{} -- sh -c {{}}`; nothing was submitted", call_of(each)))
}

fn quoted_command(word: &OsText, each: &Each) -> Failure {
    let word = bounded_line(&word.to_string_lossy(), SHOWN_CHARS);
    let message = format!("no program \"{word}\": the quotes make it a single word");
    Failure::usage(message).hint(format!(
        "drop the quotes; or have a shell run a line in which \"$1\" is the item: `{} -- sh -c LINE - {{}}`; nothing \
         was submitted",
        call_of(each)
    ))
}

/// Splits commands into parts of at most this many bytes, unless a single command has more.
fn split(commands: impl IntoIterator<Item = Vec<OsText>>, most: usize) -> Vec<Vec<Vec<OsText>>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for argv in commands {
        let size = size_of(&argv);
        let is_full = |part: &Vec<_>| part.len() >= BATCH_PART || (bytes + size > most && !part.is_empty());
        if parts.last().is_none_or(is_full) {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.push(argv);
        }
    }
    parts
}

/// Splits the parts further if a daemon accepts only requests of so few bytes. Most of each request is left for the
/// common parameters, which do not shrink with the limit.
fn fitted(parts: &[Vec<Vec<OsText>>], frame_bytes: u64) -> Cow<'_, [Vec<Vec<OsText>>]> {
    match usize::try_from(frame_bytes) {
        Ok(frame) if frame < FRAME_BYTES => split(parts.iter().flatten().cloned(), frame / 8).into(),
        _ => parts.into(),
    }
}

/// Returns the size of a command in a message, in bytes.
fn size_of(argv: &[OsText]) -> usize {
    serde_json::to_string(argv).map_or(usize::MAX, |text| text.len() + 1)
}

fn no_program(number: usize, end: Separator) -> Failure {
    Failure::usage(format!("the command for item {number} has no program: its first word is empty")).hint(
        match end {
            Separator::Nul => "with -0, empty items count; nothing was submitted",
            Separator::Newline => "nothing was submitted",
        },
    )
}

fn too_long(number: usize) -> Failure {
    Failure::usage(format!(
        "the command for item {number} is too long: at most 128 KiB per argument, 512 KiB in total"
    ))
    .hint("write the items to files and pass their names; nothing was submitted")
}

/// Submits the batch, either completely or not at all.
///
/// # Errors
/// There is no daemon, or it refuses: then nothing was submitted. A daemon on this machine ends after the last part was
/// sent: tasks may have run by then, so a batch without a key is not submitted again. A host can't be reached again.
pub fn submit(
    task: &SubmitParams,
    each: &Each,
    parts: &[Vec<Vec<OsText>>],
    context: &mut Context,
) -> Result<Submitted, Failure> {
    let is_sent = Cell::new(false);
    let (is_remote, is_named) = (context.link.is_remote(), task.key.is_some());
    let key = task.key.clone().or_else(|| is_remote.then(made_up_key));
    let mut task = SubmitParams { key, ..task.clone() };
    let mut is_repeated = false;
    loop {
        match submit_parts(&task, each, parts, &is_sent, context) {
            // The daemon may be too old for keys of batches.
            Err(failure) if !is_named && task.key.is_some() && may_be_older(&failure) => task.key = None,
            // The daemon forgets a batch whose last part it does not receive, and recognises a complete one by its key
            // (R142).
            Err(failure) if task.key.is_some() || !is_sent.get() => {
                context.link.recover(failure)?;
                is_repeated |= is_sent.get();
            }
            Err(failure) if is_remote && is_lost(&failure) => {
                return Err(maybe_done(TaskSubmitMany::NAME));
            }
            // After a repetition, it may be the batch of the first call.
            Ok(submitted) => {
                let existing = submitted.existing && is_named && !is_repeated;
                return Ok(Submitted { existing, ..submitted });
            }
            Err(failure) => return Err(failure),
        }
        is_sent.set(false);
    }
}

fn submit_parts(
    task: &SubmitParams,
    each: &Each,
    parts: &[Vec<Vec<OsText>>],
    is_sent: &Cell<bool>,
    context: &mut Context,
) -> Result<Submitted, Failure> {
    let say = |client: &mut Client| {
        if is_sent.get() {
            return Err(ClientError::Closed);
        }
        let parts = fitted(parts, client.call::<Hello>(&HelloParams::default())?.limits.frame_bytes);
        let (mut batch, mut tasks, mut existing) = (None, Vec::new(), false);
        for (place, argvs) in parts.iter().enumerate() {
            let (is_first, is_last) = (place == 0, place + 1 == parts.len());
            is_sent.set(is_last);
            let called = client.call::<TaskSubmitMany>(&SubmitManyParams {
                task: is_first.then(|| Box::new(task.clone())),
                batch,
                argvs: argvs.clone(),
                jobs: each.jobs.filter(|_| is_first),
                max_fails: each.max_fails.filter(|_| is_first),
                more: !is_last,
            });
            // A refused batch did not run.
            is_sent.set(is_last && !matches!(called, Err(ClientError::Rpc(_))));
            let result = called?;
            batch = Some(result.batch);
            tasks.extend(result.ids);
            existing |= result.existing;
        }
        // There is at least one part.
        Ok(Submitted { batch: batch.unwrap_or(TaskId::from_u128(0)), tasks, existing })
    };
    let submitted = context.link.begin(|link| link.exchange(say));
    submitted.map_err(|failure| {
        let may_have_run = is_sent.get() && failure.code == Code::NO_DAEMON;
        if may_have_run {
            return failure.hint(
                "the daemon may have accepted the whole batch: look for its tasks with `bgctl list`, also \
                 for those that have ended, before you submit it again",
            );
        }
        failure
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::text::Env;

    fn each(text: &[u8]) -> (tempfile::NamedTempFile, Each) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let each = Each { file: file.path().into(), end: Separator::Newline, jobs: None, max_fails: None };
        (file, each)
    }

    #[test]
    fn r112_batch_parts_fit_task_and_line_limits() {
        let (_file, many) = each(&b"x\n".repeat(BATCH_PART + 1));
        let sizes: Vec<usize> = parts(&many, &["true".into()]).unwrap().iter().map(Vec::len).collect();
        assert_eq!(sizes, [BATCH_PART, 1]);
        let (_file, long) = each(&[vec![b'x'; 100_000], b"\n".to_vec()].concat().repeat(12));
        let parts = parts(&long, &["true".into()]).unwrap();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 2]);
    }

    #[test]
    fn r112_batch_parts_fit_into_requests_of_a_smaller_limit() {
        let (_file, many) = each(&[b"short\n".repeat(100), vec![b'x'; 5000], b"\nend\n".to_vec()].concat());
        let parts = parts(&many, &["true".into()]).unwrap();
        assert_eq!(parts.len(), 1);
        assert_eq!(*fitted(&parts, FRAME_BYTES as u64), *parts);
        let small = fitted(&parts, 4096);
        assert_eq!(small.concat(), parts.concat());
        let sizes = small.iter().map(|part| part.iter().map(|argv| size_of(argv)).sum::<usize>());
        assert!(small.iter().zip(sizes).all(|(part, size)| size <= 512 || part.len() == 1));
        assert!(small.iter().all(|part| !part.is_empty()) && small.len() < 10);
    }

    #[test]
    fn r112_item_without_program_is_refused_by_its_number() {
        let (_file, items) = each(b"true\0\0");
        let failure = parts(&Each { end: Separator::Nul, ..items }, &["{}".into()]).unwrap_err();
        assert!(failure.message.starts_with("the command for item 2 has no program"), "{failure}");
        assert!(failure.hint.is_some_and(|hint| hint.contains("with -0")));
        let (_file, items) = each(b"d/\n");
        let failure = parts(&items, &["{/}".into()]).unwrap_err();
        assert_eq!(failure.hint.as_deref(), Some("nothing was submitted"));
        let (_file, items) = each(b"true\0\0");
        assert!(parts(&Each { end: Separator::Nul, ..items }, &["echo".into(), "{}".into()]).is_ok());
    }

    /// Checks a command with these items.
    fn checked(items: &[u8], end: Separator, command: &[&str]) -> Result<Vec<String>, Failure> {
        let (_file, items) = each(items);
        let each = Each { end, ..items };
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let parts = parts(&each, &command).unwrap();
        let task = SubmitParams {
            argv: Some(command.into_iter().map(OsText::from).collect()),
            cwd: Some("/".into()),
            env: Some(Env([("PATH".into(), "/bin".into())].into())),
            ..SubmitParams::default()
        };
        check(&task, &Each { file: "my cmds".into(), ..each }, &parts)
    }

    #[test]
    fn r112_items_that_are_command_lines_get_a_shell_as_advice() {
        for (items, end, message, call) in [
            (
                &b"echo a; echo b\nexit 3\n"[..],
                Separator::Newline,
                "item 1 is a whole command line, not a program: \"echo a; echo b\"",
                "`bgctl submit --each 'my cmds' -- sh -c {}`",
            ),
            (
                b"true\0echo a",
                Separator::Nul,
                "item 2 is a whole command line, not a program: \"echo a\"",
                "`bgctl submit --each 'my cmds' -0 -- sh -c {}`",
            ),
        ] {
            let failure = checked(items, end, &["{}"]).unwrap_err();
            assert_eq!((failure.code, &*failure.message), (Code::USAGE, message));
            assert!(failure.hint.is_some_and(|hint| hint.contains(call) && !hint.contains("--shell")));
        }
        let failure = checked(b"a\n", Separator::Newline, &["nosuch {}"]).unwrap_err();
        assert!(failure.message.starts_with("no program \"nosuch {}\": the quotes"), "{failure}");
        assert!(failure.hint.is_some_and(|hint| hint.contains("-- sh -c LINE - {}`")));
    }

    #[test]
    fn r112_command_of_a_batch_is_checked_with_an_item() {
        let lines = |items: &[u8], command: &[&str]| checked(items, Separator::Newline, command).unwrap();
        assert_eq!(lines(b"a b\n", &["sh", "-c", "x {}"]), [""; 0]);
        assert_eq!(lines(b"sh\n", &["/bin/{}"]), [""; 0]);
        assert_eq!(lines(b"a b\n", &["sh", "-c"]), [""; 0]);
        for (command, warning) in
            [(&["./{}"][..], "no program ./a b: "), (&["nosuch x", "{}"], "no program nosuch x in PATH: ")]
        {
            let warnings = lines(b"a b\n", command);
            assert!(matches!(&*warnings, [one] if one.starts_with(warning)), "{warnings:?}");
        }
        assert_eq!(
            lines(b"a\n", &["sh", "{/.}", "{%}"]),
            ["{%} is not replaced: each task finds the number of its slot in $BGD_SLOT"]
        );
        assert_eq!(
            lines(b"a\n", &["sh", "{1}"]),
            ["{1} is not replaced: the placeholders are {}, {#}, {.}, {/}, {//} and {/.}"]
        );
    }

    #[test]
    fn r112_overlong_word_is_refused_naming_the_item() {
        let (_file, long) = each(&[b"short\n".to_vec(), vec![b'x'; WORD_BYTES + 1]].concat());
        let failure = parts(&long, &["true".into()]).unwrap_err();
        assert!(failure.message.starts_with("the command for item 2 is too long"), "{failure}");
    }
}
