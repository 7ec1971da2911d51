"""Tracks how long the daemon may be silent while an answer is pending. It does no I/O; the caller passes in the time.

A live daemon answers `hello` at once, whatever else it waits for. So a slow call proves nothing, while an unanswered
`hello` means that the daemon does not work, for example because it is stopped. The rules and figures are those of the
Rust clients.
"""

from __future__ import annotations

import enum

from ._constants import BUSY, FIRST_ANSWER, LATER_ANSWER

FIRST_PAUSE = 5.0
"""First interval between two checks in a long wait, in seconds; each is twice as long as the one before."""

LONGEST_PAUSE = 60.0
"""Longest interval between two checks, in seconds."""


class Step(enum.Enum):
    """What the client must do now."""

    WAIT = "nothing yet"
    PROBE = "send hello"
    GIVE_UP = "stop waiting"


class _State(enum.Enum):
    HEARD = "it has answered everything, or said something since the last call"
    ASKED = "a call was made, and it has said nothing since"
    PROBED = "it was sent hello, too"
    LOST = "it was given up"


class Watchdog:
    """Watches one connection for a daemon that does not answer. Times are in seconds of a clock that only rises."""

    def __init__(self, now: float) -> None:
        self._state = _State.HEARD
        self._at = now
        self._since = now
        self._has_answered = False
        self._pause = FIRST_PAUSE
        self.silent = 0.0
        """How long the daemon was silent when it was given up."""

    def asked(self, now: float) -> None:
        """Records that a call was made."""
        self._pause = FIRST_PAUSE
        if self._state in (_State.HEARD, _State.LOST):
            self._state, self._since = _State.ASKED, now

    def heard(self, now: float) -> None:
        """Records that the daemon has said something."""
        self._has_answered = True
        self._state, self._at = _State.HEARD, now + self._pause

    def until(self) -> float:
        """Returns when to check next while an answer is pending."""
        return self._since + self._patience() / 2 if self._state is _State.ASKED else self._at

    def tick(self, now: float) -> Step:
        """Decides what to do now. The caller must have read everything that has arrived."""
        if now < self.until():
            return Step.WAIT
        if self._state is _State.HEARD:
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            self._state, self._since, self._at = _State.PROBED, now, now + LATER_ANSWER
            return Step.PROBE
        if self._state is _State.ASKED:
            self._state, self._at = _State.PROBED, now + self._patience() / 2
            return Step.PROBE
        if self._state is _State.PROBED:
            self.silent = now - self._since
            self._state, self._at = _State.LOST, now
            self._has_answered = False
        return Step.GIVE_UP

    def excuse(self, now: float) -> bool:
        """Grants a little more time to a daemon that reports itself as busy, unless it has been silent for long.
        Returns whether it did."""
        if self.silent >= BUSY:
            return False
        self._state, self._since, self._at = _State.PROBED, now - self.silent, now + FIRST_ANSWER / 2
        return True

    def _patience(self) -> float:
        return LATER_ANSWER if self._has_answered else FIRST_ANSWER
