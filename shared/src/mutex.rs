//! A mutex without poisoning: a thread that panics while it holds one hinders no other. For values that no panic can
//! leave half changed.

use std::sync::{MutexGuard, PoisonError};

/// A value that one thread at a time can use.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates a mutex with this value.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits until no other thread uses the value.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_another_thread_does_not_poison_the_value() {
        let value = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut value = value.lock();
                *value = 2;
                panic!("while it is held");
            });
            thread.join().is_err()
        });
        assert_eq!((panicked, *value.lock()), (true, 2));
    }
}
