//! `inbox`: what a parent session was told and has not acknowledged (R55).

use std::io::{IsTerminal as _, Write as _};

use bgd_shared::limits::{DURATION_MS, INBOX_PAGE_DEFAULT};
use bgd_shared::notice::InboxItem;
use bgd_shared::request::{InboxAck, InboxAckParams, InboxRead, InboxReadParams, InboxReadResult};
use serde::Serialize;

use crate::cli::InboxArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::clean_lines;
use crate::session;

/// One reading of an inbox.
struct Reading {
    session: String,
    acknowledges: bool,
    /// The number of the last item that was printed.
    after: u64,
    /// How many more may be printed.
    left: usize,
    has_printed: bool,
    /// How many lost items were told of.
    lost: u64,
}

/// What is said of lost items with `--json`.
#[derive(Serialize)]
struct Lost {
    lost: u64,
}

/// Prints what is there, and what comes if that is wanted.
pub fn run(args: InboxArgs, context: &mut Context) -> Result<Code, Failure> {
    let session = match session::named(args.session)? {
        Some(named) => named,
        None => session::this()?,
    };
    let mut reading = Reading {
        session,
        acknowledges: args.ack,
        after: 0,
        left: args.limit.map_or(usize::MAX, usize::from),
        has_printed: false,
        lost: 0,
    };
    let result = context.call::<InboxRead>(&reading.params(0))?;
    reading.take_all(result, context)?;
    let wait_ms = match args.wait {
        _ if args.follow => Some(DURATION_MS),
        Some(_) if reading.has_printed => None,
        Some(wait) => Some(wait.0.unwrap_or(DURATION_MS)),
        None => None,
    };
    while let Some(wait_ms) = wait_ms.filter(|_| reading.left > 0) {
        let result = reading.wait(wait_ms, context)?;
        reading.take_all(result, context)?;
        if !args.follow {
            break;
        }
    }
    if reading.has_printed {
        return Ok(Code::OK);
    }
    if !context.json() && std::io::stdout().is_terminal() {
        let _ = writeln!(std::io::stderr(), "nothing new");
    }
    Ok(if args.wait.is_some() { Code::TIMED_OUT } else { Code::OK })
}

impl Reading {
    fn params(&self, wait_ms: u64) -> InboxReadParams {
        InboxReadParams {
            session: self.session.clone(),
            after: Some(self.after),
            wait_ms: Some(wait_ms),
            limit: Some(self.left.min(INBOX_PAGE_DEFAULT)),
            // All of it goes over one connection, so it is one daemon.
            instance: None,
        }
    }

    /// Waits for an item, as long as somebody reads what is printed.
    fn wait(&self, wait_ms: u64, context: &mut Context) -> Result<InboxReadResult, Failure> {
        let call = context.client()?.send::<InboxRead>(&self.params(wait_ms), &[])?;
        context.wait()?;
        Ok(context.client()?.answer::<InboxRead>(call)?)
    }

    /// Takes this page and those behind it.
    fn take_all(&mut self, mut page: InboxReadResult, context: &mut Context) -> Result<(), Failure> {
        loop {
            self.take(&page, context)?;
            if !page.more || self.left == 0 {
                return Ok(());
            }
            page = context.call::<InboxRead>(&self.params(0))?;
        }
    }

    fn take(&mut self, page: &InboxReadResult, context: &mut Context) -> Result<(), Failure> {
        self.tell_lost(page.lost, context.json());
        for item in &page.items {
            self.print(item, context)?;
        }
        let Some(last) = page.items.last() else { return Ok(()) };
        self.after = last.number;
        self.left = self.left.saturating_sub(page.items.len());
        // What is acknowledged is gone: first it must have been written.
        context.flush()?;
        if self.acknowledges {
            let params = InboxAckParams { session: self.session.clone(), upto: self.after, instance: None };
            context.call::<InboxAck>(&params)?;
            self.lost = 0;
        }
        Ok(())
    }

    fn print(&mut self, item: &InboxItem, context: &mut Context) -> Result<(), Failure> {
        if context.json() {
            context.print_json(item)?;
        } else {
            let between = if self.has_printed { "\n" } else { "" };
            context.print(&format!("{between}{}\n", clean_lines(item.notice.text.trim_end())))?;
        }
        self.has_printed = true;
        Ok(())
    }

    /// Says how many items are not there any more. The daemon counts them until an item behind them is
    /// acknowledged.
    fn tell_lost(&mut self, lost: u64, json: bool) {
        let more = lost.saturating_sub(self.lost);
        // Where nothing is acknowledged every item that comes drops one of those that were printed.
        let is_told = self.lost > 0 && !self.acknowledges;
        self.lost = lost;
        if more == 0 || is_told {
            return;
        }
        let text = if json {
            serde_json::to_string(&Lost { lost: more }).unwrap_or_default()
        } else {
            format!(
                "bgctl: the {more} oldest were dropped, as the inbox was full (limits.inbox_items); \
                 `bgctl list` shows the tasks"
            )
        };
        // Standard error may be closed; the items are what counts.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}
