"""Which calls are made again after their daemon has ended, and when: a durable daemon leaves its tasks to the next one.
Both clients use it; it waits for nothing.

The rules are those of bgctl, see "Waiting commands" in bgd-guarantees(7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

from . import _constants as constants
from . import _socket
from ._connection import NotSent, now
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

BURST = 10
"""Most daemons that may end within `BURST_TIME`: nobody keeps starting daemons that die at once."""

BURST_TIME = 10.0
"""The time in which ended daemons are counted, from the first one on, in seconds."""

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


class Ends:
    """Counts the daemons that have ended while something waited for them."""

    def __init__(self) -> None:
        self._begin: Optional[float] = None
        self._count = 0

    def add(self) -> None:
        """Counts a daemon that has ended."""
        at = now()
        if self._begin is None or at - self._begin >= BURST_TIME:
            self._begin, self._count = at, 0
        self._count += 1

    @property
    def may_follow(self) -> bool:
        """Whether the daemon after the last one that was counted may be waited for and started."""
        return self._count <= BURST


class Repeats:
    """A call, which is made again if its connection is lost and the next daemon has the same tasks."""

    def __init__(self, path: str, method: str, params: dict[str, Any]) -> None:
        self._path = path
        self._method = method
        self._params = params
        self._begun = now()
        self._ends = Ends()
        self._was_unsent = False
        self._instance: Optional[str] = None
        self.could_start = False
        """The last answer of `may_start`."""

    @property
    def seeks(self) -> bool:
        """Whether a durable daemon has ended, so that the next one with its tasks is sought."""
        return self._instance is not None

    @property
    def is_repeatable(self) -> bool:
        """Whether the call may be made again to the next daemon, which has the same tasks."""
        return self._method in REPEATABLE and is_durable(self._path)

    def may_start(self) -> bool:
        """Whether a daemon may be started at this moment; it may only be waited for otherwise."""
        self.could_start = not self.seeks or is_left(self._path)
        return self.could_start

    def params(self) -> dict[str, Any]:
        """Returns the params for the call as it is made now: if it is made again, it waits for the rest of its time."""
        name, default = WAITS.get(self._method, ("", None))
        ms = self._params.get(name, default)
        if not self.seeks or not isinstance(ms, (int, float)):
            return self._params
        return {**self._params, name: max(0, int(ms - (now() - self._begun) * 1000))}

    def lost(self, error: ConnectionLost, instance: Optional[str]) -> None:
        """Takes the loss of the connection to the daemon of this instance. Raises the error if the call is not to be
        made again."""
        if isinstance(error, NotSent) and not self._was_unsent:
            # The daemon has closed the connection since the last call, for example because it ended.
            self._was_unsent = True
            return
        if not self.is_repeatable:
            raise error
        self._ends.add()
        if not self._ends.may_follow:
            raise error
        self._instance = self._instance or instance

    def meets(self, instance: Optional[str], error: ConnectionLost) -> None:
        """Compares the daemon that is running now with the one that was lost. Raises the error if its tasks differ."""
        if self._instance not in (None, instance):
            raise error


MayStart = Callable[[], bool]
"""Says whether a daemon may be started at this moment."""


def always() -> bool:
    """For calls that have not waited for an earlier daemon."""
    return True


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
