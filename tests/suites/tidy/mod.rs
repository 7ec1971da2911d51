//! The rules of the architecture as tests. Each rule reads the sources and names the places that break it; exceptions
//! are listed with their rule, with a reason.

mod carried;
mod cycles;
mod guide;
mod names;
mod numbers;
mod source;
mod speech;

use std::collections::BTreeSet;
use std::fs;

use bgd_tests::docs::root;
use syn::visit::{self, Visit};

use self::source::{is_test, source, sources};

/// The maximum number of lines of a file.
const FILE_LINES: usize = 600;

/// The maximum number of lines of a function.
const FUNCTION_LINES: usize = 70;

const PROGRAMS: [&str; 4] = ["shared/src", "bgd/core/src", "bgd/src", "bgctl/src"];
const TESTS: [&str; 6] =
    ["tests/src", "tests/suites", "bgd/core/tests", "bgd/tests", "bgctl/tests", "shared/tests"];

/// The folder of the code that decides.
const CORE: &str = "bgd/core/src";

#[track_caller]
fn none(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}\n", broken.join("\n  "));
}

fn starts_with(path: &[String], prefix: &str) -> bool {
    let prefix: Vec<&str> = prefix.split("::").collect();
    path.len() >= prefix.len() && path.iter().zip(prefix).all(|(name, wanted)| name == wanted)
}

#[test]
fn source_parser_finds_paths_words_and_catch_all_matches() {
    let text = "//! A module.
        use std::{fs, time::Instant as Clock};
        use super::task::{self, State};
        fn f(state: State) {
            match state { State::Queued { .. } => {} _ => nix::unistd::sync() }
            match (state, 1) { (State::Queued { .. }, _) => {} (State::Running, _) => {} }
            match 1 { 1 => {} _ => {} }
        }
        #[cfg(test)] mod tests { use std::net; fn g() { x.unwrap(); rand::random(); } }";
    let source = source("bgd/core/src/machine/facts.rs".to_owned(), text.to_owned());
    let paths: BTreeSet<String> = source.paths().into_iter().map(|(path, _)| path.join("::")).collect();
    for path in ["std::fs", "std::time::Instant", "crate::machine::task::State", "nix::unistd::sync"] {
        assert!(paths.contains(path), "{path} is not in {paths:?}");
    }
    assert!(!paths.contains("std::net") && !paths.contains("rand::random"), "{paths:?}");
    assert!(source.own_words().iter().all(|word| word.text != "unwrap"));
    let mut matches = Matches::default();
    matches.visit_file(&source.syntax());
    assert_eq!(matches.0, [5]);
}

/// Names that would bring I/O, clocks or randomness into code that only decides.
const WORLD: &[&str] = &[
    "tokio",
    "nix",
    "libc",
    "rustix",
    "interprocess",
    "tracing",
    "rand",
    "uuid",
    "tempfile",
    "mio",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::env",
    "std::sync::mpsc",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::Condvar",
    "std::time",
    "bgd_shared::client",
    "bgd_shared::transport",
    "bgd_shared::socket",
    "bgd_shared::fds",
];

#[test]
fn decision_code_uses_no_io_clock_or_randomness() {
    let mut broken = Vec::new();
    for source in sources(&[CORE, "shared/src/foreground"]) {
        for (path, line) in source.paths() {
            let is_world = WORLD.iter().any(|name| starts_with(&path, name));
            // `TaskId::random`, `Timestamp::now`, `Uuid::new_v4` and the like.
            let is_chance =
                path.last().is_some_and(|name| matches!(name.as_str(), "random" | "now" | "new_v4"));
            if is_world || is_chance {
                broken.push(source.at(line, path.join("::")));
            }
        }
        for word in source.own_words() {
            if matches!(word.text.as_str(), "async" | "await" | "Instant" | "SystemTime" | "unsafe") {
                broken.push(source.at(word.line, &word.text));
            }
        }
    }
    none("what only decides is told everything and touches nothing", &broken);
}

/// Matches on the core's enumerations that have a catch-all arm.
#[derive(Default)]
struct Matches(Vec<usize>);

impl<'ast> Visit<'ast> for Matches {
    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        let names_variants = expr.arms.iter().any(|arm| names_a_variant(&arm.pat));
        for arm in &expr.arms {
            // An arm that binds a name without a guard matches everything, as `_` does.
            let takes_all = match &arm.pat {
                syn::Pat::Wild(_) => true,
                syn::Pat::Ident(ident) => {
                    ident.subpat.is_none() && ident.ident.to_string().starts_with(char::is_lowercase)
                }
                _ => false,
            };
            if names_variants && takes_all && arm.guard.is_none() {
                self.0.push(expr.match_token.span.start().line);
            }
        }
        visit::visit_expr_match(self, expr);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
}

