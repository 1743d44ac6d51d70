"""History and snapshots of the pool, with PyTorch's names and parameters: torch.cuda.memory refuses them while PyTorch uses
another allocator than its own. Snapshots have PyTorch's format, and its viewer (pytorch.org/memory_viz) opens them.
"""

import os
import pickle
import shutil
import sys
import tempfile

from . import _library


def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None):
    """As torch.cuda.memory._record_memory_history: `enabled` is None, "state" or "all"; `context` None, "state", "alloc" or
    "all"; `stacks` "python" or "all". `device` None is every device.
    """
    if isinstance(enabled, bool):
        raise ValueError('enabled is None, "state" or "all"; the form with True and False is not supported')
    words = ["off" if enabled is None else enabled]
    if enabled is not None:
        words.append(f"context={context or 'none'}")
        words.append(f"stacks={stacks or 'none'}")
        if max_entries < sys.maxsize:
            words.append(f"max_entries={int(max_entries)}")
        if device is not None:
            words.append(f"device={_ordinal(device)}")
    _library.check(_library.library.trtalloc_history(_library.default(), ",".join(words).encode()))


def _snapshot(device=None):
    """As torch.cuda.memory._snapshot: a dictionary of segments, device_traces and so on. `device` is ignored, as in PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        _write(path)
        with open(path, "rb") as file:
            return pickle.load(file)


def _dump_snapshot(filename="dump_snapshot.pickle"):
    """As torch.cuda.memory._dump_snapshot: writes the snapshot as a pickle, for any file name."""
    if str(filename).endswith(".pickle"):
        return _write(filename)
    # The library chooses the format by the suffix.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(filename))) as folder:
        path = os.path.join(folder, "snapshot.pickle")
        _write(path)
        shutil.move(path, filename)


def _write(path):
    _library.check(_library.library.trtalloc_snapshot(_library.default(), os.fsencode(path)))


def _ordinal(device):
    """The number of a device that is given as in PyTorch: a number, "cuda:1", or a torch.device."""
    if isinstance(device, int):
        return device
    text = str(device)
    return int(text.rpartition(":")[2]) if ":" in text else int(text)
