"""The base of all exceptions of this package, and those that do not come from the daemon.

Nothing here does I/O. The daemon's own kinds are in `_kinds`, which is generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, cast

from . import types


class BgdError(Exception):
    """The base of all exceptions of this package.

    `str()` of it is a sentence for people, with the hint.
    """

    kind: str = "internal"
    """What went wrong, for programs: a kind of bgd-protocol(7), or one of the local kinds of `bgctl --json`."""

    exit_code: int = 70
    """The exit code that bgctl(1) has for it, for scripts: `sys.exit(error.exit_code)`."""

    def __init__(self, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        """What is wrong, in a sentence."""
        self.hint = hint
        """What to do about it; None if there is nothing to say."""
        self.active: list[str] = []
        """Ids of the tasks that were waited for and may not have ended, if a wait timed out or lost its daemon."""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class CallError(BgdError):
    """The daemon refused the call. There is a subclass for each kind; a newer daemon may have others."""

    code: int
    """The JSON-RPC code of the kind."""

    data: types.ErrorData
    """All that the daemon has sent about it."""

    def __init__(self, message: str, code: int = 0, data: Optional[types.ErrorData] = None) -> None:
        details: dict[str, Any] = dict(data or {})
        super().__init__(message, details.get("hint"))
        self.code = code
        self.data = cast(types.ErrorData, details)
        if isinstance(details.get("kind"), str):
            self.kind = details["kind"]

    @property
    def candidates(self) -> list[str]:
        """With `ambiguous_id`: up to 20 matching ids."""
        return list(self.data.get("candidates", []))

    @property
    def task(self) -> Optional[types.Task]:
        """With `already_finished` from `task.detach` or `task.handoff`: the task as it ended."""
        return self.data.get("task")

    @property
    def failure(self) -> Optional[types.Failure]:
        """With `not_complete`: why the task failed, if it did."""
        return self.data.get("failure")


class UsageError(BgdError, ValueError):
    """The arguments make no sense; nothing was sent."""

    kind = "usage"
    exit_code = 2


class SystemFailure(BgdError, OSError):
    """A system call of this process failed."""

    kind = "io"
    exit_code = 70


class UntrustedSocket(BgdError, PermissionError):
    """The daemon's socket, its folder or its owner can't be trusted; nothing was sent."""

    kind = "untrusted_socket"
    exit_code = 77


class NoDaemon(BgdError, ConnectionError):
    """No daemon is running, and none was to be started or it can't be started."""

    kind = "no_daemon"
    exit_code = 69


class NoAnswer(BgdError, ConnectionError):
    """A daemon is running but does not answer, for example because it is stopped."""

    kind = "no_answer"
    exit_code = 69


class ConnectionLost(BgdError, ConnectionError):
    """The daemon went away before it answered; the call may have been carried out."""

    kind = "connection_lost"
    exit_code = 69


class OtherInstance(BgdError):
    """The daemon that a cursor or a place in a list is from has ended: its tasks and events are lost."""

    kind = "other_instance"
    exit_code = 69

    def __init__(self, message: str, instance: str, hint: str = "start over with since=0") -> None:
        super().__init__(message, hint)
        self.instance = instance
        """The daemon that is running now."""


class Garbled(BgdError):
    """The daemon sent something that can't be understood. The connection is closed."""

    kind = "garbled"
    exit_code = 70


class Timeout(BgdError, TimeoutError):
    """The time given by `timeout` is over. A task that was waited for goes on; a call may still be carried out."""

    kind = "timed_out"
    exit_code = 75

    def __init__(self, message: str, hint: Optional[str] = None, active: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.active = list(active)


class TaskFailed(BgdError):
    """A task did not complete. `exit_code` is that of the task, see `Task.exit_code`; it is never 0."""

    kind = "task_failed"
    exit_code = 1

    def __init__(self, task: types.Task, exit_code: int) -> None:
        super().__init__(f"task {task['id']} {task['status']}: {task.get('error') or task['description']}")
        self.task = task
        """The task as it ended."""
        self.exit_code = exit_code
