//! The pages on the two programs, made from their command lines.

use bgctl::exit;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use super::roff::{Headings, bold, entry, help, literal, paragraph, prose};
use super::{DATE, MANUAL};

/// A part of a page that `clap_mangen` writes into what it is given.
type Part = fn(&Man, &mut dyn std::io::Write) -> std::io::Result<()>;

const BGCTL: &str = "`bgctl` gives commands to the daemon bgd(1), which runs them in the background, and \
    asks it how they are. If no daemon runs, it starts one; a hundred calls at once start one daemon.";

const TASKS: &str = "A task is named by its id, a UUID, or by the first characters of it: four or more, as \
    long as no other task's id begins with them. A prefix that could mean several tasks is an error that \
    lists them. Tasks live as long as the daemon does, or until they are cleared.";

const STREAMS: &str = "What was asked for goes to standard output, everything else to standard error. \
    Tables and colours are for terminals; `NO_COLOR` turns colours off. With `--json` every verb prints the \
    object that the daemon sent, on one line, and errors come as such an object too: bgd-protocol(7) \
    describes them.";

const DURATIONS: &str = "A duration is written as `90s`, `10m`, `1h30m` or `250ms`; a plain number stands \
    for seconds.";

const OWN_CODE: &str = "With `block --exit-code` the code is the task's own, or 128 and the number of the \
    signal that ended it. A reader of standard output that goes away ends `bgctl` with 141 and without a \
    word, as SIGPIPE would.";

/// `bgctl(1)`.
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
    page += ".SS \"Options of every verb\"\n";
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
    page += ".SH FILES\n";
    page += &prose("bgd-config(5) names all files.");
    page += &help(&after_help(&root), Headings::Sections);
    page + SEE_ALSO_BGCTL
}

const BGCTL_ENVIRONMENT: &[(&str, &str)] = &[
    ("BGD_SOCKET", "The daemon's socket, an absolute path."),
    (
        "BGD_DAEMON",
        "The program to start as the daemon; else the `bgd` beside `bgctl`, else the one on `PATH`.",
    ),
    ("BGD_SESSION", "The parent session of tasks that are submitted without `--session`."),
    (
        "BGD_MCP_DEPTH",
        "How deep agents have started tasks, as `bgctl mcp` counts it; see its description. Not set or empty, it \
         is 0.",
    ),
    ("NO_COLOR", "If set and not empty, tables have no colours."),
    ("XDG_RUNTIME_DIR", "Where the socket is if `BGD_SOCKET` does not say: in its folder `bgd`."),
    (
        "XDG_CONFIG_HOME, XDG_STATE_HOME, HOME, PATH, LANG, LC_*, TZ, TMPDIR",
        "What a daemon that is started is given of the environment, together with all `BGD_*` and `XDG_*`; \
         secrets of whoever happened to call first stay out of it. Tasks get the complete environment of \
         their own submitter.",
    ),
];

const SEE_ALSO_BGCTL: &str =
    ".SH \"SEE ALSO\"\n.BR bgd (1),\n.BR bgd\\-config (5),\n.BR bgd\\-protocol (7)\n";
const SEE_ALSO_BGD: &str =
    ".SH \"SEE ALSO\"\n.BR bgctl (1),\n.BR bgd\\-config (5),\n.BR bgd\\-protocol (7)\n";

/// A verb with its synopsis, its options and its examples.
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

/// How a command is called, as its help shows it.
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

const BGD: &str = "`bgd` runs tasks for one user and serves them over a Unix socket. It is started by \
    bgctl(1) when there is none, by a service manager, or by hand. There is one daemon for a socket: a lock \
    beside it decides, so of many that start at once one stays.";

const LIFE: &str = "All tasks live in the daemon's memory and end with it: what it started is ended before \
    it exits, and what a killed daemon left behind is ended and removed by the next start, before that \
    answers anybody.";

const WORK: &str = "A task runs with the environment, folder, umask and resource limits of the caller that \
    submitted it, with empty standard input unless it was given one, and writes into a file by itself: the \
    daemon is not in the way of its output. Ending a task ends all of its processes, by its cgroup where \
    one is delegated to the daemon, else by its session and by its descendants. Every process of a task has \
    the variables `BGD_TASK_ID` and `BGD_INSTANCE`.";

const CGROUP: &str = "Where a systemd user manager runs, a daemon that no unit started asks it for a scope of its \
    own with a delegated cgroup, `bgd-INSTANCE.scope`, as `systemd-run --user --scope` does. If there is no \
    answer within two seconds, the daemon starts without it. `bgctl daemon status` says how trees are kept, and \
    why.";

