"""TensorRT's own Python bindings on the pool: tensorrt, tensorrt_rtx, tensorrt_lean, tensorrt_dispatch."""

import ctypes
import os
import sys
import warnings

from . import _library

# TensorRT may use an allocator as long as there is an engine; so each stays until the process ends.
_allocators = {}

# The packages of TensorRT's bindings; the real modules are inside them.
_PACKAGES = ("tensorrt", "tensorrt_rtx", "tensorrt_lean", "tensorrt_dispatch")


def inject(on=True):
    """Whether the runtimes and builders that TensorRT creates from now on get the pool.

    It is on from the import of trtalloc, unless TRTALLOC_INJECT is 0. TensorRT's bindings find the library in their way only
    where trtalloc was imported before them.
    """
    _library.check(_library.library.trtalloc_inject(1 if on else 0))


def _inject_at_import():
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
        # TRTALLOC_DISABLE is set: then TensorRT is left alone, and there is nothing to tell.
        if error.name != "UNSUPPORTED":
            raise


def attach(tensorrt_object):
    """Gives a runtime or builder the pool, whenever TensorRT was imported; for engines and plans that come from it.

    An execution context gets it for what it allocates while it runs (temporary_allocator). Each request goes through Python
    and takes its lock; where trtalloc is imported before TensorRT, attaching is not needed, and none does. Returns the
    allocator, which lives as long as the process.
    """
    kind = type(tensorrt_object)
    for name in ("gpu_allocator", "temporary_allocator"):
        # The program's own class may stand in front of TensorRT's.
        for base in kind.__mro__:
            if name in vars(base):
                allocator = tensorrt_allocator(sys.modules.get(base.__module__))
                setattr(tensorrt_object, name, allocator)
                return allocator
    raise TypeError(f"attach takes TensorRT's Runtime, Builder or IExecutionContext, not {kind.__name__}")


def tensorrt_allocator(module):
    """The pool as an IGpuAllocator of that module (`tensorrt`, `tensorrt_rtx`, ...): the same object each time."""
    base = _base(module)
    if base not in _allocators:
        allocator = _subclass(base, _library.library, _library.default())()
        # Two threads may come at once: the first holds.
        if _allocators.setdefault(base, allocator) is allocator:
            # For ever, though the interpreter empties this module as it ends: TensorRT frees through it after that, too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(allocator))
    return _allocators[base]


def _base(module):
    # The synchronous class has no streams: the bindings never call its allocate_async.
    try:
        return getattr(module, "IGpuAsyncAllocator", None) or module.IGpuAllocator
    except AttributeError:
        raise TypeError(f"{getattr(module, '__name__', module)!s} has no IGpuAllocator: is it TensorRT?") from None


def _subclass(base, library, pool):
    # Bound here: TensorRT may free memory while the interpreter is taken down, and modules are emptied before.
    address = _address
    # cudaStreamLegacy: what a NULL stream means, and what the bindings may say for it.
    legacy = 1

    class GpuAllocator(base):
        """Forwards TensorRT's requests to the pool. Safe from any thread. Answers None where a request cannot be met."""

        def __init__(self):
            # The bindings refuse an object whose own part was not initialized, and super() alone does not do it there.
            base.__init__(self)

        def allocate(self, size, alignment, flags):
            """A block for use on any stream at once."""
            return library.trtalloc_allocate(pool, size, alignment, int(flags))

        def reallocate(self, memory, alignment, new_size):
            """A block allocated RESIZABLE, larger or smaller; on None it stands as it was."""
            return library.trtalloc_reallocate(pool, address(memory), alignment, new_size)

        def deallocate(self, memory):
            """Takes a block back; work queued so far may still use it."""
            return library.trtalloc_deallocate(pool, address(memory))

        def free(self, memory):
            """What TensorRT 8 calls for deallocate."""
            library.trtalloc_deallocate(pool, address(memory))

        def allocate_async(self, size, alignment, flags, stream):
            """A block for work queued on `stream` from now on.

            TensorRT 11 and RTX call it with (size, alignment, flags, stream), as documented; TensorRT 10 with stream before
            flags. Flags are 0 or 1, and a stream that is no address is a default stream, so the two can be told apart.
            """
            flags, stream = sorted((int(flags), int(stream or 0)))
            if stream <= legacy:
                flags, stream = flags | stream, 0
            return library.trtalloc_allocate_async(pool, size, alignment, flags, stream)

        def deallocate_async(self, memory, stream):
            """Takes a block back; work queued so far on `stream` may still use it."""
            return library.trtalloc_deallocate_async(pool, address(memory), int(stream or 0))

    return GpuAllocator


_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _address(memory, name=_capsule_name, pointer=_capsule_pointer):
    """A block's address: the bindings pass a number; their documentation speaks of capsules."""
    if memory is None or isinstance(memory, int):
        return memory
    return pointer(memory, name(memory))
