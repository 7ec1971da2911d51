//! Several machines in one list.

use std::fs;

use bgd_tests::Outcome;
use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use serde_json::Value;

/// Waits for slow machines, too, as several hosts have little time by default.
const PATIENT: &str = "--connect-timeout=1m";

/// Splits each line into columns.
fn rows(outcome: &Outcome) -> Vec<Vec<String>> {
    outcome.stdout_text().lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn r144_tasks_of_several_hosts_form_one_list() {
    let (far, near) = Far::pair();
    let first: TaskId = far.run(&["submit", "-d", "one", "--", "true"]).word();
    let second: TaskId = far.run(&["-H", "near", "submit", "-d", "two", "--", "true"]).word();
    let listed = rows(&far.run(&["-H", "near,far,near", PATIENT, "list"]).success());
    let shown = |row: &[String]| [row[0].clone(), row[1].clone(), row[5].clone()];
    assert_eq!(
        listed.iter().map(|row| shown(row)).collect::<Vec<_>>(),
        [["near", &second.short(), "two"], ["far", &first.short(), "one"]]
    );
    // A single host gets no column.
    assert_eq!(rows(&far.run(&["list"]).success())[0][0], first.short());
    let quiet = far.run(&["-H", "far,near", PATIENT, "list", "--quiet"]).success().stdout_text();
    assert_eq!(quiet, format!("{first}\n{second}\n"));
    assert!(
        far.run(&["-H", "far,near", PATIENT, "list", "--tree"]).success().stdout_text().contains("\tone\n")
    );
    let columns = ["-H", "far,near", PATIENT, "list", "--columns", "description,host,cpu"];
    let shown = far.run(&columns).success().stdout_text();
    assert!(shown.starts_with("one\tfar\t") && shown.contains("\ntwo\tnear\t"), "{shown}");
    let json: Value = far.run(&["-H", "far,near", PATIENT, "--json", "list"]).success().json();
    assert_eq!((&json["tasks"][0]["host"], &json["tasks"][1]["host"]), (&"far".into(), &"near".into()));
    assert_eq!((&json["hosts"][1]["host"], &json["hosts"][1]["more"]), (&"near".into(), &false.into()));
    let more = far.run(&["-H", "far,near", "submit", "--", "true"]).expect_code(2);
    assert!(more.stderr.contains("`submit` takes one host, not 2"), "{}", more.stderr);
    assert_eq!(near.daemon.status().summary.total() + far.daemon.status().summary.total(), 2);
}

#[test]
fn r164_running_tasks_of_several_hosts_are_measured_on_their_host() {
    let (far, near) = Far::pair();
    let submit = |host: &str, line: &str| -> TaskId {
        far.run(&["-H", host, "submit", "-d", host, "--shell", line]).success().word()
    };
    let there = near.daemon.home().join("there");
    let name = there.display();
    let line = format!("perl -e '$x = \"x\" x (64 << 20); open F, \">{name}\"; close F; sleep 1000'");
    let big = submit("near", &line);
    bgd_tests::wait::for_file(&there);
    let [small, newest] = ["far", "near"].map(|host| submit(host, "exec sleep 1000"));
    near.daemon.wait_running(big);
    near.daemon.wait_running(newest);
    far.daemon.wait_running(small);
    let list = ["-H", "far,near", PATIENT, "list", "--columns", "host,memory", "--sort", "-memory"];
    let sorted: Value = far.run(&[&["--json"], &list[..]].concat()).success().json();
    let tasks = sorted["tasks"].as_array().unwrap();
    let ids: Vec<&str> = tasks.iter().filter_map(|task| task["id"].as_str()).collect();
    assert_eq!(ids, [small, big, newest].map(|id| id.to_string()), "by host, then memory");
    let listed = rows(&far.run(&list).success());
    let hosts: Vec<&str> = listed.iter().map(|row| &*row[0]).collect();
    assert_eq!(hosts, ["far", "near", "near"]);
    for row in [&listed[0], &listed[2]] {
        assert!(row[1].contains(|c: char| c.is_ascii_digit()), "{listed:?}");
    }
    let size = listed[1][1].split_once([' ', 'M']).and_then(|(number, _)| number.parse::<f64>().ok());
    assert!(size.is_some_and(|size| (64.0..200.0).contains(&size)), "{listed:?}");
}

#[test]
fn r144_unreachable_host_is_listed_with_its_error() {
    let far = Far::start();
    far.run(&["submit", "-d", "one", "--", "true"]).success();
    far.wrap(
        "case \"$*\" in *silent*) exec sleep 1000;; *gone*) printf 'no\\033[1m route' >&2; exit 255;; esac",
    );
    let listed = far.run(&["-H", "silent,gone,far", "--connect-timeout", "20s", "list"]).success();
    let rows = rows(&listed);
    assert_eq!(rows[0][..3], ["silent", "-", "no answer"]);
    assert_eq!(rows[0][5], "no answer within 20000 ms");
    assert_eq!((&*rows[1][0], &*rows[1][5]), ("gone", "ssh can't connect: no�[1m route"));
    assert_eq!((&*rows[2][0], &*rows[2][5]), ("far", "one"));
    assert!(listed.stderr.contains("bgctl: silent: no answer within"), "{}", listed.stderr);
    assert!(listed.stderr.contains("bgctl: gone: ssh can't connect"), "{}", listed.stderr);
    let none = far.run(&["-H", "gone,gone2", "--json", "list"]).expect_code(69);
    let json: Value = none.json();
    assert_eq!(json["hosts"][0]["kind"], "host_unreachable");
    assert_eq!(json["hosts"][0]["host"], "gone");
    assert!(json["hosts"][1]["error"].as_str().unwrap().contains("gone2: ssh can't connect"), "{json}");
    assert_eq!(none.stderr.lines().count(), 2, "{}", none.stderr);
}

#[test]
fn r144_silent_host_does_not_delay_rows_of_others() {
    let far = Far::start();
    far.run(&["submit", "-d", "one", "--", "true"]).success();
    let gate = far.path("gate");
    far.wrap(&format!(
        "case \"$*\" in '-G '*) ;; *silent*) until [ -e {} ]; do sleep 0.05; done; echo gone >&2; exit 255;; esac",
        gate.display()
    ));
    let mut list = far.terminal(&["-H", "silent,far", "--connect-timeout", "10m", "list"]);
    list.wait_text("asking silent; --connect-timeout says for how long");
    assert!(list.screen().contains("one"), "{list:?}");
    fs::write(&gate, "").unwrap();
    list.wait_text("no answer");
    assert_eq!(list.ended().code(), Some(0));
    let screen = list.screen();
    assert!(!screen.contains("asking") && screen.matches("  one\n").count() == 1, "{screen}");
    // In a pipe, the hosts are printed in the given order, after a short time unless another one is set.
    fs::remove_file(gate).unwrap();
    let listed = rows(&far.run(&["-H", "silent,far", "list"]).success());
    assert_eq!((&*listed[0][0], &*listed[0][5]), ("silent", "no answer within 5000 ms"));
    assert_eq!((&*listed[1][0], &*listed[1][5]), ("far", "one"));
}

#[test]
fn r144_hosts_are_queried_concurrently_and_in_batch_mode() {
    let (far, _near) = Far::pair();
    // Each waits until the other is being asked.
    let (one, two) = (far.path("one"), far.path("two"));
    far.wrap(&format!(
        "case \"$*\" in *-N*far) echo >{one}; until [ -e {two} ]; do sleep 0.05; done;;\n\
         *-N*near) echo >{two}; until [ -e {one} ]; do sleep 0.05; done;;\n esac\n\
         case \"$*\" in *-G*|*BatchMode=yes*) ;; *) exit 9;; esac",
        one = one.display(),
        two = two.display()
    ));
    far.run(&["-H", "far,near", PATIENT, "list"]).success();
}

#[test]
fn r144_malformed_or_too_long_host_list_is_refused() {
    let far = Far::start();
    for hosts in ["far,", ",far", "far,,far", "far, far"] {
        far.run(&["-H", hosts, "list"]).expect_code(2);
    }
    let many: Vec<String> = (0..65).map(|number| format!("h{number}")).collect();
    let refused = far.run(&["-H", &many.join(","), "list"]).expect_code(2);
    assert!(refused.stderr.contains("more than 64 hosts"), "{}", refused.stderr);
    assert_eq!(far.connections(), 0);
}

#[test]
fn r144_request_refused_by_every_host_exits_with_their_code() {
    let (far, near) = Far::pair();
    let list = |words: &[&str]| far.run(&[&["-H", "far,near", PATIENT, "list"], words].concat());
    let refused = list(&["--batch", "9c1e"]).expect_code(66);
    for row in rows(&refused) {
        assert_eq!((&*row[2], row[5].contains("there is no batch")), ("refused", true), "{row:?}");
    }
    list(&["--tag", ""]).expect_code(2);
    // Only one of them has it.
    fs::write(near.daemon.home().join("items"), "x\n").unwrap();
    let items = near.daemon.home().join("items").display().to_string();
    let batch = near.daemon.run(&["submit", "--each", &items, "--", "true"]).success().stdout_text();
    let listed = list(&["--batch", batch.trim()]).success();
    assert_eq!((rows(&listed).len(), &*rows(&listed)[0][2]), (2, "refused"), "{}", listed.stdout_text());
}

#[test]
fn r165_list_of_several_hosts_shows_progress_if_asked() {
    let (far, near) = Far::pair();
    for (host, progress) in [(&far, "42%"), (&near, "3/8")] {
        let id = host.daemon.submit_shell(&format!("echo {progress}; exec sleep 1000"));
        host.daemon.wait_output(id, progress);
    }
    let listed = far.run(&["-H", "far,near", PATIENT, "list", "--columns", "host,progress"]).success();
    assert_eq!(rows(&listed), [["far", "42%"], ["near", "37%"]]);
}

#[test]
fn r144_limit_of_several_hosts_needs_no_advice() {
    let (far, _near) = Far::pair();
    let ids = ["one", "two"].map(|name| far.run(&["submit", "-d", name, "--", "true"]).word::<TaskId>());
    let listed = far.run(&["-H", "far,near", PATIENT, "list", "--limit", "1"]).success();
    assert_eq!((rows(&listed)[0][1].clone(), &*listed.stderr), (ids[1].short(), ""));
}
