//! Types what bgd-agents(7) tells users of agents to type, with the real opencode and a model on loopback.

use bgd_tests::docs;
use bgd_tests::real::Real;

#[test]
fn guide_commands_work_as_documented() {
    let shell = docs::blocks("man/bgd-agents.md", "sh");
    let [talk, answer] = &shell[..] else {
        panic!("other blocks than these are to be run as well: {shell:#?}")
    };
    let settings = docs::blocks("man/bgd-agents.md", "toml");
    let real = Real::installed();

    let stdout = real.shell(talk).success().stdout_text();
    let (first, second) =
        ("answer to: Where does this program start? One sentence.", "answer to: And where does it end?");
    assert_eq!(stdout.matches(first).count(), 2, "as it comes, and as the result: {stdout}");
    assert_eq!(stdout.matches(second).count(), 1, "{stdout}");
    let ready = |line: &str| line.starts_with("opencode\tacp\tready\t");
    assert!(stdout.lines().any(ready), "{stdout}");
    assert!(stdout.contains("(resumed)") && stdout.contains("find the entry"), "{stdout}");

    real.daemon.write_config(&settings.concat());
    real.daemon.run(&["daemon", "reload"]).success();
    let stdout = real.shell("bgctl agents --check opencode opencode-server").success().stdout_text();
    assert_eq!(stdout.matches("1.18.33\tresume").count(), 2, "{stdout}");
    let build = real.daemon.home().join("build");
    std::fs::create_dir(&build).unwrap();
    let stdout = real.shell(&format!("{answer}\nbgctl block \"$id\" --timeout none")).success().stdout_text();
    assert!(stdout.contains("rm -rf build"), "{stdout}");
    assert!(build.exists(), "it was denied");
    let stdout = real.shell(&answer.replace(" deny ", " allow ")).success().stdout_text();
    assert!(stdout.contains("rm -rf build"), "{stdout}");
    let ids = real.daemon.run(&["list", "-q"]).success().stdout_text();
    real.daemon
        .run(&[&["block", "--timeout", "none"], &ids.lines().collect::<Vec<_>>()[..]].concat())
        .success();
    assert!(!build.exists(), "it was allowed");
}
