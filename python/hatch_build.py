"""Adds libtrtalloc.so, as cargo built it, to the wheel, and sets the wheel's platform to that of the library.

The library is TRTALLOC_LIBRARY, or target/release/libtrtalloc.so of the checkout.
"""

import os
import re
import struct
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def library(checkout):
    named = os.environ.get("TRTALLOC_LIBRARY")
    target = Path(os.environ.get("CARGO_TARGET_DIR", checkout / "target"))
    path = Path(named) if named else target / "release" / "libtrtalloc.so"
    if not path.is_file():
        raise SystemExit(f"{path} is not there: cargo build --release, or TRTALLOC_LIBRARY=PATH")
    return path


# The machines by their number in an ELF header.
MACHINES = {62: "x86_64", 183: "aarch64"}


def needed_versions(contents):
    """The names in the section in which an ELF file lists the versions of symbols that it needs."""
    (sections,) = struct.unpack_from("<Q", contents, 0x28)
    size, count = struct.unpack_from("<HH", contents, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", contents, sections + size * number) for number in range(count)]
    for _, kind, _, _, at, _, strings, files, _, _ in headers:
        if kind != 0x6FFFFFFE:  # SHT_GNU_verneed
            continue
        names = headers[strings][4]
        for _ in range(files):
            _, versions, _, first, following = struct.unpack_from("<HHIII", contents, at)
            version = at + first
            for _ in range(versions):
                _, _, _, name, next_version = struct.unpack_from("<IHHII", contents, version)
                yield contents[names + name : contents.index(b"\0", names + name)].decode()
                version += next_version
            at += following


def tag(contents):
    # The library needs only libc, libm and libgcc_s, so the newest glibc version that it names determines the platform.
    names = (re.match(r"GLIBC_2\.(\d+)", name) for name in needed_versions(contents))
    newest = max(17, *(int(name[1]) for name in names if name))
    machine = MACHINES[int.from_bytes(contents[18:20], "little")]
    return f"py3-none-manylinux_2_{newest}_{machine}"


class LibraryHook(BuildHookInterface):
    def initialize(self, version, build_data):
        path = library(Path(self.root).parent)
        build_data["pure_python"] = False
        build_data["tag"] = tag(path.read_bytes())
        build_data["force_include"][str(path)] = "trtalloc/libtrtalloc.so"
