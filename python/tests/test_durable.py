"""Durable daemons, which leave their tasks to the next one: what goes on, and what is said of a daemon that has not."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import threading
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Optional
from unittest import mock

from support import HELLO, PATIENCE, Case, Gate, Last, answer, server

import bgd
from bgd import _socket, _successor
from bgd._connection import Connection, NotSent


class Waiting:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any], method: str) -> None:
        self._outcome: list[Any] = []
        self._sent = threading.Event()
        self._method = f'"{method}"'.encode()
        self._thread = threading.Thread(target=self._run, args=[call])
        send = Connection._send

        def sends(connection: Connection, line: bytes, *rest: Any) -> None:
            send(connection, line, *rest)
            if self._method in line:
                self._sent.set()

        with mock.patch.object(Connection, "_send", sends):
            self._thread.start()
            assert self._sent.wait(PATIENCE), "it is not called"

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome.append(call())
        except BaseException as error:
            self._outcome.append(error)

    def outcome(self) -> Any:
        """Returns the result, or the error."""
        self._thread.join(PATIENCE)
        assert self._outcome, "it does not return"
        return self._outcome[0]


class Durable(Case):
    config = "durable = true\n"

    def setUp(self) -> None:
        super().setUp()
        # Its tasks would outlive it.
        self.addCleanup(self.stop, "--cancel")

    def stop(self, *options: str) -> None:
        subprocess.run(["bgctl", "daemon", "stop", *options], check=True, capture_output=True)

    def kill(self) -> None:
        # The daemon reads requests in the order in which they were sent.
        self.client.hello()
        self.daemon.end(signal.SIGKILL)

    def begun(self, gate: Gate) -> bgd.Task:
        """Submits a task that has begun and waits."""
        task = self.client.submit(shell=f"echo one; {gate.line}; echo two")
        self.assertEqual(next(task.follow(timeout=PATIENCE)), b"one\n")
        return task

    def test_waits_go_on_with_the_next_daemon(self) -> None:
        gate = self.gate()
        task = self.begun(gate)
        before = self.client.connect()
        waiting = Waiting(lambda: task.wait(timeout=PATIENCE), "task.block")
        self.kill()
        gate.open()
        ended = waiting.outcome()
        self.assertEqual((ended["id"], ended["status"]), (task.id, "completed"))
        after = self.client.connect()
        self.assertEqual(after["instance"], before["instance"])
        self.assertNotEqual(after["pid"], before["pid"])
        self.assertEqual((task.exit_code, task.result()), (0, b"one\ntwo\n"))

    def test_waits_of_many_threads_go_on_after_each_kill(self) -> None:
        gate = self.gate()
        tasks = [self.client.submit(shell=gate.line) for _ in range(8)]
        waits = [Waiting(partial(task.wait, timeout=PATIENCE), "task.block") for task in tasks]
        for _ in range(3):
            self.kill()
        gate.open(len(tasks))
        ended = [wait.outcome() for wait in waits]
        self.assertEqual([task["status"] for task in ended], ["completed"] * len(tasks), ended)

    def test_a_run_goes_on_with_the_next_daemon(self) -> None:
        gate = self.gate()
        self.client.connect()
        line = f"{gate.line}; echo done; exit 3"
        waiting = Waiting(lambda: self.client.run(shell=line, timeout=PATIENCE), "task.block")
        self.kill()
        gate.open()
        done = waiting.outcome()
        self.assertEqual((done.exit_code, done.output), (3, b"done\n"))

    def test_an_output_is_followed_with_the_next_daemon(self) -> None:
        gate = self.gate()
        task = self.client.submit(shell=f"echo one; {gate.line}; echo two")
        parts = task.follow(timeout=PATIENCE)
        self.assertEqual(next(parts), b"one\n")
        self.kill()
        gate.open()
        self.assertEqual(b"".join(parts), b"two\n")

    def test_a_stream_of_events_starts_the_next_daemon(self) -> None:
        gate = self.gate()
        task = self.begun(gate)
        with self.client.events(ids=[task], timeout=PATIENCE) as events:
            events.connect()
            cursor = events.cursor
            self.kill()
            gate.open()
            kinds: list[str] = []
            while not kinds or kinds[-1] != "completed":
                kinds.append(next(events)["kind"])
            self.assertNotIn("restarted", kinds)
            assert cursor is not None and events.cursor is not None
            self.assertEqual(events.cursor.split(":")[0], cursor.split(":")[0])

    def test_a_client_that_starts_none_waits_for_the_next_daemon(self) -> None:
        gate = self.gate()
        task = self.begun(gate)
        other = self.connected(start=False)
        theirs = other.task(task.id)
        waiting = Waiting(lambda: theirs.wait(timeout=PATIENCE), "task.block")
        other.hello()
        # It takes as long as it takes.
        with mock.patch("bgd._client.PAUSES", [0.01] * 6000):
            self.kill()
            gate.open()
            self.client.connect()
            self.assertEqual(waiting.outcome()["status"], "completed")

    def test_a_wait_names_its_task_when_the_daemon_is_stopped(self) -> None:
        gate = self.gate()
        task = self.begun(gate)
        waiting = Waiting(lambda: task.wait(timeout=PATIENCE), "task.block")
        self.client.hello()
        self.stop()
        error = waiting.outcome()
        self.assertIsInstance(error, bgd.ConnectionLost)
        self.assertEqual(error.active, [task.id])
        self.assertIn(task.id, str(error))
        self.assertIn("the next daemon takes them over", str(error))
        gate.open()
        self.assertEqual(task.wait(timeout=PATIENCE)["status"], "completed")

    def test_a_read_that_waits_is_lost_when_the_daemon_is_stopped(self) -> None:
        self.client.connect()
        waiting = Waiting(lambda: self.client.inbox_read("mine", wait_ms=int(PATIENCE * 1000)), "inbox.read")
        self.client.hello()
        self.stop()
        error = waiting.outcome()
        self.assertIsInstance(error, bgd.ConnectionLost)
        self.assertIn("the next daemon takes them over", str(error))

    def test_asynchronous_calls_go_on_with_the_next_daemon(self) -> None:
        gate = self.gate()

        async def all_of_them() -> None:
            async with bgd.AsyncClient() as client:
                line = f"echo one; {gate.line}; echo two"
                running = asyncio.ensure_future(client.run(shell=line, timeout=PATIENCE))
                task = await client.submit(shell=f"echo one; {gate.line}; echo two")
                waiting = asyncio.ensure_future(task.wait(timeout=PATIENCE))
                parts = task.follow(timeout=PATIENCE)
                self.assertEqual(await parts.__anext__(), b"one\n")
                async with client.events(ids=[task], timeout=PATIENCE) as events:
                    await events.connect()
                    while len((await client.task_list(status=["running"]))["tasks"]) < 2:
                        await asyncio.sleep(0)
                    self.kill()
                    gate.open(2)
                    while (await events.__anext__())["kind"] != "completed":
                        pass
                self.assertEqual(b"".join([part async for part in parts]), b"two\n")
                self.assertEqual((await waiting)["status"], "completed")
                self.assertEqual((await running).output, b"one\ntwo\n")

        asyncio.run(all_of_them())


class Ended(Case):
    """Daemons whose tasks end with them."""

    def test_a_run_names_its_task(self) -> None:
        gate = self.gate()
        self.client.connect()
        waiting = Waiting(lambda: self.client.run(shell=gate.line, timeout=PATIENCE), "task.block")
        (task,) = self.client.tasks()
        self.daemon.end(signal.SIGKILL)
        error = waiting.outcome()
        self.assertIsInstance(error, bgd.ConnectionLost)
        self.assertEqual(error.active, [task.id])
        self.assertTrue(str(error).startswith(f"{task.id}: "), str(error))

    def test_a_followed_output_names_its_task_and_no_cursor(self) -> None:
        gate = self.gate()
        task = self.client.submit(shell=f"echo one; {gate.line}")
        other = self.connected(start=False).task(task.id)
        parts = other.follow(timeout=PATIENCE)
        self.assertEqual(next(parts), b"one\n")
        self.daemon.end(signal.SIGKILL)
        with self.assertRaises(bgd.NoDaemon) as caught:
            next(parts)
        self.assertEqual(caught.exception.active, [task.id])
        self.assertIn(task.id, str(caught.exception))
        self.assertNotIn("since", str(caught.exception))


@contextmanager
def noted(note: dict[str, Any], say: Callable[[dict[str, Any]], Optional[bytes]], greets: bool = True) -> Iterator[str]:
    """Runs a server with this note beside its socket."""
    with server(say, greets) as path:
        write_note(path, note)
        yield path


def write_note(path: str, note: dict[str, Any]) -> None:
    Path(f"{path}.lock").write_text(json.dumps(note))


@contextmanager
def starts_seen() -> Iterator[list[bool]]:
    """Returns a list that grows by each attempt to connect: whether it may start a daemon."""
    seen: list[bool] = []
    connect_or_start = _socket.connect_or_start

    def sees(path: str, starts: bool, bgctl: Optional[_socket.PathLike]) -> socket.socket:
        seen.append(starts)
        return connect_or_start(path, starts, bgctl)

    with mock.patch.object(_socket, "connect_or_start", sees):
        yield seen


class Repeated(Case):
    """What goes to the next daemon, by servers that lose connections."""

    NOTE = {"durable": True, "phase": "ready"}
    ENDING = {"durable": True, "phase": "ending"}

    def test_only_calls_that_change_nothing_are_made_again(self) -> None:
        def once_lost(request: dict[str, Any]) -> Optional[bytes]:
            asked.append(request["method"])
            return None if len(asked) == 1 else answer(request, {"tasks": []})

        asked: list[str] = []
        with noted(self.NOTE, once_lost) as path, bgd.Client(path) as client:
            self.assertEqual(client.task_list()["tasks"], [])
            self.assertEqual(asked, ["task.list"] * 2)
            asked.clear()
            with self.assertRaises(bgd.ConnectionLost):
                client.task_cancel(ids=["x"])
            self.assertEqual(asked, ["task.cancel"])
        asked.clear()
        with noted({"phase": "ready"}, once_lost) as path, bgd.Client(path) as client:
            with self.assertRaises(bgd.ConnectionLost):
                client.task_list()
            self.assertEqual(asked, ["task.list"])

    def test_a_repeated_wait_has_the_rest_of_its_time(self) -> None:
        def once_lost(request: dict[str, Any]) -> Optional[bytes]:
            asked.append(request["params"]["timeout_ms"])
            clock[0] += 10
            found = {"tasks": [], "active": [], "finished": ["x"], "timed_out": False}
            return None if len(asked) % 2 else answer(request, found)

        asked: list[Optional[int]] = []
        clock = [0.0]
        with noted(self.NOTE, once_lost) as path, bgd.Client(path) as client:
            with mock.patch("bgd._successor.now", lambda: clock[0]):
                client.wait("x", timeout=25)
                client.wait("x", timeout=None)
        self.assertEqual(asked, [25_000, 15_000, None, None])

    def test_a_next_daemon_with_other_tasks_is_not_asked(self) -> None:
        def says(request: dict[str, Any]) -> Optional[bytes]:
            asked.append(request["method"])
            if request["method"] == "hello":
                return answer(request, {**HELLO, "instance": f"number {len(asked)}"})
            return None

        asked: list[str] = []
        with noted(self.NOTE, says, greets=False) as path, bgd.Client(path) as client:
            with self.assertRaises(bgd.ConnectionLost) as caught:
                client.wait(["x", "y"])
            self.assertEqual(caught.exception.active, ["x", "y"])
            self.assertTrue(caught.exception.message.startswith("x, y: "))
        self.assertEqual(asked, ["hello", "task.block", "hello"])

    def test_daemons_that_end_at_once_are_given_up(self) -> None:
        asked: list[str] = []

        def loses(request: dict[str, Any]) -> None:
            asked.append(request["method"])

        with noted(self.NOTE, loses) as path, bgd.Client(path) as client:
            with mock.patch("bgd._successor.now", lambda: 0.0), self.assertRaises(bgd.ConnectionLost):
                client.task_list()
        self.assertEqual(len(asked), 1 + 10)

    def test_ended_daemons_are_counted_for_ten_seconds(self) -> None:
        def followed(every: float, count: int) -> list[bool]:
            ends = _successor.Ends()
            found: list[bool] = []
            for number in range(count):
                with mock.patch("bgd._successor.now", lambda: number * every):
                    ends.add()
                found.append(ends.may_follow)
            return found

        self.assertEqual(followed(9.0, 30), [True] * 30)
        self.assertEqual(followed(1.0, 30), [True] * 30)
        # The first one more than ten in ten seconds is not followed; then the count begins anew.
        self.assertEqual(followed(0.9375, 13), [True] * 10 + [False] + [True] * 2)

    def test_a_stream_counts_the_connections_it_has_lost(self) -> None:
        def says(request: dict[str, Any]) -> bytes:
            text = answer(request, {"subscription": 7, "seq": 1, "instance": "fake"})
            return text + b'{"jsonrpc":"2.0","method":"event","params":{"subscription":7,"kind":"x","seq":1}}\n'

        async def asynchronous(path: str) -> None:
            async with bgd.AsyncClient(path) as client, client.events(timeout=PATIENCE) as events:
                for number in range(14):
                    clock[0] = 10.0 if number == 13 else 0.0
                    await events.__anext__()
                    # As when the daemon has ended.
                    (await events.connect())._socket.shutdown(socket.SHUT_RDWR)

        clock = [0.0]
        # The client, the stream, and the stream again after each loss.
        expected = [True] * (2 + 10) + [False] * 2 + [True]
        with noted(self.NOTE, says) as path, mock.patch("bgd._successor.now", lambda: clock[0]):
            with starts_seen() as starts, bgd.Client(path) as client, client.events(timeout=PATIENCE) as events:
                for number in range(14):
                    clock[0] = 10.0 if number == 13 else 0.0
                    next(events)
                    events.connect()._shut_down()
            self.assertEqual(starts, expected)
            with starts_seen() as starts:
                asyncio.run(asynchronous(path))
            self.assertEqual(starts, expected)

    def test_a_read_refused_at_the_end_goes_on_with_the_next_daemon(self) -> None:
        def once_refused(request: dict[str, Any]) -> bytes:
            asked.append(request["params"]["wait_ms"])
            clock[0] += 10
            if len(asked) % 2:
                return Last(answer(request, error=refusal))
            return answer(request, {"items": [], "more": False, "instance": "fake"})

        async def asynchronous(path: str) -> None:
            async with bgd.AsyncClient(path) as client:
                await client.inbox_read("mine", wait_ms=25_000)

        refusal = {"code": -32000, "message": "the daemon is shutting down", "data": {"kind": "shutting_down"}}
        asked: list[int] = []
        clock = [0.0]
        with noted(self.NOTE, once_refused) as path, mock.patch("bgd._successor.now", lambda: clock[0]):
            with bgd.Client(path) as client:
                client.inbox_read("mine", wait_ms=25_000)
            asyncio.run(asynchronous(path))
            self.assertEqual(asked, [25_000, 15_000] * 2)
            # The next one has nothing of a daemon that is not durable.
            write_note(path, {"phase": "ready"})
            with bgd.Client(path) as client, self.assertRaises(bgd.errors.ShuttingDown):
                client.inbox_read("mine", wait_ms=25_000)

    def test_a_read_refused_by_a_stopped_daemon_is_lost(self) -> None:
        def stops(request: dict[str, Any]) -> bytes:
            write_note(path, self.ENDING)
            Path(path).unlink()
            return Last(answer(request, error=refusal))

        async def asynchronous() -> None:
            async with bgd.AsyncClient(path) as client:
                await client.inbox_read("mine", wait_ms=25_000)

        refusal = {"code": -32000, "message": "the daemon is shutting down", "data": {"kind": "shutting_down"}}
        with mock.patch("bgd._client.PAUSES", [0.0] * 3), mock.patch("bgd._aclient.PAUSES", [0.0] * 3):
            with noted(self.NOTE, stops) as path, bgd.Client(path) as client:
                with self.assertRaisesRegex(bgd.ConnectionLost, "the next daemon takes them over"):
                    client.inbox_read("mine", wait_ms=25_000)
            with noted(self.NOTE, stops) as path:
                with self.assertRaisesRegex(bgd.ConnectionLost, "the next daemon takes them over"):
                    asyncio.run(asynchronous())

    def test_a_daemon_stopped_while_it_is_sought_is_not_started(self) -> None:
        def stops(request: dict[str, Any]) -> Optional[bytes]:
            asked.append(request["method"])
            if asked == ["hello"]:
                return answer(request, HELLO)
            if asked[-1] == "hello":
                write_note(path, self.ENDING)
                Path(path).unlink()
            return None

        async def asynchronous() -> None:
            async with bgd.AsyncClient(path) as client:
                await client.task_list()

        asked: list[str] = []
        with mock.patch("bgd._client.PAUSES", [0.0] * 3), mock.patch("bgd._aclient.PAUSES", [0.0] * 3):
            with noted(self.NOTE, stops, greets=False) as path, starts_seen() as starts, bgd.Client(path) as client:
                with self.assertRaisesRegex(bgd.ConnectionLost, "the next daemon takes them over"):
                    client.task_list()
            self.assertEqual(starts, [True] * 2 + [False] * 3)
            asked.clear()
            with noted(self.NOTE, stops, greets=False) as path, starts_seen() as starts:
                with self.assertRaisesRegex(bgd.ConnectionLost, "the next daemon takes them over"):
                    asyncio.run(asynchronous())
            self.assertEqual(starts, [True] * 2 + [False] * 3)

    def test_a_repeated_call_that_was_not_sent_starts_no_stopped_daemon(self) -> None:
        with noted(self.NOTE, lambda request: None) as path:
            repeats = _successor.Repeats(path, "task.block", {})
            repeats.lost(NotSent("closed"), "fake")
            write_note(path, self.ENDING)
            self.assertTrue(repeats.may_start(), "nothing was lost")
            write_note(path, self.NOTE)
            repeats = _successor.Repeats(path, "task.block", {})
            repeats.lost(bgd.ConnectionLost("killed"), "fake")
            self.assertTrue(repeats.may_start(), "it was killed")
            write_note(path, self.ENDING)
            repeats.lost(NotSent("closed"), "fake")
            self.assertFalse(repeats.may_start(), "it was stopped")

    def test_a_closed_client_asks_nobody_again(self) -> None:
        def closes(request: dict[str, Any]) -> bytes:
            client.close()
            return b""

        with noted(self.NOTE, closes) as path, bgd.Client(path) as client:
            with self.assertRaisesRegex(bgd.ConnectionLost, "was closed"):
                client.wait("x")

    def test_asynchronous_calls_are_made_again(self) -> None:
        def once_lost(request: dict[str, Any]) -> Optional[bytes]:
            asked.append(request["method"])
            return None if len(asked) == 1 else answer(request, {"tasks": []})

        async def listed(path: str) -> None:
            async with bgd.AsyncClient(path) as client:
                self.assertEqual((await client.task_list())["tasks"], [])

        asked: list[str] = []
        with noted(self.NOTE, once_lost) as path:
            asyncio.run(listed(path))
        self.assertEqual(asked, ["task.list"] * 2)


if __name__ == "__main__":
    unittest.main()
