//! Tracks how long the daemon may be silent while an answer is pending. Does no I/O; the caller passes in the time.
//!
//! A live daemon answers `hello` at once, whatever else it waits for. So a slow call proves nothing, while an
//! unanswered `hello` means that the daemon does not work, for example because it is stopped. Nothing is sent while
//! no answer is pending, as for a client that only waits for events.

use std::time::{Duration, Instant};

use crate::limits::FIRST_ANSWER;
use crate::pauses::next_pause;

/// How long a daemon may be silent that has answered on this connection before. Giving up costs more then: a foreground
/// job ends with its connection.
pub const LATER_ANSWER: Duration = Duration::from_secs(15);

/// How long a daemon may be silent that reports itself as starting or ending.
pub const BUSY: Duration = Duration::from_secs(30);

/// How long a daemon may be silent if another program relays the connection to it. An ssh notices within 45 s that the
/// network is dead, and closes the connection. Giving up sooner would close it for everyone who shares that ssh.
pub const CARRIED_ANSWER: Duration = Duration::from_mins(1);

/// The first and the longest interval between two checks in a long wait.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_mins(1)];

/// The client's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing yet.
    Wait,
    /// Send `hello`.
    Probe,
    /// Stop waiting: the daemon has been silent for this long.
    GiveUp(Duration),
}

/// State of the daemon, as far as known.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The daemon has answered everything, or sent something since the last call. The next check is at this time.
    Heard(Instant),
    /// A call was made at this time, and the daemon has sent nothing since.
    Asked(Instant),
    /// `hello` was sent too: the daemon has been silent since the first time, and is given up at the second.
    Probed(Instant, Instant),
    /// The daemon was given up at this time, after this long a silence.
    Lost(Instant, Duration),
}

/// Watches one connection for a daemon that does not answer.
#[derive(Debug)]
pub(super) struct Watchdog {
    state: State,
    first_answer: Duration,
    later_answer: Duration,
    has_answered: bool,
    /// Whether another program relays the connection.
    is_carried: bool,
    pause: Duration,
    /// When the awaited answer is due, if known.
    due: Option<Instant>,
    /// Whether the daemon reported itself as busy when it was last given more time.
    was_busy: bool,
    /// The CPU time that the daemon had used at the latest probe, in ticks, if known.
    cpu: Option<u64>,
}

impl Watchdog {
    /// Starts watching a new connection. No answer is pending on it yet.
    pub fn new(now: Instant) -> Self {
        Self {
            state: State::Heard(now),
            first_answer: FIRST_ANSWER,
            later_answer: LATER_ANSWER,
            has_answered: false,
            is_carried: false,
            pause: PAUSES[0],
            due: None,
            was_busy: false,
            cpu: None,
        }
    }

    /// Starts watching a connection that another program relays to a daemon.
    pub fn carried(now: Instant) -> Self {
        Self {
            first_answer: CARRIED_ANSWER,
            later_answer: CARRIED_ANSWER,
            is_carried: true,
            ..Self::new(now)
        }
    }

    /// Sets how long the first answer may take, counted from its call.
    pub fn first_answer(&mut self, at_most: Duration) {
        self.first_answer = at_most;
    }

    /// Records that a call was made.
    pub fn asked(&mut self, now: Instant) {
        self.pause = PAUSES[0];
        match self.state {
            State::Heard(_) | State::Lost(..) => self.state = State::Asked(now),
            State::Asked(_) | State::Probed(..) => {}
        }
    }

    /// Records that the daemon has sent something.
    pub fn heard(&mut self, now: Instant) {
        self.has_answered = true;
        self.state = State::Heard(now + self.pause);
    }

    /// Sets when the answer is due, for a call with a known maximum duration.
    pub fn due(&mut self, at: Option<Instant>) {
        self.due = at;
    }

