"""Daemons that are not there, that can't be trusted, that end, come back or do not answer; and the streams of events that
go on."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import threading
import unittest
from itertools import islice
from typing import Any, Optional
from unittest import mock

from support import HELLO, PATIENCE, Case, answer, server, until

import bgd
from bgd import _client, _socket


class Sockets(Case):
    def test_the_socket_is_found_as_bgctl_finds_it(self) -> None:
        def found(**variables: str) -> str:
            with mock.patch.dict(os.environ, variables):
                for name in {"BGD_SOCKET", "XDG_RUNTIME_DIR"} - set(variables):
                    os.environ.pop(name, None)
                return _socket.socket_path()

        self.assertEqual(found(BGD_SOCKET="/a/b", XDG_RUNTIME_DIR="/c"), "/a/b")
        self.assertEqual(found(BGD_SOCKET="", XDG_RUNTIME_DIR="/c"), "/c/bgd/bgd.sock")
        self.assertEqual(found(XDG_RUNTIME_DIR=""), f"/tmp/bgd-{os.geteuid()}/bgd.sock")
        for wrong in ("a/b", "/a/", "/" + "x" * 107):
            with self.assertRaises(bgd.UsageError):
                bgd.Client(wrong)

    def test_folders_that_others_control_are_refused(self) -> None:
        folder = self.daemon.folder / "f"

        def refused(words: str) -> None:
            with self.assertRaisesRegex(bgd.UntrustedSocket, words) as caught:
                bgd.Client(folder / "bgd.sock").connect()
            self.assertEqual(caught.exception.exit_code, 77)
            self.assertIsInstance(caught.exception, PermissionError)

        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        refused("mode 0755")
        folder.rmdir()
        folder.symlink_to("run")
        refused("symbolic link")
        folder.unlink()
        folder.write_text("")
        refused("not a folder")
        with mock.patch("os.geteuid", return_value=os.geteuid() + 1):
            with self.assertRaisesRegex(bgd.UntrustedSocket, "belongs to uid"):
                bgd.Client(self.daemon.path).connect()

    def test_no_daemon_is_started_unless_it_is_wanted(self) -> None:
        client = self.connected(start=False)
        with self.assertRaises(bgd.NoDaemon) as caught:
            client.connect()
        self.assertEqual(caught.exception.exit_code, 69)
        self.assertIsInstance(caught.exception, ConnectionError)
        shutil.rmtree(self.daemon.folder / "run")
        with self.assertRaises(bgd.NoDaemon):
            client.connect()
        # bgctl makes the folder.
        self.assertEqual(self.client.run(["echo", "hi"]).output, b"hi\n")

    def test_why_a_daemon_does_not_start_is_told(self) -> None:
        self.daemon.configure("nonsense = 1")
        with self.assertRaises(bgd.NoDaemon) as caught:
            self.client.connect()
        self.assertEqual(caught.exception.exit_code, 78)
        self.assertIn("nonsense", str(caught.exception))
        for missing in ("/no/bgctl", "/etc/passwd"):
            with self.assertRaisesRegex(bgd.NoDaemon, missing):
                self.connected(bgctl=missing).connect()
        with self.assertRaisesRegex(bgd.NoDaemon, "exit code 1"):
            self.connected(bgctl=shutil.which("false")).connect()
        with mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            with self.assertRaisesRegex(bgd.NoDaemon, "not found"):
                self.client.connect()

    def test_tasks_of_a_chosen_socket_use_the_same_daemon(self) -> None:
        client = self.connected(socket=self.daemon.path)
        with mock.patch.dict(os.environ, {"BGD_SOCKET": "/elsewhere/x"}):
            done = client.run(shell="echo $BGD_SOCKET; bgctl list -q | wc -l")
        self.assertEqual(done.output, f"{self.daemon.path}\n1\n".encode())


class Ends(Case):
    def test_a_client_goes_on_with_the_next_daemon(self) -> None:
        gate = self.gate()
        task = self.client.submit(shell=gate.line)
        first = self.client.instance
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                self.client.wait([task], timeout=None)
            except BaseException as error:
                caught.append(error)

        connection = self.client._connection
        assert connection is not None
        send = connection._send
        sent = threading.Event()

        def sends(*args: Any) -> None:
            send(*args)
            sent.set()

        thread = threading.Thread(target=wait)
        with mock.patch.object(connection, "_send", sends):
            thread.start()
            self.assertTrue(sent.wait(PATIENCE))
        # The daemon reads requests in the order in which they were sent.
        self.client.hello()
        self.daemon.end(signal.SIGKILL)
        thread.join(PATIENCE)
        self.assertIsInstance(caught[0], (bgd.ConnectionLost, bgd.TaskNotFound))
        self.assertEqual(self.client.run(["echo", "again"]).output, b"again\n")
        self.assertNotEqual(self.client.instance, first)
        with self.assertRaises(bgd.TaskNotFound):
            task.refresh()

    def test_an_idle_client_does_not_notice_a_new_daemon(self) -> None:
        self.client.connect()
        for _ in range(3):
            self.daemon.end()
            self.assertEqual(self.client.run(["echo", "x"]).output, b"x\n")

    def test_a_client_that_starts_none_says_that_it_is_gone(self) -> None:
        self.client.connect()
        other = self.connected(start=False)
        other.connect()
        self.daemon.end()
        with self.assertRaises(bgd.NoDaemon):
            other.hello()

    def test_a_stopped_daemon_is_given_up(self) -> None:
        pid = self.client.connect()["pid"]
        fresh = self.connected()
        os.kill(pid, signal.SIGSTOP)
        try:
            with self.assertRaises(bgd.Timeout):
                self.client.task_list(timeout=0.05)
            # Nobody waits longer than 5 seconds for a first answer.
            with self.assertRaises(bgd.NoAnswer) as caught:
                fresh.connect()
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertEqual(caught.exception.exit_code, 69)
        self.assertIn(f"kill -CONT {pid}", str(caught.exception))
        self.assertIn(f"(pid {pid})", caught.exception.message)
        self.assertEqual(self.client.task_list()["tasks"], [])
        self.assertEqual(fresh.task_list()["tasks"], [])

    def test_a_silent_daemon_is_given_up_while_another_thread_waits_for_notifications(self) -> None:
        def once(request: dict[str, Any]) -> bytes:
            # It does not even answer the `hello` that checks on it.
            asked.append(request["method"])
            return answer(request, HELLO) if len(asked) == 1 else b""

        asked: list[str] = []
        with server(once, greets=False) as path, bgd.Client(path) as client:
            client.connect()
            connection = client._connected()
            caught: list[BaseException] = []

            def wait() -> None:
                try:
                    client.notification(timeout=None)
                except BaseException as error:
                    caught.append(error)

            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda: connection._is_read)
            with mock.patch("bgd._watchdog.LATER_ANSWER", 0.2), self.assertRaises(bgd.NoAnswer):
                client.task_list(timeout=PATIENCE)
            thread.join(PATIENCE)
            self.assertIsInstance(caught[0], bgd.NoAnswer)

    def test_a_full_backlog_is_a_daemon_that_does_not_answer(self) -> None:
        path = str(self.daemon.folder / "full/bgd.sock")
        os.mkdir(os.path.dirname(path), 0o700)
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
            listener.bind(path)
            listener.listen(0)
            first.connect(path)
            with mock.patch("bgd._constants.FIRST_ANSWER", 1.0):
                with self.assertRaises(bgd.NoAnswer):
                    bgd.Client(path).connect()

    def test_a_lost_answer_is_asked_for_again_only_with_a_key(self) -> None:
        asked: list[str] = []

        def lose_first(request: dict[str, object]) -> object:
            asked.append(str(request["method"]))
            return None if len(asked) == 1 else answer(request, {"task": {"id": "x", "status": "pending"}})

        with server(lose_first) as path:  # type: ignore[arg-type]
            with bgd.Client(path) as client:
                self.assertEqual(client.submit(["true"], key="k").id, "x")
            asked.clear()
            with bgd.Client(path) as client:
                with self.assertRaises(bgd.ConnectionLost):
                    client.submit(["true"])
        self.assertEqual(asked, ["task.submit"])


class Events(Case):
    def test_events_are_replayed_from_a_cursor(self) -> None:
        task = self.client.submit(["echo", "x"])
        task.wait(check=True)
        with self.client.events(0, ids=[task], timeout=PATIENCE) as events:
            kinds = []
            for event in events:
                kinds.append(event["kind"])
                if event["kind"] == "completed":
                    break
            self.assertEqual([kinds[0], kinds[1], kinds[-1]], ["submitted", "started", "completed"])
            cursor = events.cursor
        other = self.client.submit(["true"])
        with self.client.events(cursor, timeout=PATIENCE) as events:
            event = next(events)
            assert event["kind"] == "submitted"
            self.assertEqual(event["task"]["id"], other.id)
        with self.assertRaises(StopIteration):
            next(events)
        for wrong in ("x", "a:b", -1):
            with self.assertRaises(bgd.UsageError):
                self.client.events(wrong)
        events = self.client.events(ids=[task], timeout=0.05)
        events.connect()
        with self.assertRaises(bgd.Timeout):
            next(events)
        events.timeout = PATIENCE
        task.clear()
        self.assertEqual(next(events)["kind"], "cleared")
        events.close()

    def test_a_connection_that_is_lost_loses_no_event(self) -> None:
        with self.client.events(timeout=PATIENCE) as events:
            events.connect()
            first = self.client.submit(["true"], hold=True)
            event = next(events)
            assert events._connection is not None
            events._connection._socket.shutdown(socket.SHUT_RDWR)
            second = self.client.submit(["true"], hold=True)
            found = [event["task"]["id"], next(events)["task"]["id"]]  # type: ignore[typeddict-item]
            self.assertEqual(found, [first.id, second.id])

    def test_the_end_of_the_daemon_is_told(self) -> None:
        self.client.connect()
        events = self.client.events(timeout=PATIENCE)
        cursor = (events.connect(), events.cursor)[1]
        self.daemon.end()
        with self.assertRaisesRegex(bgd.NoDaemon, "lost"):
            next(events)
        events.close()
        self.client.connect()
        with self.assertRaises(bgd.OtherInstance) as caught:
            next(self.client.events(cursor, timeout=PATIENCE))
        self.assertEqual(caught.exception.instance, self.client.instance)
        self.assertEqual((caught.exception.kind, caught.exception.exit_code), ("other_instance", 69))

    def test_numbers_of_an_inbox_are_not_those_of_the_next_daemon(self) -> None:
        self.client.inbox_read("mine")
        self.daemon.end()
        self.client.submit(["true"], hold=True)
        with self.assertRaisesRegex(bgd.InvalidParams, "start over"):
            self.client.inbox_ack(session="mine", upto=1)
        with self.assertRaisesRegex(bgd.InvalidParams, "start over"):
            self.client.inbox_read("mine", after=1)
        self.assertEqual(self.client.inbox_ack(session="other", upto=1)["left"], 0)
        self.client.inbox_read("mine")
        self.client.inbox_ack(session="mine", upto=1)

    def test_a_list_does_not_go_on_with_the_next_daemon(self) -> None:
        with mock.patch.object(_client, "PAGE", 1):
            for _ in range(3):
                self.client.submit(["true"], hold=True)
            tasks = self.client.tasks()
            next(tasks)
            self.daemon.end()
            with self.assertRaisesRegex(bgd.OtherInstance, "list the tasks again"):
                list(tasks)

    def test_a_stream_goes_on_with_the_next_daemon(self) -> None:
        self.client.connect()
        with self.client.events(timeout=PATIENCE, on_restart="continue") as events:
            events.connect()
            before = self.client.submit(["true"], hold=True)
            event = next(events)
            assert event["kind"] == "submitted" and event["task"]["id"] == before.id
            self.daemon.end(signal.SIGKILL)
            after = self.client.submit(["true"], hold=True)
            while event["kind"] != "restarted":
                event = next(events)
            self.assertEqual(event["instance"], self.client.instance)
            event = next(events)
            assert event["kind"] == "submitted"
            self.assertEqual((event["task"]["id"], event["seq"]), (after.id, 1))

    def test_no_daemon_comes_back(self) -> None:
        self.client.connect()
        with self.client.events(timeout=0.1, on_restart="continue") as events:
            events.connect()
            self.daemon.end()
            with self.assertRaisesRegex(bgd.Timeout, "no daemon came back"):
                next(events)

    def test_gaps_are_told(self) -> None:
        subscriptions: list[object] = []

        def gaps(request: dict[str, object]) -> bytes:
            subscriptions.append(request["params"])
            text = answer(request, {"subscription": 7, "seq": 10, "instance": "fake"})
            news = (
                [b'{"kind":"gap","from":3,"to":5,"ended":false}', b'{"kind":"x","seq":6}', b'{"kind":"gap","from":7,"to":9,"ended":true}']
                if len(subscriptions) == 1
                else [b'{"kind":"y","seq":7}']
            )
            for one in news:
                text += b'{"jsonrpc":"2.0","method":"event","params":{"subscription":7,' + one[1:] + b"}\n"
            return text + b'{"jsonrpc":"2.0","method":"event","params":{"subscription":8,"kind":"other","seq":1}}\n'

        with server(gaps) as path, bgd.Client(path) as client, client.events(2, timeout=PATIENCE) as events:
            self.assertEqual(next(events), {"kind": "gap", "from": 3, "to": 5, "ended": False})
            self.assertEqual(events.cursor, "fake:5")
            self.assertEqual(next(events), {"kind": "x", "seq": 6})
            # It read too slowly, and has subscribed again.
            self.assertEqual(next(events), {"kind": "y", "seq": 7})
        self.assertEqual(subscriptions, [{"ids": [], "since": 2}, {"ids": [], "since": 6, "instance": "fake"}])
        self.assertEqual(HELLO["instance"], "fake")

    def test_a_task_cleared_while_a_stream_is_not_connected_loses_no_event(self) -> None:
        one, two = (self.client.submit(["true"], hold=True) for _ in range(2))

        with self.client.events(ids=[one.id[:8], two], timeout=PATIENCE) as events:
            events.connect()
            events._drop()
            self.client.submit(["true"], hold=True)
            one.cancel()
            one.clear()
            two.cancel()
            found = [(event["task"]["id"], event["kind"]) for event in islice(events, 3)]  # type: ignore[typeddict-item]
            self.assertEqual(found, [(one.id, "cancelled"), (one.id, "cleared"), (two.id, "cancelled")])
            events._drop()
            two.clear()
            self.assertEqual(next(events)["kind"], "cleared")
            events._drop()
            # Nothing can come any more.
            with self.assertRaises(bgd.TaskNotFound):
                next(events)
        with self.assertRaises(bgd.TaskNotFound):
            next(self.client.events(ids=[one], timeout=PATIENCE))

    def test_a_prefix_goes_on_to_mean_the_same_task(self) -> None:
        asked: list[tuple[object, object]] = []

        def says(request: dict[str, Any]) -> bytes:
            asked.append((request["method"], request["params"]["ids"]))
            if request["method"] == "task.block":
                return answer(request, {"tasks": [{"id": full}], "active": [], "finished": []})
            return answer(request, {"subscription": 7, "seq": 10, "instance": "fake"})

        full = "3f2a9c1e-0000-4000-8000-000000000001"
        with server(says) as path, bgd.Client(path) as client:
            with client.events(ids="3f2a", timeout=PATIENCE) as events:
                events.connect()
                events._drop()
                events.connect()
            client.events(ids=full.upper()).connect()
        subscribed = ("events.subscribe", [full])
        expected = [("task.block", ["3f2a"]), subscribed, subscribed, ("events.subscribe", [full.upper()])]
        self.assertEqual(asked, expected)

    def test_the_next_daemon_is_told_even_if_it_lacks_the_tasks(self) -> None:
        task = self.client.submit(["true"], hold=True)
        with self.client.events(ids=[task], timeout=PATIENCE, on_restart="continue") as events:
            events.connect()
            self.daemon.end(signal.SIGKILL)
            self.client.connect()
            self.assertEqual(next(events), {"kind": "restarted", "instance": self.client.instance})
            for _ in range(2):
                with self.assertRaises(bgd.TaskNotFound):
                    next(events)

    def test_the_next_daemon_is_told_even_if_it_closes_the_connection(self) -> None:
        asked: list[object] = []

        def closes(request: dict[str, object]) -> Optional[bytes]:
            asked.append(request["params"])
            text = answer(request, {"subscription": 7, "seq": 0, "instance": "fake"})
            return None if len(asked) == 1 else text

        with server(closes) as path, bgd.Client(path) as client:
            with client.events("old:5", timeout=PATIENCE, on_restart="continue") as events:
                events._has_begun = True
                self.assertEqual(next(events), {"kind": "restarted", "instance": "fake"})
                self.assertEqual(events.cursor, "fake:0")

    def test_an_asynchronous_stream_loses_neither_events_nor_news_of_another_daemon(self) -> None:
        async def both() -> None:
            async with bgd.AsyncClient() as client:
                one, two = [await client.submit(["true"], hold=True) for _ in range(2)]
                async with client.events(
                    ids=[one.id[:8], two], timeout=PATIENCE, on_restart="continue"
                ) as events:
                    await events.connect()
                    await events._drop()
                    await one.cancel()
                    await one.clear()
                    found = [(await events.__anext__())["kind"] for _ in range(2)]
                    self.assertEqual(found, ["cancelled", "cleared"])
                    self.daemon.end(signal.SIGKILL)
                    self.client.connect()
                    self.assertEqual((await events.__anext__())["kind"], "restarted")
                    with self.assertRaises(bgd.TaskNotFound):
                        await events.__anext__()

        asyncio.run(both())

    def test_a_stream_closed_while_it_connects_leaves_no_connection_behind(self) -> None:
        def closes(request: dict[str, object]) -> bytes:
            events.close()
            return answer(request, {"subscription": 7, "seq": 10, "instance": "fake"})

        with server(closes) as path, bgd.Client(path) as client:
            events = client.events(timeout=PATIENCE)
            with self.assertRaises(StopIteration):
                next(events)
            self.assertIsNone(events._connection)
            with self.assertRaisesRegex(bgd.ConnectionLost, "the stream was closed"):
                events.connect()

    def test_an_asynchronous_stream_closed_while_it_connects_leaves_no_connection_behind(self) -> None:
        async def closed_meanwhile() -> None:
            loop = asyncio.get_running_loop()

            def closes(request: dict[str, object]) -> bytes:
                asyncio.run_coroutine_threadsafe(events.close(), loop).result(PATIENCE)
                return answer(request, {"subscription": 7, "seq": 10, "instance": "fake"})

            with server(closes) as path:
                async with bgd.AsyncClient(path) as client:
                    events = client.events(timeout=PATIENCE)
                    with self.assertRaises(StopAsyncIteration):
                        await events.__anext__()
                    self.assertIsNone(events._connection)
                    with self.assertRaisesRegex(bgd.ConnectionLost, "the stream was closed"):
                        await events.connect()

        asyncio.run(closed_meanwhile())


if __name__ == "__main__":
    unittest.main()
