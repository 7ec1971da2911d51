#!/usr/bin/env python3
"""Builds the wheel of the package `bgd`: the Python modules, the two programs and their manual pages.

    python3 python/build_wheel.py --programs target/dist --out target/wheel

The programs must be static, so that the wheel runs on any Linux of its machine, unless --linux is given: then the wheel
is for this system only. It needs nothing but Python 3.9. The same input gives the same bytes: times are those of
SOURCE_DATE_EPOCH, or 1980. Prints the path of the wheel.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import struct
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "bgd"
PROGRAMS = ("bgd", "bgctl")
MACHINES = {62: "x86_64", 183: "aarch64"}
"""Machines of ELF files by their numbers, as the tags of wheels have them."""

PORTABLE = ("manylinux_2_17_{machine}", "musllinux_1_1_{machine}")
"""Tags of static programs, which need no C library: pip has no tag for any Linux."""

METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: {summary}
License-Expression: {license}
License-File: LICENSE
Keywords: background,jobs,tasks,daemon,agents,asyncio
Classifier: Environment :: Console
Classifier: Intended Audience :: Developers
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Python :: 3 :: Only
Classifier: Programming Language :: Rust
Classifier: Topic :: System :: Systems Administration
Classifier: Typing :: Typed
Requires-Python: >=3.9
Description-Content-Type: text/markdown

"""


class Wrong(Exception):
    """Something that the caller has to change."""


def cargo(field: str) -> str:
    """Returns a field of the workspace's package; Cargo.toml is the only place that has it."""
    manifest = (ROOT / "Cargo.toml").read_text()
    package = manifest.split("[workspace.package]", 1)[1].split("\n[", 1)[0]
    found = re.search(rf'^{field} = "([^"]+)"$', package, re.MULTILINE)
    if found is None:
        raise Wrong(f"Cargo.toml has no {field}")
    return found[1]


def machine(program: Path, linux: bool) -> str:
    """Returns the machine of a program, and makes sure that it is static. Raises Wrong."""
    if not program.is_file():
        raise Wrong(f"there is no {program}; .ci/dist builds the programs into target/dist")
    data = program.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise Wrong(f"{program} is not a program for a Linux of 64 bits, little-endian")
    (number,) = struct.unpack_from("<H", data, 18)
    if number not in MACHINES:
        raise Wrong(f"{program} is for an unknown machine ({number})")
    offset, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
    kinds = [struct.unpack_from("<I", data, offset + size * index)[0] for index in range(count)]
    interpreter = 3
    if interpreter in kinds and not linux:
        raise Wrong(f"{program} is not static; .ci/dist builds static ones, and --linux takes it for this system only")
    return MACHINES[number]


def contents(programs: Path, version: str) -> dict[str, tuple[bytes, int]]:
    """Returns the files of the wheel with their modes, without those that describe it."""
    data = f"{NAME}-{version}.data"
    files: dict[str, tuple[bytes, int]] = {}
    for path in sorted((ROOT / "python" / NAME).iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"{NAME}/{path.name}"] = (path.read_bytes(), 0o644)
    for name in PROGRAMS:
        files[f"{data}/scripts/{name}"] = ((programs / name).read_bytes(), 0o755)
    for path in sorted((ROOT / "man").glob("*.[1-8]")):
        files[f"{data}/data/share/man/man{path.suffix[1:]}/{path.name}"] = (path.read_bytes(), 0o644)
    return files


def described(files: dict[str, tuple[bytes, int]], version: str, tags: list[str]) -> dict[str, tuple[bytes, int]]:
    """Returns all files of the wheel: the given ones and those that describe them."""
    info = f"{NAME}-{version}.dist-info"
    metadata = METADATA.format(name=NAME, version=version, summary=cargo("description"), license=cargo("license"))
    metadata += (ROOT / "python/README.md").read_text()
    wheel = "Wheel-Version: 1.0\nGenerator: bgd build_wheel\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    files = {
        **files,
        f"{info}/METADATA": (metadata.encode(), 0o644),
        f"{info}/WHEEL": (wheel.encode(), 0o644),
        f"{info}/licenses/LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
    }
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, (data, _) in files.items())
    return {**files, f"{info}/RECORD": ((record + f"{info}/RECORD,,\n").encode(), 0o644)}


def digest(data: bytes) -> str:
    """Returns a checksum as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def build(programs: Path, out: Path, linux: bool, level: int) -> Path:
    """Builds the wheel, and returns its path. Raises Wrong for programs that it must not have."""
    machines = {machine(programs / name, linux) for name in PROGRAMS}
    if len(machines) > 1:
        raise Wrong(f"the programs are for different machines: {', '.join(sorted(machines))}")
    of = machines.pop()
    tags = [f"linux_{of}"] if linux else [tag.format(machine=of) for tag in PORTABLE]
    version = cargo("version")
    # No file of a zip is older.
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{NAME}-{version}-py3-none-{'.'.join(tags)}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, (data, mode) in described(contents(programs, version), version, tags).items():
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = (0o100000 | mode) << 16
            entry.create_system = 3
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=level)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the wheel of the package bgd.")
    parser.add_argument("--programs", type=Path, required=True, metavar="FOLDER", help="where bgd and bgctl are")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the wheel goes")
    parser.add_argument("--linux", action="store_true", help="for this system only; the programs need not be static")
    parser.add_argument("--level", type=int, default=9, choices=range(1, 10), help="compression (default 9)")
    args = parser.parse_args()
    try:
        print(build(args.programs, args.out, args.linux, args.level))
    except (Wrong, OSError, ValueError) as error:
        print(f"build_wheel.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
