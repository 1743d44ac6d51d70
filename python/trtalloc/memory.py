"""History and snapshots of the pool, with PyTorch's names and parameters. After use_for_torch(), torch.cuda.memory's functions of
these names are the pool's too. Snapshots have PyTorch's format, and its viewer (pytorch.org/memory_viz) opens them.
"""

import os
import pickle
import resource
import shutil
import sys
import tempfile
import warnings
from typing import Any, Dict, Optional, Union

from . import _library

_Path = Union[str, "os.PathLike[str]"]

# The library's maximum of max_entries, and its default.
_MAX_ENTRIES, _DEFAULT_ENTRIES = 1 << 26, 100_000
# Bytes of host memory for each event.
_EVENT = 64
# How much of what the process may still reserve its history takes, where that is bounded.
_PART = 8


def _record_memory_history(
    enabled: Optional[str] = "all",
    context: Optional[str] = "all",
    stacks: Optional[str] = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
) -> None:
    """As torch.cuda.memory._record_memory_history: `enabled` is None, "state" or "all"; `context` None, "state", "alloc" or
    "all"; `stacks` "python" or "all". `device` None is every device.

    `max_entries` is how many events are kept: the last ones, of 64 bytes of host memory each, which is taken as they come. The
    default, PyTorch's unbounded one, is the library's maximum of 67,108,864, up to 4 GiB. Where the process may reserve less
    than eight times that (RLIMIT_AS, RLIMIT_DATA, or a host that commits memory strictly), the default is an eighth of it, and a
    RuntimeWarning has the number. A snapshot has it in ["trtalloc"]["max_entries"].

    Raises Error for another number above the maximum, and with the name OUT_OF_MEMORY if the host refuses the address space of
    a number that was given.
    """
    if isinstance(enabled, bool):
        raise ValueError('enabled is None, "state" or "all"; the form with True and False is not supported')
    if enabled is None:
        _history("off")
        return
    words = [enabled, f"context={context or 'none'}", f"stacks={stacks or 'none'}"]
    if device is not None:
        words.append(f"device={_ordinal(device)}")
    if max_entries != sys.maxsize or enabled != "all":
        _history(*words, f"max_entries={_MAX_ENTRIES if max_entries == sys.maxsize else int(max_entries)}")
        return
    entries = _bound()
    while True:
        try:
            _history(*words, f"max_entries={entries}")
            break
        except _library.Error as error:
            if error.name != "OUT_OF_MEMORY" or entries <= 1:
                raise
            entries //= 2
    if entries < _MAX_ENTRIES:
        warnings.warn(
            f"the history keeps the last {entries:,} events, since this process may reserve little more memory (RLIMIT_AS, "
            "RLIMIT_DATA, vm.overcommit_memory=2); max_entries chooses another number",
            RuntimeWarning,
            stacklevel=2,
        )


def _history(*words: str) -> None:
    global _recording
    _library.check(_library.library.trtalloc_history(_library.default(), ",".join(words).encode()))
    _recording = words[0] != "off"


# The environment may have switched it on.
_recording = os.environ.get("TRTALLOC_HISTORY", "off").split(",")[0] not in ("", "off")


def is_recording() -> bool:
    """Whether the history is on. It does not see what another program changes by `trtalloc ctl`."""
    return _recording


def _bound() -> int:
    """How many events are kept by default: the maximum, or a part of what this process may still reserve."""
    room = _room()
    if room is None or room // _PART >= _MAX_ENTRIES * _EVENT:
        return _MAX_ENTRIES
    # The library takes an eighth more, rounded up to a power of two.
    slots = room // _PART // _EVENT
    return max((1 << slots.bit_length() >> 1) * 8 // 9, _DEFAULT_ENTRIES)


def _room() -> Optional[int]:
    """The bytes that this process may still reserve; None where they are not bounded."""
    rooms = []
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        figures = [int(figure) * page for figure in _read("/proc/self/statm").split()]
        # The whole of the process, and what it may write to.
        for limit, used in ((resource.RLIMIT_AS, figures[0]), (resource.RLIMIT_DATA, figures[5])):
            most = resource.getrlimit(limit)[0]
            if most != resource.RLIM_INFINITY:
                rooms.append(max(most - used, 0))
        if _read("/proc/sys/vm/overcommit_memory").strip() == "2":
            lines = (line.split() for line in _read("/proc/meminfo").splitlines())
            sums = {words[0]: int(words[1]) << 10 for words in lines}
            rooms.append(max(sums["CommitLimit:"] - sums["Committed_AS:"], 0))
    except (OSError, ValueError, LookupError):
        # Without these figures, the host's refusal says it.
        pass
    return min(rooms, default=None)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _snapshot(device: Any = None) -> Dict[str, Any]:
    """As torch.cuda.memory._snapshot: a dictionary of segments, device_traces and so on. `device` is ignored, as in PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        _write(path)
        with open(path, "rb") as file:
            snapshot: Dict[str, Any] = pickle.load(file)
            return snapshot


def _dump_snapshot(filename: _Path = "dump_snapshot.pickle") -> None:
    """As torch.cuda.memory._dump_snapshot: writes the snapshot as a pickle, for any file name."""
    if str(filename).endswith(".pickle"):
        _write(filename)
        return
    if os.path.exists(filename) and not os.path.isfile(filename):
        # A device or a pipe is written to, and not replaced. A folder is an error.
        with open(filename, "wb") as to, tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.pickle")
            _write(path)
            with open(path, "rb") as file:
                shutil.copyfileobj(file, to)
        return
    # The library chooses the format by the suffix.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(filename))) as folder:
        path = os.path.join(folder, "snapshot.pickle")
        _write(path)
        os.replace(path, filename)


def _write(path: _Path) -> None:
    _library.check(_library.library.trtalloc_snapshot(_library.default(), os.fsencode(path)))


def _ordinal(device: Any) -> int:
    """The number of a device that is given as in PyTorch: a number, "cuda:1", or a torch.device."""
    if isinstance(device, int):
        return device
    text = str(device)
    return int(text.rpartition(":")[2]) if ":" in text else int(text)
