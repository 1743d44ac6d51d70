"""Scratch memory that execution contexts share."""

import contextlib
import threading
from typing import Any, Dict, Iterator, Optional

from ._block import Owner, stream_address

_RESIZABLE = 1
# TensorRT requires 256.
_ALIGNMENT = 256


class _Slot:
    """One block, and the lock that a lease holds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner: Optional[Owner] = None
        self.size = 0
        self.thread: Optional[int] = None

    def reserve(self, size: int, device: int) -> Owner:
        # Never 0 bytes: a context that needs no scratch still requires an address.
        size = max(size, _ALIGNMENT)
        owner = self.owner
        if owner is not None and (size <= self.size or owner.resize(size)):
            self.size = max(size, self.size)
            return owner
        new = Owner(size, None, device, _ALIGNMENT, _RESIZABLE)
        self.owner, self.size = new, size
        return new


class SharedScratch:
    """Scratch memory that several execution contexts use in turn. It is as large as the largest shape that any of them has run
    needs, not as the sum of all, and not as the largest possible one. Create the contexts without memory of their own:

        scratch = trtalloc.SharedScratch()
        context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        with scratch.lend(context, stream):                  # after its input shapes are set
            context.execute_async_v3(stream)

    This object owns the memory, and the contexts only have its address. It must exist as long as they execute. `close`, or its
    end, frees the memory once the work that is queued by then has completed.

    Contexts that run at the same time would overwrite each other's scratch memory. So `lend` refuses any stream but the last
    one, until `ordered` is called. With `per_stream`, each stream has a block of its own: contexts on different streams run at
    the same time, and those on one stream in turn. What is not safe, and not noticed: to execute a context outside of its
    lease, on another stream than the lease's, or on auxiliary streams that outlast the execution; and to launch a captured
    graph after the memory has moved (`address`), or while another context runs.

    `device` -1 is the device that is current at the first lease. Methods may be called from any thread.
    """

    def __init__(self, device: int = -1, per_stream: bool = False) -> None:
        self._device, self._per_stream = device, per_stream
        self._lock = threading.Lock()
        self._slots: Dict[int, _Slot] = {}
        self._last: Optional[int] = None
        self._closed = False

    @contextlib.contextmanager
    def lend(self, context: Any, stream: object) -> Iterator[None]:
        """Sets on a context the memory that its present input shapes need, for one execution on `stream`: a handle, or a stream
        as in `allocate`. Other threads wait while the `with` lasts, so leave it once the execution is queued.

        Raises Error with the name OUT_OF_MEMORY if the memory is not there, and the context then keeps what it had; ValueError
        if the memory was last lent on another stream, if this thread has a lease of it, if the shapes are not set, or after
        `close`; TypeError if `stream` is no stream.
        """
        handle = stream_address(stream)
        if handle is None:
            raise TypeError("lend requires the stream of the execution")
        # Both are the legacy default stream.
        handle = handle or 1
        slot = self._slot(handle if self._per_stream else 0)
        if slot.thread == threading.get_ident():
            raise ValueError("this thread has a lease of the memory already: end it first")
        with slot.lock:
            with self._lock:
                if self._closed:
                    raise ValueError("the scratch memory is closed")
                if not self._per_stream and self._last not in (None, handle):
                    raise ValueError("the scratch memory was lent on another stream: order the streams, then call ordered()")
            owner = slot.reserve(_need(context), self._device)
            if hasattr(context, "set_device_memory"):
                context.set_device_memory(owner.address, slot.size)
            else:
                # TensorRT 10.0 and earlier.
                context.device_memory = owner.address
            with self._lock:
                self._last = handle
            slot.thread = threading.get_ident()
            try:
                yield
            finally:
                slot.thread = None

    def ordered(self) -> None:
        """Declares that everything which was queued so far is ordered before what is queued next, on any stream: by an event,
        or by waiting.
        """
        with self._lock:
            self._last = None

    @property
    def size(self) -> int:
        """The bytes that are held now, on all streams together."""
        with self._lock:
            return sum(slot.size for slot in self._slots.values())

    def address(self, stream: object = None) -> Optional[int]:
        """The address of the memory, with `per_stream` that of a stream; None before its first lease."""
        handle = stream_address(stream)
        with self._lock:
            slot = self._slots.get((handle or 1) if self._per_stream else 0)
            return slot.owner.address if slot is not None and slot.owner is not None else None

    def release(self, stream: object) -> None:
        """Frees the memory of one stream, with `per_stream`: before the stream is destroyed, or where it rests."""
        handle = stream_address(stream)
        with self._lock:
            self._slots.pop((handle or 1) if self._per_stream else 0, None)

    def close(self) -> None:
        """Frees the memory once the work that is queued by now has completed. A lease that exists keeps it until then."""
        with self._lock:
            self._closed = True
            self._slots.clear()

    def __enter__(self) -> "SharedScratch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _slot(self, key: int) -> _Slot:
        with self._lock:
            if self._closed:
                raise ValueError("the scratch memory is closed")
            return self._slots.setdefault(key, _Slot())


def _need(context: Any) -> int:
    """The bytes that a context's present shapes need, where this TensorRT says that (10 and later); otherwise the most that any
    shape needs.
    """
    update = getattr(context, "update_device_memory_size_for_shapes", None)
    if update is None:
        return int(context.engine.device_memory_size)
    size = int(update())
    if size == 0 and _engines_need(context):
        raise ValueError("TensorRT does not know the size of the context's memory: are its input shapes set?")
    return size


def _engines_need(context: Any) -> int:
    engine = context.engine
    return int(getattr(engine, "device_memory_size_v2", None) or getattr(engine, "device_memory_size", 0) or 0)
