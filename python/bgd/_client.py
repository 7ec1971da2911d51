"""The blocking client."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Optional, Union

from . import _constants as constants
from . import _requests, _socket, types
from ._connection import Connection, after
from ._core import (
    CALL,
    DEFAULT,
    SILENCE,
    WAIT,
    InboxNumbers,
    Notification,
    Timeout,
    allowed,
    checked,
    milliseconds,
    of_one_daemon,
    present,
)
from ._events import EventStream
from ._failure import ConnectionLost, NoDaemon, UsageError
from ._handoff import HandedOver, PopenHandoff, Process
from ._kinds import ShuttingDown
from ._methods import Methods
from ._requests import Conditions, References, Stream, Text, listed, reference, references, update
from ._socket import PAUSES
from ._streams import OnRestart, Place
from ._successor import MayStart, Repeats, always, naming, stopped
from ._task import Task

PAGE = 1000


class Batch(NamedTuple):
    """Tasks that were submitted together."""

    id: str
    """Id of the batch, for `batch` of `tasks` and of `types.Matching`."""

    ids: list[str]
    """Ids of its tasks, in the order of their commands."""


@dataclass(frozen=True)
class Completed:
    """A task that `run` has waited for."""

    task: types.Task
    """The task as it ended."""

    exit_code: int
    """Its exit code, or 128 + the signal; see `Task.exit_code`."""

    output: bytes
    """Its output: stdout and stderr in the order in which they were written."""


class Client(Methods):
    """A blocking client of the daemon. It may be used by any number of threads: their calls run concurrently over one
    connection. After a fork the child makes a connection of its own.

    It connects when it is first used, and again after the connection was lost; a call that was in progress then raises
    ConnectionLost, as it may have been carried out. If a durable daemon was killed, calls that wait or only read go on
    with the next one, which has the same tasks. If no daemon is running it starts one by `bgctl daemon start`, with
    the bgctl that came with this package, else the one in PATH.

        with bgd.Client() as client:
            task = client.submit(["make", "-j2"], description="build")
            task.wait(timeout=600, check=True)
            print(task.output().decode())
    """

    def __init__(
        self,
        socket: Optional[Text] = None,
        *,
        session: Optional[str] = None,
        owns: bool = False,
        start: bool = True,
        bgctl: Optional[Text] = None,
        timeout: Optional[float] = CALL,
        name: Optional[str] = None,
    ) -> None:
        """
        socket: Path of the daemon's socket. Default: $BGD_SOCKET, else $XDG_RUNTIME_DIR/bgd/bgd.sock, else
            /tmp/bgd-UID/bgd.sock. $BGD_HOST is ignored: this package speaks with daemons on this machine.
        session: Parent session of the tasks that are submitted. Default: $BGD_SESSION, if that is not empty.
        owns: Whether `session` ends with this client's connection: its tasks are cancelled and deleted then.
        start: Whether to start a daemon if none is running. That may take longer than a call's `timeout`.
        bgctl: Path of the bgctl that starts it.
        timeout: Default time for the answer to a call, in seconds, beside the time that the call itself allows the
            daemon to wait; None for no limit.
        name: Name and version of the program, for the daemon's log.
        """
        self.path = _socket.socket_path(socket)
        self.session = _requests.own_session(session)
        self.timeout = checked(timeout)
        if owns and self.session is None:
            raise UsageError("owns=True needs a session")
        self._chosen = None if socket is None else self.path
        self._owns = owns
        self._starts = start
        self._bgctl = bgctl
        self._name = name or f"bgd-python {constants.VERSION}"
        self._connection: Optional[Connection] = None
        self._others: set[Connection] = set()
        self._hello: Optional[types.HelloResult] = None
        self._numbers = InboxNumbers()
        self._is_closed = False
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __enter__(self) -> Client:
        self.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Whoever waits for an answer gets ConnectionLost; tasks go on, unless this client owns
        their session. It can't be used again. In a process that was forked, the connection of the other process stays."""
        self._leave_to_parent()
        with self._lock:
            self._is_closed = True
            connections = list(self._others)
            if self._connection is not None:
                connections.append(self._connection)
                self._connection = None
        for connection in connections:
            connection.close()

    # --- The connection.

    def connect(self) -> types.HelloResult:
        """Connects, and starts a daemon if none is running and `start` is set. Returns what the daemon says about
        itself. Does nothing if there is a connection."""
        self._connected()
        assert self._hello is not None
        return self._hello

    @property
    def instance(self) -> Optional[str]:
        """Id of the daemon that this client has last spoken with. A different one means that all earlier tasks are
        lost. None before the first connection."""
        return None if self._hello is None else self._hello["instance"]

    def call(
        self, method: str, params: Optional[Mapping[str, Any]] = None, *, fds: Sequence[int] = (), timeout: Timeout = DEFAULT
    ) -> Any:
        """Calls any method, also one of a newer daemon, and returns its result. `params` are sent as they are."""
        given = params or {}
        return self._call(method, given, timeout, fds, nullable=list(given))

    def notification(self, *, timeout: Optional[float] = WAIT) -> Notification:
        """Waits for the next notification on the client's own connection: `output` and `stopped` after `task_attach` or
        a foreground job, `event` after `events_subscribe`. At most 10,000 are kept, then the oldest are dropped. Raises
        Timeout after so many seconds."""
        return self._connected().notification(after(checked(timeout)))

    def _call(
        self,
        method: str,
        params: Mapping[str, Any],
        timeout: Timeout,
        fds: Sequence[int] = (),
        nullable: Sequence[str] = (),
        over: Optional[Connection] = None,
    ) -> Any:
        sent = present(params, nullable)
        limit = allowed(method, sent, timeout, self.timeout)
        if len(fds) > constants.FDS_PER_FRAME:
            raise UsageError(f"{method}: {len(fds)} descriptors; at most {constants.FDS_PER_FRAME} go with a line")
        if over is not None:
            return over.call(method, sent, fds, after(limit))
        if not nullable:
            sent = self._numbers.completed(method, sent)
        repeats = Repeats(self.path, method, sent)
        connection = self._connected()
        while True:
            try:
                result = connection.call(method, repeats.params(), fds, after(limit))
                break
            except (ConnectionLost, ShuttingDown) as error:
                connection = self._next(repeats, error, connection)
        self._numbers.learn(method, sent, result)
        return result

    def _next(
        self, repeats: Repeats, error: Union[ConnectionLost, ShuttingDown], lost: Connection
    ) -> Connection:
        """Connects to the daemon to which a call is made again after this connection was lost, or raises the error."""
        if isinstance(error, ShuttingDown):
            # A durable daemon ends; so it answers reads that wait.
            ended = lost.until_closed(after(constants.BUSY)) if repeats.is_repeatable else None
            if ended is None:
                raise error
            error = ended
        if self._is_closed:
            raise error
        repeats.lost(error, lost.instance)
        for pause in PAUSES:
            try:
                connection = self._connected(repeats.may_start)
            except NoDaemon:
                if not repeats.seeks or (self._starts and repeats.could_start):
                    raise
                time.sleep(pause)
            else:
                repeats.meets(connection.instance, error)
                return connection
        raise stopped() from error

    def _leave_to_parent(self) -> None:
        """In a process that was forked, leaves the connections to the other one, and the lock to its threads."""
        if self._process == os.getpid():
            return
        self._process, self._lock = os.getpid(), threading.Lock()
        inherited = list(self._others)
        self._others.clear()
        if self._connection is not None:
            inherited.append(self._connection)
            self._connection = None
        for connection in inherited:
            connection.forget()

    def _connected(self, may_start: MayStart = always) -> Connection:
        self._leave_to_parent()
        with self._lock:
            if self._is_closed:
                raise UsageError("the client is closed")
            if self._connection is not None:
                self._connection.refresh()
                if not self._connection.is_open:
                    self._connection.close()
                    self._connection = None
            if self._connection is None:
                self._connection, self._hello = self._open(may_start, self._owns)
            return self._connection

    def _another(self) -> Connection:
        """Makes a further connection, which ends with this client if it is not dropped before."""
        # Only that of the client owns the session, so that it must be there first.
        self._connected()
        connection, _ = self._open(always, owns=False)
        with self._lock:
            if not self._is_closed:
                self._others.add(connection)
                return connection
        connection.close()
        raise ConnectionLost("the client was closed")

    def _drop(self, connection: Connection) -> None:
        """Ends a further connection."""
        self._leave_to_parent()
        with self._lock:
            self._others.discard(connection)
        connection.close()

    def _open(self, may_start: MayStart, owns: bool) -> tuple[Connection, types.HelloResult]:
        """Makes a connection, and introduces this client. Before each attempt, asks whether it may start a daemon."""
        for pause in PAUSES:
            try:
                return self._introduced(self._starts and may_start(), owns)
            except ConnectionLost:
                # The daemon is about to end.
                time.sleep(pause)
        return self._introduced(self._starts and may_start(), owns)

    def _introduced(self, starts: bool, owns: bool) -> tuple[Connection, types.HelloResult]:
        stream = _socket.connect_or_start(self.path, starts, self._bgctl)
        connection = Connection(stream, self.path)
        params = {"client": self._name, "protocol": constants.PROTOCOL}
        if owns:
            params.update({"session": self.session or "", "owns": True})
        try:
            hello: types.HelloResult = connection.call("hello", params, deadline=after(2 * constants.BUSY))
            connection.core.frame_bytes = hello["limits"]["frame_bytes"]
            connection.instance = hello["instance"]
        except BaseException:
            connection.close()
            raise
        return connection, hello

    # --- Tasks.

    def submit(
        self,
        argv: Optional[Sequence[Text]] = None,
        *,
        shell: Optional[Text] = None,
        prompt: Optional[str] = None,
        agent: Optional[str] = None,
        settings: Optional[types.AgentSettings] = None,
        description: Optional[str] = None,
        cwd: Optional[Text] = None,
        env: Optional[Mapping[Any, Any]] = None,
        umask: Optional[int] = None,
        stdin: Union[Stream, Literal["pipe"], None] = None,
        stdout: Optional[Stream] = None,
        stderr: Optional[Stream] = None,
        pty: Union[bool, tuple[int, int]] = False,
        split: Optional[bool] = None,
        time_limit: Optional[float] = None,
        tags: Iterable[str] = (),
        key: Optional[str] = None,
        session: Optional[str] = None,
        channel: Optional[str] = None,
        group: Optional[str] = None,
        priority: Optional[int] = None,
        slots: Optional[int] = None,
        after: Conditions = (),
        delay: Optional[float] = None,
        start_at: Optional[datetime] = None,
        hold: Optional[bool] = None,
        retry: Union[int, types.Retry, None] = None,
        restart: Optional[types.Restart] = None,
        ready: Optional[str] = None,
        ready_timeout: Optional[float] = None,
        on: Optional[str] = None,
        resources: Optional[types.Resources] = None,
        timeout: Timeout = DEFAULT,
    ) -> Task:
        """Submits a command or a prompt, and returns its task at once; it survives this program.

        argv: Program and arguments, passed on unchanged; the program is searched in PATH. Or `shell`: a line for
            /bin/sh. Or `prompt`: a prompt for an agent, which needs `description`.
        cwd, env, umask: As in this process by default, with its resource limits. `env` is the complete environment.
        stdin: An open descriptor or file, or "pipe" for `Task.write`. Default: empty.
        stdout, stderr: An open descriptor or file, instead of the task's output.
        pty: Run in a terminal of its own, of 24 rows and 80 columns or of the given ones.
        split: Keep stdout and stderr apart.
        time_limit, delay, ready_timeout: Seconds.
        tags: At most 64.
        key: The same key in the same session returns the same task; then a lost connection is no error.
        session: Default: the client's.
        priority: -100 to 100, default 0. slots: 0 to those of the group, default 1.
        after: Tasks to start after, or conditions on them: a single one, or at most 1000.
        retry: Number of retries after a failure, 1 to 1000, or more about them.
        on, resources: Where to run it, see bgd-executors(7).

        Raises UnknownAgent, AgentUnavailable, UnknownGroup, RegistryFull and others, see `BgdError`. A program that
        can't be started is not an error of this call: the task fails.
        """
        more = {
            "prompt": prompt, "agent": agent, "settings": settings, "description": description, "split": split,
            "key": key, "session": _requests.own_session(session) if session is not None else self.session,
            "channel": channel, "group": group, "priority": priority, "slots": slots, "hold": hold,
            "restart": restart, "ready": ready, "on": on, "resources": resources,
        }  # fmt: skip
        request = _requests.submit(
            argv, shell=shell, cwd=cwd, env=env, umask=umask, stdin=stdin, stdout=stdout, stderr=stderr, pty=pty,
            time_limit=time_limit, tags=tags, after=after, delay=delay, start_at=start_at, retry=retry,
            ready_timeout=ready_timeout, socket=self._chosen, more=more,
        )  # fmt: skip
        try:
            request.put_env(self.connect()["limits"]["frame_bytes"])
            try:
                result = self._call("task.submit", request.params, timeout, request.fds)
            except ConnectionLost:
                if key is None:
                    raise
                # It runs once, however often it is submitted.
                result = self._call("task.submit", request.params, timeout, request.fds)
        finally:
            request.close()
        return Task(self, result["task"])

    def submit_many(
        self,
        argvs: Iterable[Sequence[Text]],
        *,
        jobs: Optional[int] = None,
        max_fails: Optional[int] = None,
        description: Optional[str] = None,
        cwd: Optional[Text] = None,
        env: Optional[Mapping[Any, Any]] = None,
        time_limit: Optional[float] = None,
        tags: Iterable[str] = (),
        session: Optional[str] = None,
        group: Optional[str] = None,
        priority: Optional[int] = None,
        retry: Union[int, types.Retry, None] = None,
        timeout: Timeout = DEFAULT,
    ) -> Batch:
        """Submits many commands as a batch, all or none, in as many parts as it takes. If it takes several, they have a
        connection of their own.

        jobs: Most tasks of the batch that run at once, 1 to 100000. max_fails: After so many failures the rest is
        cancelled. The others are as for `submit`, and the same for each.
        """
        more = {
            "description": description, "group": group, "priority": priority,
            "session": _requests.own_session(session) if session is not None else self.session,
        }  # fmt: skip
        request = _requests.submit(
            [""], shell=None, cwd=cwd, env=env, umask=None, stdin=None, stdout=None, stderr=None, pty=False,
            time_limit=time_limit, tags=tags, after=(), delay=None, start_at=None, retry=retry, ready_timeout=None,
            socket=self._chosen, more=more,
        )  # fmt: skip
        batch: Optional[str] = None
        ids: list[str] = []
        over: Optional[Connection] = None
        try:
            frame_bytes = self.connect()["limits"]["frame_bytes"]
            request.put_env(frame_bytes)
            common = present(request.params)
            del common["argv"]
            common.pop("delay_ms", None)
            first: dict[str, Any] = {"task": common, "jobs": jobs, "max_fails": max_fails}
            for part, more_follow in _requests.parts(argvs, frame_bytes):
                if more_follow and over is None:
                    # The daemon takes one batch at a time from a connection, and drops one whose end is missing
                    # when the connection ends.
                    over = self._another()
                params = first if batch is None else {"batch": batch}
                fds = request.fds if batch is None else []
                params = {**present(params), "argvs": part, "more": more_follow}
                result = self._call("task.submit_many", params, timeout, fds, over=over)
                batch = result["batch"]
                ids += result["ids"]
        finally:
            request.close()
            if over is not None:
                self._drop(over)
        assert batch is not None
        return Batch(batch, ids)

    def run(
        self,
        argv: Optional[Sequence[Text]] = None,
        *,
        shell: Optional[Text] = None,
        description: Optional[str] = None,
        cwd: Optional[Text] = None,
        env: Optional[Mapping[Any, Any]] = None,
        time_limit: Optional[float] = None,
        tags: Iterable[str] = (),
        timeout: Optional[float] = WAIT,
        check: bool = False,
    ) -> Completed:
        """Submits a command, waits for its end, and returns its output. Raises Timeout after `timeout` seconds, or
        ConnectionLost if the daemon ends meanwhile; `active` of either has the id, and after Timeout the task goes on.
        With `check`, raises TaskFailed unless it completed."""
        task = self.submit(argv, shell=shell, description=description, cwd=cwd, env=env, time_limit=time_limit, tags=tags)
        with naming([task.id]):
            task.wait(timeout=timeout, check=check)
            output = task.output()
        code = task.exit_code
        assert code is not None
        return Completed(task.info, code, output)

    def task(self, id: str, *, timeout: Timeout = DEFAULT) -> Task:
        """Returns a task by its id, or by a unique prefix of at least 4 characters. Raises TaskNotFound or AmbiguousId,
        which has the `candidates`."""
        return Task(self, self.task_get(id, timeout=timeout)["task"])

    def tasks(
        self,
        *,
        status: Sequence[types.Status] = (),
        session: Optional[str] = None,
        group: Optional[str] = None,
        batch: Optional[str] = None,
        tags: Sequence[str] = (),
        timeout: Timeout = DEFAULT,
    ) -> Iterator[Task]:
        """Returns the tasks that match, newest first; of all sessions by default. It fetches them in pages."""
        status, tags = listed("status", status), listed("tags", tags)
        cursor: Optional[int] = None
        instance: Optional[str] = None
        while True:
            page = self.task_list(
                after=cursor, batch=batch, group=group, limit=PAGE, session=session, status=status, tags=tags,
                timeout=timeout,
            )  # fmt: skip
            instance = of_one_daemon(self.instance, instance)
            for info in page["tasks"]:
                yield Task(self, info)
            cursor = page.get("next")
            if cursor is None:
                return

    def block(
        self,
        tasks: References,
        *,
        timeout: Optional[float] = WAIT,
        mode: types.BlockMode = "all",
        until: types.BlockUntil = "ended",
    ) -> types.BlockResult:
        """Waits until all tasks have ended, or one with mode "any", but at most so many seconds: then `timed_out` is set,
        which is not an error. `tasks` may be a single one. Updates the handles among them. With mode "any", their
        IDs must fit into one line of `limits.frame_bytes` (some 26,000 by default); for a larger batch, use
        `task_block` with `matching`."""
        waited = references("tasks", tasks)
        ids = [reference(one) for one in waited]
        most = milliseconds("timeout", checked(timeout))
        results = []
        with naming(ids):
            frame_bytes = self.connect()["limits"]["frame_bytes"]
            for part, timeout_ms in _requests.block_parts(ids, frame_bytes, mode, most):
                results.append(self.task_block(ids=part, mode=mode, until=until, timeout_ms=timeout_ms))
        result = _requests.joined(results)
        update(waited, result["tasks"])
        return result

    def wait(
        self,
        tasks: References,
        *,
        timeout: Optional[float] = WAIT,
        any: bool = False,
        until: types.BlockUntil = "ended",
    ) -> list[types.Task]:
        """Like `block`, but returns the tasks: a list, also for a single one. Raises Timeout if they have not ended
        after so many seconds; it updates the handles then, too."""
        result = self.block(tasks, timeout=timeout, mode="any" if any else "all", until=until)
        if result["timed_out"]:
            raise _requests.still_running(result, timeout)
        return result["tasks"]

    def events(
        self,
        since: Union[str, int, None] = None,
        *,
        ids: References = (),
        session: Optional[str] = None,
        timeout: Optional[float] = SILENCE,
        on_restart: OnRestart = "raise",
    ) -> EventStream:
        """Returns an iterator of events on a connection of its own.

        since: A cursor (`EventStream.cursor`), or 0 for all events still in the daemon's history. Default: only new ones.
        ids: Only events of these tasks, or of a single one. session: Only events of this session.
        timeout: Most seconds to wait for the next event; then Timeout is raised, and the next call goes on.
        on_restart: What to do when the daemon has ended with its tasks: "raise" OtherInstance or NoDaemon, or
            "continue" with the first event of the next daemon, after an item of kind `restarted`. After a durable
            daemon was killed, it goes on with the next one either way; after a stop, only "continue" waits for it.
        """
        return EventStream(self, Place(ids, session, since, on_restart), timeout)

    def handoff(
        self,
        process: Process,
        description: Optional[str] = None,
        *,
        streams: Optional[Iterable[tuple[types.HandoffStream, Stream]]] = None,
        session: Optional[str] = None,
        channel: Optional[str] = None,
        tags: Iterable[str] = (),
        timeout: Timeout = DEFAULT,
    ) -> HandedOver[Task]:
        """Hands a running child over to the daemon: it becomes a task, and may outlive this program. Nothing that it
        writes is lost or comes twice.

        process: A `subprocess.Popen` in binary mode, whose pipes go along and are closed here, or a process id. No other
            thread may be reading from the pipes.
        streams: Which descriptors go along instead, each with its kind: `stdout`, `stderr`, `pty` or `file`. They stay
            open here, but must not be read any more.

        Raises AlreadyFinished if it has ended first, ForeignProcess if it is not a child of this process or of its
        parent; nothing has changed then. The caller should still `wait()` for the child, which is its own; where Linux
        is older than 6.15, report what that returns with `task_exit`.
        """
        more = {
            "session": _requests.own_session(session) if session is not None else self.session,
            "channel": channel,
            "tags": listed("tags", tags),
        }
        handoff = PopenHandoff(process, streams)
        try:
            result = self._call("task.handoff", handoff.params(description, more), timeout, handoff.fds())
        except BaseException:
            handoff.failed()
            raise
        finally:
            handoff.close()
        handoff.succeeded()
        return HandedOver(Task(self, result["task"]), result["message"], handoff.read["stdout"], handoff.read["stderr"])
