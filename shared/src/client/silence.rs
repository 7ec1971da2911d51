//! How long the daemon may be silent while an answer is owed. It does no I/O and is told the time.
//!
//! A daemon that lives answers `hello` at once, whatever else it waits for. So a call that takes long says
//! nothing, and a `hello` without an answer says that the daemon does not work: it is stopped, for instance.
//! Nothing is asked while no answer is owed, as for whoever waits for events only.

use std::time::{Duration, Instant};

use crate::limits::FIRST_ANSWER;

/// How long a daemon may be silent that has answered on this connection before. To give up means more then: a job
/// in the foreground ends with its connection.
pub const LATER_ANSWER: Duration = Duration::from_secs(15);

/// How long a daemon may be silent that says of itself that it is starting or ending.
pub const BUSY: Duration = Duration::from_secs(30);

/// The first pause between two looks in a long wait; each is twice as long as the one before it.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing yet.
    Wait,
    /// To say hello.
    Probe,
    /// To wait no longer: it has been silent for so long.
    GiveUp(Duration),
}

/// What is known of the daemon.
#[derive(Clone, Copy, Debug)]
enum State {
    /// It has answered all, or said something since it was asked last. It is looked after at this time.
    Heard(Instant),
    /// It was asked, and has said nothing since.
    Asked(Instant),
    /// It was told hello too, and may be silent until the second time.
    Probed(Instant, Instant),
    /// It was given up at this time, after this long.
    Lost(Instant, Duration),
}

/// The silence of one connection.
#[derive(Debug)]
pub(super) struct Silence {
    state: State,
    first_answer: Duration,
    has_answered: bool,
    pause: Duration,
    /// When the answer that is waited for is due, if that can be known.
    due: Option<Instant>,
}

impl Silence {
    pub fn new(now: Instant) -> Self {
        Self {
            state: State::Heard(now),
            first_answer: FIRST_ANSWER,
            has_answered: false,
            pause: FIRST_PAUSE,
            due: None,
        }
    }

    /// The first answer may take this long, counted from when the connection was begun.
    pub fn first_answer(&mut self, at_most: Duration) {
        self.first_answer = at_most;
    }

    /// A call was made.
    pub fn asked(&mut self, now: Instant) {
        self.pause = FIRST_PAUSE;
        match self.state {
            State::Heard(_) | State::Lost(..) => self.state = State::Asked(now),
            State::Asked(_) | State::Probed(..) => {}
        }
    }

    /// The daemon has said something.
    pub fn heard(&mut self, now: Instant) {
        self.has_answered = true;
        self.state = State::Heard(now + self.pause);
    }

    /// The answer is due at this time, as the call said how long it may take.
    pub fn due(&mut self, at: Option<Instant>) {
        self.due = at;
    }

    /// When to look next, as long as an answer is owed.
    pub fn until(&self) -> Instant {
        match self.state {
            State::Heard(next) => match self.due {
                Some(due) => next.min(due + FIRST_ANSWER / 2),
                None => next,
            },
            State::Asked(since) => since + self.patience() / 2,
            State::Probed(_, until) | State::Lost(until, _) => until,
        }
    }

    /// Looks whether it is time for something. Whatever has come was read before.
    pub fn tick(&mut self, now: Instant) -> Step {
        if now < self.until() {
            return Step::Wait;
        }
        match self.state {
            State::Heard(_) => {
                let is_due = self.due.is_some_and(|due| due <= now);
                let patience = if is_due { FIRST_ANSWER / 2 } else { LATER_ANSWER };
                self.due = self.due.filter(|_| !is_due);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                self.state = State::Probed(now, now + patience);
                Step::Probe
            }
            State::Asked(since) => {
                self.state = State::Probed(since, now + self.patience() / 2);
                Step::Probe
            }
            State::Probed(since, _) => {
                self.state = State::Lost(now, now - since);
                // Whoever asks on is not kept so long again.
                self.has_answered = false;
                Step::GiveUp(now - since)
            }
            State::Lost(_, after) => Step::GiveUp(after),
        }
    }

    /// The daemon says of itself that it has much to do: it may be silent a little longer, `silent` so far.
    pub fn excuse(&mut self, now: Instant, silent: Duration) -> bool {
        let is_excused = silent < BUSY;
        if is_excused {
            self.state = State::Probed(now.checked_sub(silent).unwrap_or(now), now + FIRST_ANSWER / 2);
        }
        is_excused
    }

    fn patience(&self) -> Duration {
        if self.has_answered { LATER_ANSWER } else { self.first_answer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    #[test]
    fn who_never_answers_is_given_up_after_the_first_patience() {
        let begin = Instant::now();
        let mut silence = Silence::new(begin);
        silence.asked(begin);
        assert_eq!(silence.tick(at(begin, 2499)), Step::Wait);
        assert_eq!(silence.tick(at(begin, 2500)), Step::Probe);
        assert_eq!(silence.tick(at(begin, 4999)), Step::Wait);
        assert_eq!(silence.tick(at(begin, 5000)), Step::GiveUp(FIRST_ANSWER));
        // Others who wait on the same connection give up too; the next call begins anew.
        assert!(matches!(silence.tick(at(begin, 5001)), Step::GiveUp(_)));
        silence.asked(at(begin, 9000));
        assert_eq!(silence.tick(at(begin, 9001)), Step::Wait);
    }

    #[test]
    fn who_says_hello_may_take_any_time_and_is_looked_after_ever_less() {
        let begin = Instant::now();
        let mut silence = Silence::new(begin);
        silence.asked(begin);
        let mut probes = Vec::new();
        for second in 0..300 {
            let now = at(begin, second * 1000);
            if silence.tick(now) == Step::Probe {
                probes.push(second);
                silence.heard(now);
            }
        }
        assert_eq!(probes, [3, 8, 18, 38, 78, 138, 198, 258]);
    }

    #[test]
    fn an_answer_that_is_due_is_looked_for_in_time() {
        let begin = Instant::now();
        let mut silence = Silence::new(begin);
        silence.asked(begin);
        silence.heard(begin);
        silence.due(Some(at(begin, 1000)));
        assert_eq!(silence.tick(at(begin, 3499)), Step::Wait);
        assert_eq!(silence.tick(at(begin, 3500)), Step::Probe);
        assert!(matches!(silence.tick(at(begin, 6000)), Step::GiveUp(_)));
    }

    #[test]
    fn who_was_stopped_itself_asks_before_it_gives_up() {
        let begin = Instant::now();
        let mut silence = Silence::new(begin);
        silence.asked(begin);
        let later = at(begin, 3_600_000);
        assert_eq!(silence.tick(later), Step::Probe);
        assert_eq!(silence.tick(later), Step::Wait);
    }

    #[test]
    fn who_is_busy_is_excused_for_a_while() {
        let begin = Instant::now();
        let mut silence = Silence::new(begin);
        silence.asked(begin);
        let mut given_up = None;
        for ms in (0..60_000).step_by(500) {
            let now = at(begin, ms);
            if let Step::GiveUp(silent) = silence.tick(now)
                && !silence.excuse(now, silent)
            {
                given_up = Some(ms);
                break;
            }
        }
        assert_eq!(given_up, Some(30_000));
    }
}
