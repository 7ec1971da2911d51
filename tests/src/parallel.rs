//! Threads of a test that bear its name: the watchdog of a home and the checks of names look at that of their thread.

use std::panic::resume_unwind;
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

/// Starts a thread with the name of this one.
#[track_caller]
pub fn namesake<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    job: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let name = thread::current().name().unwrap_or("main").to_owned();
    Builder::new().name(name).spawn_scoped(scope, job).expect("a thread")
}

/// Runs a job for each of these at the same time, as most of it is waiting, and returns when all are done.
#[track_caller]
pub fn for_each<I: Send>(all: impl IntoIterator<Item = I>, job: impl Fn(I) + Sync) {
    thread::scope(|scope| {
        let job = &job;
        let threads: Vec<_> = all.into_iter().map(|one| namesake(scope, move || job(one))).collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn jobs_run_at_once_under_name_of_their_test() {
        let (barrier, names) = (Barrier::new(3), Mutex::new(Vec::new()));
        for_each(0..3, |_| {
            barrier.wait();
            names.lock().unwrap().push(thread::current().name().map(str::to_owned));
        });
        assert_eq!(names.into_inner().unwrap(), vec![thread::current().name().map(str::to_owned); 3]);
    }

    #[test]
    #[should_panic(expected = "the second fails")]
    fn failure_of_one_job_fails_the_test() {
        for_each(0..3, |number| assert_ne!(number, 1, "the second fails"));
    }
}
