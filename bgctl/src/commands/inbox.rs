//! `inbox`: what a parent session was told and has not acknowledged (R55).

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use bgd_shared::client::{Client, FIRST_ANSWER};
use bgd_shared::limits::{DURATION_MS, INBOX_PAGE_DEFAULT};
use bgd_shared::notice::InboxItem;
use bgd_shared::request::{
    Hello, HelloParams, InboxAck, InboxAckParams, InboxList, InboxListParams, InboxRead, InboxReadParams,
    InboxReadResult,
};
use serde::Serialize;

use crate::cli::InboxArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::Coming;
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
    /// The daemon that it is of.
    instance: String,
}

/// What is said of lost items with `--json`.
#[derive(Serialize)]
struct Lost {
    lost: u64,
}

/// What is said of another daemon with `--json`.
#[derive(Serialize)]
struct Anew<'a> {
    instance: &'a str,
}

/// Prints what is there, and what comes if that is wanted.
pub fn run(args: &InboxArgs, context: &mut Context) -> Result<Code, Failure> {
    if args.all_sessions {
        return of_all_sessions(args, context);
    }
    let session = match session::named(args.session.clone())? {
        Some(named) => named,
        None => session::this()?,
    };
    let mut reading = Reading::new(session, args);
    let (instance, page) = context.link.exchange(|client| {
        let instance = client.call::<Hello>(&HelloParams::default())?.instance;
        Ok((
            instance.clone(),
            client.call::<InboxRead>(&InboxReadParams { instance: Some(instance), ..reading.params(0) })?,
        ))
    })?;
    reading.instance = instance;
    if args.follow {
        return follow(reading, page, context);
    }
    reading.take_all(page, context)?;
    if let Some(wait) = args.wait.filter(|_| !reading.has_printed) {
        let result = reading.wait(wait.0.unwrap_or(DURATION_MS), context)?;
        reading.take_all(result, context)?;
    }
    if reading.has_printed {
        return Ok(Code::OK);
    }
    reading.tell_if_nothing(context);
    Ok(if args.wait.is_some() { Code::TIMED_OUT } else { Code::OK })
}

/// Prints what is there for each parent session, the one with the oldest notice first.
fn of_all_sessions(args: &InboxArgs, context: &mut Context) -> Result<Code, Failure> {
    let mut all = Reading::new(String::new(), args);
    let mut params = InboxListParams::default();
    loop {
        let page = context.call::<InboxList>(&params)?;
        all.instance.clone_from(&page.instance);
        for inbox in page.inboxes {
            params.after = Some(inbox.oldest);
            if all.left == 0 {
                return Ok(Code::OK);
            }
            (all.session, all.after, all.lost) = (inbox.session, 0, 0);
            let first = context.call::<InboxRead>(&all.params(0))?;
            all.take_all(first, context)?;
        }
        if !page.more {
            break;
        }
    }
    all.tell_if_nothing(context);
    Ok(Code::OK)
}

/// Prints what is there and what comes, also from the daemons after this one.
fn follow(mut reading: Reading, page: InboxReadResult, context: &mut Context) -> Result<Code, Failure> {
    let mut page = Ok(page);
    loop {
        let taken = page.and_then(|page| reading.take_all(page, context));
        if reading.left == 0 {
            return taken.map(|()| Code::OK);
        }
        let wait_ms = match taken {
            Ok(()) => DURATION_MS,
            Err(failure) if ENDS.contains(&failure.kind) => {
                reading.go_on(context)?;
                0
            }
            Err(failure) => return Err(failure),
        };
        page = reading.wait(wait_ms, context);
    }
}

/// What is said when the daemon ends: that it is about to, and that it has.
const ENDS: [&str; 2] = ["shutting_down", "connection_lost"];

impl Reading {
    fn new(session: String, args: &InboxArgs) -> Self {
        Self {
            session,
            acknowledges: args.ack,
            after: 0,
            // Whoever waits for an end is given one: it is what woke them, and the rest comes with the next call.
            left: args.limit.map_or(if args.wait.is_some() { 1 } else { usize::MAX }, usize::from),
            has_printed: false,
            lost: 0,
            instance: String::new(),
        }
    }

    fn tell_if_nothing(&self, context: &Context) {
        if !self.has_printed && !context.json() && io::stdout().is_terminal() {
            let _ = writeln!(io::stderr(), "nothing new");
        }
    }

    /// Goes on behind the last item with the same daemon, or from the beginning with the next one, which is
    /// waited for.
    fn go_on(&mut self, context: &mut Context) -> Result<(), Failure> {
        // One that is about to end takes no more calls, but may end late.
        context.link.client()?.until_closed()?;
        let coming = Coming::new(context.link.socket()?)?;
        let mut is_told = false;
        let instance = loop {
            let hello = |client: &mut Client| client.call::<Hello>(&HelloParams::default());
            match context.link.exchange_again(hello) {
                Ok(Some(hello)) => break hello.instance,
                Ok(None) => {}
                Err(failure) if ENDS.contains(&failure.kind) => {}
                Err(failure) => return Err(failure),
            }
            if !is_told && !context.json() {
                let _ = writeln!(io::stderr(), "bgctl: the daemon has ended; waiting for the next one");
                is_told = true;
            }
            coming.wait()?;
        };
        if instance != self.instance {
            let text = if context.json() {
                serde_json::to_string(&Anew { instance: &instance }).unwrap_or_default()
            } else {
                "bgctl: the daemon was restarted; unacknowledged notifications are lost".to_owned()
            };
            let _ = writeln!(io::stderr(), "{text}");
            (self.instance, self.after, self.lost) = (instance, 0, 0);
        }
        Ok(())
    }

    fn params(&self, wait_ms: u64) -> InboxReadParams {
        InboxReadParams {
            session: self.session.clone(),
            after: Some(self.after),
            wait_ms: Some(wait_ms),
            limit: Some(self.left.min(INBOX_PAGE_DEFAULT)),
            instance: Some(self.instance.clone()),
        }
    }

    /// Waits for an item, as long as somebody reads what is printed.
    fn wait(&self, wait_ms: u64, context: &mut Context) -> Result<InboxReadResult, Failure> {
        let call = context.link.client()?.send::<InboxRead>(&self.params(wait_ms), &[])?;
        let due = (wait_ms < DURATION_MS)
            .then(|| Instant::now() + Duration::from_millis(wait_ms) + FIRST_ANSWER / 2);
        context.link.wait(due)?;
        Ok(context.link.client()?.answer::<InboxRead>(call)?)
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
            let instance = Some(self.instance.clone());
            let params = InboxAckParams { session: self.session.clone(), upto: self.after, instance };
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
                "bgctl: the inbox was full (limits.inbox_items), so the oldest {more} were dropped; \
                 `bgctl list` shows the tasks"
            )
        };
        // Standard error may be closed; the items are what counts.
        let _ = writeln!(io::stderr(), "{text}");
    }
}
