"""History and snapshots of the pool, with PyTorch's names and parameters: torch.cuda.memory refuses them while PyTorch uses
another allocator than its own. Snapshots have PyTorch's format, and its viewer (pytorch.org/memory_viz) opens them.
"""

import os
import pickle
import shutil
import sys
import tempfile
from typing import Any, Dict, Optional, Union

from . import _library

_Path = Union[str, "os.PathLike[str]"]

# The library's maximum of max_entries.
_MAX_ENTRIES = 1 << 26


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
    default, PyTorch's unbounded one, is the library's maximum of 67,108,864, up to 4 GiB. Raises Error for another number above
    it, and with the name OUT_OF_MEMORY if the host refuses the address space. A snapshot has the number in
    ["trtalloc"]["max_entries"].
    """
    if isinstance(enabled, bool):
        raise ValueError('enabled is None, "state" or "all"; the form with True and False is not supported')
    words = ["off" if enabled is None else enabled]
    if enabled is not None:
        words.append(f"context={context or 'none'}")
        words.append(f"stacks={stacks or 'none'}")
        words.append(f"max_entries={_MAX_ENTRIES if max_entries == sys.maxsize else int(max_entries)}")
        if device is not None:
            words.append(f"device={_ordinal(device)}")
    _library.check(_library.library.trtalloc_history(_library.default(), ",".join(words).encode()))


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
    # The library chooses the format by the suffix.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(filename))) as folder:
        path = os.path.join(folder, "snapshot.pickle")
        _write(path)
        shutil.move(path, filename)


def _write(path: _Path) -> None:
    _library.check(_library.library.trtalloc_snapshot(_library.default(), os.fsencode(path)))


def _ordinal(device: Any) -> int:
    """The number of a device that is given as in PyTorch: a number, "cuda:1", or a torch.device."""
    if isinstance(device, int):
        return device
    text = str(device)
    return int(text.rpartition(":")[2]) if ":" in text else int(text)
