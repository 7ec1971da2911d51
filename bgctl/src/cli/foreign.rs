//! Words and options that other tools have, such as task-spooler, pueue, at, nohup, systemd-run and tail, and that
//! `bgctl` has not: what to use instead.

/// Answers for words in the place of a verb. Names with the same arguments are aliases of the verb instead.
const VERBS: &[(&[&str], &str)] = &[
    (&["kill"], "`bgctl cancel ID` ends a task and all its processes; `bgctl signal ID SIG` sends a signal"),
    (
        &["stop"],
        "`bgctl cancel ID` ends a task, `bgctl pause ID` pauses it; `bgctl daemon stop` stops the daemon",
    ),
    (
        &["rm", "remove", "delete", "del", "atrm"],
        "`bgctl clear ID` deletes a finished task, `bgctl cancel ID` ends a pending or running one",
    ),
    (
        &["tail", "follow"],
        "`bgctl output --tail 20 ID` prints the last lines, `bgctl output -f ID` follows the output",
    ),
    (&["log", "cat"], "`bgctl output ID` prints the output of a task"),
    (
        &["restart", "retry"],
        "`bgctl rerun ID` submits an ended task again; `bgctl submit --retry N` retries it when it fails, and \
         --restart keeps it alive. `bgctl resume ID PROMPT` sends an agent a follow-up; `bgctl daemon \
         restart` restarts the daemon",
    ),
    (&["last"], "`bgctl list --limit 1` shows the newest task"),
    (
        &["watch"],
        "`bgctl top` shows all tasks live, `bgctl list --watch` keeps the list up to date, `bgctl output -f ID` \
         follows the output of one task, `bgctl events` prints events",
    ),
    (
        &["add", "exec", "start", "bg"],
        "`bgctl submit -- CMD` runs a command in the background; `bgctl daemon start` starts the daemon",
    ),
    (
        &["nohup", "setsid"],
        "`bgctl submit -- CMD` runs a command in the background, which outlives the shell",
    ),
    (&["batch"], "`bgctl submit --each FILE -- CMD` runs a command for each line of a file"),
    (
        &["at"],
        "`bgctl submit --at 14:30 -- CMD` runs a command at a time, `bgctl submit --in 10m -- CMD` after a delay",
    ),
    (
        &["cron", "crontab", "schedule"],
        "there are no recurring tasks: use cron or a timer with `bgctl submit`; `bgctl submit --at 14:30 -- CMD` runs \
         a command once",
    ),
    (
        &["queue", "atq"],
        "`bgctl list --status pending` lists the tasks that have not started; `bgctl submit -- CMD` adds one",
    ),
    (&["history"], "`bgctl list --all` lists all tasks, also those that have ended"),
    (&["unpause"], "`bgctl continue ID` continues a paused task"),
    (&["stash"], "`bgctl hold ID` keeps a pending task from starting, `bgctl release ID` allows it to start"),
    (
        &["enqueue"],
        "`bgctl release ID` allows a held task to start; `bgctl submit -- CMD` runs a command in the background",
    ),
    (
        &["switch", "priority", "prioritise", "prioritize", "urgent", "move"],
        "`bgctl edit ID --priority N` changes the priority of a pending task, higher starts first; `bgctl edit ID \
         --group NAME` moves it to another group",
    ),
    (
        &["parallel", "limit", "slots"],
        "`bgctl group set NAME --slots N` sets how many tasks of a group run at once; `bgctl submit --time-limit \
         DURATION -- CMD` limits the time of a task",
    ),
    (&["env"], "`bgctl submit --env NAME=VALUE -- CMD` sets a variable of a task"),
    (
        &["send"],
        "`bgctl write ID TEXT` writes to the standard input of a task, `bgctl signal ID SIG` sends a signal",
    ),
    (&["clean", "purge", "prune"], "`bgctl clear` deletes finished tasks"),
    (&["reset"], "`bgctl cancel --all` ends all active tasks, `bgctl clear` deletes finished ones"),
    (&["info", "get"], "`bgctl status ID` shows the details of a task"),
    (&["shutdown", "quit"], "`bgctl daemon stop` stops the daemon and its tasks"),
    (&["version"], "`bgctl --version` prints the version, `bgctl daemon status` that of the daemon"),
];

/// The verbs that take a command.
const JOBS: &[&str] = &["submit", "run"];