    /// Returns when to check next while an answer is pending.
    pub fn until(&self) -> Instant {
        match self.state {
            State::Heard(next) => self.capped_by_due(next),
            State::Asked(since) if self.is_carried => self.capped_by_due(since + self.patience() / 2),
            State::Asked(since) => since + self.patience() / 2,
            State::Probed(_, until) if self.is_carried => self.capped_by_due(until),
            State::Probed(_, until) | State::Lost(until, _) => until,
        }
    }

    /// Moves a check forward to shortly after the answer is due. The caller of a call with a known duration has waited
    /// for it already, so it should not wait much longer for a relayed connection.
    fn capped_by_due(&self, at: Instant) -> Instant {
        self.due.map_or(at, |due| at.min(due + FIRST_ANSWER / 2))
    }

    /// Decides what to do now. The caller must have read everything that has arrived.
    pub fn tick(&mut self, now: Instant) -> Step {
        if now < self.until() {
            return Step::Wait;
        }
        let due = self.due.filter(|due| *due <= now);
        let shortly = self.first_answer.min(FIRST_ANSWER) / 2;
        match self.state {
            State::Heard(_) => {
                let patience = due.map_or(self.later_answer, |_| shortly);
                self.due = self.due.filter(|_| due.is_none());
                self.pause = next_pause(self.pause, PAUSES);
                self.state = State::Probed(now, now + patience);
                Step::Probe
            }
            State::Asked(since) => {
                let is_late = due.is_some() && self.is_carried;
                let patience = if is_late { shortly } else { self.patience() / 2 };
                self.due = self.due.filter(|_| !is_late);
                self.state = State::Probed(since, now + patience);
                Step::Probe
            }
            // A probe was sent before, and it is not yet time to give up.
            State::Probed(since, until) if now < until => {
                self.due = None;
                self.state = State::Probed(since, now + shortly);
                Step::Probe
            }
            State::Probed(since, _) => {
                self.state = State::Lost(now, now - since);
                // A caller that tries again does not wait as long.
                self.has_answered = false;
                Step::GiveUp(now - since)
            }
            State::Lost(_, after) => Step::GiveUp(after),
        }
    }

    /// Records the CPU time that the daemon has used at a probe, which distinguishes a busy daemon from a dead one.
    pub fn note_cpu(&mut self, ticks: Option<u64>) {
        self.cpu = ticks;
    }

    /// Returns the CPU time that the daemon had used at the latest probe.
    pub fn cpu(&self) -> Option<u64> {
        self.cpu
    }

    /// Grants a little more time to a daemon that reports itself as busy, unless it has been `silent` for [`BUSY`]; and
    /// once more to one that was busy until now, as it is about to answer. Reports whether it did.
    pub fn extend(&mut self, now: Instant, silent: Duration, is_busy: bool) -> bool {
        let was_busy = std::mem::replace(&mut self.was_busy, is_busy);
        let is_extended = (is_busy || was_busy) && silent < BUSY;
        if is_extended {
            self.state = State::Probed(now.checked_sub(silent).unwrap_or(now), now + FIRST_ANSWER / 2);
        }
        is_extended
    }

    fn patience(&self) -> Duration {
        if self.has_answered { self.later_answer } else { self.first_answer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    #[test]
    fn silent_daemon_is_given_up_after_first_timeout() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::new(begin);
        watchdog.asked(begin);
        assert_eq!(watchdog.tick(at(begin, 2499)), Step::Wait);
        assert_eq!(watchdog.tick(at(begin, 2500)), Step::Probe);
        assert_eq!(watchdog.tick(at(begin, 4999)), Step::Wait);
        assert_eq!(watchdog.tick(at(begin, 5000)), Step::GiveUp(FIRST_ANSWER));
        // Other callers on the same connection give up too; the next call starts over.
        assert!(matches!(watchdog.tick(at(begin, 5001)), Step::GiveUp(_)));
        watchdog.asked(at(begin, 9000));
        assert_eq!(watchdog.tick(at(begin, 9001)), Step::Wait);
    }

    #[test]
    fn responsive_daemon_is_probed_ever_less_often() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::new(begin);
        watchdog.asked(begin);
        let mut probes = Vec::new();
        for second in 0..300 {
            let now = at(begin, second * 1000);
            if watchdog.tick(now) == Step::Probe {
                probes.push(second);
                watchdog.heard(now);
            }
        }
        assert_eq!(probes, [3, 8, 18, 38, 78, 138, 198, 258]);
    }

