"""The pool as a memory resource of cuda.core. This module imports cuda.core; `trtalloc.MemoryResource` imports this module."""

import inspect
import os
from typing import Any

from cuda.core import Buffer, Device
from cuda.core import MemoryResource as _Base

from . import _library
from ._block import stream_address

# From 1.2 on, a buffer of another package's resource is freed on its own stream. Before, cuda.core names its default stream, which the
# work on the buffer need not be ordered with.
_ON_ITS_STREAM = "stream" in inspect.signature(Buffer.from_handle).parameters


class MemoryResource(_Base):  # type: ignore[misc]
    """A memory resource of cuda.core whose buffers come from the pool: `buffer = trtalloc.MemoryResource().allocate(size,
    stream=stream)`, or `device.memory_resource = trtalloc.MemoryResource()` for all of cuda.core. Resources of one device are equal.

    `device` is a number or a cuda.core.Device; None: the current one. A buffer is for work that is queued on `stream` from now on,
    and is freed in the order of the stream that cuda.core names then. Where that is a thread's default stream, which only its own
    thread can name, and before cuda.core 1.2, it is freed behind all work that is queued. If memory has run out, `allocate` raises Error.
    """

    def __init__(self, device: Any = None) -> None:
        chosen = device if isinstance(device, Device) else Device(device)
        self._device: int = chosen.device_id

    def allocate(self, size: int, stream: Any) -> Any:
        """A buffer of so many bytes, aligned to 512."""
        size, handle = _library.whole_bytes(size), stream_address(stream)
        if handle is None:
            raise TypeError("allocate requires a stream")
        address = 0
        if size > 0:
            address = _library.library.trtalloc_allocate_on(_library.default(), self._device, size, 0, 0, handle)
            if not address:
                raise _library.failure()
        try:
            return Buffer.from_handle(address, size, mr=self, **({"stream": stream} if _ON_ITS_STREAM else {}))
        except BaseException:
            _library.library.trtalloc_deallocate(_library.default(), address)
            raise

    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
        """Frees what `allocate` returned. cuda.core calls it."""
        pool, handle = _library.default(), stream_address(stream)
        if handle is None or handle == 2 or not _ON_ITS_STREAM:
            freed = _library.library.trtalloc_deallocate(pool, int(ptr))
        else:
            freed = _library.library.trtalloc_deallocate_async(pool, int(ptr), handle)
        if not freed:
            raise _library.failure()

    @property
    def device_id(self) -> int:
        """The number of the device."""
        return self._device

    @property
    def is_device_accessible(self) -> bool:
        """True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """Whether the pool is one of pinned host memory (TRTALLOC_KIND=pinned)."""
        return os.environ.get("TRTALLOC_KIND") == "pinned"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryResource) and other._device == self._device

    def __hash__(self) -> int:
        return hash((MemoryResource, self._device))
