//! Typing indicators (R53): one signal per chat, however many agents work for it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::task::AbortHandle;

use super::adapter::{Adapter, Signal};

/// The typing signals of a channel.
pub struct Typing {
    adapter: Rc<dyn Adapter>,
    shown: Chats,
    /// Number of signals started so far; the source of [`Shown::number`].
    begun: u64,
}

/// The active signals, by chat.
type Chats = Rc<RefCell<HashMap<String, Shown>>>;

/// An active signal, and the number of tasks that use it.
struct Shown {
    /// Unique number of the signal.
    number: u64,
    tasks: usize,
    signal: AbortHandle,
}

/// Removes a signal that ended by itself, so that the next task starts a new one.
struct Forget {
    shown: Chats,
    chat: String,
    number: u64,
}

impl Drop for Forget {
    fn drop(&mut self) {
        if let Ok(mut shown) = self.shown.try_borrow_mut()
            && shown.get(&self.chat).is_some_and(|shown| shown.number == self.number)
        {
            shown.remove(&self.chat);
        }
    }
}

impl Typing {
    pub fn new(adapter: Rc<dyn Adapter>) -> Self {
        Self { adapter, shown: Rc::default(), begun: 0 }
    }

    /// Shows the signal to this parent session until the sender of `stopped` is dropped.
    pub fn begin(&mut self, session: Option<&str>, mut stopped: oneshot::Receiver<()>) {
        // The turn ended before it could be shown.
        if stopped.try_recv() == Err(TryRecvError::Closed) {
            return;
        }
        let Some(Signal { chat, shown: signal }) = self.adapter.start_typing(session) else { return };
        let number = match self.shown.borrow_mut().entry(chat.clone()) {
            Entry::Occupied(mut shown) => {
                shown.get_mut().tasks += 1;
                shown.get().number
            }
            Entry::Vacant(place) => {
                self.begun += 1;
                let number = self.begun;
                let forget = Forget { shown: Rc::clone(&self.shown), chat: chat.clone(), number };
                let signal = tokio::task::spawn_local(async move {
                    let _forget = forget;
                    signal.await;
                });
                place.insert(Shown { number, tasks: 1, signal: signal.abort_handle() });
                number
            }
        };
        let shown = Rc::clone(&self.shown);
        tokio::task::spawn_local(async move {
            let _ = stopped.await;
            if let Entry::Occupied(mut of_chat) = shown.borrow_mut().entry(chat)
                && of_chat.get().number == number
            {
                of_chat.get_mut().tasks -= 1;
                if of_chat.get().tasks == 0 {
                    of_chat.remove().signal.abort();
                }
            }
        });
    }
}

impl Drop for Typing {
    fn drop(&mut self) {
        for shown in self.shown.borrow().values() {
            shown.signal.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::future::LocalBoxFuture;
    use serde_json::value::RawValue;
    use tokio::task::{LocalSet, yield_now};

    use super::*;
    use crate::notify::adapter::Notification;
    use crate::notify::undelivered::Undelivered;

    /// Counts active signals. The chat of a parent session is the part after its colon.
    #[derive(Default)]
    struct Counting(Rc<Cell<i32>>);

    /// An active signal, for as long as it lives.
    struct Showing(Rc<Cell<i32>>);

    impl Drop for Showing {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    impl Adapter for Counting {
        fn notify<'a>(&'a self, _: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
            Box::pin(async { Ok(()) })
        }

        fn state(&self) -> Option<Box<RawValue>> {
            None
        }

        fn resume(&self, _: &RawValue) {}

        fn start_typing(&self, session: Option<&str>) -> Option<Signal> {
            let (_, chat) = session?.split_once(':')?;
            let shown = Rc::clone(&self.0);
            let shown = async move {
                shown.set(shown.get() + 1);
                let _showing = Showing(shown);
                std::future::pending::<()>().await;
            };
            Some(Signal { chat: chat.to_owned(), shown: Box::pin(shown) })
        }
    }

    #[test]
    fn r53_chat_has_one_typing_signal_until_its_last_turn_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let shown = Rc::new(Cell::new(0));
            let mut typing = Typing::new(Rc::new(Counting(Rc::clone(&shown))));
            let settled = async || {
                for _ in 0..10 {
                    yield_now().await;
                }
                shown.get()
            };
            let mut begin = |session: Option<&str>| {
                let (stop, stopped) = oneshot::channel();
                typing.begin(session, stopped);
                stop
            };
            let (one, same, other) = (begin(Some("a:1")), begin(Some("b:1")), begin(Some("a:2")));
            let nowhere = begin(None);
            assert_eq!(settled().await, 2);
            drop((one, nowhere));
            assert_eq!(settled().await, 2);
            drop(same);
            assert_eq!(settled().await, 1);
            let again = begin(Some("a:1"));
            assert_eq!(settled().await, 2);
            // A turn that ended before it began is not shown.
            let (stop, stopped) = oneshot::channel();
            drop(stop);
            typing.begin(Some("a:3"), stopped);
            assert_eq!(settled().await, 2);
            drop(typing);
            assert_eq!(settled().await, 0);
            drop((other, again));
        });
    }
    /// Signals that end on request.
    struct Failing(Rc<Cell<i32>>, RefCell<Vec<oneshot::Sender<()>>>);

    impl Adapter for Failing {
        fn notify<'a>(&'a self, _: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
            Box::pin(async { Ok(()) })
        }

        fn state(&self) -> Option<Box<RawValue>> {
            None
        }

        fn resume(&self, _: &RawValue) {}

        fn start_typing(&self, _: Option<&str>) -> Option<Signal> {
            let (fail, failed) = oneshot::channel();
            self.1.borrow_mut().push(fail);
            let count = Rc::clone(&self.0);
            let shown = async move {
                count.set(count.get() + 1);
                let _showing = Showing(count);
                // The request is refused, or the connection breaks.
                assert!(failed.await.is_ok(), "it breaks");
            };
            Some(Signal { chat: "1".to_owned(), shown: Box::pin(shown) })
        }
    }

    #[test]
    fn r53_failed_typing_signal_is_renewed_by_the_next_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let shown = Rc::new(Cell::new(0));
            let failing = Rc::new(Failing(Rc::clone(&shown), RefCell::default()));
            let adapter: Rc<dyn Adapter> = Rc::clone(&failing) as _;
            let mut typing = Typing::new(adapter);
            let settled = async || {
                for _ in 0..10 {
                    yield_now().await;
                }
                shown.get()
            };
            let mut begin = || {
                let (stop, stopped) = oneshot::channel();
                typing.begin(None, stopped);
                // Makes the signal end.
                let fail = failing.1.borrow_mut().pop().unwrap();
                (stop, fail)
            };
            let (first, fail) = begin();
            assert_eq!(settled().await, 1);
            fail.send(()).unwrap();
            assert_eq!(settled().await, 0);
            let (second, broken) = begin();
            assert_eq!(settled().await, 1);
            // The end of the first turn must not end the second turn's signal.
            drop(first);
            assert_eq!(settled().await, 1);
            drop(broken);
            assert_eq!(settled().await, 0);
            let (third, _fail) = begin();
            assert_eq!(settled().await, 1);
            drop(second);
            assert_eq!(settled().await, 1);
            drop(third);
            assert_eq!(settled().await, 0);
        });
    }
}
