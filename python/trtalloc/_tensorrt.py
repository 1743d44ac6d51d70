"""Makes TensorRT's own Python bindings allocate from the pool: tensorrt, tensorrt_rtx, tensorrt_lean, tensorrt_dispatch."""

import ctypes
import functools
import os
import sys
import warnings
from typing import Any, Callable, Dict, Optional, Tuple

from . import _library

# TensorRT may use an allocator as long as an engine exists, so allocators are kept until the process ends.
_allocators: Dict[Tuple[Any, Optional[int]], Any] = {}

# The packages of TensorRT's bindings. The modules with the classes are inside them.
_PACKAGES = ("tensorrt", "tensorrt_rtx", "tensorrt_lean", "tensorrt_dispatch")


def inject(on: bool = True) -> None:
    """Switches injection on or off: whether runtimes and builders created from now on allocate from the pool.

    Importing trtalloc switches it on, unless TRTALLOC_INJECT is 0. It has an effect only if trtalloc is imported before
    TensorRT's bindings, since they then call this library's functions instead of TensorRT's. Raises Error with the name
    UNSUPPORTED if the environment has TRTALLOC_DISABLE=1.
    """
    _library.check(_library.library.trtalloc_inject(1 if on else 0))


def _inject_at_import() -> None:
    if os.environ.get("TRTALLOC_INJECT", "").strip().lower() in ("0", "false", "no", "off"):
        return
    before = [name for name in _PACKAGES if name in sys.modules or f"{name}_bindings" in sys.modules]
    if before:
        warnings.warn(
            f"{', '.join(before)} was imported before trtalloc, so its runtimes and builders keep TensorRT's own allocator: "
            "import trtalloc first, or call trtalloc.attach(runtime_or_builder)",
            RuntimeWarning,
            stacklevel=3,
        )
    try:
        inject()
    except _library.Error as error:
        # With TRTALLOC_DISABLE, TensorRT keeps its own allocator, as requested.
        if error.name != "UNSUPPORTED":
            raise


def attach(tensorrt_object: Any, name: Optional[str] = None) -> Any:
    """Makes a runtime or builder, and its engines, allocate from the pool, even if TensorRT was imported before trtalloc.

    With a name, a model's for example, the memory counts for that name, whichever thread TensorRT calls from: tag_stats()
    and metrics() show it, and set_tag_limit() limits it. Give each model a runtime of its own. An execution context uses the
    pool for its temporary storage (temporary_allocator). Each request calls Python and takes its lock. If trtalloc is
    imported before TensorRT, attaching is not needed, and requests do not call Python. Returns the allocator, which exists
    until the process ends. Raises TypeError for an object that takes no allocator.
    """
    kind = type(tensorrt_object)
    for setter in ("gpu_allocator", "temporary_allocator"):
        # The object's class may be a subclass of TensorRT's.
        for base in kind.__mro__:
            if setter in vars(base):
                allocator = tensorrt_allocator(sys.modules.get(base.__module__), name)
                setattr(tensorrt_object, setter, allocator)
                return allocator
    raise TypeError(f"attach requires TensorRT's Runtime, Builder or IExecutionContext, not {kind.__name__}")


def tensorrt_allocator(module: Any, name: Optional[str] = None) -> Any:
    """The pool as an IGpuAllocator of that module (`tensorrt`, `tensorrt_rtx`, ...), whose memory counts for `name`. Every call
    with the same name returns the same object. Further names after 1023 return the object without a name. Raises TypeError for
    a module that has no IGpuAllocator.
    """
    base = _base(module)
    adapter = _adapter(name)
    if (base, adapter) not in _allocators:
        allocator = _subclass(base, _library.library, _library.default(), *_requests(adapter))()
        # Two threads may do this at once. The first one's object is used.
        if _allocators.setdefault((base, adapter), allocator) is allocator:
            # The object is never freed: TensorRT may free memory through it after the interpreter has cleared this module.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(allocator))
    return _allocators[base, adapter]


# Any TensorRT 10 or later: the interface that _requests reads.
_VERSION = 100000


