//! The pages of the two programs, generated from their command lines.

use bgctl::daemon_environment::{DROPPED, KEPT, KEPT_PREFIXES};
use bgctl::exit;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use super::guides::see_also;
use super::roff::{Headings, bold, entry, help, literal, paragraph, prose};
use super::{DATE, MANUAL};

/// Renders one part of a page into a writer, as a method of `clap_mangen`.
type Part = fn(&Man, &mut dyn std::io::Write) -> std::io::Result<()>;

const BGCTL: &str = "`bgctl` submits commands to the daemon bgd(1), which runs them in the background, and \
    shows their status and output. If no daemon is running, it starts one; concurrent calls start only one daemon.";

const TASKS: &str = "A task is identified by its id, a UUID, or by a unique prefix of at least four characters. \
    An ambiguous prefix is an error that lists the matching tasks. Tasks exist until they are cleared or the \
    daemon ends, unless that is durable.";

const STREAMS: &str = "Results go to standard output, everything else to standard error. \
    Tables and colours are printed only on terminals; `NO_COLOR` turns colours off. With `--json` every verb prints \
    the object that the daemon sent, or one of its own if it does not ask the daemon, on one line; errors are printed as \
    objects too. `submit --each` prints the ids of the batch and of its tasks, and `run` prints to standard error. \
    `top` and `list --watch` are for people, and refuse it. \
    `help`, `man PAGE`, `completions SHELL`, `shell-init` and `shell-prompt` print the same text as without it. See \
    bgd-protocol(7).";

const DURATIONS: &str = "Durations are written as `90s`, `10m`, `1h30m`, `1.5h` or `250ms`; a plain number, such as \
     `30` or `0.5`, means seconds.";

const OWN_CODE: &str = "With `block --exit-code` the code is the task's own, or 128 plus the number of the \
    signal that ended it. If the reader of standard output goes away, `bgctl` exits silently with 141, as after \
    SIGPIPE.";

/// Renders `bgctl(1)`.
pub fn bgctl() -> String {
    let mut root = bgctl::cli::command();
    root.build();
    let globals = root.clone().mut_args(|arg| if arg.is_global_set() { arg } else { arg.hide(true) });
    let own = root.clone().mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg });
    let mut page = head(&root);
    page += ".SH SYNOPSIS\n\\fBbgctl\\fR [\\fIoptions\\fR] \\fIverb\\fR [\\fIarguments\\fR]\n";
    page += ".SH DESCRIPTION\n";
    page += &prose(BGCTL);
    page += &[TASKS, STREAMS, DURATIONS].map(paragraph).concat();
    page += ".SH OPTIONS\n";
    page += &section(&man(&own), Man::render_options_section);
    page += ".SS \"Global options\"\n";
    page += &section(&man(&globals), Man::render_options_section);
    page += ".SH VERBS\n";
    page += &root.get_subcommands().filter(|verb| verb.get_name() != "help").map(verb).collect::<String>();
    page += ".SH \"EXIT STATUS\"\n";
    for (code, meaning) in exit::TABLE {
        page += &entry(&bold(&code.0.to_string()), &format!("{}.", capital(meaning)));
    }
    page += &paragraph(OWN_CODE);
    page += ".SH ENVIRONMENT\n";
    page += &entries(BGCTL_ENVIRONMENT);
    page += &passed_on();
    page += ".SH FILES\n";
    page += &prose("See bgd-config(5).");
    page += &help(&after_help(&root), Headings::Sections);
    page + &see_also("bgctl")
}

const BGCTL_ENVIRONMENT: &[(&str, &str)] = &[
    ("BGD_SOCKET", "Absolute path of the daemon's socket."),
    (
        "BGD_DAEMON",
        "Program to start as the daemon. Default: the `bgd` next to `bgctl`, else the one in `PATH`.",
    ),
    ("BGD_HOST", "Machine whose daemon to talk to, as with `--host`; `--socket` overrides it."),
    ("BGD_SSH", "Program to run as `ssh` for `--host`. Default: the one in `PATH`."),
    ("BGD_SESSION", "Parent session of tasks submitted without `--session`."),
    ("BGD_MCP_DEPTH", "Number of levels of agents that have started tasks, see `bgctl mcp`. Default: 0."),
    ("NO_COLOR", "Disables colours if set and not empty, unless `--color always` is given."),
    ("XDG_RUNTIME_DIR", "Contains the socket, in its folder `bgd`, unless `BGD_SOCKET` is set."),
    (
        "XDG_CONFIG_HOME, XDG_STATE_HOME",
        "Contain the daemon's configuration, output and log, in their folders `bgd`, see bgd-config(5).",
    ),
];

