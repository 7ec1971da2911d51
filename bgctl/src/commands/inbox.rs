//! `inbox`: prints the notifications that a parent session has not acknowledged (R55).

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use bgd_shared::client::{Client, FIRST_ANSWER};
use bgd_shared::error::ErrorKind;
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
use crate::link::{DaemonWatch, check_reader, is_lost, may_be_older, sleep, time_left};
use crate::remark::say;
use crate::render::clean_lines;
use crate::session;

/// State of reading one inbox.
struct Reading {
    session: String,
    acknowledges: bool,
    /// Number of the last printed item.
    after: u64,
    /// How many more items to print.
    left: usize,
    has_printed: bool,
    /// Whether it reserves each item before it prints it, so that no other such reader prints it, too.
    reserves: bool,
    /// Number of the item that was printed after it was reserved, and whose acknowledgement has failed.
    unacknowledged: Option<u64>,
    /// Number of lost items already reported.
    lost: u64,
    /// Instance of the daemon that holds the inbox.
    instance: String,
}

/// Reports lost items with `--json`.
#[derive(Serialize)]
struct Lost {
    lost: u64,
}

/// Reports a new daemon with `--json`.
#[derive(Serialize)]
struct NewInstance<'a> {
    instance: &'a str,
}

/// Prints pending items and, if requested, later ones.
pub fn run(args: &InboxArgs, context: &mut Context) -> Result<Code, Failure> {
    if args.all_sessions {
        return of_all_sessions(args, context);
    }
    let session = match session::named(args.session.clone(), context.link.is_remote())? {
        Some(named) => named,
        None => session::this(context.link.is_remote())?,
    };
    let mut reading = Reading::new(session, args);
    let first = |client: &mut Client| {
        let instance = client.call::<Hello>(&HelloParams::default())?.instance;
        let params = InboxReadParams { instance: Some(instance.clone()), ..reading.params(0) };
        Ok((instance, client.call::<InboxRead>(&params)?))
    };
    let (instance, page) = context.recovering(|context| context.link.exchange(first))?;
    reading.instance = instance;
    if args.follow {
        return follow(reading, page, context);
    }
    reading.take_all(page, context)?;
    if let Some(wait) = args.wait {
        reading.wait_for_one(wait.0.unwrap_or(DURATION_MS), context)?;
    }
    if reading.has_printed {
        return Ok(Code::OK);
    }
    reading.report_empty(context);
    Ok(if args.wait.is_some() { Code::TIMED_OUT } else { Code::OK })
}

/// Prints the inboxes of all parent sessions, starting with the one that has the oldest item.
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
    all.report_empty(context);
    Ok(Code::OK)
}

/// Prints existing and new items, including those of later daemons.
fn follow(mut reading: Reading, page: InboxReadResult, context: &mut Context) -> Result<Code, Failure> {
    let mut page = Ok(page);
    loop {
        let taken = page.and_then(|page| reading.take_all(page, context));
        if reading.left == 0 {
            return taken.map(|()| Code::OK);
        }
        let wait_ms = match taken {
            Ok(()) => DURATION_MS,
            Err(failure) => {
                match context.link.recover(failure.clone()) {
                    Ok(()) => {
                        let hello = context.call::<Hello>(&HelloParams::default());
                        // The connection may break again at once.
                        match hello {
                            Err(failure) if is_lost(&failure) => {}
                            hello => reading.adopt(hello?.instance, context.json()),
                        }
                    }
                    Err(_) if !context.link.is_remote() && RECONNECTS.contains(&failure.kind) => {
                        reading.reconnect(context)?;
                    }
                    Err(failure) => return Err(failure),
                }
                0
            }
        };
        // A slow answer is no reason to drop a connection that others share.
        page = reading.wait(wait_ms, None, context);
    }
}

/// Returns the number of milliseconds until then.
fn left_until(until: Option<Instant>) -> u64 {
    until.map_or(DURATION_MS, |until| u64::try_from(time_left(until).as_millis()).unwrap_or(DURATION_MS))
}

/// The pause before another attempt to connect to a daemon that has too many connections.
const FULL: Duration = Duration::from_millis(500);

