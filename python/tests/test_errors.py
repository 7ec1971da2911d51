"""Every kind of error, as the real daemon says it where one can make it do so, and all of them from a server that says
what it is told; and what is no message at all."""

from __future__ import annotations

import json
import pickle
import subprocess
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional
from unittest import mock

from support import PATIENCE, Case, answer, server

import bgd
from bgd import _core, _kinds

CONFIG = """
max_concurrent_tasks = 4
limits.connections = 16
limits.requests = 8
limits.tasks = 20
[agents.echo]
protocol = "template"
command = ["printf", '{"id":"s1","text":"%s"}', "{prompt}"]
resume = ["printf", '{"id":"%s","text":"%s!"}', "{session}", "{prompt}"]
session = "/id"
result = "/text"
[agents.gone]
command = ["/no/such/agent"]
"""


class Real(Case):
    config = CONFIG

    def refused(self, error: type[bgd.CallError], method: str, **params: Any) -> bgd.CallError:
        with self.assertRaises(bgd.CallError) as caught:
            self.client.call(method, params, timeout=PATIENCE)
        self.assertIs(type(caught.exception), error, caught.exception)
        self.assertEqual(caught.exception.data["kind"], error.kind)
        return caught.exception

    def until_raised(self, error: type[bgd.CallError], call: Callable[[], object]) -> bgd.CallError:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                call()
            except error as caught:
                return caught
        self.fail(f"{error.kind} was not raised")

    def test_kinds_of_calls(self) -> None:
        gate = self.gate()
        running, pending = self.client.submit(shell=gate.line), self.client.submit(["true"], hold=True)
        with self.client.events(0, ids=[running], timeout=PATIENCE) as events:
            next(event for event in events if event["kind"] == "started")
        done = self.client.submit(["true"], group=None)
        done.wait(timeout=PATIENCE)
        self.refused(_kinds.MethodNotFound, "task.nothing")
        error = self.refused(_kinds.InvalidParams, "task.get", id=done.id, word=1)
        self.assertIn("word", error.message)
        self.refused(_kinds.TaskNotFound, "task.get", id="0000")
        self.refused(_kinds.NotComplete, "task.result", id=running.id)
        self.refused(_kinds.NotResumable, "task.resume", id=done.id, prompt="x")
        self.refused(_kinds.PromptRequired, "task.resume", id=done.id, prompt=" ")
        error = self.refused(_kinds.UnknownAgent, "task.submit", agent="nobody", prompt="x", description="d", cwd="/", env={})
        self.assertTrue(error.hint and error.hint in str(error))
        self.refused(_kinds.AgentUnavailable, "task.submit", agent="gone", prompt="x", description="d", cwd="/", env={})
        self.refused(_kinds.NotBackgroundable, "task.detach", id=running.id, background=True)
        self.refused(_kinds.AlreadyFinished, "agent.answer", id=running.id, request=1, option="x")
        self.refused(_kinds.Unsupported, "task.write", id=running.id, data="x")
        self.refused(_kinds.NotRunning, "task.signal", id=done.id, signal="TERM")
        self.refused(_kinds.NotPending, "task.hold", ids=[running.id])
        self.refused(_kinds.UnknownGroup, "group.pause", name="nothing")
        self.refused(_kinds.UnknownExecutor, "task.submit", on="nowhere", argv=["a"], cwd="/", env={})
        self.client.group_set(name="g", slots=1)
        self.client.task_edit(pending.id, group="g")
        self.refused(_kinds.GroupInUse, "group.remove", name="g")
        self.refused(_kinds.UpgradeRefused, "daemon.upgrade", binary="/bin/true")
        self.refused(_kinds.Unsupported, "hello", protocol=99)
        self.daemon.configure("nonsense = 1")
        self.refused(_kinds.ConfigInvalid, "daemon.reload")
        gate.open()

    def test_kinds_of_limits(self) -> None:
        gate = self.gate()
        task = self.client.submit(shell=gate.line)
        with self.assertRaises(bgd.FrameTooLarge) as caught:
            self.client.submit(["true", "x" * (1 << 20)])
        self.assertEqual((caught.exception.kind, caught.exception.exit_code), ("frame_too_large", 70))
        with self.assertRaises(bgd.RegistryFull):
            self.client.submit_many([["true"]] * 20)
        def wait() -> None:
            while True:
                try:
                    self.client.wait([task], timeout=PATIENCE)
                    return
                except bgd.TooManyRequests:
                    # That of the main thread was first.
                    pass

        waiters = [threading.Thread(target=wait) for _ in range(8)]
        for waiter in waiters:
            waiter.start()
        # The daemon has 8 requests of this connection when it refuses one.
        self.until_raised(bgd.TooManyRequests, self.client.hello)
        gate.open()
        for waiter in waiters:
            waiter.join(PATIENCE)
        self.assertEqual(task.refresh()["status"], "completed")
        others = [self.connected() for _ in range(15)]
        for other in others:
            other.connect()
        with self.assertRaises(bgd.TooManyConnections) as refused:
            self.connected().task_list()
        self.assertEqual(refused.exception.exit_code, 69)

    def test_a_process_of_somebody_else_is_not_handed_over(self) -> None:
        line = "sleep 1000 & echo $!; read gate; kill $!"
        with subprocess.Popen(["sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            with self.assertRaises(bgd.ForeignProcess) as caught:
                self.client.handoff(int(child.stdout.readline()))
            child.communicate(b"\n")
        self.assertEqual(caught.exception.exit_code, 77)

    def test_an_agent_is_asked_and_resumed(self) -> None:
        task = self.client.submit(prompt="hello", agent="echo", description="greet")
        task.wait(timeout=PATIENCE, check=True)
        self.assertEqual(task.result(), b"hello")
        self.assertEqual(task.exit_code, 0)
        task.resume("again")
        self.assertEqual(task.wait(timeout=PATIENCE)["run"], 2)
        self.assertEqual(task.result(), b"again!")

    def test_a_daemon_that_shuts_down_takes_no_tasks(self) -> None:
        gate = self.gate()
        self.client.submit(shell=f"trap '' TERM; echo ready; {gate.line}; {gate.line}")
        task = next(self.client.tasks())
        self.assertEqual(next(task.follow(timeout=PATIENCE)), b"ready\n")
        other = self.connected()
        other.connect()
        ending = threading.Thread(target=self.client.daemon_shutdown, kwargs={"grace_ms": 600_000})
        ending.start()
        # The same task again and again, until the daemon has read the request of the other thread.
        caught = self.until_raised(bgd.ShuttingDown, lambda: other.submit(["true"], key="k", hold=True))
        gate.open(2)
        ending.join(PATIENCE)
        self.assertEqual(caught.exit_code, 69)


class Said(Case):
    """What a server says."""

    def test_every_kind_has_its_exception(self) -> None:
        kinds: list[str] = []

        def refuse(request: dict[str, Any]) -> bytes:
            data = {"kind": request["params"]["kind"], "hint": "do", "candidates": ["a", "b"], "task": {"id": "t"}}
            return answer(request, error={"code": -1, "message": "no", "data": data})

        with server(refuse) as path, bgd.Client(path) as client:
            for kind, error in _kinds.BY_KIND.items():
                with self.assertRaises(error) as caught:
                    client.call("x", {"kind": kind})
                found = caught.exception
                self.assertEqual((found.kind, found.hint, found.message, found.code), (kind, "do", "no", -1))
                self.assertEqual(found.candidates, ["a", "b"])
                self.assertEqual(found.task, {"id": "t"})
                self.assertIn(error.exit_code, (2, 65, 66, 69, 70, 77, 78))
                self.assertIs(getattr(bgd, error.__name__), error)
                self.assertEqual(pickle.loads(pickle.dumps(found)).message, "no")
                kinds.append(kind)
            with self.assertRaises(bgd.CallError) as unknown:
                client.call("x", {"kind": "of_the_future"})
            self.assertEqual((unknown.exception.kind, unknown.exception.exit_code), ("of_the_future", 70))
        schema = json.loads((Path(__file__).parents[2] / "man/bgd-protocol.schema.json").read_text())
        named = {word["const"] for word in schema["$defs"]["ErrorKind"]["oneOf"]} - {"unknown"}
        self.assertEqual(set(kinds), named)

    def test_what_is_no_message_closes_the_connection(self) -> None:
        words = [
            b"nonsense\n", b"[]\n", b"\xff\n", b'{"id":1}\n', b'{"id":"x","result":1}\n', b'{"id":null,"result":1}\n',
            b'{"id":1,"error":{}}\n', b'{"id":1,"error":"no"}\n', b"[" * 100_000 + b"\n",
        ]  # fmt: skip
        for word in words:
            with server(lambda request, word=word: word) as path, bgd.Client(path) as client:  # type: ignore[misc]
                with self.assertRaises((bgd.Garbled, bgd.ConnectionLost), msg=word) as caught:
                    client.task_list(timeout=PATIENCE)
                if word != b'{"id":1}\n':
                    self.assertIn(caught.exception.exit_code, (69, 70))

    def test_a_line_without_an_end_is_not_read_for_ever(self) -> None:
        with server(lambda request: b"x" * 300_000) as path, bgd.Client(path) as client:
            client.connect()
            assert client._connection is not None
            client._connection.core._answer_bytes = 100_000
            with self.assertRaisesRegex(bgd.Garbled, "more than 100000 bytes"):
                client.task_list(timeout=PATIENCE)

    def test_an_error_of_the_whole_connection_is_told(self) -> None:
        error = {"code": -32016, "message": "full", "data": {"kind": "too_many_connections"}}
        line = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode() + b"\n"
        with server(lambda request: line, greets=False) as path:
            with self.assertRaises(bgd.TooManyConnections):
                bgd.Client(path).connect()

    def test_answers_of_unknown_calls_and_notifications_are_left_alone(self) -> None:
        def say(request: dict[str, Any]) -> bytes:
            return b'\n{"method":"of_the_future","params":[]}\n{"id":99,"result":1}\n' + answer(request, {"tasks": []})

        with server(say) as path, bgd.Client(path) as client:
            self.assertEqual(client.task_list()["tasks"], [])
            self.assertEqual(client.notification().method, "of_the_future")

    def test_a_daemon_that_closes_is_lost(self) -> None:
        with server(lambda request: None) as path, bgd.Client(path) as client:
            with self.assertRaises(bgd.ConnectionLost):
                client.task_list(timeout=PATIENCE)

    def test_a_daemon_that_says_nothing_is_given_up_in_time(self) -> None:
        with server(lambda request: b"") as path, bgd.Client(path) as client:
            with self.assertRaises(bgd.Timeout):
                client.task_list(timeout=0.05)
            with mock.patch("bgd._watchdog.LATER_ANSWER", 0.1):
                # The server answers `hello`, but only after the patience is over.
                self.assertEqual(client.connect()["instance"], "fake")


class Core(unittest.TestCase):
    def test_messages_are_found_in_any_pieces(self) -> None:
        lines = b'{"id":1,"result":{"a":"\xc3\xa4"}}\n\n{"method":"event","params":{}}\n{"id":2,"error":{"message":"m"}}\n'
        for size in range(1, len(lines) + 1):
            core = _core.Core()
            found = []
            for begin in range(0, len(lines), size):
                core.push(lines[begin : begin + size])
                found += list(core.messages())
            self.assertEqual(found[0], _core.Answer(1, {"a": "ä"}, None))
            self.assertEqual(found[1], _core.Notification("event", {}))
            self.assertEqual(found[2].error.message, "m")  # type: ignore[union-attr]
            self.assertEqual(len(found), 3)

    def test_params_that_are_no_json_are_refused(self) -> None:
        core = _core.Core()
        for wrong in (float("nan"), b"x", object(), "\udcff", {1, 2}):
            with self.assertRaises(bgd.UsageError):
                core.call("m", {"p": wrong})
        loop: list[Any] = []
        loop.append(loop)
        with self.assertRaises(bgd.UsageError):
            core.call("m", {"p": loop})
        # None of them has used up a number.
        self.assertEqual(core.call("m", {})[0], 1)

    def test_the_time_that_a_call_allows_is_added(self) -> None:
        def allowed(method: str, **params: Any) -> Optional[float]:
            return _core.allowed(method, params, _core.DEFAULT, 10.0)

        self.assertEqual(allowed("task.get"), 10.0)
        self.assertEqual(allowed("task.block"), 70.0)
        self.assertEqual(allowed("task.block", timeout_ms=1000), 11.0)
        self.assertIsNone(allowed("task.block", timeout_ms=None))
        self.assertEqual(allowed("inbox.read", wait_ms=5000), 15.0)
        self.assertEqual(allowed("inbox.read", wait_ms=None), 10.0)
        self.assertEqual(allowed("task.cancel", grace_ms=5000), 75.0)
        for method in ("task.cancel", "task.clear", "session.end", "daemon.shutdown"):
            # The daemon's own grace period may be of any length.
            self.assertIsNone(allowed(method))
            self.assertIsNone(allowed(method, grace_ms=None))
        self.assertEqual(_core.allowed("task.block", {}, 1.5, None), 1.5)
        self.assertIsNone(_core.allowed("task.get", {}, _core.DEFAULT, None))
        for wrong in (-1.0, float("nan")):
            with self.assertRaises(bgd.UsageError):
                _core.checked(wrong)
        self.assertEqual([_core.milliseconds("x", value) for value in (0, 0.0001, 1.5, None)], [0, 1, 1500, None])

    def test_a_silent_daemon_is_given_up_as_by_the_other_clients(self) -> None:
        from bgd._watchdog import Step, Watchdog

        dog = Watchdog(0.0)
        dog.asked(0.0)
        steps = [dog.tick(at) for at in (2.4, 2.5, 4.9, 5.0)]
        self.assertEqual(steps, [Step.WAIT, Step.PROBE, Step.WAIT, Step.GIVE_UP])
        self.assertEqual(dog.silent, 5.0)
        dog = Watchdog(0.0)
        dog.asked(0.0)
        probes = []
        for second in range(300):
            if dog.tick(second) is Step.PROBE:
                probes.append(second)
                dog.heard(second)
        self.assertEqual(probes, [3, 8, 18, 38, 78, 138, 198, 258])
        dog = Watchdog(0.0)
        dog.asked(0.0)
        at = 0.0
        while not (dog.tick(at) is Step.GIVE_UP and not dog.excuse(at)):
            at += 0.5
        self.assertEqual(at, 30.0)


if __name__ == "__main__":
    unittest.main()
