"""A task as a handle of the blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional, Union

from . import _requests, types
from ._core import DEFAULT, SILENCE, WAIT, Timeout, checked, milliseconds
from ._failure import TaskFailed
from ._output import Reading, is_last
from ._requests import HasId, decoded
from ._successor import naming

if TYPE_CHECKING:
    from ._client import Client


class Task(HasId):
    """A task of the daemon, by its id. `info` is what was last heard of it: by its own methods, or by `wait` or
    `block` of a client to which it was given."""

    def __init__(self, client: Client, info: types.Task) -> None:
        self.client = client
        self.id = info["id"]
        self.info = info

    def __repr__(self) -> str:
        return f"<bgd.Task {self.id} {self.status}>"

    @property
    def status(self) -> types.Status:
        """Its status when it was last heard of; see `refresh`."""
        return self.info["status"]

    @property
    def has_ended(self) -> bool:
        """Whether it had ended when it was last heard of."""
        return _requests.has_ended(self.info)

    @property
    def exit_code(self) -> Optional[int]:
        """Its exit code as `bgctl run` has it. None if it had not ended when it was last heard of.

        That is the command's own, 128 + the signal that ended it, or 124 if it exceeded its time limit. If it failed to
        start: 127 if there is no such program, 126 if that can't be executed or its folder can't be entered, and 70 for
        any other reason. 70 also if its code is unknown; 1 if it was cancelled before it started, or was cancelled or
        failed although it exited with 0. An agent's task has 0 if it completed, else 1.

        `bgctl block --exit-code` differs: it has 1 for all that never started, and where the code is unknown.
        """
        return _requests.exit_code(self.info)

    def refresh(self, *, timeout: Timeout = DEFAULT) -> types.Task:
        """Asks the daemon for its present state, with its last line of output."""
        self.info = self.client.task_get(self.id, timeout=timeout)["task"]
        return self.info

    def wait(
        self, timeout: Optional[float] = WAIT, *, until: types.BlockUntil = "ended", check: bool = False
    ) -> types.Task:
        """Waits for its end, or until it is ready. Raises Timeout after so many seconds, while it goes on; with `check`,
        TaskFailed if it ended otherwise than completed."""
        self.info = self.client.wait(self, timeout=timeout, until=until)[0]
        if check and self.has_ended and self.status != "completed":
            raise TaskFailed(self.info, self.exit_code or 1)
        return self.info

    def output(
        self, offset: int = 0, *, stream: Optional[types.Stream] = None, timeout: Timeout = DEFAULT
    ) -> bytes:
        """Returns its output so far from an offset in bytes on; a negative one counts from the end. All of it is held in
        memory: see `follow` for parts. `timeout` is for each part."""
        return b"".join(self._parts(Reading(offset, stream), timeout))

    def follow(
        self, offset: int = 0, *, stream: Optional[types.Stream] = None, timeout: Optional[float] = SILENCE
    ) -> Iterator[bytes]:
        """Returns its output in parts of at most 256 KiB, as it is written, until it has ended. Raises Timeout after so
        many seconds without more of it. If its file is truncated meanwhile, it goes on from the file's beginning. It
        also goes on with the next daemon after a durable one was killed."""
        checked(timeout)
        reading = Reading(offset, stream)
        with naming([self.id]):
            with self.client.events(ids=[self.id], timeout=timeout) as events:
                events.connect()
                while True:
                    for result in self._results(reading, DEFAULT):
                        task = self.info = result["task"]
                        if result["data"]:
                            yield decoded(result["data"], result["encoding"])
                        if result["eof"]:
                            return
                        if _requests.has_ended(task):
                            # Others of its processes may write on, which is not waited for.
                            for part in self._parts(reading, DEFAULT):
                                if part:
                                    yield part
                            return
                    next(events)

    def _parts(self, reading: Reading, timeout: Timeout) -> Iterator[bytes]:
        """Returns the parts up to the end as it is now: the task may write faster than this can read."""
        end: Optional[int] = None
        for result in self._results(reading, timeout):
            yield decoded(result["data"], result["encoding"])
            if end is None and not is_last(result):
                end = (self.client.task_output(self.id, **reading.end(), timeout=timeout))["next"]
            if end is not None and reading.offset >= end:
                return

    def _results(self, reading: Reading, timeout: Timeout) -> Iterator[types.OutputResult]:
        while True:
            result = self.client.task_output(self.id, **reading.part(), timeout=timeout)
            if not reading.take(result):
                continue
            yield result
            if is_last(result):
                return

    def result(self, *, timeout: Timeout = DEFAULT) -> bytes:
        """Returns the result of a completed task: an agent's answer, or the last 256 KiB of a command's output. Raises
        NotComplete for any other status."""
        found = self.client.task_result(self.id, timeout=timeout)
        self.info = found["task"]
        return decoded(found["result"], found["encoding"])

    def cancel(
        self, *, signal: Union[str, int, None] = None, grace: Optional[float] = None, timeout: Timeout = DEFAULT
    ) -> types.Task:
        """Ends all of its processes by a signal, TERM by default, and by KILL after `grace` seconds; returns when all have
        ended. Does nothing if it has ended."""
        self.info = self.client.task_cancel(
            ids=[self.id],
            signal=None if signal is None else str(int(signal) if isinstance(signal, int) else signal),
            grace_ms=milliseconds("grace", grace),
            timeout=timeout,
        )["tasks"][0]
        return self.info

    def signal(self, signal: Union[str, int], *, tree: bool = False, timeout: Timeout = DEFAULT) -> None:
        """Sends a signal to its main process, or to all of its processes, without waiting for the effect. Raises
        NotRunning."""
        word = str(int(signal)) if isinstance(signal, int) else signal
        self.info = self.client.task_signal(id=self.id, signal=word, tree=tree, timeout=timeout)["task"]

    def write(self, data: bytes, *, eof: bool = False, timeout: Timeout = DEFAULT) -> None:
        """Writes to its terminal, or to its standard input if that is "pipe", and returns when all of it was written.
        `timeout` is for each 256 KiB or less, as the daemon reads them. Raises NotRunning or Unsupported."""
        frame_bytes = self.client.connect()["limits"]["frame_bytes"]
        for part, is_last in _requests.input_parts(data, frame_bytes):
            self.client.task_write(
                self.id, data=part, encoding="base64", eof=eof and is_last, timeout=timeout
            )

    def resume(
        self, prompt: str, *, settings: Optional[types.AgentSettings] = None, timeout: Timeout = DEFAULT
    ) -> types.Task:
        """Sends a follow-up prompt to the agent of a completed task, in the same conversation; then `wait` waits for the
        new answer. Raises NotResumable, BeingResumed, SessionExpired and others, see `BgdError`."""
        self.info = self.client.task_resume(self.id, prompt=prompt, settings=settings, timeout=timeout)["task"]
        return self.info

    def clear(self, *, timeout: Timeout = DEFAULT) -> None:
        """Deletes the task, which must have ended, with its output."""
        self.client.task_clear(ids=[self.id], timeout=timeout)
