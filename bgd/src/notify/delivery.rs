//! The workers. Each takes the notices of one channel in order, has the result read, and delivers.

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::FutureExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::chats::Chats;
use super::desktop::Desktop;
use super::exec::Exec;
use super::tty::Terminals;
use super::typing::Typing;
use super::{Adapter, ChannelEvent, Done, Notification, Outcomes, Served, Undelivered};
use crate::channels::ChannelKind;
use crate::core::{Notice, Outcome, StopReason};
use crate::exec::context::Context;
use crate::wire::mailbox::{Internal, Internals};
use crate::wire::reader;

/// Serves channels until no more are added and every queue is empty.
pub async fn serve_all(mut served: mpsc::UnboundedReceiver<Served>, context: Context, internals: Internals) {
    let chats = Rc::new(Chats::default());
    let mut workers = JoinSet::new();
    loop {
        tokio::select! {
            next = served.recv() => match next {
                Some(next) => {
                    workers.spawn_local(serve(next, Rc::clone(&chats), context.clone(), internals.clone()));
                }
                None => break,
            },
            Some(_) = workers.join_next() => {}
        }
    }
    while workers.join_next().await.is_some() {}
}

/// Serves one channel until all senders are gone.
async fn serve(served: Served, chats: Rc<Chats>, context: Context, internals: Internals) {
    let Served { channel, mut orders, mut typing, mut signs, counts } = served;
    let outcomes = Rc::new(Outcomes { channel, counts, log: RefCell::default() });
    let Some(adapter) = adapter(&outcomes, &chats, &context) else { return };
    let mut shown = Typing::new(Rc::clone(&adapter));
    // Independent of notices: neither waits for the other.
    let show = async {
        while let Some((session, stopped)) = typing.recv().await {
            shown.begin(session.as_deref(), stopped);
        }
    };
    let deliver = async {
        while let Some(notice) = orders.recv().await {
            let done = Rc::new(Cell::new(Some(Done::new(&outcomes))));
            let delivered = async {
                let notification = read(notice, &context, &internals, Rc::clone(&done)).await?;
                adapter.notify(&notification).await
            };
            settle(&done, delivered).await;
        }
        adapter.finish().await;
    };
    let record_wait = async {
        while let Some(sign) = signs.recv().await {
            match sign {
                ChannelEvent::Visited(leader) => adapter.visited(leader),
                ChannelEvent::Awaited(terminal, submitter) => adapter.awaits(&terminal, submitter),
                ChannelEvent::Forgotten(task) => adapter.forget(task),
            }
        }
    };
    tokio::join!(show, record_wait, deliver);
}

/// Delivers a notice and reports the outcome, even if delivering panics.
async fn settle(done: &Cell<Option<Done>>, delivered: impl Future<Output = Result<(), Undelivered>>) {
    let outcome = AssertUnwindSafe(delivered).catch_unwind().await;
    // An adapter that holds the notice has taken `done` and reports the outcome itself.
    if let Some(done) = done.take()
        && let Ok(outcome) = outcome
    {
        done.tell(outcome);
    }
}

/// Reads the result of a notice.
async fn read(
    notice: Arc<Notice>,
    context: &Context,
    internals: &Internals,
    done: Rc<Cell<Option<Done>>>,
) -> Result<Notification, Undelivered> {
    let folder = Arc::clone(&context.folder);
    let (place, task) = (notice.task.spec.place.clone(), notice.task.id);
    let outcome = notice.task.finished().map(|finished| &finished.outcome);
    // Tasks that the daemon stops at its own shutdown are removed with it.
    let is_removed = notice.is_removed || outcome == Some(&Outcome::Cancelled(StopReason::Shutdown));
    let read = context.workers.run(move || reader::notice(&notice, &folder)).await;
    internals.send(Internal::NoticeRead { task });
    let notice = read.ok_or_else(|| Undelivered("its result can't be read".to_owned()))?;
    Ok(Notification { notice, place, is_removed, done })
}

/// Creates the adapter of a channel. `None` for the inbox, which gets its items from the core and has no queue.
fn adapter(outcomes: &Outcomes, chats: &Chats, context: &Context) -> Option<Rc<dyn Adapter>> {
    Some(match &outcomes.channel.kind {
        ChannelKind::Exec { command, env, timeout } => Rc::new(Exec::new(command, env, *timeout, context)),
        ChannelKind::Webhook { .. } | ChannelKind::Chat(..) => return chats.adapter(outcomes),
        ChannelKind::Desktop => Rc::new(Desktop::default()),
        ChannelKind::Tty => Rc::new(Terminals::new(Arc::clone(&outcomes.counts))),
        ChannelKind::Inbox => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Counts;
    use super::*;
    use crate::channels::Channel;

    #[test]
    fn a_panic_of_an_adapter_is_counted_and_the_next_notice_is_delivered() {
        let channel = Channel { name: "c".into(), kind: ChannelKind::Desktop, started: true };
        let counts = Arc::new(Counts::default());
        let outcomes = Rc::new(Outcomes {
            channel: Arc::new(channel),
            counts: Arc::clone(&counts),
            log: RefCell::default(),
        });
        let done = || Cell::new(Some(Done::new(&outcomes)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..2 {
            Counts::add(&counts.queued);
        }
        runtime.block_on(settle(&done(), std::future::poll_fn(|_| panic!("it breaks"))));
        runtime.block_on(settle(&done(), async { Ok(()) }));
        let status = counts.status("c", "desktop");
        assert_eq!((status.queued, status.failed, status.sent), (0, 1, 1));
        assert_eq!(status.last_error.as_deref(), Some("the adapter has panicked"));
    }
}