def _adapter(name: Optional[str]) -> Optional[int]:
    """The address of the library's adapter for a name; None for the one without a name."""
    make, pool = _library.library.trtalloc_tensorrt_allocator_named, _library.default()
    named: Optional[int] = make(pool, _VERSION, _library.encoded(name, "replace")) if name else None
    return named if named != make(pool, _VERSION, None) else None


def _requests(adapter: Optional[int]) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    """The functions that request memory: those of the library, or those of an adapter, which know its name."""
    if adapter is None:
        library, pool = _library.library, _library.default()
        return (
            functools.partial(library.trtalloc_allocate, pool),
            functools.partial(library.trtalloc_allocate_async, pool),
        )
    # nvinfer1::IGpuAllocator: an object begins with its table of functions.
    table = ctypes.cast(adapter, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))[0]
    wanted = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32]
    allocate = ctypes.CFUNCTYPE(*wanted)(table[4])
    allocate_async = ctypes.CFUNCTYPE(*wanted, ctypes.c_void_p)(table[7])
    return functools.partial(allocate, adapter), functools.partial(allocate_async, adapter)


def _base(module: Any) -> Any:
    # IGpuAsyncAllocator is preferred, since the bindings never call allocate_async of the other class.
    try:
        return getattr(module, "IGpuAsyncAllocator", None) or module.IGpuAllocator
    except AttributeError:
        raise TypeError(f"{getattr(module, '__name__', module)!s} has no IGpuAllocator: is it TensorRT?") from None


def _subclass(
    base: Any, library: Any, pool: Any, request: Callable[..., Any], request_async: Callable[..., Any]
) -> Any:
    # Local names, since TensorRT may free memory after the interpreter has cleared this module.
    address = _address
    # cudaStreamLegacy, which the bindings may pass for a NULL stream.
    legacy = 1

    class GpuAllocator(base):  # type: ignore[misc]
        """Forwards TensorRT's requests to the pool. Safe from any thread. Returns None if a request fails."""

        def __init__(self) -> None:
            # The bindings refuse an object whose C++ part was not initialized, and super() does not initialize it.
            base.__init__(self)

        def allocate(self, size: int, alignment: int, flags: Any) -> Any:
            """Allocates a block for use on any stream at once."""
            return request(size, alignment, int(flags))

        def reallocate(self, memory: Any, alignment: int, new_size: int) -> Any:
            """Resizes a block that was allocated with RESIZABLE. Returns None on failure; the block is then unchanged."""
            return library.trtalloc_reallocate(pool, address(memory), alignment, new_size)

        def deallocate(self, memory: Any) -> Any:
            """Frees a block. Work queued so far may still use it."""
            return library.trtalloc_deallocate(pool, address(memory))

        def free(self, memory: Any) -> None:
            """Frees a block: TensorRT 8 calls this instead of deallocate."""
            library.trtalloc_deallocate(pool, address(memory))

        def allocate_async(self, size: int, alignment: int, flags: Any, stream: Any) -> Any:
            """Allocates a block for work queued on `stream` from now on.

            TensorRT 11 and RTX pass (size, alignment, flags, stream), as documented. TensorRT 10 passes the stream before the
            flags. Flags are 0 or 1 and a stream's address is larger; smaller numbers are default streams. So the values show
            which is which.
            """
            flags, stream = sorted((int(flags), int(stream or 0)))
            if stream <= legacy:
                flags, stream = flags | stream, 0
            return request_async(size, alignment, flags, stream)

        def deallocate_async(self, memory: Any, stream: Any) -> Any:
            """Frees a block. Work queued so far on `stream` may still use it."""
            return library.trtalloc_deallocate_async(pool, address(memory), int(stream or 0))

    return GpuAllocator


_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _address(memory: Any, name: Any = _capsule_name, pointer: Any = _capsule_pointer) -> Optional[int]:
    """A block's address. The bindings pass a number, or a capsule as their documentation says."""
    if memory is None or isinstance(memory, int):
        return memory
    address: Optional[int] = pointer(memory, name(memory))
    return address