/// Reports whether a pattern names a variant by its enumeration, such as `State::Queued { .. }`.
fn names_a_variant(pattern: &syn::Pat) -> bool {
    let is_variant = |path: &syn::Path| path.segments.len() > 1;
    match pattern {
        syn::Pat::Path(path) => is_variant(&path.path),
        syn::Pat::TupleStruct(tuple) => is_variant(&tuple.path),
        syn::Pat::Struct(object) => is_variant(&object.path),
        syn::Pat::Or(or) => or.cases.iter().any(names_a_variant),
        syn::Pat::Tuple(tuple) => tuple.elems.iter().any(names_a_variant),
        syn::Pat::Reference(reference) => names_a_variant(&reference.pat),
        syn::Pat::Paren(paren) => names_a_variant(&paren.pat),
        _ => false,
    }
}

#[test]
fn core_matches_have_no_catch_all_arm() {
    let mut broken = Vec::new();
    for source in sources(&[CORE]) {
        let mut matches = Matches::default();
        matches.visit_file(&source.syntax());
        broken.extend(matches.0.into_iter().map(|line| source.at(line, "has an arm for all the rest")));
    }
    none("every state and every input is named in every match of the core", &broken);
}

/// Folders and files, and the only modules of their crate that they may name. Anything not listed is unrestricted.
const MAY_USE: &[(&str, &[&str])] = &[
    ("shared/src/foreground/", &["foreground", "error", "id", "text"]),
    ("bgd/src/carry/", &["carry", "os"]),
    ("bgd/src/os/", &["os"]),
    ("bgd/src/journal/", &["journal", "core", "os"]),
    ("bgd/src/keeper/", &["keeper", "os"]),
    ("bgd/src/agents.rs", &["features", "os", "remotes"]),
    ("bgd/src/channels", &["channels", "features"]),
    ("bgd/src/features.rs", &[]),
    ("bgd/src/remotes.rs", &["core"]),
    ("bgd/src/http", &["http"]),
    ("bgd/src/notice.rs", &["core"]),
    (
        "bgd/src/notify/",
        &["notify", "carry", "channels", "core", "exec", "features", "http", "notice", "os", "wire"],
    ),
    (
        "bgd/src/exec/",
        &["exec", "carry", "os", "core", "agents", "client", "features", "http", "keeper", "remotes"],
    ),
    ("bgd/src/client/", &["client", "carry"]),
    ("bgd/src/config/", &["config", "core", "os", "agents", "channels", "remotes"]),
    (
        "bgd/src/wire/",
        &[
            "wire", "agents", "carry", "client", "config", "core", "exec", "journal", "notice", "os",
            "remotes",
        ],
    ),
    ("bgctl/src/top/model/", &["top", "render", "state"]),
    (
        "bgctl/src/top/",
        &[
            "top", "duration", "exit", "failure", "link", "options", "progress", "render", "terminal",
            "state", "cli",
        ],
    ),
    (
        "bgctl/src/mcp/",
        &["mcp", "cli", "link", "duration", "exit", "failure", "job", "name", "output", "render", "when"],
    ),
];

/// The only places that name the dispatcher: itself, and the start-up code that creates it.
const DISPATCHER: [&str; 2] = ["bgd/src/dispatcher/", "bgd/src/startup/"];

/// The modules in `bgd/src/os` that may use `unsafe`.
const UNSAFE: [&str; 8] = ["inherited", "limit", "memory", "mirror", "pidfd", "signals", "spawn", "watch"];

/// The packages that the core may depend on. `WORLD` forbids the parts of these and of the standard library that reach
/// the outside world.
const OF_CORE: [&str; 2] = ["bgd-shared", "serde"];

