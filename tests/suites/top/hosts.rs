//! Several machines in one view (R144).

use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_tests::far::Far;
use bgd_tests::{Terminal, TestDaemon};

/// Starts a `bgctl top` of these hosts with this width.
#[track_caller]
fn view(far: &Far, hosts: &str, cols: u16) -> Terminal {
    let mut command = far.bgctl(&["-H", hosts, "--connect-timeout", "10m", "top"]);
    Terminal::sized(command.env("PAGER", "cat; echo '<paged>'; read x < /dev/tty"), (20, cols))
}

/// Submits a task that writes a line and then runs until it is ended.
#[track_caller]
fn runs(daemon: &TestDaemon, name: &str) -> TaskId {
    let line = format!("echo from {name}; exec sleep 1000");
    let id = daemon.run(&["submit", "-d", name, "--shell", &line]).success().word();
    daemon.wait_running(id);
    id
}

#[track_caller]
fn leave(mut top: Terminal) {
    top.type_keys("q");
    assert!(top.ended().success());
}

#[test]
fn r144_top_shows_the_tasks_of_several_hosts_side_by_side() {
    let (far, near) = Far::pair();
    let (one, two) = (runs(&far.daemon, "one"), runs(&near.daemon, "two"));
    let mut top = view(&far, "far,near", 90);
    top.wait_text(&format!(" far  {} running ", one.short()));
    top.wait_text(&format!(" near {} running ", two.short()));
    top.wait_text("nothing needs you | 2 running\n HOST ID ");
    let failed = far.run(&["-H", "near", "submit", "-d", "three", "--", "false"]).success().word::<TaskId>();
    top.wait_text("1 failure needs you | 2 running");
    top.wait_text(&format!(" near {} failed (1) ", failed.short()));
    top.type_keys("/host:far\r");
    top.wait("the tasks of one host", |screen| {
        let shown = screen.contents();
        shown.contains(&one.short()) && !shown.contains(&two.short()) && shown.contains("/host:far (1)")
    });
    top.type_keys("\x1b\t");
    top.wait_text("- far: 1 running\n");
    top.wait_text("- near: 1 failed, 1 running\n");
    leave(top);
}

#[test]
fn r144_top_reports_unreachable_hosts_without_delaying_others() {
    let far = Far::start();
    let id = runs(&far.daemon, "one");
    far.wrap(
        "case \"$*\" in *silent*) exec sleep 1000;; *gone*) printf 'no\\033[1m route' >&2; exit 255;; \
         *closed*) echo 'Permission denied (publickey).' >&2; exit 255;; esac",
    );
    let mut top = view(&far, "silent,gone,closed,far", 130);
    // The reasons need the room of the preview.
    top.type_keys("v");
    top.wait_text(&format!(" far    {} running ", id.short()));
    top.wait_text("- silent: connecting\n");
    top.wait_text("- gone: no answer since ");
    top.wait_text(" route; trying again");
    top.wait_text("(publickey); Enter tries again");
    top.wait_text("2 of 4 hosts do not answer");
    far.wrap("case \"$*\" in *silent*) exec sleep 1000;; *closed*) echo now >&2; exit 255;; esac");
    top.type_keys("/host:closed\r\x1b[H\r");
    top.wait_text("- closed: no answer since ");
    top.wait_text("ssh can't connect: now; trying again");
    // Attempts to connect to the silent host end with the view: dropping `far` checks that.
    leave(top);
}

#[test]
fn r144_top_reconnects_to_one_lost_host_of_several() {
    let (far, near) = Far::pair();
    let (one, two) = (runs(&far.daemon, "one"), runs(&near.daemon, "two"));
    let mut top = view(&far, "far,near", 90);
    top.wait_text(&format!(" far  {} running ", one.short()));
    top.wait_text(&format!(" near {} running ", two.short()));
    let away = far.path("away");
    std::fs::write(&away, "").unwrap();
    far.wrap(&format!("case \"$*\" in *near*) [ -e {} ] && exit 255;; esac", away.display()));
    far.cut_to("near");
    top.wait_text("near does not answer");
    top.wait_text("- near: no answer since ");
    top.wait_text(&format!(" near {} running ", two.short()));
    let more = runs(&far.daemon, "more");
    top.wait_text(&format!(" far  {} running ", more.short()));
    near.daemon.run(&["cancel", &two.to_string()]).success();
    top.type_keys("/two\r\x1b[F");
    top.type_keys("xy");
    top.wait_text("near: there is no daemon to ask");
    std::fs::remove_file(&away).unwrap();
    top.wait_text(&format!(" near {} cancelled ", two.short()));
    top.type_keys("\x1b");
    top.wait_text("nothing needs you | 2 running, 1 done");
    leave(top);
}

