"""Children of Python that are handed over while they run: no byte is lost, and none comes twice."""

from __future__ import annotations

import asyncio
import gc
import os
import pty
import select
import subprocess
import threading
import time
import unittest
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import IO
from unittest import mock

from support import PATIENCE, Case
from test_async import run

import bgd

WRITER = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; exit 3"
LINES = b"".join(b"line %d\n" % number for number in range(20000))


class Popen(Case):
    def test_no_byte_is_lost_and_none_comes_twice(self) -> None:
        """Whatever was read, and however Python reads ahead."""
        for bufsize, lines in ((-1, 0), (-1, 1), (-1, 1500), (0, 2), (100_000, 10)):
            with self.subTest(bufsize=bufsize, lines=lines):
                child = subprocess.Popen(["sh", "-c", WRITER], stdout=PIPE, stderr=STDOUT, bufsize=bufsize)
                assert child.stdout is not None
                shown = b"".join(child.stdout.readline() for _ in range(lines))
                given = self.client.handoff(child, "writes lines", tags=["handed"])
                self.assertTrue(child.stdout.closed)
                self.assertIn(given.task.id, given.message)
                info = given.task.wait(timeout=PATIENCE)
                self.assertEqual((info["origin"], info["description"], info.get("tags")), ("handoff", "writes lines", ["handed"]))
                self.assertEqual(shown + given.stdout + given.task.output(), LINES)
                self.assertEqual((given.task.exit_code, child.wait()), (3, 3))

    def test_both_outputs_go_along(self) -> None:
        gate = self.gate()
        line = f"echo out; echo err >&2; {gate.line}; echo more; echo less >&2"
        child = subprocess.Popen(["sh", "-c", line], stdout=PIPE, stderr=PIPE)
        assert child.stdout is not None and child.stderr is not None
        self.assertEqual(child.stdout.readline(), b"out\n")
        given = self.client.handoff(child)
        gate.open()
        given.task.wait(timeout=PATIENCE, check=True)
        self.assertEqual(given.stdout + given.task.output(), b"more\n")
        self.assertEqual(given.stderr + given.task.output(stream="stderr"), b"err\nless\n")
        self.assertEqual(given.task.info["description"], f"sh -c {line}"[:200])
        child.wait()

    def test_a_child_that_has_ended_stays_with_its_parent(self) -> None:
        child = subprocess.Popen(["echo", "mine"], stdout=PIPE)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with self.assertRaises(bgd.AlreadyFinished) as caught:
            self.client.handoff(child)
        self.assertEqual(caught.exception.exit_code, 65)
        assert child.stdout is not None
        self.assertEqual((child.stdout.read(), child.wait()), (b"mine\n", 0))
        with self.assertRaisesRegex(bgd.AlreadyFinished, "no process"):
            self.client.handoff(child)
        with self.assertRaisesRegex(bgd.AlreadyFinished, "no process"):
            self.client.handoff(child.pid)
        child.stdout.close()
        self.assertEqual(list(self.client.tasks()), [])

    def test_what_can_not_be_handed_over_is_refused_before(self) -> None:
        with subprocess.Popen(["cat"], stdin=PIPE, stdout=PIPE, text=True) as child:
            with self.assertRaisesRegex(bgd.UsageError, "text mode"):
                self.client.handoff(child)  # type: ignore[arg-type]
            assert child.stdin is not None
            child.communicate("")

    def reads(self, pipe: IO[bytes], into: list[bytes]) -> threading.Thread:
        """Returns a thread that waits for what a child writes."""
        thread = threading.Thread(target=lambda: into.append(pipe.read() or b""))
        thread.start()
        file = Path(f"/proc/self/task/{thread.native_id}/syscall")
        end = time.monotonic() + PATIENCE
        while file.read_text().split()[1:2] != [hex(pipe.fileno())]:
            self.assertLess(time.monotonic(), end, "the thread does not read")
            time.sleep(0.001)
        return thread

    def test_a_child_whose_output_a_thread_reads_is_refused_before(self) -> None:
        gate = self.gate()
        for name in ("stdout", "stderr"):
            child = subprocess.Popen(["sh", "-c", gate.line], **{name: PIPE})  # type: ignore[call-overload]
            pipe = getattr(child, name)
            thread = self.reads(pipe, [])
            with self.assertRaisesRegex(bgd.UsageError, f"another thread is reading the child's {name}"):
                self.client.handoff(child)
            gate.open()
            thread.join(PATIENCE)
            pipe.close()
            child.wait()
        self.assertEqual(list(self.client.tasks()), [])

    def test_a_thread_that_begins_to_read_during_the_handoff_does_not_delay_it(self) -> None:
        gate = self.gate()
        child = subprocess.Popen(["sh", "-c", f"{gate.line}; echo one"], stdout=PIPE)
        assert child.stdout is not None
        read: list[bytes] = []
        with mock.patch("bgd._handoff._touch", return_value=b""), mock.patch("bgd._handoff.LAST_PATIENCE", 0.1):
            thread = self.reads(child.stdout, read)
            given = self.client.handoff(child)
        self.assertEqual((given.task.status, given.stdout), ("running", b""))
        gate.open()
        given.task.wait(timeout=PATIENCE, check=True)
        thread.join(PATIENCE)
        # It is the thread or the daemon that reads the line.
        self.assertEqual(read[0] + given.task.output(), b"one\n")
        child.stdout.close()
        child.wait()

    def test_a_terminal_is_handed_over_by_its_master(self) -> None:
        gate = self.gate()
        master, slave = pty.openpty()
        child = subprocess.Popen(["sh", "-c", f"{gate.line}; tty"], stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        descriptors = len(os.listdir("/proc/self/fd"))
        given = self.client.handoff(child, streams=[("pty", master)])
        os.close(master)
        gate.open()
        given.task.wait(timeout=PATIENCE, check=True)
        self.assertIn(b"/dev/pts/", given.task.output())
        self.assertLess(len(os.listdir("/proc/self/fd")), descriptors + 1)
        child.wait()

    def test_an_exit_can_be_reported(self) -> None:
        gate = self.gate()
        child = subprocess.Popen(["sh", "-c", f"{gate.line}; exit 5"])
        given = self.client.handoff(child)
        gate.open()
        code = child.wait()
        self.client.task_exit(id=given.task.id, exit={"code": code})
        given.task.wait(timeout=PATIENCE)
        self.assertEqual(given.task.exit_code, 5)


class Asyncio(Case):
    @run
    async def test_no_byte_is_lost_and_none_comes_twice(self) -> None:
        async with bgd.AsyncClient() as client:
            for lines in (0, 1, 1500):
                child = await asyncio.create_subprocess_exec("sh", "-c", WRITER, stdout=PIPE, stderr=STDOUT)
                assert child.stdout is not None
                shown = b"".join([await child.stdout.readline() for _ in range(lines)])
                given = await client.handoff(child, "writes lines")
                self.assertEqual(await child.stdout.read(), b"")
                await given.task.wait(timeout=PATIENCE)
                self.assertEqual(shown + given.stdout + await given.task.output(), LINES)
                self.assertEqual(given.task.exit_code, 3)
                self.assertEqual(await child.wait(), 3)

    def test_a_child_outlives_the_event_loop(self) -> None:
        gate = self.gate()

        async def hand_over() -> str:
            async with bgd.AsyncClient() as client:
                line = f"echo one; echo err >&2; {gate.line}; echo two"
                child = await asyncio.create_subprocess_exec("sh", "-c", line, stdout=PIPE, stderr=PIPE)
                assert child.stdout is not None
                self.assertEqual(await child.stdout.readline(), b"one\n")
                given = await client.handoff(child)
                self.errors = given.stderr
                return given.task.id

        id = asyncio.run(hand_over())
        gc.collect()
        task = self.client.task(id)
        self.assertEqual(task.status, "running")
        gate.open()
        task.wait(timeout=PATIENCE)
        self.assertEqual((task.output(), self.errors + task.output(stream="stderr")), (b"two\n", b"err\n"))

    @run
    async def test_a_child_that_has_ended_stays_with_its_parent(self) -> None:
        async with bgd.AsyncClient() as client:
            await client.connect()
            gate = self.gate()
            child = await asyncio.create_subprocess_exec("sh", "-c", f"{gate.line}; echo mine", stdout=PIPE)
            handle = os.pidfd_open(child.pid)
            gate.open()
            # It ends while the loop is kept from noticing.
            select.select([handle], [], [], PATIENCE)
            os.close(handle)
            with self.assertRaises(bgd.AlreadyFinished):
                await client.handoff(child)
            assert child.stdout is not None
            self.assertEqual(await child.stdout.read(), b"mine\n")
            self.assertEqual(await child.wait(), 0)
            with self.assertRaisesRegex(bgd.AlreadyFinished, "no process"):
                await client.handoff(child)

    @run
    async def test_a_child_of_subprocess_goes_too(self) -> None:
        child = subprocess.Popen(["sh", "-c", WRITER], stdout=PIPE)
        async with bgd.AsyncClient() as client:
            given = await client.handoff(child)
            await given.task.wait(timeout=PATIENCE)
            self.assertEqual(given.stdout + await given.task.output(), LINES)
        child.wait()


if __name__ == "__main__":
    unittest.main()