/// Failure kinds that mean the daemon is about to end or has ended, or that it had no room for a new connection.
const RECONNECTS: [&str; 3] = ["shutting_down", "connection_lost", "too_many_connections"];

impl Reading {
    fn new(session: String, args: &InboxArgs) -> Self {
        Self {
            session,
            acknowledges: args.ack,
            after: 0,
            // `--wait` prints one item, the one that ended the wait; the next call returns the rest.
            left: args.limit.map_or(if args.wait.is_some() { 1 } else { usize::MAX }, usize::from),
            has_printed: false,
            reserves: args.ack,
            unacknowledged: None,
            lost: 0,
            instance: String::new(),
        }
    }

    fn report_empty(&self, context: &Context) {
        if !self.has_printed && !context.json() && io::stdout().is_terminal() {
            say(format_args!("nothing new"));
        }
    }

    /// Waits for a daemon, then continues after the last item if it is the same one, or from the beginning if it is
    /// new.
    fn reconnect(&mut self, context: &mut Context) -> Result<(), Failure> {
        // A daemon that is shutting down accepts no calls but may take a while to exit.
        context.link.client()?.until_closed()?;
        let daemon_watch = DaemonWatch::new(context.link.socket()?)?;
        let (mut is_announced, mut is_full) = (false, false);
        let instance = loop {
            // A full daemon may still greet.
            let page = InboxReadParams { after: None, instance: None, limit: Some(1), ..self.params(0) };
            let read = |client: &mut Client| {
                let hello = client.call::<Hello>(&HelloParams::default())?;
                client.call::<InboxRead>(&page).map(|_| hello)
            };
            match context.link.exchange_again(read) {
                Ok(Some(hello)) => break hello.instance,
                Ok(None) => {}
                Err(failure) if failure.kind == ErrorKind::ShuttingDown.as_str() => {
                    // Its socket may be that of a service manager, which the next one takes over.
                    context.link.await_end()?;
                    continue;
                }
                Err(failure) if failure.kind == ErrorKind::TooManyConnections.as_str() => {
                    if !std::mem::replace(&mut is_full, true) && !context.json() {
                        say(format_args!("bgctl: {}; trying again until it has room", failure.message));
                    }
                    sleep([], Some(Instant::now() + FULL))?;
                    continue;
                }
                Err(failure) => return Err(failure),
            }
            if !is_announced && !context.json() {
                say(format_args!("bgctl: the daemon has ended; waiting for the next one"));
                is_announced = true;
            }
            daemon_watch.wait()?;
        };
        self.adopt(instance, context.json());
        Ok(())
    }

    /// Continues with this daemon. If it is a new one, reports that and starts from its first item.
    fn adopt(&mut self, instance: String, json: bool) {
        if instance != self.instance {
            let text = if json {
                serde_json::to_string(&NewInstance { instance: &instance }).unwrap_or_default()
            } else {
                "bgctl: the daemon was restarted; unacknowledged notifications are lost".to_owned()
            };
            say(format_args!("{text}"));
            (self.instance, self.after, self.lost, self.unacknowledged) = (instance, 0, 0, None);
        }
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

    /// Waits for an item as long as standard output has a reader. The answer is late after `takes`; `None` for the usual
    /// patience with a silent daemon.
    fn wait(
        &self,
        wait_ms: u64,
        takes: Option<Duration>,
        context: &mut Context,
    ) -> Result<InboxReadResult, Failure> {
        let call = context.link.client()?.send_within::<InboxRead>(&self.params(wait_ms), takes)?;
        let due = takes.map(|takes| Instant::now() + takes + FIRST_ANSWER / 2);
        context.link.wait(due)?;
        Ok(context.link.client()?.answer::<InboxRead>(call)?)
    }

    /// Waits for an item and prints it, until there is one that no other reader has got, or the time is over. Of two
    /// readers that wait for the same two ends, each prints one.
    fn wait_for_one(&mut self, wait_ms: u64, context: &mut Context) -> Result<(), Failure> {
        // A wait without a limit stays unlimited.
        let limit = Some(wait_ms).filter(|wait_ms| *wait_ms < DURATION_MS);
        let until = limit.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        let (mut left, mut is_late) = (wait_ms, false);
        while !self.has_printed && !is_late {
            let page = self.wait_on(left, until, context)?;
            left = left_until(until);
            is_late = page.items.is_empty() || left == 0;
            self.take_all(page, context)?;
        }
        Ok(())
    }

    /// Waits for an item, across lost connections.
    fn wait_on(
        &self,
        mut left: u64,
        until: Option<Instant>,
        context: &mut Context,
    ) -> Result<InboxReadResult, Failure> {
        loop {
            match self.wait(left, until.map(|_| Duration::from_millis(left)), context) {
                // The timeout has expired. Reconnecting would only drop a connection that others share.
                Err(failure) if until.is_some_and(|until| until <= Instant::now()) => return Err(failure),
                Err(failure) => context.link.recover_until(failure, until)?,
                page => return page,
            }
            left = left_until(until);
        }
    }

    /// Prints this page and all that follow.
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
        self.report_lost(page.lost, context.json());
        for item in &page.items {
            if self.reserves {
                self.take_reserved(item, context)?;
            } else {
                self.print(item, context)?;
                self.after = item.number;
            }
        }
        if self.reserves || page.items.is_empty() {
            return Ok(());
        }
        // Acknowledging deletes the items, so they must have been written first.
        context.flush()?;
        if self.acknowledges {
            context.call::<InboxAck>(&self.ack(self.after))?;
            self.lost = 0;
        }
        Ok(())
    }