#[test]
fn r144_top_keys_act_on_host_of_selected_task() {
    let (far, near) = Far::pair();
    let (one, two) = (runs(&far.daemon, "one"), runs(&near.daemon, "two"));
    let mut top = view(&far, "far,near", 140);
    top.wait_text("nothing needs you | 2 running");
    top.wait_text(&format!(" near {} running ", two.short()));
    for (name, host) in [("one", "far"), ("two", "near")] {
        top.wait_text(&format!(" {name}\n"));
        top.type_keys(format!("/{name}\r\x1b[F"));
        top.wait_text(&format!("{host} {} running {name}\n", if host == "far" { one } else { two }.short()));
        top.wait_text(&format!(" from {name}\n"));
        top.type_keys("o");
        top.wait_text(&format!("from {name}\n<paged>"));
        top.type_line("");
        top.wait_text("F1 help");
        top.type_keys("\r");
        top.wait_text("[Ctrl-B] Detach");
        top.type_keys("\x02");
        top.wait_text("F1 help");
        top.type_keys("\x1b");
    }
    top.wait_text("nothing needs you | 2 running");
    top.type_keys("/two\r\x1b[F:");
    top.wait_text("near:");
    top.type_keys("submit -d typed -- true\r");
    top.wait_text("[press a key to return to bgctl top]");
    top.type_keys(" ");
    top.wait_text("/two (1)");
    top.type_keys(":cancel --all\r");
    top.wait_text("bgctl -H near cancel --all? y/n");
    top.type_keys("n\x1b");
    top.wait_text(" typed");
    // While it runs, it is among those that the next filter shows.
    top.wait_text("nothing needs you | 2 running, 1 done");
    assert_eq!((far.daemon.status().summary.total(), near.daemon.status().summary.total()), (1, 2));
    top.type_keys("/s:running\r\x1b[H\x1b[B  x");
    top.wait_text("cancel 2 tasks on 2 hosts? y/n");
    top.type_keys("y");
    top.wait_text("far: cancelled ");
    top.wait_text("near: cancelled ");
    assert_eq!(
        (far.daemon.task(one).status, near.daemon.task(two).status),
        (Status::Cancelled, Status::Cancelled)
    );
    top.type_keys("\x1b/two\r\x1b[Fr");
    top.wait_text(&format!("near: submitted {} again", two.short()));
    assert_eq!((far.daemon.status().summary.total(), near.daemon.status().summary.total()), (1, 3));
    leave(top);
}

#[test]
fn r144_top_once_has_a_row_for_each_unreachable_host() {
    let (far, near) = Far::pair();
    let (one, two) = (runs(&far.daemon, "one"), runs(&near.daemon, "two"));
    // The ssh call that prints its configuration is not the silent one.
    far.wrap(
        "case \"$*\" in *' -G '*) ;; *silent*) exec sleep 1000;; *gone*) echo 'no route' >&2; exit 255;; esac",
    );
    // The others need some time on a busy machine, and this frame waits for all of it.
    let print = |hosts: &str| far.run(&["-H", hosts, "--connect-timeout", "15s", "top", "--once"]);
    let frame = print("near,silent,gone,far").success();
    let lines: Vec<String> = frame.stdout_text().lines().map(str::to_owned).collect();
    assert_eq!(lines[0], "2 of 4 hosts do not answer | nothing needs you | 2 running");
    assert_eq!(lines[2], "- silent: no answer: no answer within 15000 ms");
    assert_eq!(lines[3], "- gone: no answer: ssh can't connect: no route");
    assert_eq!((&*lines[4], lines.len()), ("- running 2", 7));
    let has = |start: String| lines.iter().any(|line| line.starts_with(&start));
    assert!(has(format!(" far    {} running ", one.short())), "{lines:#?}");
    assert!(has(format!(" near   {} running ", two.short())), "{lines:#?}");
    assert!(frame.stderr.contains("bgctl: gone: ssh can't connect"), "{}", frame.stderr);
    let frame = print("gone,gone2").expect_code(69);
    assert!(frame.stdout_text().contains("- gone2: no answer: "), "{}", frame.stdout_text());
}

