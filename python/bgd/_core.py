"""The client's side of the protocol without I/O and without a clock: calls become lines, bytes become messages.

Both clients drive one `Core` for each connection. It keeps no reference to a socket, so that it can be tested with bytes
alone.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional, Union

from . import _constants as constants
from ._failure import CallError, Garbled, OtherInstance, UsageError
from ._kinds import BY_KIND, FrameTooLarge


class _Default(enum.Enum):
    DEFAULT = "the default"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Literal[_Default.DEFAULT] = _Default.DEFAULT
"""Stands for a client's own `timeout`."""

Timeout = Union[float, None, Literal[_Default.DEFAULT]]
"""Seconds, at least 0; None for no limit; by default the client's `timeout`."""

CALL = 60.0
"""Default time for the answer to a call, in seconds, beside the time that the call itself allows."""

WAIT = 60.0
"""Default time to wait for tasks, in seconds."""

SILENCE = 3600.0
"""Default time to wait for the next event or part of an output, in seconds."""

PROBE = 0
"""The number of the `hello` that only checks whether the daemon is alive. Calls are counted from 1."""


@dataclass(frozen=True)
class Answer:
    """The answer to a call."""

    number: int
    result: Any
    error: Optional[CallError]


@dataclass(frozen=True)
class Notification:
    """A message that nobody has asked for."""

    method: str
    params: Any


class Core:
    """The state of one connection."""

    def __init__(self, answer_bytes: int = constants.ANSWER_BYTES) -> None:
        self.frame_bytes = constants.FRAME_BYTES
        """The longest line that the daemon reads, in bytes; `hello` says it."""
        self._answer_bytes = answer_bytes
        self._calls = 0
        self._buffer = bytearray()
        self._searched = 0

    def call(self, method: str, params: Mapping[str, Any]) -> tuple[int, bytes]:
        """Returns the number and the line of a call. Raises UsageError for params that are no JSON, and FrameTooLarge
        for a line that the daemon would not read."""
        number = self._calls + 1
        line = encoded(number, method, params)
        if len(line) > self.frame_bytes:
            message = f"the request has {len(line)} bytes; the daemon accepts {self.frame_bytes}"
            data: Any = {"kind": FrameTooLarge.kind, "hint": "limits.frame_bytes is set in its configuration"}
            raise FrameTooLarge(message, -32015, data)
        self._calls = number
        return number, line

    def push(self, data: bytes) -> None:
        """Takes bytes from the daemon."""
        self._buffer += data

    def messages(self) -> Iterator[Union[Answer, Notification]]:
        """Returns the messages that are complete. Raises Garbled for one that can't be understood, and the daemon's
        error if it is about the whole connection, such as TooManyConnections; nothing can follow either."""
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end < 0:
                self._searched = len(self._buffer)
                if len(self._buffer) > self._answer_bytes:
                    raise Garbled(f"a message of the daemon has more than {self._answer_bytes} bytes")
                return
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            if line.strip():
                yield understood(line)


def json_text(value: Any) -> str:
    """Returns a value as it is written into a line. Raises TypeError, ValueError or RecursionError for what is no JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encoded(number: int, method: str, params: Mapping[str, Any]) -> bytes:
    """Returns the line of a call. Raises UsageError for params that are no JSON."""
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    try:
        return json_text(request).encode() + b"\n"
    except UnicodeEncodeError:
        message = f"{method}: a param has bytes that are not UTF-8; use bgd.os_text for arguments, folders and variables"
        raise UsageError(message) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{method}: the params can't be sent: {error}") from None


PROBE_LINE = encoded(PROBE, "hello", {})


def understood(line: bytes) -> Union[Answer, Notification]:
    """Returns the message on a line."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"the daemon's message can't be parsed: {error}") from None
    if not isinstance(message, dict):
        raise Garbled("the daemon's message is not an object")
    method = message.get("method")
    if isinstance(method, str):
        return Notification(method, message.get("params"))
    number = message.get("id")
    number = number if type(number) is int else None
    if message.get("error") is not None:
        refused = refusal(message["error"])
        if number is None:
            raise refused
        return Answer(number, None, refused)
    if number is None:
        raise Garbled("the daemon answered a call that was not made")
    if "result" not in message:
        raise Garbled("the daemon sent an answer without a result")
    return Answer(number, message["result"], None)


def refusal(error: Any) -> CallError:
    """Returns the daemon's error as an exception."""
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise Garbled("the daemon sent an error without a message")
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    code = error.get("code")
    return BY_KIND.get(str(data.get("kind")), CallError)(
        error["message"], code if type(code) is int else 0, data  # type: ignore[arg-type]
    )


