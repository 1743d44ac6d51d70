"""Adds libtrtalloc.so, as cargo built it, to the wheel, and sets the wheel's platform to that of the library.

The library is TRTALLOC_LIBRARY, or target/release/libtrtalloc.so of the checkout.
"""

import os
import platform
import re
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def library(checkout):
    named = os.environ.get("TRTALLOC_LIBRARY")
    target = Path(os.environ.get("CARGO_TARGET_DIR", checkout / "target"))
    path = Path(named) if named else target / "release" / "libtrtalloc.so"
    if not path.is_file():
        raise SystemExit(f"{path} is not there: cargo build --release, or TRTALLOC_LIBRARY=PATH")
    return path


def tag(contents):
    # The library needs only libc, libm and libgcc_s, so the newest glibc version that it names determines the platform.
    names = re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", contents)
    newest = max(17, *(int(name) for name in names))
    return f"py3-none-manylinux_2_{newest}_{platform.machine()}"


class LibraryHook(BuildHookInterface):
    def initialize(self, version, build_data):
        path = library(Path(self.root).parent)
        build_data["pure_python"] = False
        build_data["tag"] = tag(path.read_bytes())
        build_data["force_include"][str(path)] = "trtalloc/libtrtalloc.so"
