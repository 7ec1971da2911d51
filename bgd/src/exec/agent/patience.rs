//! Limits on how long an agent may be silent. Output that is waiting when a limit is reached came in time: the daemon
//! itself may have stood still.

use std::time::Duration;

/// Waits until this time is over and everything that came in it has been read. After a stall of the daemon, the timer
/// fires although the agent's output is waiting in its pipe. Of two futures in a biased `select!`, the one for that
/// output must come first.
pub async fn sleep_then_drain(time: Duration) {
    tokio::time::sleep(time).await;
    // First the runtime looks for output to read, then its reader runs.
    for _ in 0..2 {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    const TIME: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn output_read_at_the_last_moment_comes_first() {
        let (reader, read) = oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep(TIME).await;
            reader.send(()).unwrap();
        });
        tokio::select! {
            biased;
            read = read => read.unwrap(),
            () = sleep_then_drain(TIME) => panic!("the time is over before everything is read"),
        }
    }
}
