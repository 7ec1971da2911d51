//! R169: `shell-init` and `shell-prompt` in real shells, in a real terminal: the key that runs the typed line through
//! `bgctl run`, Ctrl-B on it, Tab, and the prompt.

use std::fs;
use std::path::Path;
use std::process::Command;

use bgd_tests::agents::nushell;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::Status;
use bgd_tests::{Terminal, TestDaemon, Tmux, bgctl_path, wait};

/// The prompt's command. On a busy machine, an answer may take longer than a prompt should.
const PROMPT: &str = "bgctl shell-prompt --timeout 1m";

/// The command of a shell with this home, as its user starts it.
fn shell(daemon: &TestDaemon, program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    let surroundings = daemon.bgctl(&[]);
    command.args(args).env_clear().current_dir(daemon.home());
    command.envs(surroundings.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
    let nu =
        program.parent().filter(|folder| folder.is_absolute()).map(|folder| format!("{}:", folder.display()));
    let programs = bgctl_path().parent().unwrap().display().to_string();
    let path = format!("{}{programs}:/usr/bin:/bin", nu.unwrap_or_default());
    command.env("PATH", path).env("LANG", "C.UTF-8").env("SHELL", program).env("TERM", "xterm-256color");
    command
}

fn put(daemon: &TestDaemon, name: &str, text: &str) {
    let path = daemon.home().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Simulates a user, with the key of this shell.
fn use_it(daemon: &TestDaemon, terminal: &mut Terminal, line: &str, key: &str) {
    terminal.type_keys(line);
    terminal.wait_text(line);
    terminal.type_keys(key);
    terminal.wait_text("[Ctrl-B] Background\nup\n");
    // The line, and so the history, shows the command that was run.
    assert!(terminal.screen().contains("bgctl run -- "), "{}", terminal.screen());
    terminal.type_keys("\x02");
    terminal.wait_text("Command was manually backgrounded by user with ID");
    terminal.wait_text("bgd:1\u{25b6}");
    let id: TaskId = daemon.run(&["list", "-q"]).success().word();
    assert_eq!(daemon.task(id).status, Status::Running);

    let failed: TaskId = daemon.run(&["submit", "--", "false"]).success().word();
    daemon.block(&[failed]);
    // A failure that the user has seen is not counted.
    terminal.type_line("bgctl run -- false");
    terminal.wait_text("bgd:1\u{25b6} 1\u{2717}");
    // One verb begins with this, and one task is running.
    terminal.type_keys("bgctl canc\t");
    terminal.wait("the verb", |screen| squeezed(&screen.contents()).contains("bgctl cancel"));
    let short = id.short();
    let line = format!("bgctl cancel {short}");
    terminal.type_keys("\x15");
    // Some shells add a space, others do not.
    complete(terminal, &format!("bgctl cancel {}", &short[..3]), |screen| {
        let text = squeezed(screen);
        text.contains(&format!("{line}{BEHIND}")) || text.contains(&format!("{line} {BEHIND}"))
    });
    terminal.type_keys("\x7f".repeat(BEHIND.len()));
    terminal.wait("the line alone", |screen| !screen.contents().contains(BEHIND));
    terminal.type_keys("\r");
    daemon.block(&[id]);
    terminal.wait("the prompt without it", |screen| {
        let text = screen.contents();
        let last = text.lines().rfind(|line| line.contains("bgd:"));
        last.is_some_and(|line| line.contains("bgd:1\u{2717}"))
    });
}

/// The keys typed after Tab: a shell shows them once it has completed the word, or has not.
const BEHIND: &str = "--q";

/// Types this on an empty line, then Tab and [`BEHIND`], until the line is completed: a shell offers nothing if the
/// daemon does not answer soon enough.
#[track_caller]
fn complete(terminal: &mut Terminal, keys: &str, is_completed: impl Fn(&str) -> bool) {
    wait::poll_until("a completion in time", || {
        terminal.type_keys(format!("{keys}\t{BEHIND}"));
        terminal.wait("the end of the completion", |screen| screen.contents().contains(BEHIND));
        if is_completed(&terminal.screen()) {
            return Some(());
        }
        terminal.type_keys("\x15");
        terminal.wait("an empty line", |screen| !screen.contents().contains(BEHIND));
        None
    });
}

/// Returns a text with single spaces.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn r169_run_key_completion_and_prompt_work_in_bash() {
    let daemon = TestDaemon::start();
    let lines = format!("PS1='$ '\neval \"$(bgctl shell-init bash)\"\nPS1='$({PROMPT})'\"$PS1\"\n");
    put(&daemon, ".bashrc", &lines);
    let mut terminal = Terminal::open(&shell(&daemon, Path::new("bash"), &["-i"]));
    terminal.wait_line("$");
    use_it(&daemon, &mut terminal, "echo up; sleep 1000", "\x18\x12");
}

#[test]
fn r169_run_key_completion_and_prompt_work_in_zsh() {
    let daemon = TestDaemon::start();
    let lines = format!(
        "autoload -Uz compinit && compinit -u\nPROMPT='%# '\neval \"$(bgctl shell-init zsh)\"\n\
         setopt prompt_subst; PROMPT='$({PROMPT})'\"$PROMPT\"\n"
    );
    put(&daemon, ".zshrc", &lines);
    let mut terminal = Terminal::open(&shell(&daemon, Path::new("zsh"), &["-i"]));
    terminal.wait("a prompt", |screen| screen.contents().trim_end().ends_with(['#', '%']));
    use_it(&daemon, &mut terminal, "echo up; sleep 1000", "\x18\x12");
}

#[test]
fn r169_first_tab_in_zsh_completes_from_installed_file() {
    let daemon = TestDaemon::home_only();
    let mut install = daemon.bgctl(&["completions", "install", "zsh"]);
    install.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
    let stdout = bgd_tests::Outcome::of(&mut install).success().stdout_text();
    let line = stdout.lines().find(|line| line.trim_start().starts_with("fpath=")).unwrap();
    put(
        &daemon,
        ".zshrc",
        &format!("{line}\nautoload -Uz compinit && compinit -u\nsetopt nounset\nPROMPT='%# '\n"),
    );
    let mut terminal = Terminal::open(&shell(&daemon, Path::new("zsh"), &["-i"]));
    terminal.wait("a prompt", |screen| screen.contents().trim_end().ends_with(['#', '%']));
    terminal.type_keys("bgctl doct\t");
    terminal.wait("the verb", |screen| screen.contents().contains("bgctl doctor"));
    terminal.type_keys("\x15bgctl daem\t");
    terminal.wait("another verb", |screen| screen.contents().contains("bgctl daemon"));
}

#[test]
fn r169_bash_completes_words_with_colons_blanks_and_patterns() {
    let daemon = TestDaemon::start();
    for (session, tag) in [("tty:/dev/pts/7", "two words"), ("tty:/dev/pts/81", "x[y]"), ("other", "*")] {
        let mut submit = daemon.bgctl(&["submit", "--tag", tag, "--", "true"]);
        bgd_tests::Outcome::of(submit.env("BGD_SESSION", session)).success();
    }
    // Names that a pattern could expand to.
    for name in ["xy", "a-file"] {
        put(&daemon, name, "");
    }
    put(&daemon, ".bashrc", "PS1='$ '\nshopt -s nullglob\neval \"$(bgctl completions bash)\"\n");
    let mut terminal = Terminal::open(&shell(&daemon, Path::new("bash"), &["-i"]));
    terminal.wait_line("$");
    for (typed, wanted) in [
        ("bgctl list --session tt\t8", "bgctl list --session tty:/dev/pts/81"),
        ("bgctl list --session=tty:\t7", "bgctl list --session=tty:/dev/pts/7"),
        ("bgctl list --session \"tty:/dev/pts/8", "bgctl list --session \"tty:/dev/pts/81\""),
        ("bgctl list --tag tw", "bgctl list --tag two\\ words"),
        ("bgctl list --tag \"tw", "bgctl list --tag \"two words\""),
        ("bgctl list --tag two\\ w", "bgctl list --tag two\\ words"),
        ("bgctl list --tag x", "bgctl list --tag x\\[y\\]"),
        // No tag begins with a literal `*`.
        ("bgctl list --tag \\*", "bgctl list --tag \\*"),
    ] {
        let line = format!("$ {wanted} {BEHIND}");
        complete(&mut terminal, typed, |screen| screen.contains(&line));
        terminal.type_keys("\x15");
        terminal.wait_line("$");
    }
}

#[test]
fn r169_run_key_completion_and_prompt_work_in_fish() {
    let daemon = TestDaemon::start();
    let lines = format!(
        "bgctl shell-init fish | source\nfunction fish_prompt; echo '> '; end\n\
         function fish_right_prompt; {PROMPT}; end\n"
    );
    put(&daemon, ".config/fish/config.fish", &lines);
    let mut terminal = Terminal::open(&shell(&daemon, Path::new("fish"), &["-i"]));
    terminal.wait("a prompt", |screen| screen.contents().trim_end().ends_with('>'));
    use_it(&daemon, &mut terminal, "echo up; sleep 1000", "\x18\x12");
}

#[test]
fn r169_run_key_completion_and_prompt_work_in_nushell() {
    let daemon = TestDaemon::start();
    let config = format!(
        "$env.config.show_banner = false\n$env.PROMPT_COMMAND = {{|| \"nu\" }}\n\
         $env.PROMPT_COMMAND_RIGHT = {{|| ^{PROMPT} }}\n"
    );
    put(&daemon, ".config/nushell/config.nu", &config);
    let script = daemon.run(&["shell-init", "nushell"]).success().stdout_text();
    put(&daemon, ".config/nushell/autoload/bgctl.nu", &script);
    // The shell asks its terminal for the cursor position, which tmux answers.
    put(&daemon, "tmux.conf", "set -g prefix None\nset -g status off\nset -g escape-time 0\n");
    let nu = nushell();
    let surroundings = shell(&daemon, &nu, &[]);
    let tmux = Tmux::of(&daemon);
    let words = format!("exec {}", nu.display());
    let mut command = Command::new("tmux");
    command.args(["-f", "tmux.conf", "-S"]).arg(tmux.socket()).args(["new-session", &words]);
    command.envs(surroundings.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(daemon.home());
    // The key finds the shell without it.
    let programs = bgctl_path().parent().unwrap().display().to_string();
    command.env("SHELL", "/bin/sh").env("PATH", format!("{programs}:/usr/bin:/bin"));
    let mut terminal = Terminal::open(&command);
    terminal.wait_text("nu>");
    use_it(&daemon, &mut terminal, "print up; sleep 1000sec", "\x1br");
    terminal.type_line("exit");
    terminal.ended();
}

#[test]
fn r169_nushell_finds_installed_file_and_still_completes_other_commands() {
    let daemon = TestDaemon::start();
    let task = daemon.submit(&["sleep", "1000"]);
    let mut install = daemon.bgctl(&["completions", "install"]);
    install.env("SHELL", "/usr/bin/nu").env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
    let stdout = bgd_tests::Outcome::of(&mut install).success().stdout_text();
    let file = daemon.home().join(".local/share/nushell/vendor/autoload/bgctl.nu");
    assert!(stdout.starts_with(&format!("installed {}\n", file.display())), "{stdout}");
    // As `nu` loads a vendor's file, after the user's own configuration.
    let script = format!(
        "if ($nu.vendor-autoload-dirs | last) != '{}' {{ exit 3 }}\n\
         $env.config.completions.external.completer = {{|spans| [$\"other ($spans.0)\"] }}\n\
         source '{}'\n\
         let complete = $env.config.completions.external.completer\n\
         print (do $complete [make x] | to nuon)\n\
         print (do $complete [bgctl sub] | get value | to nuon)\n\
         print (do $complete [bgctl cancel ''] | to nuon)\n",
        file.parent().unwrap().display(),
        file.display()
    );
    put(&daemon, "script.nu", &script);
    let mut command = shell(&daemon, &nushell(), &["script.nu"]);
    // No task is offered if the daemon does not answer soon enough for a shell.
    wait::poll_until("the task in time", || {
        let said = bgd_tests::Outcome::of(&mut command).success().stdout_text();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(&lines[..2], ["[\"other make\"]", "[submit]"], "{said}");
        (lines[2].contains(&task.short()) && lines[2].contains("sleep 1000")).then_some(())
    });
}
