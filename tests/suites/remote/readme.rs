//! Types the commands of bgd-remote(7) for users of other machines, with stand-ins for the programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bgd_tests::docs;
use bgd_tests::far::Far;
use bgd_tests::{Outcome, TestDaemon, bgctl_path, executable};

fn block(number: usize, language: &str) -> String {
    docs::blocks("man/bgd-remote.md", language).swap_remove(number)
}

fn stand_ins(home: &Path) -> PathBuf {
    home.join("stand-ins")
}

/// The machine `build1`, with stand-ins for programs on both sides.
fn build1() -> Far {
    let far = Far::named("build1", TestDaemon::start());
    for programs in [far.daemon.home(), far.home()].map(stand_ins) {
        fs::create_dir(&programs).unwrap();
        for name in ["make", "htop", "notify-send"] {
            let text = format!("#!/bin/sh\necho \"{name} $* in $PWD for $HOME\"\n");
            executable::write(&programs.join(name), &text);
        }
    }
    let programs = bgctl_path().parent().unwrap().display().to_string();
    let stand_ins = stand_ins(far.daemon.home());
    far.set_session(&[("PATH", &format!("{}:{programs}:/usr/bin:/bin", stand_ins.display()))]);
    far
}

/// Types these lines here.
#[track_caller]
fn typed(far: &Far, template: &Command, lines: &str) -> String {
    let programs = bgctl_path().parent().unwrap().display().to_string();
    let path = format!("PATH={}:{programs}:/usr/bin:/bin", stand_ins(far.home()).display());
    let mut command = Command::new("bash");
    command.args(["-euc", &format!("{path}\n{lines}")]).current_dir(far.home()).stdin(Stdio::null());
    command.env_clear().envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Outcome::of(&mut command).success().stdout_text()
}

#[test]
fn r140_remote_machine_example_of_guide_works() {
    let far = build1();
    let lines = block(0, "sh")
        .replace("3f2a ", "$(bgctl -H build1 list -q | head -n 1) ")
        .replace("me@build1", "build1");
    let mut command = far.bgctl(&[]);
    command.env_remove("BGD_HOST");
    let said = typed(&far, &command, &format!("{lines}\nbgctl list --quiet"));
    let there = far.daemon.home().display();
    assert!(said.contains(&format!(" for {there}\n")) && said.contains("make -j8 in "), "{said}");
    assert!(said.contains("htop  in "), "{said}");
    // The variable exported at the end leads to the same machine, too.
    let (id, last) = (said.lines().next().unwrap(), said.lines().last().unwrap());
    assert!(last.len() == id.len() && !far.daemon.task(last.parse().unwrap()).status.is_active(), "{said}");
}

#[test]
fn r145_executor_example_of_guide_works() {
    let mut far = build1();
    far.start_here("");
    let app = far.daemon.home().join("app");
    fs::create_dir(&app).unwrap();
    let config = block(0, "toml").replace("me@build1", "build1");
    let ssh = far.path("ssh").display().to_string();
    far.here().write_config(&format!("{config}ssh = \"{ssh}\"\n"));
    let lines = block(2, "sh").replace("/src/app", &app.display().to_string());
    let mut command = far.here().bgctl(&[]);
    command.env("BGD_SESSION", "s");
    let said = typed(&far, &command, &format!("{lines}\nbgctl block @\nbgctl output @"));
    assert!(said.contains("build1"), "{said}");
    let (there, here) = (far.daemon.home().display(), far.home().display());
    assert!(said.contains(&format!("make -j32 in {} for {there}\n", app.display())), "{said}");
    assert!(said.ends_with(&format!("notify-send built in {here} for {here}\n")), "{said}");
}

#[test]
fn r144_two_machines_example_of_guide_works() {
    let (far, other) = (build1(), Far::named("build2", TestDaemon::start()));
    far.join(&other);
    for (name, description) in [("build1", "one"), ("build2", "two")] {
        far.run(&["-H", name, "submit", "-d", description, "--", "true"]).success();
    }
    let lines = block(1, "sh");
    // Both answer, however slow this machine is.
    let list = format!("{} --connect-timeout 1m", lines.lines().next().unwrap());
    let said = typed(&far, &far.bgctl(&[]), &list);
    let row = |name: &str, description: &str| {
        said.lines().any(|line| line.starts_with(name) && line.ends_with(description))
    };
    assert!(row("build1\t", "\tone") && row("build2\t", "\ttwo"), "{said}");
}

#[test]
fn r143_bootstrap_example_of_guide_works() {
    let far = Far::named("build1", TestDaemon::home_only());
    far.set_session(&[("PATH", "/usr/bin:/bin")]);
    let lines = block(1, "sh");
    let bootstrap = lines.lines().nth(1).unwrap();
    typed(&far, &far.bgctl(&[]), &format!("{bootstrap}\nbgctl --bootstrap -H build1 daemon stop"));
    assert!(far.daemon.home().join(".cache/bgd/programs").is_dir());
}