/// Lists what reaches a daemon that `bgctl` starts.
fn passed_on() -> String {
    let list = |names: Vec<String>| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let (last, others) = names.split_last().expect("there are some");
        format!("{} and {last}", others.join(", "))
    };
    let kept = KEPT.iter().map(|name| (*name).to_owned());
    let kept = kept.chain(KEPT_PREFIXES.iter().map(|prefix| format!("{prefix}*")));
    let dropped = DROPPED.iter().map(|name| (*name).to_owned());
    paragraph(&format!(
        "A daemon that is started gets only these variables of its first caller: {}; but not {}. So secrets in other \
         variables, and `SSH_AUTH_SOCK`, do not reach it, while a password in the URL of a proxy does. Tasks get the \
         complete environment of their own submitter.",
        list(kept.collect()),
        list(dropped.collect())
    ))
}

/// Renders the section of a verb: its synopsis, its options and its examples.
fn verb(verb: &Command) -> String {
    let mut text = format!(".SS \"{}\"\n", full_name(verb));
    let own = verb.clone().mut_args(hide_common);
    let nested: Vec<&Command> = verb.get_subcommands().filter(|verb| verb.get_name() != "help").collect();
    if nested.is_empty() {
        text += &synopsis(&own);
        text += &paragraph(&about(verb));
        let aliases: Vec<String> =
            verb.get_visible_aliases().map(|alias| format!("`bgctl {alias}`")).collect();
        if !aliases.is_empty() {
            text += &prose(&format!("The same as {}.", aliases.join(", ")));
        }
        text += &section(&man(&own), Man::render_options_section);
    }
    for part in nested {
        let own = part.clone().mut_args(hide_common);
        text += &[".TP\n", &synopsis(&own), &prose(&about(part))].concat();
        let options = section(&man(&own), Man::render_options_section);
        if !options.is_empty() {
            text += &[".RS\n", &options, ".RE\n"].concat();
        }
    }
    text + &help(&after_help(verb), Headings::Lines)
}

/// Returns the usage of a command, as its help shows it.
fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let name = full_name(command);
    let form = |line: &str| {
        let line = line.trim();
        let rest = line.strip_prefix("Usage:").unwrap_or(line).trim();
        let words = rest.strip_prefix(&name).unwrap_or(rest);
        format!("{}{}\n", bold(&name), literal(words))
    };
    usage.lines().map(form).collect::<Vec<_>>().join(".br\n")
}

fn hide_common(arg: clap::Arg) -> clap::Arg {
    let common = arg.is_global_set() || arg.get_id() == "help";
    if common { arg.hide(true) } else { arg }
}

const BGD: &str = "`bgd` runs tasks for one user and is controlled over a Unix socket. It is started by \
    bgctl(1) when needed, by a service manager, or by hand. A lock file next to the socket ensures that only one \
    daemon runs per socket.";

const LIFE: &str = "Unless `durable` is set, all tasks are held in the daemon's memory and end with it: the daemon \
    ends all processes before it exits. If such a daemon is killed, the next one ends its remaining processes and \
    removes its files before it answers any request. With `durable = true`, tasks outlive the daemon, whether it is \
    stopped or killed, and the next one continues them: see bgd-guarantees(7).";

const WORK: &str = "A task runs with the environment, folder, umask and resource limits of the caller that \
    submitted it, and with empty standard input by default. It writes its output directly to a file, not through the \
    daemon. Ending a task ends all of its processes: through its cgroup if \
    one is delegated to the daemon, otherwise by session and descent. Every process of a task has \
    the variables `BGD_TASK_ID` and `BGD_INSTANCE`.";