/// Answers for options, with the verbs that they are typed after.
const OPTIONS: &[(&[&str], &[&str], &str)] = &[
    (
        &["--cron", "--every", "--interval", "--on-calendar", "--on-unit-active", "--repeat", "--schedule"],
        JOBS,
        "there are no recurring tasks: use cron or a timer with `bgctl submit`; `bgctl submit --restart always -- CMD` \
         starts a task again whenever it ends",
    ),
    (
        &["--delay", "--on-active", "--start-in"],
        JOBS,
        "`bgctl submit --in 10m -- CMD` starts a task after a delay",
    ),
    (
        &["--label", "-L", "--name", "--title", "--unit", "--job-name"],
        JOBS,
        "`bgctl submit -d TEXT -- CMD` says what lists show of a task; `bgctl submit --tag TAG -- CMD` lets you select it",
    ),
    (
        &["--stashed", "--stash"],
        JOBS,
        "`bgctl submit --hold -- CMD` keeps a task from starting until `bgctl release ID`",
    ),
    (
        &["--depends-on", "--depends", "--dependency", "--dependencies", "--deps"],
        JOBS,
        "`bgctl submit --after ID -- CMD` starts a task after another one has completed",
    ),
    (
        &["--wait", "--foreground"],
        JOBS,
        "`bgctl run -- CMD` runs a command in the foreground, `bgctl block ID` waits for a task",
    ),
    (&["--background", "--detach"], JOBS, "`bgctl submit -- CMD` runs a command in the background"),
    (
        &["--nice", "--niceness"],
        JOBS,
        "`bgctl submit -- nice -n 10 CMD` gives the processes of a task less CPU time; `bgctl submit --priority N -- \
         CMD` starts it earlier or later",
    ),
    (
        &["--property", "-p"],
        JOBS,
        "a task has the resource limits of its caller, as set by ulimit; `bgctl submit --time-limit DURATION -- CMD` \
         limits its time",
    ),
    (
        &["--timeout"],
        JOBS,
        "`bgctl submit --time-limit DURATION -- CMD` ends a task that takes longer; `bgctl block --timeout DURATION ID` \
         waits no longer than that",
    ),
    (
        &["--workdir", "--working-directory", "--chdir", "--directory", "-w", "-C"],
        JOBS,
        "`bgctl submit --cwd DIR -- CMD` runs a command in another folder",
    ),
    (
        &["--parallel", "--max-procs", "-j", "-P"],
        &["submit"],
        "`bgctl submit --each FILE --jobs N -- CMD` limits how many tasks of a batch run at once, `bgctl group set NAME \
         --slots N` those of a group",
    ),
    (&["--lines", "-n"], &["output"], "`bgctl output --tail N ID` prints the last N lines"),
    (&["--lines", "-n", "--count"], &["list"], "`bgctl list --limit N` lists at most N tasks"),
];

/// Returns what to use instead of this word in the place of a verb.
pub fn verb(word: &str) -> Option<&'static str> {
    VERBS.iter().find(|(words, _)| words.contains(&word)).map(|(_, answer)| *answer)
}

/// Returns what to use instead of an option, such as `-n` or `--delay`, that the verb does not have.
pub fn option(option: &str, verb: &str) -> Option<&'static str> {
    let known = OPTIONS.iter().find(|(options, verbs, _)| options.contains(&option) && verbs.contains(&verb));
    known.map(|(_, _, answer)| *answer)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::Command;

    use super::*;
    use crate::cli;

    fn usage_error_text(words: &[&str]) -> String {
        let args = std::iter::once("bgctl").chain(words.iter().copied()).map(OsString::from);
        cli::parse(args, false).unwrap_err().to_string()
    }

    fn has_option(command: &Command, option: &str) -> bool {
        command.get_arguments().any(|arg| match option.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => option.strip_prefix('-').is_some_and(|short| short.chars().eq(arg.get_short())),
        })
    }

    /// Checks that a call, such as `bgctl group set NAME --slots N`, uses existing verbs and options.
    fn check(all: &Command, call: &str) {
        let mut words = call.split(' ').take_while(|word| *word != "--").peekable();
        assert_eq!(words.next(), Some("bgctl"), "{call}");
        let mut command = all;
        while let Some(below) = words.peek().and_then(|word| command.find_subcommand(word)) {
            command = below;
            words.next();
        }
        let is_complete = words.peek() == Some(&"--version") || !command.has_subcommands();
        assert!(is_complete, "{call} has no verb");
        for option in words.filter(|word| word.starts_with('-')) {
            assert!(has_option(command, option), "{call}: there is no {option}");
        }
    }

    #[test]
    fn answers_name_only_existing_verbs_and_options() {
        let mut all = cli::command();
        all.build();
        let answers = VERBS.iter().map(|(_, answer)| answer);
        for answer in answers.chain(OPTIONS.iter().map(|(_, _, answer)| answer)) {
            let calls: Vec<&str> = answer.split('`').skip(1).step_by(2).collect();
            assert!(!calls.is_empty(), "{answer}");
            for call in calls {
                check(&all, call);
            }
        }
    }

    #[test]
    fn verbs_of_other_tools_are_aliases_or_get_a_pointer_to_the_right_verb() {
        let known = cli::command();
        let names: Vec<&str> =
            known.get_subcommands().flat_map(|verb| verb.get_name_and_visible_aliases()).collect();
        for (words, _) in VERBS {
            for word in *words {
                assert!(!names.contains(word), "{word} works");
                let text = usage_error_text(&[word, "3f2a"]);
                assert!(text.contains("`bgctl ") && !text.contains("similar"), "{word}: {text}");
            }
        }
        for word in "ps kill stop rm wait logs tail fg jobs show restart rerun last top watch".split(' ') {
            assert!(names.contains(&word) || VERBS.iter().any(|(words, _)| words.contains(&word)), "{word}");
        }
    }

    #[test]
    fn options_of_other_tools_get_a_pointer_to_the_right_option() {
        let mut all = cli::command();
        all.build();
        for (options, verbs, answer) in OPTIONS {
            for (option, verb) in
                options.iter().flat_map(|option| verbs.iter().map(move |verb| (option, verb)))
            {
                let of_verb = all.find_subcommand(verb).expect("every verb is there");
                assert!(!has_option(of_verb, option), "{verb} {option} works");
                let text = usage_error_text(&[verb, option, "1", "true"]);
                let expected = format!("error: unknown option `{option}`: {answer}\n");
                assert!(text.starts_with(&expected) && !text.contains("similar"), "{verb}: {text}");
            }
        }
        assert!(usage_error_text(&["submit", "--every=1h", "x"]).contains("use cron or a timer"));
        assert!(usage_error_text(&["--json", "ls", "-n5"]).contains("`bgctl list --limit N`"));
        assert!(usage_error_text(&["list", "--limt", "5"]).contains("'--limit'"));
        assert!(cli::parse(["bgctl", "submit", "make", "--every"].map(OsString::from), false).is_ok());
    }
}