def present(params: Mapping[str, Any], nullable: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the params that are not None; those in `nullable` may be."""
    return {name: value for name, value in params.items() if value is not None or name in nullable}


ENDING = 60.0
"""How long the end of tasks may take beside their grace period, in seconds."""

SLOW = {"agent.list": 120.0, "executor.list": 120.0, "task.resume": 120.0, "task.write": 120.0}
"""How long the daemon may take for calls that wait for other programs, in seconds, beside the client's `timeout`."""


def allowed(method: str, params: Mapping[str, Any], timeout: Timeout, default: Optional[float]) -> Optional[float]:
    """Returns how long the answer to a call may take, in seconds; None for no limit."""
    if not isinstance(timeout, _Default):
        return checked(timeout)
    if default is None:
        return None
    waits: Optional[float] = SLOW.get(method, 0.0)
    if method == "task.block":
        waits = _seconds(params.get("timeout_ms", constants.BLOCK_TIMEOUT_MS))
    elif method == "inbox.read":
        waits = _seconds(params.get("wait_ms")) or 0.0
    elif method == "task.attach":
        # It waits until a pending task starts.
        waits = None
    elif method in ("task.cancel", "task.clear", "session.end", "daemon.shutdown"):
        # Otherwise it is the one of the daemon's configuration, which is not known here.
        grace = _seconds(params.get("grace_ms"))
        waits = None if grace is None else grace + ENDING
    return None if waits is None else default + waits


def _seconds(ms: Any) -> Optional[float]:
    """Returns a time of a call in seconds; None for null, and for what the daemon will refuse."""
    return ms / 1000 if isinstance(ms, (int, float)) else None


def of_one_daemon(now: Optional[str], before: Optional[str]) -> Optional[str]:
    """Returns the daemon that has answered. Raises OtherInstance if that of the page before was another one: the place in
    the list means nothing to it."""
    if now is not None and before not in (None, now):
        message = f"the daemon has ended in the middle of a list; another one is running, {now}"
        raise OtherInstance(message, now, "list the tasks again")
    return now


def checked(timeout: Optional[float]) -> Optional[float]:
    """Returns a time given by the caller. Raises UsageError for one that is negative or no number."""
    if timeout is not None and not _is_time(timeout):
        raise UsageError(f"the timeout {timeout!r} is not a number of seconds from 0 on, or None")
    return None if timeout is None else float(timeout)


def _is_time(seconds: float) -> bool:
    """Whether this is a number from 0 on, of whatever type numbers have, that can be added to others."""
    try:
        return bool(seconds >= 0) and float(seconds) >= 0
    except (TypeError, OverflowError):
        return False


def milliseconds(name: str, seconds: Optional[float]) -> Optional[int]:
    """Returns a time of the caller as the protocol has it, rounded up."""
    if seconds is None:
        return None
    if not (_is_time(seconds) and seconds < float("inf")):
        raise UsageError(f"{name}={seconds!r} is not a number of seconds from 0 on")
    return -int(-seconds * 1000 // 1)


class InboxNumbers:
    """Which daemon the numbers of each inbox are from. Another one must not take them for its own: it would acknowledge
    items that nobody has read."""

    def __init__(self) -> None:
        self._instances: dict[str, str] = {}

    def completed(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Returns the params with the instance that their number is from, unless the caller has given one."""
        uses_number = method == "inbox.ack" or (method == "inbox.read" and params.get("after"))
        known = self._instances.get(params.get("session", "")) if uses_number else None
        return params if known is None or "instance" in params else {**params, "instance": known}

    def learn(self, method: str, params: dict[str, Any], result: Any) -> None:
        """Takes the result of a call."""
        if method == "inbox.read":
            self._instances[params["session"]] = result["instance"]


CURSOR = re.compile(r"(?P<instance>[^:]+):(?P<seq>[0-9]+)")


def position(since: Union[str, int, None]) -> tuple[Optional[str], Optional[int]]:
    """Returns the instance and the number of a cursor. Raises UsageError if it is none."""
    if since is None or isinstance(since, int):
        if since is not None and since < 0:
            raise UsageError(f"since={since!r}: give the number of an event from 0 on, or a cursor")
        return None, since
    found = CURSOR.fullmatch(since) if isinstance(since, str) else None
    if found is None:
        raise UsageError(f"since={since!r} is not a cursor; it is INSTANCE:NUMBER, as `cursor` of the events has it")
    return found["instance"], int(found["seq"])