const CGROUP: &str = "If a systemd user manager is running and the daemon was not started by a unit, it asks for a \
    scope of its own with a delegated cgroup, `bgd-INSTANCE.scope`, like `systemd-run --user --scope`. Without an \
    answer within two seconds, the daemon starts without a cgroup. If the controllers `memory` and `io` are delegated, \
    too, the daemon moves itself to the cgroup `bgd` in it, and has the kernel account for what all processes of each \
    task use; most systems delegate `memory` alone, and `bgctl doctor` says how to change that. `bgctl daemon status` shows how process trees are \
    tracked, and why.";

const LOGOUT: &str = "The user manager ends with the user's last session and stops the scope: the \
    daemon gets SIGTERM and cancels its tasks. `loginctl enable-linger` keeps both running after logout. With \
    `tree = \"session\"` the daemon stays in the session that started it; whether it survives \
    the logout depends on `KillUserProcesses=` in logind.conf(5).";

const SYSTEMD: &str = "When started by systemd(1), it supports socket activation and readiness notification \
    (`Type=notify`), and logs to the journal. Its stop may take longer than `TimeoutStopSec=` if `grace.cancel` does.";

/// The security model, one paragraph each.
const SECURITY: [&str; 6] = [
    "All programs of a user trust each other. The socket is in a folder that only its user can enter, and the \
     daemon serves only processes of its own uid, as reported by the kernel (with `allow_root` also programs of root \
     that open the socket themselves, which root's `bgctl` never does). Any program that can connect can do everything \
     bgd can: run commands, read every output, end every task, answer for you. bgd is not a sandbox. A program that must \
     not have this power needs another user, a container or a virtual machine, without the socket in it.",
    "Agents are your programs. `permissions` decides only how an agent's questions are answered; \
     what it does without asking depends on its own settings. The depth of `bgctl mcp` keeps agents from starting \
     agents endlessly; it is counted in an environment variable, which an agent can change.",
    "Further guard rails: an agent's processes can't answer that agent's question; `bgctl mcp` \
     shows only the tasks of its own session, unless it has `--all-sessions`; only a process's parent, or a child of \
     that, can hand the process over. These protect cooperating programs from mistakes but stop no attacker.",
    "An agent that runs commands can read what you can: the output of every task, including those of other agents, with \
     `bgctl` or as files. An agent that reads untrusted text, such as mail or web pages, may follow instructions in it. \
     Run it as another user to prevent that.",
    "Every user of the machine can read command lines, for example with ps(1): put no secrets into the arguments of a \
     task, and do not pass prompts with `{prompt}`. Environments and prompts are kept in the daemon's memory; \
     outputs, prompts passed with `{prompt_file}` and the log are files that only their user can read. Root can read \
     everything.",
    "Characters in descriptions, questions and errors that would control a terminal or hide text are replaced by \
     U+FFFD before they are shown or logged, and escaped in `--json`. Only `bgctl output`, `bgctl attach` and `bgctl \
     run` pass bytes on unchanged. On a terminal, `output`, `attach` to a task without one, and `run --agent` pass on \
     text, colours and the redrawing of lines; on a dumb one, text only.",
];

