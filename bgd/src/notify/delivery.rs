//! The workers. Each takes the notices of one channel in order, reads the result, and delivers the notice.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use bgd_shared::notice::Notice as Wire;
use futures_util::future::FutureExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::adapter::{Adapter, Notification};
use super::chats::Chats;
use super::desktop::Desktop;
use super::exec::Exec;
use super::orders::{
    Before, ChannelEvent, Freeze, Frozen, Order, ReadState, Served, ThreadOrder, TypingOrder,
};
use super::outcomes::{GIVEN_UP, Outcomes, PendingReport};
use super::progress::Progress;
use super::tty::Terminals;
use super::typing::Typing;
use super::undelivered::Undelivered;
use crate::carry::{CarriedFds, Obstacle};
use crate::channels::ChannelKind;
use crate::core::{Notice, Outcome, StopReason};
use crate::exec::context::Context;
use crate::wire::mailbox::{Internal, Internals};
use crate::wire::reader;

/// Serves channels until no more are added and every queue is empty.
pub(super) async fn serve_all(
    mut orders: mpsc::UnboundedReceiver<ThreadOrder>,
    context: Context,
    internals: Internals,
) {
    let chats = Rc::new(Chats::default());
    let mut tasks = JoinSet::new();
    let mut workers: Vec<Weak<Worker>> = Vec::new();
    loop {
        tokio::select! {
            next = orders.recv() => match next {
                Some(ThreadOrder::Serve(served)) => {
                    workers.retain(|worker| worker.strong_count() > 0);
                    if let Some((worker, receivers)) = begin(*served, &chats, &context, &internals) {
                        workers.push(Rc::downgrade(&worker));
                        tasks.spawn_local(serve(worker, receivers, context.clone()));
                    }
                }
                Some(ThreadOrder::Freeze(freeze)) => stand_still(&workers, freeze),
                None => break,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Creates the worker of a channel; `None` for the inbox, which needs none.
fn begin(
    served: Served,
    chats: &Chats,
    context: &Context,
    internals: &Internals,
) -> Option<(Rc<Worker>, Receivers)> {
    let Served { channel, before, holds, gone, orders, typing, events, counts } = served;
    let (log, internals) = (RefCell::default(), internals.clone());
    let outcomes = Rc::new(Outcomes { channel, counts, log, internals, holds, gone });
    let adapter = adapter(&outcomes, chats, context)?;
    before.inspect(|state| adapter.resume(state));
    Some((Rc::new(Worker { outcomes, adapter, current: RefCell::default() }), (orders, typing, events)))
}

/// Sends the state, then blocks the whole thread until it is released.
fn stand_still(workers: &[Weak<Worker>], freeze: Freeze) {
    let mut named = CarriedFds::default();
    let frozen = workers.iter().filter_map(Weak::upgrade).map(|worker| worker.frozen(&freeze, &mut named));
    let frozen = frozen.collect::<Result<Vec<_>, _>>();
    freeze.order.report(frozen.map(|frozen| (frozen, named)));
}

struct Worker {
    outcomes: Rc<Outcomes>,
    adapter: Rc<dyn Adapter>,
    /// The notice being delivered.
    current: RefCell<Option<Current>>,
}

/// A notice being delivered.
struct Current {
    number: u64,
    progress: Rc<Progress>,
    /// The notice, once its result has been read.
    notification: Option<Rc<Notification>>,
}

impl Worker {
    fn frozen(&self, freeze: &Freeze, named: &mut CarriedFds) -> Result<Frozen, Obstacle> {
        let channel = &self.outcomes.channel;
        // Another type understands neither its command nor its state.
        let keeps_type = freeze.channels.has_type(&channel.name, &channel.kind);
        let current = match &*self.current.borrow() {
            None => None,
            Some(Current { number, progress, notification }) => {
                let read = notification.as_ref().map(|notification| ReadState {
                    notice: Box::new(notification.notice.clone()),
                    is_removed: notification.is_removed,
                });
                Some((*number, read, progress.state(freeze.waits, keeps_type, named)?))
            }
        };
        let adapter = if keeps_type { self.adapter.state() } else { None };
        Ok(Frozen { channel: Arc::clone(&channel.name), current, adapter })
    }

    async fn deliver(&self, order: Order, context: &Context) {
        let Order { notice, before: Before { tried, read: read_before, left } } = order;
        let number = notice.number;
        let progress = Rc::new(Progress::new(&self.outcomes, number, tried, left));
        let pending = Rc::new(Cell::new(Some(PendingReport::new(&self.outcomes, number))));
        let notification = |notice: Wire, place, is_removed| {
            Rc::new(Notification {
                notice,
                place,
                is_removed,
                progress: Rc::clone(&progress),
                pending: Rc::clone(&pending),
            })
        };
        let place = notice.task.spec.place.clone();
        let read_before = read_before.map(|read| notification(*read.notice, place.clone(), read.is_removed));
        let current = Current { number, progress: Rc::clone(&progress), notification: read_before.clone() };
        self.current.replace(Some(current));
        let delivered = async {
            let notification = if let Some(notification) = read_before {
                notification
            } else {
                if !self.outcomes.may_begin().await {
                    return Err(Undelivered(GIVEN_UP.to_owned()));
                }
                let (notice, is_removed) = read(notice, context, &self.outcomes.internals).await?;
                notification(notice, place, is_removed)
            };
            if let Some(current) = &mut *self.current.borrow_mut() {
                current.notification = Some(Rc::clone(&notification));
            }
            self.adapter.notify(&notification).await
        };
        let delivered = async {
            tokio::select! {
                biased;
                outcome = delivered => outcome,
                // Dropping the delivery ends its command.
                () = self.outcomes.until_in_the_way() => Err(Undelivered(GIVEN_UP.to_owned())),
            }
        };
        settle(&pending, delivered).await;
        self.current.replace(None);
    }
}

/// What a worker receives: notices, agent turns to show as typing, and other events.
type Receivers = (
    mpsc::UnboundedReceiver<Order>,
    mpsc::UnboundedReceiver<TypingOrder>,
    mpsc::UnboundedReceiver<ChannelEvent>,
);

/// Serves one channel until the senders of notices and of typing are gone, and its notices are delivered.
async fn serve(worker: Rc<Worker>, (mut orders, mut typing, mut events): Receivers, context: Context) {
    let mut shown = Typing::new(Rc::clone(&worker.adapter));
    // Typing is independent of notices: neither waits for the other.
    let show = async {
        while let Some((session, stopped)) = typing.recv().await {
            shown.begin(session.as_deref(), stopped);
        }
    };
    let deliver = async {
        while let Some(order) = orders.recv().await {
            worker.deliver(order, &context).await;
        }
        worker.adapter.finish().await;
    };
    let pass_events = async {
        let mut successors = Vec::new();
        while let Some(event) = events.recv().await {
            if let ChannelEvent::Forgotten(_) | ChannelEvent::Ended(_) | ChannelEvent::Reported(..) = &event {
                // What was left may still be on its way, so that nobody knows yet that they have it.
                successors
                    .retain(|successor: &mpsc::UnboundedSender<_>| successor.send(event.clone()).is_ok());
            }
            match event {
                ChannelEvent::Visited(leader) => worker.adapter.visited(leader),
                ChannelEvent::Awaited(terminal, submitter) => worker.adapter.awaits(&terminal, submitter),
                ChannelEvent::Forgotten(task) => worker.adapter.forget(task),
                ChannelEvent::Ended(task) => worker.adapter.ended(task),
                ChannelEvent::Reported(leader, task) => worker.adapter.reported(leader, task),
                ChannelEvent::LeftTo(successor) => {
                    successors.push(successor.clone());
                    worker.adapter.leave_to(Box::new(move |left| {
                        if successor.send(ChannelEvent::Inherited(left)).is_err() {
                            tracing::error!("missed notices are lost: nothing is serving their channel");
                        }
                    }));
                }
                ChannelEvent::Inherited(left) => worker.adapter.inherit(&left),
            }
        }
    };
    tokio::select! {
        // An event that was sent before the end of its channel must not be missed.
        biased;
        never = async { (pass_events.await, std::future::pending::<Infallible>().await).1 } => match never {},
        _ = async { tokio::join!(show, deliver) } => {}
    }
}

/// Delivers a notice and reports the outcome, even if the delivery panics.
async fn settle(
    pending: &Cell<Option<PendingReport>>,
    delivered: impl Future<Output = Result<(), Undelivered>>,
) {
    let outcome = AssertUnwindSafe(delivered).catch_unwind().await;
    // An adapter that holds the notice has taken `pending` and reports the outcome itself.
    if let Some(pending) = pending.take()
        && let Ok(outcome) = outcome
    {
        pending.report(outcome);
    }
}

/// Reads the result for a notice. Returns the notice as it is sent, and whether its task has been removed.
async fn read(
    notice: Arc<Notice>,
    context: &Context,
    internals: &Internals,
) -> Result<(Wire, bool), Undelivered> {
    let folder = Arc::clone(&context.folder);
    let number = notice.number;
    let outcome = notice.task.finished().map(|finished| &finished.outcome);
    // Tasks that the daemon stops at its own shutdown are removed with it.
    let is_removed = notice.is_removed || outcome == Some(&Outcome::Cancelled(StopReason::Shutdown));
    let notice = reader::read_notice(notice, folder, &context.workers).await;
    internals.send(Internal::NoticeRead { number });
    let notice = notice.ok_or_else(|| Undelivered("its result can't be read".to_owned()))?;
    Ok((notice, is_removed))
}

/// Creates the adapter of a channel; `None` for the inbox, which gets its items from the core and has no queue.
fn adapter(outcomes: &Rc<Outcomes>, chats: &Chats, context: &Context) -> Option<Rc<dyn Adapter>> {
    Some(match &outcomes.channel.kind {
        ChannelKind::Exec { command, env, timeout } => Rc::new(Exec::new(command, env, *timeout, context)),
        ChannelKind::Webhook { .. } | ChannelKind::Chat(..) => return chats.adapter(outcomes),
        ChannelKind::Desktop => Rc::new(Desktop::default()),
        ChannelKind::Tty => Rc::new(Terminals::new(Rc::clone(outcomes))),
        ChannelKind::Inbox => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::counts::Counts;
    use super::*;
    use crate::wire::mailbox;

    #[test]
    fn adapter_panic_counts_as_failure_and_next_notice_is_delivered() {
        let counts = Arc::new(Counts::default());
        let (_, _, internals, _mailbox) = mailbox::new();
        let outcomes = Outcomes::of(ChannelKind::Desktop, &counts, internals);
        let pending = || Cell::new(Some(PendingReport::new(&outcomes, 1)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..2 {
            Counts::add(&counts.queued);
        }
        runtime.block_on(settle(&pending(), std::future::poll_fn(|_| panic!("it breaks"))));
        runtime.block_on(settle(&pending(), async { Ok(()) }));
        let status = counts.status("c", "desktop");
        assert_eq!((status.queued, status.failed, status.sent), (0, 1, 1));
        assert_eq!(status.last_error.as_deref(), Some("the adapter has panicked"));
    }
}
