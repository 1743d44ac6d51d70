"""One pool of GPU memory for TensorRT and other frameworks in one process: one limit, one snapshot, one set of statistics.

All functions use the process's own allocator. Its options are the environment's TRTALLOC_KEY, and its first allocation
opens the driver. If trtalloc is imported before `tensorrt`, the runtimes and builders that are created afterwards allocate
from the pool. `attach` sets the allocator on an object that exists already.
"""

import contextlib
import ctypes
import json
import threading
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional

from . import _library, _tensorrt, memory
from ._block import Block, allocate
from ._fit import Fit, fit
from ._frameworks import onnxruntime_options, rmm_resource, torch_mem_pool, use_for_cupy, use_for_onnxruntime, use_for_torch
from ._library import Error
from ._outputs import Output, OutputAllocator
from ._scratch import SharedScratch
from ._tensorrt import attach, inject, tensorrt_allocator

__all__ = [
    "Block",
    "Error",
    "Fit",
    "Output",
    "OutputAllocator",
    "SharedScratch",
    "allocate",
    "attach",
    "fit",
    "inject",
    "library_path",
    "memory",
    "metrics",
    "onnxruntime_options",
    "reset_peaks",
    "rmm_resource",
    "set_limit",
    "set_tag_limit",
    "stats",
    "tag",
    "tag_stats",
    "tensorrt_allocator",
    "torch_mem_pool",
    "trim",
    "use_for_cupy",
    "use_for_onnxruntime",
    "use_for_torch",
]

__version__: str = _library.library.trtalloc_version().decode()
library_path: str = _library.path


def stats(device: int = -1) -> Dict[str, int]:
    """A device's statistics in bytes, counts or nanoseconds (names in _ns), by the names of `struct trtalloc_stats`. Device -1
    is the current one. All are 0 before the first allocation, except `limit`. Raises Error if there is no such device.
    """
    return _library.stats(device)


def reset_peaks(device: int = -1) -> None:
    """Sets a device's peaks to the present values. Raises Error if there is no such device."""
    _library.check(_library.library.trtalloc_stats_reset_peaks(_library.default(), device))


def trim(device: int = -1, keep_bytes: int = 0) -> int:
    """Returns free memory to the driver until at most `keep_bytes` stay reserved; returns the bytes released. It may wait for
    work that uses the memory. Raises Error if there is no such device.
    """
    released = ctypes.c_uint64()
    keep = _library.whole_bytes(keep_bytes)
    _library.check(_library.library.trtalloc_trim(_library.default(), device, keep, ctypes.byref(released)))
    return released.value


def set_limit(limit: int, device: int = -1) -> None:
    """Limits the bytes that a device's pool reserves; 0: no limit. If it holds more, the excess is returned as it becomes free.
    Raises Error if there is no such device, or no driver.
    """
    limit = _library.whole_bytes(limit)
    _library.check(_library.library.trtalloc_set_limit(_library.default(), device, limit))


_tags = threading.local()


@contextlib.contextmanager
def tag(name: str) -> Iterator[None]:
    """Sets the tag of this thread's allocations inside the `with`: an engine, a model, a framework. Tags may be nested. Raises
    ValueError for a tag that has a NUL, or has not 1 to 255 bytes of UTF-8. Further tags after 1023 are not set, with a line in
    the log.
    """
    before = getattr(_tags, "name", None)
    _set_tag(name)
    try:
        yield
    finally:
        _set_tag(before)


def _set_tag(name: Optional[str]) -> None:
    encoded = _library.encoded(name) if name is not None else None
    if encoded is not None and not 1 <= len(encoded) <= 255:
        raise ValueError(f"a tag has 1 to 255 bytes of UTF-8, not {len(encoded)}")
    _library.library.trtalloc_set_tag(encoded)
    _tags.name = name


def set_tag_limit(name: str, limit: int, device: int = -1) -> None:
    """Limits the bytes that blocks with one tag may take of a device's pool; 0: no limit. A request beyond it is refused.
    Raises Error if there is no such device, or no driver.
    """
    limit = _library.whole_bytes(limit)
    encoded = _library.encoded(name)
    _library.check(_library.library.trtalloc_set_tag_limit(_library.default(), device, encoded, limit))


def tag_stats(device: int = -1) -> Dict[str, Dict[str, int]]:
    """A device's statistics for each tag, in bytes or counts: a dictionary of dictionaries. Raises Error as `stats`."""
    write = _library.library.trtalloc_stats_json
    text = _library.text(lambda buffer, size: write(_library.default(), device, buffer, size))
    return {figures.pop("tag"): figures for figures in json.loads(text)["tags"]}


def metrics() -> str:
    """The statistics of every device and of its tags in the OpenMetrics text format, which Prometheus reads. A server
    exposes it as application/openmetrics-text; version=1.0.0; charset=utf-8.
    """
    write = _library.library.trtalloc_metrics
    return _library.text(lambda buffer, size: write(_library.default(), buffer, size))


if TYPE_CHECKING:
    from ._cuda_core import MemoryResource as MemoryResource
else:

    def __getattr__(name: str) -> Any:
        if name != "MemoryResource":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Its base class is cuda.core's, so the first use imports cuda.core.
        from ._cuda_core import MemoryResource

        globals()[name] = MemoryResource
        return MemoryResource


_tensorrt._inject_at_import()