const LOGOUT: &str = "The user manager ends when the last session of its user does, and takes the scope with it: the \
    daemon gets SIGTERM then and ends its tasks. `loginctl enable-linger` lets both survive the logout. With \
    `tree = \"session\"` the daemon asks for nothing and stays in the session that started it; whether it survives \
    the logout there is for `KillUserProcesses=` in logind.conf(5) to say.";

const SYSTEMD: &str = "Started by systemd(1) it takes its socket from socket activation, says when it is \
    ready (`Type=notify`), and logs to the journal.";

/// Who trusts whom, a paragraph each.
const SECURITY: [&str; 6] = [
    "All programs of a user trust each other. The socket is in a folder that only its user can enter, and the \
     daemon serves only processes of its own uid, as the kernel tells it (and root with `allow_root`). Whoever \
     can connect can do all that bgd can: run commands, read every output, end every task, answer for you. bgd \
     is no sandbox. A program that must not have this power needs another user, a container or a virtual machine, \
     without the socket in it.",
    "Agents are programs of yours. `permissions` decides what becomes of the questions that an agent asks, no more: \
     what it does without asking is up to its own settings. The depth of `bgctl mcp` keeps agents from starting \
     agents without end; a variable counts it, which an agent can change.",
    "These are guard rails, too: a process of an agent can't answer that agent's question; a server of `bgctl mcp` \
     shows the tasks of its own session only, unless it has `--all-sessions`; a process is handed over only by its \
     parent or by a child of that. They keep programs that cooperate from mistakes, and stop none that is set on it.",
    "An agent that runs commands can read what you can: the output of every task, also of other agents, by `bgctl` or \
     as files. One that reads what strangers write, such as mail or web pages, may do what they ask of it. Run it \
     as another user if that must not happen.",
    "Every user of the machine can read command lines, as ps(1) shows them: put no secret into the arguments of a \
     task, and no prompt into those of an agent by `{prompt}`. Environments and prompts are in the daemon's memory; \
     outputs, prompts by `{prompt_file}` and the log are in files that only their user can read. Root can read \
     everything.",
    "What a description, a question or an error would do to a terminal, or hide from its reader, is replaced by \
     U+FFFD before it is shown or logged, and escaped in `--json`. `bgctl output`, `bgctl attach` and `bgctl run` pass \
     on what a task writes as it is.",
];

/// `bgd(1)`.
pub fn bgd() -> String {
    let mut root = bgd::startup::Args::command();
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
            "Cancels every task and ends the daemon when all have ended; they have `grace.cancel` for it. \
             A second one ends all of them now, and the daemon within 2 s.",
        ),
        ("SIGHUP", "Reads the configuration again, as `bgctl daemon reload` does."),
    ]);
    page += ".SH \"EXIT STATUS\"\n";
    page += &entries(&[
        ("0", "It was told to end, and has."),
        ("2", "Wrong usage, or a path that can't be a socket's."),
        ("69", "It can't serve: another daemon has the socket, or a folder can't be used."),
        ("70", "An error inside bgd."),
        ("77", "The socket's folder belongs to somebody else, is open to others, or is a link."),
        ("78", "The configuration is wrong."),
    ]);
    page += ".SH ENVIRONMENT\n";
    page += &entries(&[
        ("BGD_SOCKET", "The socket to serve, an absolute path, if `--socket` does not say."),
        ("BGD_LOG", "How much is logged: `error`, `warn`, `info` (the default), `debug` or `trace`."),
        ("XDG_RUNTIME_DIR", "Where the socket is if nothing else says: in its folder `bgd`."),
        ("XDG_CONFIG_HOME", "Where the configuration is: in its folder `bgd`. Default: `~/.config`."),
        (
            "XDG_STATE_HOME",
            "Where output and log are: in its folder `bgd`. Default: `~/.local/state`. Relative paths in \
             this and in `XDG_CONFIG_HOME` are ignored.",
        ),
        (
            "LISTEN_PID, LISTEN_FDS, NOTIFY_SOCKET",
            "The service manager's, see sd_listen_fds(3) and sd_notify(3).",
        ),
        ("JOURNAL_STREAM, INVOCATION_ID", "If one of them is set, the log goes to standard error."),
    ]);
    page += ".SH SECURITY\n";
    page += &SECURITY.map(paragraph).concat();
    page += ".SH FILES\n";
    page += &prose("bgd-config(5) names all files.");
    let (first, rest) = split_off_first(&after_help(&root));
    page += ".SH NOTES\n";
    page += &prose(&first);
    page += &help(&examples_only(&rest), Headings::Sections);
    page + SEE_ALSO_BGD
}

/// The first paragraph, and what follows it.
fn split_off_first(text: &str) -> (String, String) {
    let (first, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    (first.to_owned(), rest.to_owned())
}

/// The paragraphs with a heading; the others say in short what this page says at length.
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

/// A part of a page without its heading, with its long lines wrapped.
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
