"""Scratch memory that execution contexts share."""

import contextlib
import threading
from typing import Any, Dict, Iterator, Optional

from ._block import Owner, stream_address

_RESIZABLE = 1
# TensorRT requires 256.
_ALIGNMENT = 256


# CUDA's handle of the default stream of the calling thread, which is another stream in each thread.
_PER_THREAD = 2


def _stream_number(handle: Optional[int]) -> int:
    """A number for a stream; None and 0 are the legacy default stream, as 1 is."""
    # No handle is negative.
    return -threading.get_ident() if handle == _PER_THREAD else handle or 1


class _Slot:
    """One block, and the lock that a lease holds. The other fields except `thread` are the object's, behind its lock, while there
    is no lease.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner: Optional[Owner] = None
        self.size = 0
        self.thread: Optional[int] = None
        # How many threads have a lease or wait for one.
        self.users = 0
        # The memory is to be freed at the end of the lease that exists.
        self.released = False

    def clear(self) -> Optional[Owner]:
        owner, self.owner, self.size, self.released = self.owner, None, 0, False
        return owner

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
    the same time, and those on one stream in turn. The default stream of a thread, 2, is another stream in each thread. What is
    not safe, and not noticed: to execute a context outside of its lease, on another stream than the lease's, or on auxiliary
    streams that outlast the execution; to launch a captured graph after the memory has moved (`address`), or while another
    context runs; and to destroy a stream, or to end a thread with its default stream, before its work has completed, since a new
    one may have its handle.

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
        number = _stream_number(handle)
        key = number if self._per_stream else 0
        slot = self._slot(key)
        try:
            if slot.thread == threading.get_ident():
                raise ValueError("this thread has a lease of the memory already: end it first")
            with self._lease(slot):
                with self._lock:
                    if self._closed:
                        raise ValueError("the scratch memory is closed")
                    if not self._per_stream and self._last not in (None, number):
                        raise ValueError("the scratch memory was lent on another stream: order the streams, then call ordered()")
                owner = slot.reserve(_need(context), self._device)
                if hasattr(context, "set_device_memory"):
                    context.set_device_memory(owner.address, slot.size)
                else:
                    # TensorRT 10.0 and earlier.
                    context.device_memory = owner.address
                with self._lock:
                    self._last = number
                # The slot has the memory, and gives it up where it is released meanwhile.
                del owner
                yield
        finally:
            with self._lock:
                slot.users -= 1
                if slot.users == 0 and slot.owner is None and self._slots.get(key) is slot:
                    del self._slots[key]

    @contextlib.contextmanager
    def _lease(self, slot: _Slot) -> Iterator[None]:
        slot.lock.acquire()
        slot.thread = threading.get_ident()
        try:
            yield
        finally:
            freed = None
            with self._lock:
                # `_release` finds either a lease, which frees the memory here, or none.
                if slot.released:
                    freed = slot.clear()
                slot.thread = None
                slot.lock.release()
            del freed

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
            slot = self._slots.get(_stream_number(handle) if self._per_stream else 0)
            return slot.owner.address if slot is not None and slot.owner is not None else None

    def release(self, stream: object) -> None:
        """Frees the memory of one stream, with `per_stream`: before the stream is destroyed, or where it rests. A lease that exists
        keeps it until its end.
        """
        handle = stream_address(stream)
        with self._lock:
            freed = self._release(_stream_number(handle) if self._per_stream else 0)
        del freed

    def close(self) -> None:
        """Frees the memory once the work that is queued by now has completed. A lease that exists keeps it until its end, and a
        thread that waits for one gets ValueError.
        """
        with self._lock:
            self._closed = True
            freed = [self._release(key) for key in list(self._slots)]
        del freed

    def _release(self, key: int) -> Optional[Owner]:
        """Takes the memory out of a slot, if it is not lent. The slot stays as long as it is used, so a stream has one lease."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        if not slot.lock.acquire(blocking=False):
            slot.released = True
            return None
        owner = slot.clear()
        slot.lock.release()
        if slot.users == 0:
            del self._slots[key]
        return owner

    def __enter__(self) -> "SharedScratch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _slot(self, key: int) -> _Slot:
        with self._lock:
            if self._closed:
                raise ValueError("the scratch memory is closed")
            slot = self._slots.setdefault(key, _Slot())
            slot.users += 1
            return slot


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