#[test]
fn r144_top_search_covers_outputs_of_all_hosts() {
    let (far, near) = Far::pair();
    let submit = |host: &str, name: &str, words: &str| -> TaskId {
        let line = format!("echo {words}; exec sleep 1000");
        far.run(&["-H", host, "submit", "-d", name, "--ready", "line:.", "--shell", &line]).success().word()
    };
    let found = [submit("far", "one", "a needle"), submit("near", "two", "the Needle")];
    let other = submit("near", "other", "nothing");
    for (daemon, id) in [(&far.daemon, found[0]), (&near.daemon, found[1]), (&near.daemon, other)] {
        daemon.run(&["block", "--until", "ready", "--timeout", "none", &id.to_string()]).success();
    }
    let mut top = view(&far, "far,near", 130);
    // Match the title, not the end of an id before the state of its task.
    top.wait_text("nothing needs you | 3 running");
    top.type_keys("?needle\r");
    top.wait_text("?needle (found 2)");
    top.wait("what was found", |screen| {
        let shown = screen.contents();
        found.iter().all(|id| shown.contains(&id.short())) && !shown.contains(&other.short())
    });
    top.type_keys("/host:near\r");
    top.wait_text("(found 2, 1 hidden by the filter)");
    // A lost host is searched once it is back; until then, the results of the others stay.
    let away = far.path("away");
    std::fs::write(&away, "").unwrap();
    far.wrap(&format!("case \"$*\" in *near*) [ -e {} ] && exit 255;; esac", away.display()));
    far.cut_to("near");
    top.wait_text("near does not answer");
    top.type_keys("?the needle\r");
    top.wait_text("?the needle (found 0)");
    std::fs::remove_file(&away).unwrap();
    top.wait_text("?the needle (found 1)");
    top.wait("it answers again", |screen| !screen.contents().contains("does not answer"));
    top.type_keys("\x1b");
    top.wait_text(&other.short());
    leave(top);
}

#[test]
fn r144_top_search_includes_host_that_connects_late() {
    let (far, near) = Far::pair();
    let (one, two) = (runs(&far.daemon, "one"), runs(&near.daemon, "two"));
    let away = far.path("away");
    std::fs::write(&away, "").unwrap();
    far.wrap(&format!("case \"$*\" in *near*) [ -e {} ] && exit 255;; esac", away.display()));
    let mut top = view(&far, "far,near", 130);
    top.wait_text(&format!(" far  {} running ", one.short()));
    top.wait_text("near does not answer");
    top.type_keys("?from\r");
    top.wait_text("?from (found 1)");
    std::fs::remove_file(&away).unwrap();
    top.wait_text("?from (found 2)");
    top.wait_text(&format!(" near {} running ", two.short()));
    leave(top);
}

#[test]
fn r144_top_leaves_pager_even_if_host_has_gone_silent() {
    let far = Far::start();
    let id = runs(&far.daemon, "one");
    let mut command = far.bgctl(&["-H", "far", "--connect-timeout", "10m", "top"]);
    let mut top = Terminal::sized(command.env("PAGER", "echo '<paged>'; read x < /dev/tty"), (20, 130));
    top.wait_text(&format!(" {} running ", id.short()));
    // It sends nothing until its own input ends.
    far.wrap("exec cat > /dev/null");
    top.type_keys("o");
    top.wait_text("<paged>");
    top.type_line("");
    top.wait_text("F1 help");
    leave(top);
}
