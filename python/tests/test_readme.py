"""The programs of README.md, run as they are, print what is written there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support import PATIENCE, Case

README = Path(__file__).parents[1] / "README.md"
PROGRAM = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


class Readme(Case):
    def test_every_program_prints_what_is_written_there(self) -> None:
        text = README.read_text()
        programs = PROGRAM.findall(text)
        self.assertEqual(len(programs), text.count("```python"))
        self.assertGreater(len(programs), 4)
        for program, printed in programs:
            with self.subTest(program=program):
                done = subprocess.run(
                    [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=PATIENCE
                )
                self.assertEqual((done.stdout, done.stderr, done.returncode), (printed, "", 0))
        # The tasks of all of them are in one daemon.
        self.assertGreater(len(list(self.client.tasks())), 6)