    #[test]
    fn overdue_reply_is_probed_then_given_up() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::new(begin);
        watchdog.asked(begin);
        watchdog.heard(begin);
        watchdog.due(Some(at(begin, 1000)));
        assert_eq!(watchdog.tick(at(begin, 3499)), Step::Wait);
        assert_eq!(watchdog.tick(at(begin, 3500)), Step::Probe);
        assert!(matches!(watchdog.tick(at(begin, 6000)), Step::GiveUp(_)));
    }

    #[test]
    fn r142_carried_connection_is_given_up_only_after_a_minute() {
        let begin = Instant::now();
        let ask = |watchdog: &mut Watchdog| {
            let given_up = |second: &u64| matches!(watchdog.tick(at(begin, second * 1000)), Step::GiveUp(_));
            (0..300).find(given_up)
        };
        let mut watchdog = Watchdog::carried(begin);
        watchdog.asked(begin);
        assert_eq!(ask(&mut watchdog), Some(60));
        let mut watchdog = Watchdog::carried(begin);
        watchdog.asked(begin);
        watchdog.heard(begin);
        assert_eq!(ask(&mut watchdog), Some(65), "a minute from the first question on");
        let mut watchdog = Watchdog::carried(begin);
        watchdog.asked(begin);
        watchdog.heard(begin);
        watchdog.due(Some(begin));
        assert_eq!(ask(&mut watchdog), Some(6), "five seconds after what is due: its time is over");
        for is_heard in [true, false] {
            let mut watchdog = Watchdog::carried(begin);
            watchdog.asked(begin);
            if is_heard {
                watchdog.heard(begin);
            }
            watchdog.due(Some(at(begin, 20_000)));
            assert_eq!(ask(&mut watchdog), Some(26), "also if it was asked before");
        }
        // A client that was stopped itself meanwhile, with its relay, probes before it gives up.
        let mut watchdog = Watchdog::carried(begin);
        watchdog.asked(begin);
        watchdog.due(Some(at(begin, 20_000)));
        let later = at(begin, 3_600_000);
        assert_eq!(watchdog.tick(later), Step::Probe);
        assert_eq!(watchdog.tick(later), Step::Wait);
        assert_eq!(watchdog.tick(later + FIRST_ANSWER), Step::GiveUp(later + FIRST_ANSWER - begin));
    }

    #[test]
    fn client_that_was_stopped_probes_before_giving_up() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::new(begin);
        watchdog.asked(begin);
        let later = at(begin, 3_600_000);
        assert_eq!(watchdog.tick(later), Step::Probe);
        assert_eq!(watchdog.tick(later), Step::Wait);
    }

    #[test]
    fn busy_daemon_is_given_30_seconds() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::new(begin);
        watchdog.asked(begin);
        let mut given_up = None;
        for ms in (0..60_000).step_by(500) {
            let now = at(begin, ms);
            if let Step::GiveUp(silent) = watchdog.tick(now)
                && !watchdog.extend(now, silent, true)
            {
                given_up = Some(ms);
                break;
            }
        }
        assert_eq!(given_up, Some(30_000));
    }

    #[test]
    fn recently_busy_daemon_is_given_more_time_once() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::new(begin);
        let extended =
            [true, false, false, true].map(|is_busy| watchdog.extend(begin, Duration::from_secs(5), is_busy));
        assert_eq!(extended, [true, true, false, true]);
    }
}
