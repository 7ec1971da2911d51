//! A wake-up at a wall-clock time, which also works after the clock was set or the machine was suspended. There is no
//! polling, as the kernel's timer reports both. This module makes no decisions.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bgd_shared::time::Timestamp;
use nix::errno::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::os::clock::Clock;
use crate::os::watch;

/// A wall-clock timer.
#[derive(Debug)]
pub struct WallClock {
    timer: Timer,
    at: Option<Timestamp>,
}

#[derive(Debug)]
enum Timer {
    Kernel(AsyncFd<OwnedFd>),
    Simulated(Clock),
}

/// The result of reading the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimerEvent {
    /// The time has come, or the clock was set.
    Look,
    /// Nothing has happened.
    Wait,
}

impl WallClock {
    /// Creates an unarmed timer, tied to the current runtime.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = watch::readable(timerfd_create(TimerfdClockId::Realtime, flags)?)?;
        Ok(Self { timer: Timer::Kernel(timer), at: None })
    }

    /// Creates an unarmed timer on a simulation's clock.
    pub fn simulated(clock: Clock) -> Self {
        Self { timer: Timer::Simulated(clock), at: None }
    }

    /// Sets the wake-up time, or disarms the timer. Setting the same time again costs nothing.
    ///
    /// # Errors
    /// The system call fails; the timer is disarmed then.
    pub fn set(&mut self, at: Option<Timestamp>) -> io::Result<()> {
        if self.at == at {
            return Ok(());
        }
        self.at = None;
        if let Timer::Kernel(timer) = &self.timer {
            arm(timer, at)?;
        }
        self.at = at;
        Ok(())
    }

    /// Waits until the time has come or the clock was set; forever if the timer is not armed. May wake up spuriously.
    /// Disarms the timer on return, so it must be set again. Cancel-safe.
    pub async fn due(&mut self) {
        while let Some(at) = self.at {
            let timer = match &self.timer {
                Timer::Kernel(timer) => timer,
                Timer::Simulated(clock) => {
                    let left = at.unix_ms().saturating_sub(clock.wall().unix_ms());
                    tokio::time::sleep(Duration::from_millis(left.max(0).cast_unsigned())).await;
                    self.at = None;
                    return;
                }
            };
            let Ok(mut ready) = timer.readable().await else { break };
            match word(read(timer.get_ref())) {
                TimerEvent::Look => {
                    self.at = None;
                    return;
                }
                TimerEvent::Wait => ready.clear_ready(),
            }
        }
        std::future::pending::<()>().await;
    }
}

fn arm(timer: &AsyncFd<OwnedFd>, at: Option<Timestamp>) -> io::Result<()> {
    let it_value = at.map_or(Timespec { tv_sec: 0, tv_nsec: 0 }, timespec);
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
    let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    match timerfd_settime(timer.get_ref(), flags, &once) {
        // The clock was set while nobody waited: the timer is armed nevertheless (timerfd_create(2)).
        Ok(_) | Err(rustix::io::Errno::CANCELED) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Converts a time for the kernel. 0 would disarm the timer, and any time before 1970 is past anyway.
fn timespec(at: Timestamp) -> Timespec {
    let ms = at.unix_ms().max(1);
    Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 }
}

fn read(timer: &OwnedFd) -> nix::Result<usize> {
    nix::unistd::read(timer, &mut [0; 8])
}

fn word(read: nix::Result<usize>) -> TimerEvent {
    match read {
        Err(Errno::EAGAIN | Errno::EINTR) => TimerEvent::Wait,
        // ECANCELED: the clock was set. Any other error can be reported without harm.
        Ok(_) | Err(_) => TimerEvent::Look,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports whether the timer fires at once.
    async fn is_due(clock: &mut WallClock) -> bool {
        tokio::time::timeout(Duration::from_millis(1), clock.due()).await.is_ok()
    }

    #[tokio::test]
    async fn wall_clock_wakes_once_when_due() {
        let mut clock = WallClock::new().unwrap();
        assert!(!is_due(&mut clock).await, "it is set to nothing");
        for ms in [i64::MIN, 0, 1, Timestamp::now().unix_ms()] {
            clock.set(Some(Timestamp::from_unix_ms(ms))).unwrap();
            clock.due().await;
            assert!(!is_due(&mut clock).await, "{ms} is over");
        }
        clock.set(Some(Timestamp::now().plus_ms(3_600_000))).unwrap();
        assert!(!is_due(&mut clock).await, "it is set to a later time");
        let soon = Timestamp::now().plus_ms(20);
        clock.set(Some(soon)).unwrap();
        clock.set(Some(soon)).unwrap();
        // Usually dropped while it waits, unless this thread was held up.
        if tokio::time::timeout(Duration::ZERO, clock.due()).await.is_err() {
            clock.due().await;
        }
        assert!(Timestamp::now() >= soon);
    }

    #[tokio::test]
    async fn new_time_or_none_replaces_the_previous_one() {
        let mut clock = WallClock::new().unwrap();
        clock.set(Some(Timestamp::from_unix_ms(i64::MAX))).unwrap();
        assert!(!is_due(&mut clock).await);
        clock.set(Some(Timestamp::now())).unwrap();
        clock.due().await;
        clock.set(Some(Timestamp::now())).unwrap();
        clock.set(None).unwrap();
        assert!(!is_due(&mut clock).await);
    }

    #[test]
    fn changed_system_clock_wakes_the_waiter() {
        assert_eq!(word(Err(Errno::ECANCELED)), TimerEvent::Look);
        assert_eq!(word(Ok(8)), TimerEvent::Look);
        assert_eq!([Errno::EAGAIN, Errno::EINTR].map(|errno| word(Err(errno))), [TimerEvent::Wait; 2]);
    }
}