    /// Prints and acknowledges an item, unless another reader has got it. If this process is killed meanwhile, another
    /// one gets it.
    fn take_reserved(&mut self, item: &InboxItem, context: &mut Context) -> Result<(), Failure> {
        let one = InboxAckParams { only: true, ..self.ack(item.number) };
        if self.unacknowledged == Some(item.number) {
            return self.acknowledge_one(&one, context);
        }
        // Without a reader it must reserve nothing: others would not see the item until this connection has ended.
        check_reader()?;
        match context.call::<InboxAck>(&InboxAckParams { reserve: true, ..one.clone() }) {
            Ok(reserved) if reserved.acknowledged == 0 => return Ok(()),
            Ok(_) => {}
            // An older daemon gives it to all readers.
            Err(failure) if may_be_older(&failure) => {
                self.reserves = false;
                self.after = item.number;
                return self.print(item, context);
            }
            Err(failure) => return Err(failure),
        }
        self.print(item, context)?;
        context.flush()?;
        self.unacknowledged = Some(item.number);
        self.acknowledge_one(&one, context)
    }

    fn acknowledge_one(&mut self, one: &InboxAckParams, context: &mut Context) -> Result<(), Failure> {
        context.call::<InboxAck>(one)?;
        (self.lost, self.unacknowledged) = (0, None);
        Ok(())
    }

    /// Returns the params that acknowledge all items up to this one.
    fn ack(&self, upto: u64) -> InboxAckParams {
        let (session, instance) = (self.session.clone(), Some(self.instance.clone()));
        InboxAckParams { session, upto, instance, ..InboxAckParams::default() }
    }

    fn print(&mut self, item: &InboxItem, context: &mut Context) -> Result<(), Failure> {
        if context.json() {
            context.print_json(item)?;
        } else {
            let between = if self.has_printed { "\n" } else { "" };
            context.print(&format!("{between}{}\n", clean_lines(item.notice.text.trim_end())))?;
        }
        self.has_printed = true;
        self.left = self.left.saturating_sub(1);
        Ok(())
    }

    /// Reports how many items were dropped. The daemon keeps counting them until a later item is acknowledged.
    fn report_lost(&mut self, lost: u64, json: bool) {
        let more = lost.saturating_sub(self.lost);
        // If nothing is acknowledged, each new item in a full inbox drops one that was printed: report the loss only
        // once.
        let is_reported = self.lost > 0 && !self.acknowledges;
        self.lost = lost;
        if more == 0 || is_reported {
            return;
        }
        let text = if json {
            serde_json::to_string(&Lost { lost: more }).unwrap_or_default()
        } else {
            let were = if more == 1 { "was".to_owned() } else { format!("{more} were") };
            format!(
                "bgctl: the inbox was full (limits.inbox_items), so the oldest {were} dropped; \
                 `bgctl list` shows the tasks"
            )
        };
        say(format_args!("{text}"));
    }
}