/// Renders `bgd(1)`.
pub fn bgd() -> String {
    let mut root = bgd::startup::args::Args::command();
    root.build();
    let mut page = head(&root);
    page += ".SH SYNOPSIS\n";
    page += &synopsis(&root);
    page += ".SH DESCRIPTION\n";
    page += &prose(BGD);
    page += &[LIFE, WORK, CGROUP, LOGOUT, SYSTEMD].map(paragraph).concat();
    page += ".SH OPTIONS\n";
    page += &section(&man(&root), Man::render_options_section);
    page += ".SH SIGNALS\n";
    page += &entries(&[
        (
            "SIGTERM, SIGINT",
            "Cancel every task, with a grace period of `grace.cancel`, and stop the daemon when all have ended. A \
             durable daemon cancels only foreground jobs and leaves the rest to the next one. A second signal kills at \
             once what is being cancelled, and stops the daemon within 10 s.",
        ),
        ("SIGHUP", "Reloads the configuration, like `bgctl daemon reload`."),
        (
            "SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGXFSZ",
            "Ignored; tasks do not inherit this. The log needs no signal after a rotation.",
        ),
    ]);
    page += ".SH \"EXIT STATUS\"\n";
    page += &entries(&[
        ("0", "Stopped on request."),
        ("2", "Wrong usage, or an invalid socket path."),
        (
            "69",
            "Can't start: another daemon has the socket, a folder is not usable, or fewer than 64 files may be open \
             (`ulimit -Hn`).",
        ),
        ("70", "An error inside bgd."),
        (
            "77",
            "The socket's folder belongs to another user, is accessible to others, or is a symbolic link or not a folder; \
             or what is at the socket's path is not a socket, but for example a file or a symbolic link.",
        ),
        ("78", "The configuration is invalid, or its file can't be read."),
    ]);
    page += ".SH ENVIRONMENT\n";
    page += &entries(&[
        ("BGD_SOCKET", "Absolute path of the socket, unless `--socket` is given."),
        ("BGD_LOG", "Log level: `error`, `warn`, `info` (the default), `debug` or `trace`."),
        ("XDG_RUNTIME_DIR", "Contains the socket, in its folder `bgd`, unless it is set otherwise."),
        ("XDG_CONFIG_HOME", "Contains the configuration, in its folder `bgd`. Default: `~/.config`."),
        (
            "XDG_STATE_HOME",
            "Contains output and log, in its folder `bgd`. Default: `~/.local/state`. Relative paths in \
             this and in `XDG_CONFIG_HOME` are ignored.",
        ),
        (
            "LISTEN_PID, LISTEN_FDS, NOTIFY_SOCKET",
            "Set by the service manager, see sd_listen_fds(3) and sd_notify(3). The path of a socket that it passes \
             counts unless `--socket` or `BGD_SOCKET` is given.",
        ),
        ("JOURNAL_STREAM, INVOCATION_ID", "If either is set, the log goes to standard error."),
    ]);
    page += ".SH SECURITY\n";
    page += &SECURITY.map(paragraph).concat();
    page += ".SH FILES\n";
    page += &prose("See bgd-config(5).");
    let (first, rest) = split_off_first(&after_help(&root));
    page += ".SH NOTES\n";
    page += &prose(&first);
    page += &help(&examples_only(&rest), Headings::Sections);
    page + &see_also("bgd")
}

/// Splits a text into its first paragraph and the rest.
fn split_off_first(text: &str) -> (String, String) {
    let (first, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    (first.to_owned(), rest.to_owned())
}

/// Returns the paragraphs that have a heading; the others only summarise the detailed explanations on this page.
fn examples_only(text: &str) -> String {
    let kept =
        text.split("\n\n").filter(|block| block.lines().next().is_some_and(|line| line.ends_with(':')));
    kept.collect::<Vec<_>>().join("\n\n")
}

fn head(command: &Command) -> String {
    let name = command.get_name();
    let version = command.get_version().unwrap_or_default();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let about = about.split(':').next().unwrap_or_default();
    let about = about[..1].to_lowercase() + &about[1..];
    format!(
        ".\\\" Made by: {}\n.TH {name} 1 {DATE} \"{name} {version}\" \"{MANUAL}\"\n.SH NAME\n{name} \\- {about}\n",
        super::REFRESH
    )
}

fn man(command: &Command) -> Man {
    Man::new(command.clone())
}

/// Renders a part of a page without its heading, with long lines wrapped.
fn section(man: &Man, part: Part) -> String {
    let mut bytes = Vec::new();
    part(man, &mut bytes).expect("memory takes everything");
    let text = String::from_utf8(bytes).expect("roff is text");
    // clap_mangen begins every document with definitions for quotes, and every section with its heading.
    let ours = text.lines().filter(|line| {
        let request = line.split(' ').next().unwrap_or_default();
        !matches!(request, ".ie" | ".el" | ".SH")
    });
    super::roff::tidied(ours)
}

fn entries(rows: &[(&str, &str)]) -> String {
    rows.iter()
        .map(|(words, text)| entry(&words.split(", ").map(bold).collect::<Vec<_>>().join(", "), text))
        .collect()
}

fn full_name(verb: &Command) -> String {
    verb.get_bin_name().unwrap_or_else(|| verb.get_name()).to_owned()
}

fn about(command: &Command) -> String {
    format!("{}.", command.get_about().map(ToString::to_string).unwrap_or_default())
}

fn after_help(command: &Command) -> String {
    command.get_after_help().map(ToString::to_string).unwrap_or_default()
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}
