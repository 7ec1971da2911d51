"""Which calls are made again after their daemon has ended, and when: a durable daemon leaves its tasks to the next one.
Both clients use it; it waits for nothing.

The rules are those of bgctl, see "Waiting commands" in bgd-guarantees(7).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

from . import _constants as constants
from . import _socket
from ._connection import NotSent
from ._failure import BgdError, ConnectionLost, NoAnswer, NoDaemon, OtherInstance

REPEATABLE = frozenset(
    (
        "agent.list daemon.status executor.list group.continue group.list group.pause group.set inbox.ack inbox.list "
        "inbox.read task.block task.continue task.get task.hold task.list task.output task.pause task.result"
    ).split()
)
"""Methods that change nothing, or nothing more when they are called again."""

WAITS = {"task.block": ("timeout_ms", constants.BLOCK_TIMEOUT_MS), "inbox.read": ("wait_ms", None)}
"""Methods that wait: the param that says for how many milliseconds, and its default."""

TRIES = 8
"""Most daemons in a row that are sought: nobody keeps starting daemons that die at once."""

IN_A_ROW = 10.0
"""Longest time from one search to the next in the same row, in seconds."""

STOPPED = "the daemon has ended; tasks that it did not cancel keep running, and the next daemon takes them over"

CURSOR_HINT = "go on with `events(since=stream.cursor)`"
"""For whoever has a stream of events."""

LOST = "the daemon has ended, and its tasks and events are lost"


def is_durable(path: str) -> bool:
    """Whether the tasks of the daemon at this socket, or of the last one there, outlive it."""
    return _socket.note(path).get("durable") is True


def is_left(path: str) -> bool:
    """Whether the last daemon at this socket was killed and has left its tasks to the next one, which may be started.
    One that was stopped is started again only by whoever stopped it."""
    note = _socket.note(path)
    return note.get("durable") is True and note.get("phase") != "ending"


def no_daemon(path: str) -> NoDaemon:
    """Returns the error of a stream of events when no daemon comes back."""
    return NoDaemon(STOPPED, CURSOR_HINT) if is_durable(path) else NoDaemon(LOST)


def stopped() -> ConnectionLost:
    """Returns the error of a call when no daemon takes over the tasks of a durable one."""
    return ConnectionLost(STOPPED, "repeat the call when a daemon is running")


class Tries:
    """Counts the searches for a next daemon."""

    def __init__(self) -> None:
        self._count = 0
        self._last: Optional[float] = None

    def may_try(self) -> bool:
        """Whether a daemon may be sought once more."""
        now = time.monotonic()
        is_in_a_row = self._last is not None and now - self._last < IN_A_ROW
        self._count = self._count + 1 if is_in_a_row else 1
        self._last = now
        return self._count <= TRIES


class Repeats:
    """A call, which is made again if its connection is lost and the next daemon has the same tasks."""

    def __init__(self, path: str, method: str, params: dict[str, Any]) -> None:
        self._path = path
        self._method = method
        self._params = params
        self._begun = time.monotonic()
        self._tries = Tries()
        self._was_unsent = False
        self._instance: Optional[str] = None

    @property
    def seeks(self) -> bool:
        """Whether a durable daemon has ended, so that the next one with its tasks is sought."""
        return self._instance is not None

    def params(self) -> dict[str, Any]:
        """Returns the params for the call as it is made now: if it is made again, it waits for the rest of its time."""
        name, default = WAITS.get(self._method, ("", None))
        ms = self._params.get(name, default)
        if not self.seeks or not isinstance(ms, (int, float)):
            return self._params
        return {**self._params, name: max(0, int(ms - (time.monotonic() - self._begun) * 1000))}

    def lost(self, error: ConnectionLost, instance: Optional[str]) -> bool:
        """Takes the loss of the connection to the daemon of this instance. Returns whether the next one may be started;
        it may only be waited for otherwise. Raises the error if the call is not to be made again."""
        if isinstance(error, NotSent) and not self._was_unsent:
            # The daemon has closed the connection since the last call, for example because it ended.
            self._was_unsent = True
            return True
        if self._method not in REPEATABLE or not is_durable(self._path) or not self._tries.may_try():
            raise error
        self._instance = self._instance or instance
        return is_left(self._path)

    def meets(self, instance: Optional[str], error: ConnectionLost) -> None:
        """Compares the daemon that is running now with the one that was lost. Raises the error if its tasks differ."""
        if self._instance not in (None, instance):
            raise error


@contextmanager
def naming(ids: Sequence[str]) -> Iterator[None]:
    """Names the tasks that are waited for in errors about the daemon."""
    try:
        yield
    except (ConnectionLost, NoAnswer, NoDaemon, OtherInstance) as error:
        if error.active or not ids:
            raise
        # Another one: several threads may have got the same error of their connection.
        raise _about(ids, error) from error


def _about(ids: Sequence[str], error: BgdError) -> BgdError:
    names = ", ".join(ids[:3]) + (" and others" if len(ids) > 3 else "")
    message = f"{names}: {error.message}"
    named: BgdError
    if isinstance(error, OtherInstance):
        named = OtherInstance(message, error.instance, "its tasks are lost")
    else:
        named = type(error)(message, None if error.hint == CURSOR_HINT else error.hint)
    named.exit_code = error.exit_code
    named.active = list(ids)
    return named
