"""The wheel: what is in it, and that it can be installed, used and removed again without a network. The programs are
those in the folder $BGD_TEST_PROGRAMS."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import stat
import struct
import subprocess
import sys
import unittest
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional

from support import PATIENCE, Case

ROOT = Path(__file__).parents[2]
PROGRAMS = os.environ.get("BGD_TEST_PROGRAMS", "")

JOB = """
import bgd, os
with bgd.Client() as client:
    done = client.run(["sh", "-c", "echo from Python; command -v bgctl || true"], check=True)
    print(done.output.decode() + os.readlink(f"/proc/{client.connect()['pid']}/exe"))
"""


def run(*words: object, env: Optional[Mapping[str, str]] = None, code: int = 0) -> str:
    done = subprocess.run([str(word) for word in words], env=env, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def build(programs: object, out: object, *options: str, epoch: str = "1700000000", code: int = 0) -> str:
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    words = (sys.executable, ROOT / "python/build_wheel.py", "--programs", programs, "--out", out, "--level", "1")
    return run(*words, *options, env=env, code=code).strip()


def elf(machine: int, *kinds: int) -> bytes:
    """Returns the head of a program with segments of these kinds."""
    head = b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HHIQQQIHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, len(kinds))
    return head.ljust(64, b"\0") + b"".join(struct.pack("<I", kind).ljust(56, b"\0") for kind in kinds)


class Contents(unittest.TestCase):
    def setUp(self) -> None:
        folder = TemporaryDirectory(dir=os.environ["HOME"])
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.put(elf(62, 1, 1), elf(62, 1))

    def put(self, daemon: bytes, cli: bytes) -> None:
        (self.folder / "bgd").write_bytes(daemon)
        (self.folder / "bgctl").write_bytes(cli)

    def test_static_programs_make_a_wheel_for_any_linux(self) -> None:
        path = Path(build(self.folder, self.folder / "out"))
        version = path.name.split("-")[1]
        tags = ["manylinux_2_17_x86_64", "musllinux_1_1_x86_64"]
        self.assertEqual(path.name, f"bgd-{version}-py3-none-{'.'.join(tags)}.whl")
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            self.assertEqual(len(names), len(set(names)))
            text = {name: archive.read(name) for name in names}
            modes = {entry.filename: stat.S_IMODE(entry.external_attr >> 16) for entry in archive.infolist()}
            self.assertEqual({entry.date_time for entry in archive.infolist()}, {(2023, 11, 14, 22, 13, 20)})
        info = f"bgd-{version}.dist-info"
        record = {name: (digest, size) for name, digest, size in csv.reader(text[f"{info}/RECORD"].decode().splitlines())}
        self.assertEqual(list(record), names)
        for name, (digest, size) in record.items():
            if name != f"{info}/RECORD":
                found = base64.urlsafe_b64encode(hashlib.sha256(text[name]).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, size), (f"sha256={found}", str(len(text[name]))))
        executable = {name for name, mode in modes.items() if mode & 0o111}
        self.assertEqual(executable, {f"bgd-{version}.data/scripts/{name}" for name in ("bgd", "bgctl")})
        self.assertEqual({modes[name] for name in executable}, {0o755})
        wheel = text[f"{info}/WHEEL"].decode().splitlines()
        self.assertEqual([line for line in wheel if line.startswith("Tag: ")], [f"Tag: py3-none-{tag}" for tag in tags])
        self.assertIn("Root-Is-Purelib: false", wheel)
        metadata = text[f"{info}/METADATA"].decode()
        head, description = metadata.split("\n\n", 1)
        for line in ("Name: bgd", f"Version: {version}", "License-Expression: MIT", "Requires-Python: >=3.9"):
            self.assertIn(line, head.splitlines())
        self.assertNotIn("Requires-Dist", head)
        self.assertEqual(description, (ROOT / "python/README.md").read_text())
        self.assertEqual(text[f"{info}/licenses/LICENSE"], (ROOT / "LICENSE").read_bytes())
        modules = {path.name for path in (ROOT / "python/bgd").iterdir() if path.name != "__pycache__"}
        self.assertEqual({name[4:] for name in names if name.startswith("bgd/")}, modules)
        self.assertIn("bgd/py.typed", names)

    def test_the_same_input_gives_the_same_bytes(self) -> None:
        first, second = (Path(build(self.folder, self.folder / name)) for name in ("one", "two"))
        self.assertEqual(first.read_bytes(), second.read_bytes())

    def test_programs_that_do_not_run_elsewhere_are_refused(self) -> None:
        out = self.folder / "out"
        for daemon, words in (
            (elf(62, 1, 3), "is not static"),
            (elf(183, 1), "different machines"),
            (elf(8, 1), "unknown machine"),
            (b"#!/bin/sh\n", "is not a program"),
        ):
            self.put(daemon, elf(62, 1))
            self.assertIn(words, build(self.folder, out, code=1))
        self.assertFalse(out.exists())
        self.assertIn("; .ci/dist builds the programs", build(self.folder / "nothing", out, code=1))


@unittest.skipUnless(PROGRAMS, "it needs the programs")
class Installed(Case):
    def test_it_is_installed_used_and_removed(self) -> None:
        folder = self.daemon.folder
        wheel = build(PROGRAMS, folder, "--linux")
        run(sys.executable, "-m", "venv", folder / "venv")
        bin = folder / "venv/bin"
        home = folder / "home"
        home.mkdir()
        env = {**self.daemon.environment, "HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        before = files(folder / "venv")
        pip = (bin / "python", "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
        run(*pip, "install", "--no-index", wheel, env=env)
        self.assertEqual(run(*pip, "check", env=env).strip(), "No broken requirements found.")
        # The client finds the programs that came with it, though they are not in PATH.
        said = run(bin / "python", "-W", "error", "-c", JOB, env=env).splitlines()
        self.assertEqual(said, ["from Python", str(bin / "bgd")])
        active = {**env, "PATH": f"{bin}:/usr/bin:/bin"}
        id = run("bgctl", "submit", "--", "echo", "from the shell", env=active).strip()
        self.assertEqual(run("bgctl", "output", "--follow", id, env=active), "from the shell\n")
        run("bgctl", "daemon", "stop", env=active)
        self.assertEqual(run(bin / "python", "-W", "error", "-c", JOB, env=active).splitlines()[1], str(bin / "bgctl"))
        self.assertTrue((folder / "venv/share/man/man1/bgctl.1").is_file())
        run("bgctl", "daemon", "stop", env=active)
        run(*pip, "uninstall", "--yes", "bgd", env=env)
        self.assertEqual(files(folder / "venv"), before)
        self.assertEqual(files(home), set())


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}
