//! `man`: prints a manual page, or installs all of them where `man` finds them. Pages that a package has installed
//! outside of the user's home are left alone.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::{Command, Stdio};

use super::removed;
use crate::cli::ManArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::files::{self, IsOurs};
use crate::manual::{self, INSTALL, PAGES, Page, UNINSTALL};

/// Prints, installs or removes pages.
pub fn run(args: &ManArgs, context: &mut Context) -> Result<Code, Failure> {
    match &*args.what {
        INSTALL => install(context),
        UNINSTALL => uninstall(context),
        name => {
            let page = PAGES.iter().find(|page| page.name == name);
            let page = page.ok_or_else(|| Failure::usage(format!("there is no manual page {name}")))?;
            if !(io::stdout().is_terminal() && show(page.text)) {
                context.print(page.text)?;
            }
            Ok(Code::OK)
        }
    }
}

/// Shows a page on the terminal with `man`. Returns false if no `man` can do that: some do not support `-l`, and print
/// their usage instead.
fn show(text: &str) -> bool {
    let Ok(mut man) = Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn() else {
        return false;
    };
    if let Some(mut stdin) = man.stdin.take() {
        // The user may leave before `man` has read everything.
        let _ = stdin.write_all(text.as_bytes());
    }
    man.wait().is_ok_and(|status| status.success())
}

fn install(context: &mut Context) -> Result<Code, Failure> {
    let folder = folder()?;
    // Write nothing if one of the files exists and is not from bgctl.
    for page in PAGES {
        files::may_replace(&page.file(&folder), |old| page.is_version(old))?;
    }
    for page in PAGES {
        let path = page.file(&folder);
        files::replace(&path, page.text.as_bytes())
            .map_err(|error| Failure::io(format!("can't write {}", path.display()), &error))?;
    }
    if context.json() {
        let pages: Vec<_> = PAGES.iter().map(|page| page.name).collect();
        context.print_json(&serde_json::json!({"folder": folder, "pages": pages}))?;
        return Ok(Code::OK);
    }
    context.print(&format!("installed {} pages in {}\n", PAGES.len(), folder.display()))?;
    if !is_searched(&folder) {
        context.print(&format!(
            "add this to the start-up file of your shell, as `man` does not look there:\n  {}\n",
            manual::line_for(&folder)
        ))?;
    }
    Ok(Code::OK)
}

fn uninstall(context: &mut Context) -> Result<Code, Failure> {
    let folder = folder()?;
    let is_page = |page: &'static Page| Box::new(|text: &[u8]| page.is_version(text)) as IsOurs<'static>;
    let pages = PAGES.iter().map(|page| (page.file(&folder), is_page(page)));
    removed::report(&files::remove_all(pages.collect())?, context)
}

fn folder() -> Result<std::path::PathBuf, Failure> {
    manual::folder(std::env::current_exe().ok().as_deref())
        .ok_or_else(|| Failure::usage("$HOME is not set").hint("set $HOME, or print the pages instead"))
}

/// Reports whether `man` searches the folder, because the `bin` folder beside it is in the user's `PATH`, or because
/// `MANPATH` names it.
fn is_searched(folder: &std::path::Path) -> bool {
    let bin = folder.parent().and_then(std::path::Path::parent).map(|prefix| prefix.join("bin"));
    let has = |variable: &str, wanted: &std::path::Path| {
        let value = std::env::var_os(variable).unwrap_or_default();
        std::env::split_paths(&value).any(|path| path == wanted)
    };
    has("MANPATH", folder) || bin.is_some_and(|bin| has("PATH", &bin))
}
