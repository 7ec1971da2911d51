"""The blocking client against a real daemon."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import threading
import unittest
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Optional, Union
from unittest import mock

from support import PATIENCE, Case, parts

import bgd
from bgd import types
from bgd._connection import Connection


class Tasks(Case):
    def test_a_command_is_run_and_its_output_is_returned(self) -> None:
        done = self.client.run(["printf", "%s|", "a b", "$HOME", ""])
        self.assertEqual((done.exit_code, done.output), (0, b"a b|$HOME||"))
        self.assertEqual(done.task["status"], "completed")
        failed = self.client.run(shell="echo no >&2; exit 3")
        self.assertEqual((failed.exit_code, failed.output), (3, b"no\n"))
        with self.assertRaises(bgd.TaskFailed) as caught:
            self.client.run(shell="kill -9 $$", check=True)
        self.assertEqual(caught.exception.exit_code, 128 + signal.SIGKILL)
        with self.assertRaises(bgd.TaskFailed) as caught:
            self.client.run(["no-such-program"], check=True)
        self.assertEqual(caught.exception.exit_code, 127)

    def test_arguments_are_passed_on_as_they_are(self) -> None:
        words: list[Union[str, bytes, Path]] = [b"\xff\xfe", "\udcfe", Path("a/b"), "ä\n'\"", "-x"]
        done = self.client.run(["printf", "%s\n", *words])
        self.assertEqual(done.output, b"\xff\xfe\n\xfe\na/b\n\xc3\xa4\n'\"\n-x\n")
        argv = done.task.get("argv", [])
        self.assertEqual(bgd.os_bytes(argv[2]), b"\xff\xfe")
        lines: tuple[Any, ...] = ("echo hi", b"echo hi")
        for wrong in lines:
            with self.assertRaisesRegex(bgd.UsageError, "list of arguments"):
                self.client.submit(wrong)
        with self.assertRaisesRegex(bgd.UsageError, "NUL"):
            self.client.submit(["a\0b"])
        with self.assertRaisesRegex(bgd.UsageError, "empty"):
            self.client.submit([])
        with self.assertRaisesRegex(bgd.UsageError, "one of"):
            self.client.submit(["a"], shell="b")

    def test_arguments_of_a_wrong_type_are_refused(self) -> None:
        """Above all text where a list is wanted, whose items would be its letters."""
        task = self.client.submit(["sleep", "1000"], stdin="pipe")
        child = self.child()
        count = len(list(self.client.tasks()))
        # The types refuse most of them; a program without a type checker does not hear of that.
        client: Any = self.client
        handle: Any = task
        true = ["true"]
        calls: list[tuple[str, Callable[[], object]]] = [
            (r"tags must be a list, not str \(give tags=\['web'\]\)", lambda: client.submit(true, tags="web")),
            ("tags must be a list, not bytes", lambda: client.submit(true, tags=b"web")),
            ("tags must be a list, not NoneType", lambda: client.submit(true, tags=None)),
            ("tags must be a list", lambda: client.run(true, tags="web")),
            ("tags must be a list", lambda: client.submit_many([true], tags="web")),
            ("tags must be a list", lambda: client.handoff(child, tags="web")),
            ("tags must be a list", lambda: list(client.tasks(tags="web"))),
            (r"give status=\['running'\]", lambda: list(client.tasks(status="running"))),
            ("after must be a list, not int", lambda: client.submit(true, after=5)),
            ("condition on one, not int", lambda: client.submit(true, after=[5])),
            ("tasks must be a list, not NoneType", lambda: client.wait(None)),
            ("tasks must be a list, not bytes", lambda: client.block(task.id.encode())),
            ("handle or an id, not int", lambda: client.wait([5])),
            ("handle or an id, not dict", lambda: client.block([task.info])),
            ("ids must be a list, not int", lambda: client.events(ids=5)),
            ("the variable 'A' must be text, not int", lambda: client.submit(true, env={"A": 1})),
            ("the name of a variable must be text, not int", lambda: client.submit(true, env={1: "a"})),
            ("env must be a mapping of names to values, not list", lambda: client.submit(true, env=["A=1"])),
            ("argv must be a list, not int", lambda: client.submit(5)),
            ("must be text, not int", lambda: client.submit(["sleep", 5])),
            ("can't be encoded", lambda: client.submit(["\ud800"])),
            ("must be text, not list", lambda: client.submit(shell=true)),
            ("cwd must be text, not int", lambda: client.submit(true, cwd=1)),
            ("argvs must be a list, not str", lambda: client.submit_many("true")),
            ("each of argvs must be a list, not int", lambda: client.submit_many([5])),
            ("stdin must be an open descriptor", lambda: client.submit(true, stdin="pipes")),
            ("stdout must be an open descriptor", lambda: client.submit(true, stdout=io.BytesIO())),
            ("pty='big'", lambda: client.submit(true, pty="big")),
            ("start_at must be a datetime", lambda: client.submit(true, start_at="now")),
            ("time_limit='5' is not a number", lambda: client.submit(true, time_limit="5")),
            ("timeout '5' is not a number", lambda: client.wait(task, timeout="5")),
            ("is not a cursor", lambda: client.events(1.5)),
            ("input must be bytes, not str", lambda: handle.write("text")),
            ("Popen or a process id, not str", lambda: client.handoff("make")),
            ("kind and a descriptor", lambda: client.handoff(child, streams=["stdout"])),
            ("socket must be a path, not Client", lambda: bgd.Client(client)),
        ]
        for message, call in calls:
            with self.subTest(message), self.assertRaisesRegex(bgd.UsageError, message):
                call()
        self.assertEqual(len(list(self.client.tasks())), count)

    def test_a_task_inherits_folder_variables_umask_and_limits(self) -> None:
        done = self.client.run(shell="pwd; umask; ulimit -c; echo $BGD_TEST_WORD", env=None)
        mask = os.umask(0o22)
        os.umask(mask)
        lines = done.output.decode().splitlines()
        self.assertEqual(lines[0], os.getcwd())
        self.assertEqual(int(lines[1], 8), mask)
        self.assertEqual(lines[3], "")
        done = self.client.run(["/usr/bin/env"], cwd="/", env={"ONLY": b"\xff this"})
        self.assertIn(b"ONLY=\xff this\n", done.output)
        self.assertNotIn(b"HOME=", done.output)
        self.assertEqual(done.task["cwd"], "/")

    def test_a_long_environment_travels_in_a_memory_file(self) -> None:
        self.client.connect()
        before = len(os.listdir("/proc/self/fd"))
        # Linux allows 128 KiB for one variable.
        env = {f"LONG{number}": "x" * 100_000 for number in range(3)}
        done = self.client.run(["/bin/sh", "-c", "echo ${#LONG0} ${#LONG2}"], env=env)
        self.assertEqual(done.output, b"100000 100000\n")
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        with self.assertRaisesRegex(bgd.UsageError, "at most"):
            self.client.submit(["true"], env={"A": "x" * (6 << 20)})

    def test_descriptors_travel_along(self) -> None:
        source, target = self.daemon.folder / "in", self.daemon.folder / "out"
        source.write_bytes(b"some input")
        with source.open("rb") as stdin, target.open("wb") as stdout:
            task = self.client.submit(["tr", "a-z", "A-Z"], stdin=stdin, stdout=stdout.fileno())
        task.wait(check=True)
        self.assertEqual(target.read_bytes(), b"SOME INPUT")
        self.assertEqual(task.output(), b"")

    def test_input_is_written_in_parts(self) -> None:
        task = self.client.submit(["sha256sum"], stdin="pipe")
        data = bytes(range(256)) * 3000
        task.write(data[:10])
        task.write(data[10:], eof=True)
        task.wait(check=True)
        import hashlib

        self.assertEqual(task.output().split()[0].decode(), hashlib.sha256(data).hexdigest())

    def test_a_huge_output_is_read_whole_and_in_parts(self) -> None:
        size = 20_000_000
        task = self.client.submit(shell=f"yes 0123456789abcde | head -c {size}; echo end >&2")
        followed = 0
        for part in task.follow(timeout=PATIENCE):
            self.assertLessEqual(len(part), 256 * 1024)
            followed += len(part)
        self.assertEqual(followed, size + 4)
        self.assertTrue(task.has_ended)
        output = task.output()
        self.assertEqual(len(output), size + 4)
        self.assertEqual(output[-20:], b"0123456789abcde\nend\n")
        self.assertEqual(task.output(-4), b"end\n")
        self.assertEqual(task.output(size), b"end\n")
        self.assertEqual(len(task.result()), 256 * 1024)

    def test_an_output_is_followed_while_it_is_written(self) -> None:
        gate = self.gate()
        task = self.client.submit(shell=f"echo one; {gate.line}; echo two; echo err >&2", split=True)
        parts = task.follow(timeout=PATIENCE)
        self.assertEqual(next(parts), b"one\n")
        gate.open()
        self.assertEqual(b"".join(parts), b"two\n")
        self.assertEqual(task.output(stream="stderr"), b"err\n")

    def test_following_ends_with_the_task_although_a_process_of_it_goes_on(self) -> None:
        gate = self.gate()
        task = self.client.submit(shell=f"({gate.line}; echo late) & echo hi")
        self.assertEqual(b"".join(task.follow(timeout=PATIENCE)), b"hi\n")
        self.assertTrue(task.refresh()["lingering"])
        self.assertEqual(b"".join(task.follow(timeout=PATIENCE)), b"hi\n")
        with self.client.events(ids=[task.id], timeout=PATIENCE) as events:
            events.connect()
            gate.open()
            event = next(events)
        assert event["kind"] == "progress"
        self.assertFalse(event["task"]["lingering"])
        self.assertEqual(b"".join(task.follow(timeout=PATIENCE)), b"hi\nlate\n")

    def test_waiting_has_an_end(self) -> None:
        gate = self.gate()
        task = self.client.submit(shell=gate.line, tags=["waits"])
        with self.assertRaises(bgd.Timeout) as caught:
            task.wait(0.05)
        self.assertEqual((caught.exception.active, caught.exception.exit_code), ([task.id], 75))
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertEqual(caught.exception.message, f"{task.id} has not ended after 0.05 s")
        self.assertEqual(caught.exception.hint, "it keeps running; wait again, or cancel it")
        result = self.client.block([task], timeout=0)
        self.assertTrue(result["timed_out"])
        with self.assertRaises(bgd.Timeout):
            next(task.follow(timeout=0.05))
        with self.assertRaises(bgd.Timeout):
            self.client.task_block(ids=[task.id], timeout_ms=None, timeout=0.05)
        with self.assertRaisesRegex(bgd.UsageError, "timeout"):
            task.wait(timeout=-1)
        self.assertIsNone(task.exit_code)
        gate.open()
        # The late answer to the call that was given up disturbs nothing.
        self.assertEqual(task.wait(timeout=PATIENCE)["status"], "completed")
        self.assertEqual(task.exit_code, 0)

    def test_waiting_takes_times_of_any_length(self) -> None:
        for long in (30 * 86400.0, 1e10, float("inf")):
            client = self.connected(timeout=long)
            with client.events(timeout=long) as events:
                events.connect()
                task = client.submit(["echo", "x"], timeout=long)
                self.assertEqual(b"".join(task.follow(timeout=long)), b"x\n")
                kinds: list[str] = []
                while "completed" not in kinds:
                    kinds.append(next(events)["kind"])
            client.events_subscribe()
            client.submit(["true"])
            self.assertEqual(client.notification(timeout=long).method, "event")
        self.assertEqual(task.wait(timeout=1e9)["status"], "completed")
        self.assertEqual(task.wait(timeout=Decimal("1.5"))["status"], "completed")  # type: ignore[arg-type]
        for wrong in (10**400, float("nan"), "1"):
            with self.assertRaisesRegex(bgd.UsageError, "timeout"):
                self.client.notification(timeout=wrong)  # type: ignore[arg-type]

    def test_any_task_is_enough(self) -> None:
        gate = self.gate()
        slow, fast = self.client.submit(shell=gate.line), self.client.submit(["true"])
        self.client.wait([slow, fast.id], any=True, timeout=PATIENCE)
        self.assertEqual(fast.refresh()["status"], "completed")
        self.assertEqual(slow.refresh()["status"], "running")

    def test_waiting_updates_the_tasks_that_are_given(self) -> None:
        gate = self.gate()
        slow = self.client.submit(shell=f"{gate.line}; exit 3")
        missing = self.client.submit(["no-such-program"])
        ended = self.client.wait((task for task in [missing, missing]), timeout=PATIENCE)
        self.assertEqual([task["id"] for task in ended], [missing.id])
        self.assertEqual((missing.status, missing.exit_code), ("failed", 127))
        with self.client.events(0, ids=slow, timeout=PATIENCE) as events:
            next(event for event in events if event["kind"] == "started")
        with self.assertRaises(bgd.Timeout):
            self.client.wait([slow], timeout=0.05)
        self.assertEqual((slow.status, slow.exit_code), ("running", None))
        gate.open()
        result = self.client.block([slow.id, slow, missing], timeout=PATIENCE)
        self.assertEqual((slow.status, slow.exit_code), ("failed", 3))
        self.assertEqual([task["id"] for task in result["tasks"]], [slow.id, missing.id])

    def test_a_single_task_is_given_as_it_is(self) -> None:
        gate = self.gate()
        first = self.client.submit(shell=gate.line)
        conditions: list[Any] = [first, first.id, first.id[:8], {"id": first.id, "condition": "any"}]
        others = [self.client.submit(["true"], after=one) for one in conditions]
        for other in others:
            self.assertEqual([one["id"] for one in other.info.get("after", [])], [first.id])
        gate.open()
        for given in (first, first.id, first.id[:8]):
            self.assertEqual([task["id"] for task in self.client.wait(given, timeout=PATIENCE)], [first.id])
        self.assertEqual(self.client.block(first, timeout=PATIENCE)["finished"], [first.id])
        self.assertEqual(first.status, "completed")
        self.client.wait(others, timeout=PATIENCE)
        self.assertEqual({other.exit_code for other in others}, {0})

    def test_exit_codes_are_as_the_documentation_says(self) -> None:
        plain = self.daemon.folder / "plain"
        plain.write_text("neither a program nor a folder")
        held = self.client.submit(["true"], hold=True)
        self.assertIsNone(held.exit_code)
        held.cancel()
        self.assertEqual((held.status, held.exit_code), ("cancelled", 1))
        tasks = [
            self.client.submit(["no-such-program"]),
            self.client.submit([plain]),
            self.client.submit(["true"], cwd=plain),
            self.client.submit(["true"], cwd=self.daemon.folder / "missing"),
            self.client.submit(["sleep", "1000"], time_limit=0.05),
            self.client.submit(shell="kill -9 $$"),
            self.client.submit(shell="exit 5"),
        ]
        self.client.wait(tasks, timeout=PATIENCE)
        self.assertEqual([task.exit_code for task in tasks], [127, 126, 126, 126, 124, 137, 5])
        runs: list[list[str]] = [
            ["no-such-program"],
            [str(plain)],
            ["--cwd", str(plain), "--", "true"],
            ["--cwd", f"{plain}.missing", "--", "true"],
            ["--time-limit", "50ms", "--", "sleep", "1000"],
            ["--shell", "kill -9 $$"],
            ["--shell", "exit 5"],
        ]
        for run, task in zip(runs, tasks):
            line = ["bgctl", "run", *run]
            ended = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=PATIENCE)
            self.assertEqual(ended.returncode, task.exit_code, run)
        blocks = [["bgctl", "block", "--exit-code", task.id] for task in [held, *tasks]]
        codes = [subprocess.run(line, stdout=subprocess.DEVNULL, timeout=PATIENCE).returncode for line in blocks]
        self.assertEqual(codes, [1, 1, 1, 1, 1, 124, 128 + signal.SIGKILL, 5])

    def test_tasks_are_cancelled_signalled_and_cleared(self) -> None:
        task = self.client.submit(["sleep", "1000"])
        self.client.task_get(task.id[:8])
        self.assertEqual(task.cancel(signal=signal.SIGKILL)["status"], "cancelled")
        self.assertEqual(task.exit_code, 128 + signal.SIGKILL)
        other = self.client.submit(["sleep", "1000"])
        with self.client.events(0, ids=[other], timeout=PATIENCE) as events:
            next(event for event in events if event["kind"] == "started")
        other.signal("TERM", tree=True)
        self.assertEqual(other.wait(timeout=PATIENCE)["status"], "failed")
        self.assertEqual(other.exit_code, 128 + signal.SIGTERM)
        other.clear()
        with self.assertRaises(bgd.TaskNotFound) as caught:
            other.refresh()
        self.assertEqual((caught.exception.exit_code, caught.exception.kind), (66, "task_not_found"))

    def test_all_options_of_a_submit_arrive(self) -> None:
        first = self.client.submit(["false"])
        self.client.group_set(name="g", slots=3)
        at = datetime.now(timezone.utc) - timedelta(hours=1)
        task = self.client.submit(
            ["sh", "-c", "tty; exit 7"], description="d", pty=(11, 22), time_limit=60.0, tags=["x", "y"],
            key="k", session="s", channel="none", group="g", priority=5, slots=2, hold=True, delay=0.001,
            after=[{"id": first.id, "condition": "any"}], retry={"times": 1, "delay_ms": 1}, ready="line:x",
            ready_timeout=30,
        )  # fmt: skip
        again = self.client.submit(["other"], key="k", session="s")
        self.assertEqual(again.id, task.id)
        held = self.client.submit(["true"], hold=True, start_at=at)
        self.assertEqual(held.status, "pending")
        self.client.task_release(ids=[task.id, held.id])
        info = task.wait(timeout=PATIENCE)
        self.assertEqual((info["description"], info.get("session"), info.get("tags")), ("d", "s", ["x", "y"]))
        self.assertEqual((info.get("group"), info.get("priority"), info.get("slots")), ("g", 5, 2))
        self.assertEqual((info.get("time_limit_ms"), info.get("ready_timeout_ms")), (60_000, 30_000))
        self.assertEqual((task.exit_code, info.get("attempt")), (7, 2))
        self.assertIn(b"/dev/pts/", task.output())

    def test_tasks_are_listed_in_pages(self) -> None:
        # More than a page has.
        batch = self.client.submit_many(
            (["echo", str(number)] for number in range(1100)), jobs=8, tags=["many"], description="one of many"
        )
        self.assertEqual(len(batch.ids), 1100)
        self.client.task_cancel(matching={"batch": batch.id}, grace_ms=0)
        listed = [task.id for task in self.client.tasks(batch=batch.id, tags=["many"])]
        self.assertEqual(listed, batch.ids[::-1])
        self.assertEqual(list(self.client.tasks(session="none")), [])

    def test_a_batch_is_sent_in_parts(self) -> None:
        long = "x" * 100_000
        batch = self.client.submit_many([["true", long, str(number)] for number in range(12)], max_fails=1)
        ended = self.client.wait(batch.ids, timeout=PATIENCE)
        self.assertEqual({task["status"] for task in ended}, {"completed"})
        for wrong in ([], ["line"]):
            with self.assertRaises(bgd.UsageError):
                self.client.submit_many(wrong)

    def test_a_batch_that_stops_between_its_parts_leaves_nothing_behind(self) -> None:
        self.client.connect()
        descriptors = len(os.listdir("/proc/self/fd"))

        def stops() -> Iterator[list[str]]:
            yield from parts("stops")
            raise LookupError

        with self.assertRaises(LookupError):
            self.client.submit_many(stops())
        with self.assertRaises(bgd.UsageError):
            self.client.submit_many([*parts("wrong"), ["a\0b"]])
        batch = self.client.submit_many([["true"]] * 3)
        self.assertEqual([task.id for task in self.client.tasks()], batch.ids[::-1])
        self.assertEqual(len(os.listdir("/proc/self/fd")), descriptors)

    def test_closing_ends_a_batch_between_its_parts(self) -> None:
        client = self.connected()

        def closes() -> Iterator[list[str]]:
            yield from parts("first")
            client.close()
            yield from parts("rest")

        with self.assertRaises(bgd.ConnectionLost):
            client.submit_many(closes())
        self.assertEqual(list(self.client.tasks()), [])

    def test_every_method_of_the_protocol_is_there(self) -> None:
        """Those that change nothing are called; the types say the rest."""
        self.assertEqual(self.client.daemon_status()["pid"], self.daemon.pid())
        self.assertEqual(self.client.group_list()["groups"][0]["name"], "default")
        self.assertEqual(self.client.executor_list()["executors"][0]["kind"], "local")
        self.assertTrue(self.client.agent_list(env=dict(os.environ))["agents"])
        self.assertEqual(self.client.inbox_list()["inboxes"], [])
        self.assertEqual(self.client.daemon_reload()["changed"], [])
        self.assertEqual(self.client.hello()["instance"], self.client.instance)
        self.assertEqual(self.client.call("task.list", {"limit": 1})["tasks"], [])

    def test_a_session_ends_with_the_client_that_owns_it(self) -> None:
        owner = self.connected(session="mine", owns=True)
        task = owner.submit(["sleep", "1000"])
        inbox = owner.inbox_read("mine")
        self.assertEqual(inbox["items"], [])
        with self.client.events(ids=[task], timeout=PATIENCE) as events:
            events.connect()
            owner.close()
            kinds = [next(events)["kind"]]
            while kinds[-1] != "cleared":
                kinds.append(next(events)["kind"])
        self.assertIn("cancelled", kinds)
        with self.assertRaisesRegex(bgd.UsageError, "closed"):
            owner.hello()
        with self.assertRaises(bgd.UsageError):
            bgd.Client(owns=True)

    def test_a_terminal_is_shown_by_notifications(self) -> None:
        gate = self.gate()
        task = self.client.submit(shell=f"echo shown; {gate.line}; echo more", pty=True)
        self.client.task_attach(task.id)
        shown = b""
        while b"shown" not in shown:
            note = self.client.notification(timeout=PATIENCE)
            if note.method == "output":
                shown += str(note.params["data"]).encode()
        gate.open()
        task.wait(timeout=PATIENCE)


class Threads(Case):
    def test_threads_call_at_the_same_time_over_one_connection(self) -> None:
        gate = self.gate()
        slow = self.client.submit(shell=gate.line)
        connections = self.client.daemon_status()["connections"]
        waited: list[types.Task] = []
        failures: list[BaseException] = []

        def wait() -> None:
            waited.append(self.client.wait([slow], timeout=PATIENCE)[0])

        def call(number: int) -> None:
            try:
                for count in range(20):
                    task = self.client.submit(["echo", f"{number} {count}"])
                    task.wait(timeout=PATIENCE, check=True)
                    assert task.output() == f"{number} {count}\n".encode()
            except BaseException as error:
                failures.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        threads = [threading.Thread(target=call, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(failures, [])
        self.assertEqual(waited, [])
        self.assertEqual(self.client.daemon_status()["connections"], connections)
        gate.open()
        waiter.join(PATIENCE)
        self.assertEqual(waited[0]["status"], "completed")

    def test_big_requests_of_threads_do_not_mix(self) -> None:
        """Lines longer than the socket's buffer, while answers as long come back."""
        failures: list[BaseException] = []

        def call(number: int) -> None:
            try:
                text = str(number) * 400_000
                for _ in range(5):
                    task = self.client.submit(["true", text], hold=True)
                    assert task.info.get("argv", [])[1] == text
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=call, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(failures, [])

    def test_batches_of_threads_do_not_mix(self) -> None:
        both_have_begun = threading.Barrier(2, timeout=PATIENCE)
        batches: list[bgd.Batch] = []
        failures: list[BaseException] = []

        def argvs(name: str) -> Iterator[list[str]]:
            yield from parts(name)
            # The first part was sent.
            both_have_begun.wait()
            self.assertEqual(len(self.client.submit_many([["true", "small"]]).ids), 1)
            yield from parts(name)

        def submit(name: str) -> None:
            try:
                batches.append(self.client.submit_many(argvs(name)))
            except BaseException as error:
                failures.append(error)
                both_have_begun.abort()

        threads = [threading.Thread(target=submit, args=[name]) for name in ("one", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(failures, [])
        for batch in batches:
            ended = self.client.wait(batch.ids, timeout=PATIENCE)
            self.assertEqual(({task["status"] for task in ended}, len(ended)), ({"completed"}, 6))
            self.assertEqual(len({task.get("argv", [])[1] for task in ended}), 1)

    def test_closing_ends_the_waits_of_other_threads(self) -> None:
        gate = self.gate()
        slow = self.client.submit(shell=gate.line)
        other = self.connected()
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                other.wait([slow], timeout=None)
            except BaseException as error:
                caught.append(error)

        other.connect()
        thread = threading.Thread(target=wait)
        thread.start()
        other.close()
        thread.join(PATIENCE)
        self.assertIsInstance(caught[0], (bgd.ConnectionLost, bgd.UsageError))

    def test_a_wait_that_is_woken_after_the_connection_was_closed_is_lost(self) -> None:
        here, there = socket.socketpair()
        self.addCleanup(there.close)
        connection = Connection(here, self.daemon.path)
        # As if another thread were reading.
        connection._is_read = True
        waits, wait = threading.Event(), connection._changed.wait

        def waiting(timeout: Optional[float] = None) -> bool:
            waits.set()
            return wait(timeout)

        caught: list[BaseException] = []

        def call() -> None:
            try:
                connection.call("task.block", {})
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=call)
        with mock.patch.object(connection._changed, "wait", waiting):
            thread.start()
            self.assertTrue(waits.wait(PATIENCE))
        # It runs again only once the lock is free, and the descriptor is closed by then.
        with connection._changed:
            connection._is_read = False
            connection.close()
        thread.join(PATIENCE)
        self.assertEqual([type(error) for error in caught], [bgd.ConnectionLost])

    def test_a_forked_child_makes_a_connection_of_its_own(self) -> None:
        self.client.connect()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if self.client.run(["echo", "child"]).output == b"child\n" else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.client.run(["echo", "parent"]).output, b"parent\n")

    def test_a_forked_child_that_closes_ends_nothing_of_its_parent(self) -> None:
        owner = self.connected(session="forked", owns=True)
        with owner.events() as events:
            events.connect()
            task = owner.submit(["sleep", "1000"])
            self.assertEqual(next(events)["kind"], "submitted")
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    events.close()
                    owner.close()
                    code = 0
                finally:
                    os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            # The session would have ended with the connection of its owner, and its tasks with it.
            task.cancel()
            kinds = [next(events)["kind"] for _ in range(2)]
            self.assertIn("cancelled", kinds)
        owner.close()


if __name__ == "__main__":
    unittest.main()
