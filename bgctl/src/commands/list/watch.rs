//! `list --watch`: the table, redrawn in place when events indicate that it may have changed, and as visible ages
//! change (R166). It leaves nothing to clean up: Ctrl-C simply ends the process.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use bgd_shared::event::EventKind;
use bgd_shared::request::{Hello, HelloParams, ListParams, SubscribeParams, TaskList};

use super::shown::Shown;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{Heard, Listener, sleep};
use crate::pages::fetch;
use crate::progress::bar;
use crate::remark::report;
use crate::render::list_format::ListFormat;

/// Minimum interval between two redraws.
const PAUSE: Duration = Duration::from_millis(200);

/// How often visible ages change.
const TICK: Duration = Duration::from_secs(1);

/// Shows the table until the user or the daemon ends it.
pub fn run(asked: &ListParams, shown: &Shown, context: &mut Context) -> Result<Code, Failure> {
    if !io::stdout().is_terminal() || !bar::is_drawable() {
        return Err(Failure::usage("--watch needs a terminal that can move its cursor")
            .hint("`bgctl events` prints what happens, for programs"));
    }
    let mut drawn = 0;
    loop {
        match watched(asked, shown, &mut drawn, context) {
            Err(failure) => {
                context.link.recover(failure)?;
                // The link has reported this below the table; drawing over the old table would erase the report.
                drawn = 0;
            }
            Ok(never) => return Ok(never),
        }
    }
}

/// Shows the table until the connection is lost.
fn watched(
    asked: &ListParams,
    shown: &Shown,
    drawn: &mut usize,
    context: &mut Context,
) -> Result<Code, Failure> {
    // Make sure that this daemon is not shutting down before opening another connection to it.
    context.call::<Hello>(&HelloParams::default())?;
    let params = SubscribeParams { session: asked.session.clone(), ..SubscribeParams::default() };
    let mut news = Listener::new(context.link.existing()?, params)?;
    loop {
        let mut format = ListFormat::of_output(context.colours());
        let rows = rows();
        let wanted = shown.most.min(rows.saturating_sub(2).max(1));
        let mut result = fetch(asked, wanted, |params| context.call::<TaskList>(params))?;
        let table = shown.drawn(&mut result.tasks, &mut format, context)?;
        if let Some(remark) = table.remark().filter(|_| *drawn == 0) {
            // Above the table, once: below it would be drawn over.
            report(&remark);
        }
        let text = if result.tasks.is_empty() { "no tasks\n".to_owned() } else { table.text };
        draw(&text, rows, drawn)?;
        let drawn_at = Instant::now();
        let has_ages = !result.tasks.is_empty();
        loop {
            let [has_news] =
                sleep([Some(std::os::fd::AsFd::as_fd(&news))], has_ages.then(|| drawn_at + TICK))?;
            if !has_news || heard_change(&mut news)? {
                break;
            }
        }
        // A burst of events causes only one redraw.
        let mut until = drawn_at + PAUSE;
        while Instant::now() < until {
            let [has_news] = sleep([Some(std::os::fd::AsFd::as_fd(&news))], Some(until))?;
            if has_news {
                heard_change(&mut news)?;
            } else {
                until = Instant::now();
            }
        }
    }
}

/// Consumes the events that have arrived. Returns whether any of them changes a list.
fn heard_change(news: &mut Listener) -> Result<bool, Failure> {
    let is_change = |heard: &Heard| match heard {
        Heard::Event(event) => event.kind != EventKind::Output,
        Heard::Gap => true,
    };
    Ok(news.heard()?.iter().any(is_change))
}

/// Returns the number of rows of the terminal.
pub fn rows() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0).unwrap_or(24)
}

/// Draws a text in place of the previous one, which took `drawn` rows.
///
/// # Errors
/// The reader of standard output is gone.
pub fn draw(text: &str, rows: usize, drawn: &mut usize) -> Result<(), Failure> {
    let up = (*drawn).min(rows.saturating_sub(1));
    *drawn = text.lines().count();
    let mut out = io::stdout().lock();
    out.write_all(over(text, up).as_bytes()).and_then(|()| out.flush())?;
    Ok(())
}

/// Returns the bytes that write a text over the last `up` rows. Each line is erased by itself, and only the rest of the
/// screen at once: tmux would keep a screen that is erased from its beginning in its history, at every redraw. A line is
/// erased before it is written, as one that fills the row leaves the cursor on its last character.
fn over(text: &str, up: usize) -> String {
    if up == 0 {
        return text.to_owned();
    }
    let lines = text.split_inclusive('\n').flat_map(|line| ["\x1b[K", line]);
    format!("\x1b[{up}F{}\x1b[J", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r166_redraw_erases_line_by_line() {
        assert_eq!(over("a\nb\n", 0), "a\nb\n");
        assert_eq!(over("a\nb\n", 3), "\x1b[3F\x1b[Ka\n\x1b[Kb\n\x1b[J");
        assert_eq!(over("", 3), "\x1b[3F\x1b[J");
    }
}
