"""python -m trtalloc doctor: reports the library, the options and the frameworks, and tries an allocation."""

import importlib.metadata
import os
import sys
from typing import List

from . import Error, __version__, _library, _options, library_path, stats

_PACKAGES = (
    *("tensorrt", "tensorrt-cu12", "tensorrt-rtx-cu12", "tensorrt-lean-cu12", "tensorrt-dispatch-cu12"),
    *("torch", "onnxruntime-gpu", "onnxruntime", "cupy-cuda12x", "cupy-cuda13x", "cupy", "rmm-cu12"),
)


def _line(what: str, text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    # What the environment and paths have may be more than the output can show.
    shown = f"{what:<12} {text}".encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(shown, flush=True)
    except BrokenPipeError:
        # The reader has seen enough. The status is still that of the findings.
        _discard_output()


def _discard_output() -> None:
    """Sends to nowhere what is written from now on, and what could not be written: Python writes that again at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _pool() -> bool:
    """Whether the process's own allocator can allocate one small block."""
    memory = _library.library.trtalloc_allocate(_library.default(), 512, 0, 0)
    if not memory:
        _line("pool", f"no memory: {_library.last_error()}")
        return False
    _library.library.trtalloc_deallocate(_library.default(), memory)
    try:
        figures = stats()
    except Error as error:
        _line("pool", f"no figures: {error}")
        return False
    limit = f"{figures['limit']} bytes" if figures["limit"] else "none"
    _line("pool", f"allocates; {figures['reserved']} bytes reserved, limit {limit}")
    return True


def doctor() -> int:
    """Prints the findings. Returns 0 if the pool can allocate, else 1."""
    _line("trtalloc", f"{__version__}, {library_path}")
    _line("python", sys.version.split()[0])
    options = {key: value for key, value in sorted(os.environ.items()) if key.startswith("TRTALLOC_")}
    unknown = {key: _options.nearest(key) for key in options if _options.nearest(key)}
    known = [f"{key}={value}" for key, value in options.items() if key not in unknown]
    _line("environment", ", ".join(known) or "no TRTALLOC_ options")
    for key, nearest in unknown.items():
        _line("", f"{key} is no option; the nearest is {nearest}")
    for name in _PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        _line(name, version)
    preloaded = "libtrtalloc" in os.environ.get("LD_PRELOAD", "")
    _line("LD_PRELOAD", "libtrtalloc is in it" if preloaded else "libtrtalloc is not in it")
    return 0 if _pool() else 1


def main(arguments: List[str]) -> int:
    usage = "usage: python -m trtalloc doctor"
    if sys.stdout is None:
        # As with `>&-` in a shell.
        print("stdout: it is closed", file=sys.stderr)
        return 1
    if arguments in (["-h"], ["--help"], ["doctor", "-h"], ["doctor", "--help"]):
        print(f"{usage}\n\nReports what this machine has, and whether the pool allocates; status 0 where it does.")
        return 0
    if arguments != ["doctor"]:
        print(usage, file=sys.stderr)
        return 2
    try:
        return doctor()
    except OSError as error:
        _discard_output()
        print(f"stdout: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