#[test]
fn core_depends_only_on_allowed_packages() {
    let text = fs::read_to_string(root().join("bgd/core/Cargo.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let names: Vec<&String> = manifest["dependencies"].as_table().unwrap().keys().collect();
    assert_eq!(names, OF_CORE);
    assert!(!manifest.contains_key("target") && !manifest.contains_key("build-dependencies"));
}

#[test]
fn imports_follow_the_module_layering() {
    let mut broken = Vec::new();
    for source in sources(&PROGRAMS) {
        let foreign: &[&str] = match source.path.split('/').next() {
            Some("shared") => &["bgd", "bgd_core", "bgctl", "bgd_tests"],
            // By its own name, the core would not be found in `MAY_USE`.
            Some("bgd") if source.path != "bgd/src/lib.rs" => &["bgd_core", "bgctl", "bgd_tests"],
            Some("bgd") => &["bgctl", "bgd_tests"],
            _ => &["bgd", "bgd_core", "bgd_tests"],
        };
        let allowed =
            MAY_USE.iter().find(|(place, _)| source.path.starts_with(place)).map(|(_, modules)| modules);
        // The programs' own `main` refers to their library by its name.
        let is_main = source.path.ends_with("src/main.rs");
        for (path, line) in source.paths() {
            let is_foreign = foreign.iter().any(|name| starts_with(&path, name)) && !is_main;
            let module = path.get(1).filter(|_| path[0] == "crate");
            let is_above = module.is_some_and(|module| {
                allowed.is_some_and(|allowed| !allowed.contains(&module.as_str()))
                    || (module == "dispatcher"
                        && !DISPATCHER.iter().any(|place| source.path.starts_with(place)))
                    || (module == "startup" && !source.path.starts_with("bgd/src/startup/"))
            });
            if is_foreign || is_above {
                broken.push(source.at(line, path.join("::")));
            }
        }
    }
    none(
        "no crate uses one above it; a module uses only what `MAY_USE` lists for it; only start-up uses the dispatcher",
        &broken,
    );
}

#[test]
fn unsafe_code_stays_in_allowed_files() {
    let mut broken = Vec::new();
    let all = sources(&[&PROGRAMS[..], &TESTS[..]].concat());
    let may = |path: &str| UNSAFE.iter().any(|name| path == format!("bgd/src/os/{name}.rs"));
    for source in all.iter().filter(|source| !may(&source.path)) {
        let words = source.words.iter().filter(|word| matches!(word.text.as_str(), "unsafe" | "unsafe_code"));
        broken.extend(words.map(|word| source.at(word.line, &word.text)));
    }
    none("unsafe is only in those files of bgd/src/os", &broken);
}

#[test]
fn every_module_starts_with_a_doc_comment() {
    let broken: Vec<String> = sources(&[&PROGRAMS[..], &TESTS[..]].concat())
        .iter()
        .filter(|source| !source.text.starts_with("//! "))
        .map(|source| source.at(1, "begins without //!"))
        .collect();
    none("a module begins with what it is for", &broken);
}

#[derive(Default)]
struct Functions(Vec<(String, usize, usize)>);

impl Functions {
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let from = signature.fn_token.span.start().line;
        let lines = block.brace_token.span.close().end().line + 1 - from;
        if lines > FUNCTION_LINES {
            self.0.push((signature.ident.to_string(), from, lines));
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

#[test]
fn files_and_functions_stay_within_length_limits() {
    let mut broken = Vec::new();
    for source in sources(&[&PROGRAMS[..], &TESTS[..]].concat()) {
        let lines = source.text.lines().count();
        if lines > FILE_LINES {
            broken.push(source.at(1, format_args!("{lines} lines, at most {FILE_LINES}")));
        }
        let mut functions = Functions::default();
        functions.visit_file(&source.syntax());
        let longer = functions.0.into_iter();
        broken.extend(longer.map(|(name, line, lines)| {
            source.at(line, format_args!("fn {name} has {lines} lines, at most {FUNCTION_LINES}"))
        }));
    }
    none("files and functions stay short", &broken);
}

#[test]
fn versions_are_declared_in_workspace_manifest() {
    let mut broken = Vec::new();
    for member in ["shared", "bgd/core", "bgd", "bgctl", "tests"] {
        let text = fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        for field in ["version", "edition", "rust-version", "license"] {
            if manifest["package"][field].get("workspace").is_none() {
                broken.push(format!("{member}/Cargo.toml: {field} is not the workspace's"));
            }
        }
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let dependencies = manifest.get(kind).and_then(toml::Value::as_table).into_iter().flatten();
            for (name, dependency) in dependencies {
                let fields: BTreeSet<&str> =
                    dependency.as_table().into_iter().flatten().map(|(field, _)| field.as_str()).collect();
                if !fields.contains("workspace") || fields.contains("version") {
                    broken.push(format!("{member}/Cargo.toml: {name} has its version there"));
                }
            }
        }
    }
    none("versions are in the root Cargo.toml", &broken);
}

#[test]
fn programs_use_no_print_macros_or_process_exit() {
    let mut broken = Vec::new();
    for source in sources(&PROGRAMS) {
        let words = source.own_words();
        for (word, next) in words.iter().zip(words.iter().skip(1)) {
            let prints = matches!(word.text.as_str(), "print" | "println" | "eprint" | "eprintln" | "dbg");
            if prints && next.text == "!" {
                broken.push(source.at(word.line, format_args!("{}!", word.text)));
            }
        }
        let exits = source
            .paths()
            .into_iter()
            .filter(|(path, _)| path.ends_with(&["process".to_owned(), "exit".to_owned()]));
        broken.extend(exits.map(|(path, line)| source.at(line, path.join("::"))));
    }
    none("a macro panics where nobody reads, and an exit skips what is still to be done", &broken);
}

#[test]
fn programs_contain_no_unwrap_expect_or_panic() {
    let mut broken = Vec::new();
    for source in sources(&PROGRAMS) {
        let words = source.own_words();
        for three in words.windows(3) {
            let [before, word, after] = three else { continue };
            let is_call =
                matches!(before.text.as_str(), "." | ":") && matches!(after.text.as_str(), "(" | ")" | ",");
            let unwraps =
                is_call && matches!(word.text.as_str(), "unwrap" | "expect" | "unwrap_err" | "expect_err");
            let panics = after.text == "!"
                && matches!(word.text.as_str(), "panic" | "unreachable" | "todo" | "unimplemented");
            if unwraps || panics {
                broken.push(source.at(word.line, &word.text));
            }
        }
    }
    none("what can go wrong has a name", &broken);
}

#[test]
fn sources_contain_no_todo_marks_or_ignored_tests() {
    // Split in two, so that this file does not match.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];
    let mut broken = Vec::new();
    for source in sources(&[&PROGRAMS[..], &TESTS[..]].concat()) {
        for (number, line) in source.text.lines().enumerate() {
            broken.extend(
                marks.iter().filter(|mark| line.contains(**mark)).map(|mark| source.at(number + 1, mark)),
            );
        }
        for three in source.words.windows(3) {
            if three[0].text == "#" && three[1].text == "[" && three[2].text == "ignore" {
                broken.push(source.at(three[2].line, "an ignored test"));
            }
        }
    }
    none("no task is left in a comment, and no test is left out", &broken);
}

#[test]
fn tests_never_sleep_or_spin() {
    let mut broken = Vec::new();
    for source in sources(&[&PROGRAMS[..], &TESTS[..]].concat()) {
        let is_program = PROGRAMS.iter().any(|folder| source.path.starts_with(folder));
        let is_harness = source.path.starts_with("tests/src/");
        // Its clock jumps to the next event.
        let is_simulated = source.path.starts_with("bgd/tests/dispatcher/simulator/");
        let words = source.words.iter().filter(|word| match word.text.as_str() {
            "yield_now" | "spin_loop" => !is_program,
            "sleep" | "sleep_until" => !is_program && !is_harness && !is_simulated,
            _ => false,
        });
        broken.extend(words.map(|word| source.at(word.line, &word.text)));
    }
    none("a test waits for an event, never for a time", &broken);
}

#[test]
fn tests_marked_for_root_or_small_disk_really_need_it() {
    // Whether a test that needs them has such a name is checked when the test runs (tests/src/user.rs).
    let needs = [
        ("_as_root", &["must_be_root", "as_user", "cgroups", "kernel", "slurm", "systemd", "Root"][..]),
        ("full_disk", &["on_a_small_disk", "on_a_small_disk_with", "on_a_small_disk_as"]),
    ];
    let mut broken = Vec::new();
    let mut count = 0;
    for source in sources(&[&PROGRAMS[..], &TESTS[..]].concat()) {
        for two in source.words.windows(2) {
            let (is_function, name) = (two[0].text == "fn", &two[1].text);
            for (_, calls) in needs.iter().filter(|(mark, _)| is_function && name.contains(mark)) {
                let is_harness = source.path == "tests/src/user.rs";
                let has_one = source.words.iter().any(|word| calls.contains(&word.text.as_str()));
                count += usize::from(has_one);
                if !has_one && !is_harness {
                    broken.push(source.at(two[1].line, name));
                }
            }
        }
    }
    assert!(count > 10, "{count}");
    none("tests/run leaves a test out by its name, so that it must need what the name says", &broken);
}

#[test]
fn every_top_level_folder_is_documented() {
    let pages =
        ["README.md", "man/contributing.md"].map(|page| fs::read_to_string(root().join(page)).unwrap());
    let pages = pages.concat();
    let mut broken = Vec::new();
    for entry in fs::read_dir(root()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let is_ours = name == ".ci" || (!name.starts_with('.') && name != "target");
        let is_explained = pages.contains(&format!("`{name}/`")) || pages.contains(&format!("[{name}/]"));
        if entry.path().is_dir() && is_ours && !is_explained {
            broken.push(format!("neither README.md nor man/contributing.md says what `{name}/` is"));
        }
    }
    none("a README shows what is where", &broken);
}
