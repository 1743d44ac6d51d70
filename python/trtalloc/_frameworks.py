"""Sets the library's hooks in other frameworks. A framework is imported only by the call that needs it."""

import inspect
from typing import Any, Dict, Set

from . import _library, _torch_extension, _torch_memory
from ._block import stream_address

# PyTorch's tensors may exist until the process ends, so the objects that it uses must too.
_torch_allocator: Any = None
_torch_pool_allocator: Any = None
_cupy_allocator: Any = None
_onnxruntime_devices: Set[int] = set()

# PyTorch's optional setters, with the library's function for each.
_TORCH_SETTERS = {
    "set_init_fn": "trtalloc_torch_init",
    "set_reset_fn": "trtalloc_torch_reset",
    "set_memory_fraction_fn": "trtalloc_torch_memory_fraction",
    "set_record_stream_fn": "trtalloc_torch_record_stream",
}


def _pluggable(malloc: str) -> Any:
    from torch.cuda import memory

    if not hasattr(memory, "CUDAPluggableAllocator"):
        raise RuntimeError("this PyTorch accepts no other allocator: CUDAPluggableAllocator came with 2.0")
    pluggable = memory.CUDAPluggableAllocator(_library.path, malloc, "trtalloc_torch_free")
    inner = pluggable.allocator()
    for setter, hook in _TORCH_SETTERS.items():
        # Without set_record_stream_fn, memory that other streams still use would be reused too early.
        if setter != "set_record_stream_fn" and not hasattr(inner, setter):
            continue
        getattr(inner, setter)(_library.address(hook))
    return pluggable


def use_for_torch(extension: bool = True) -> Any:
    """Makes the pool PyTorch's CUDA allocator. Call it before PyTorch first uses CUDA. Returns PyTorch's allocator object.

    A request that cannot be satisfied raises torch.OutOfMemoryError. torch.cuda.memory_stats and the functions related to
    it return the pool's statistics from then on, and torch.cuda.memory's history and snapshots are the pool's.

    Graphs that share memory, torch.compile's graphs and MemPools need an allocator that is compiled for the installed PyTorch
    at the first call, and kept in TORCH_EXTENSIONS_DIR, or ~/.cache/torch_extensions. Where there is no C++ compiler, a
    RuntimeWarning has the reason, and PyTorch allocates from the pool without them. `extension=False` leaves it out.

    A second call has no effect. Raises RuntimeError if PyTorch has used CUDA already, if it is older than 2.0, or after
    torch_mem_pool().
    """
    global _torch_allocator
    if _torch_allocator is None:
        import torch

        if _torch_pool_allocator is not None:
            raise RuntimeError("trtalloc.torch_mem_pool() was called before: a process can use only one of the two")
        if torch.cuda.is_initialized():
            raise RuntimeError("PyTorch has used CUDA already; call trtalloc.use_for_torch() before that")
        if extension and hasattr(torch.cuda.memory, "CUDAPluggableAllocator") and _torch_extension.install():
            pluggable = torch.cuda.memory._CUDAAllocator(torch._C._cuda_getAllocator())
        else:
            pluggable = _pluggable("trtalloc_torch_malloc_or_throw")
            torch.cuda.memory.change_current_allocator(pluggable)
        _torch_memory.supply()
        _torch_allocator = pluggable
    return _torch_allocator


def torch_mem_pool(**options: bool) -> Any:
    """A torch.cuda.MemPool whose memory comes from the pool, for torch.cuda.use_mem_pool. `options` are PyTorch's own:
    use_on_oom=True (2.9), with which a request outside of the MemPool that cannot be satisfied gets what is free in it, and
    no_split=True (2.10), with which no block of it is divided. The rest of PyTorch keeps its own allocator, or after
    use_for_torch() allocates from the pool too.

    In a MemPool PyTorch itself caches memory: it requests segments of 2 MiB or more, and frees them when the MemPool is
    destroyed, not at torch.cuda.empty_cache(). Raises RuntimeError if PyTorch is older than 2.6 or does not have an option, or
    after a use_for_torch() that compiled no allocator.
    """
    global _torch_pool_allocator
    import torch

    if _torch_allocator is not None and not _torch_extension.is_installed():
        raise RuntimeError(
            "trtalloc.use_for_torch() was called before: all of PyTorch allocates from the pool, and PyTorch then supports no "
            "MemPool without the allocator that use_for_torch() compiles"
        )
    if not hasattr(torch.cuda, "MemPool"):
        raise RuntimeError("this PyTorch has no torch.cuda.MemPool: it came with 2.6")
    missing = options.keys() - inspect.signature(torch.cuda.MemPool.__init__).parameters.keys()
    if missing:
        raise RuntimeError(f"the MemPool of PyTorch {torch.__version__} has no option {min(missing)}")
    if _torch_extension.is_installed():
        return torch.cuda.MemPool(**options)
    if _torch_pool_allocator is None:
        # PyTorch checks for NULL in a MemPool.
        _torch_pool_allocator = _pluggable("trtalloc_torch_malloc")
    return torch.cuda.MemPool(_torch_pool_allocator.allocator(), **options)


def use_for_cupy() -> Any:
    """Makes the pool CuPy's allocator, and returns CuPy's allocator object. A second call has no effect.

    CuPy passes no stream, so memory that it frees is reused once all work queued in the process's contexts has completed.
    """
    global _cupy_allocator
    import cupy

    if _cupy_allocator is None:
        _cupy_allocator = cupy.cuda.memory.CFunctionAllocator(
            0,
            _library.address("trtalloc_cupy_malloc"),
            _library.address("trtalloc_cupy_free"),
            _library.library,
        )
    cupy.cuda.set_allocator(_cupy_allocator.malloc)
    return _cupy_allocator


def rmm_resource() -> Any:
    """An rmm.mr.CallbackMemoryResource over the pool, for rmm.mr.set_current_device_resource. RMM calls Python for each request, and
    passes the stream of each allocation and free. A request raises MemoryError where memory has run out. Raises RuntimeError if RMM's
    streams have no handle in Python, as in 25.4; those of 25.12 have.
    """
    import rmm.mr
    from rmm.pylibrmm.stream import Stream

    if not hasattr(Stream, "__cuda_stream__"):
        raise RuntimeError("this RMM passes no stream's handle to Python; 25.12 does")
    library, pool = _library.library, _library.default()

    def allocate(size: int, stream: Any) -> int:
        address = library.trtalloc_allocate_async(pool, size, 0, 0, stream_address(stream)) if size else 0
        if size and not address:
            error = _library.failure()
            raise MemoryError(str(error)) if error.name == "OUT_OF_MEMORY" else error
        return int(address)

    def deallocate(address: int, _size: int, stream: Any) -> None:
        # A refused free is logged.
        library.trtalloc_deallocate_async(pool, address, stream_address(stream))

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def onnxruntime_options() -> Dict[str, str]:
    """Options with which ONNX Runtime's CUDA provider allocates from the pool. Its TensorRT provider has no such options, but shares
    the allocator of use_for_onnxruntime. What TensorRT itself requests comes from the pool if trtalloc is imported first.

    ONNX Runtime passes no stream, so memory that it frees is reused once all work queued in the process's contexts has
    completed.
    """
    return {
        "gpu_external_alloc": str(_library.address("trtalloc_ort_alloc")),
        "gpu_external_free": str(_library.address("trtalloc_ort_free")),
        "gpu_external_empty_cache": str(_library.address("trtalloc_ort_empty_cache")),
    }


def use_for_onnxruntime(options: Any, device: int = 0) -> None:
    """Makes the pool the allocator that ONNX Runtime's sessions share for a CUDA device, and lets sessions with these
    onnxruntime.SessionOptions use it (session.use_env_allocators). Call it before such a session is created.

    It is that of the CUDA provider with onnxruntime_options(), so it passes no stream either.
    """
    import onnxruntime

    if device not in _onnxruntime_devices:
        kinds, types = onnxruntime.OrtAllocatorType, onnxruntime.OrtMemType
        memory = onnxruntime.OrtMemoryInfo("Cuda", kinds.ORT_DEVICE_ALLOCATOR, device, types.DEFAULT)
        given = {**onnxruntime_options(), "device_id": str(device)}
        onnxruntime.create_and_register_allocator_v2("CUDAExecutionProvider", memory, given, onnxruntime.OrtArenaCfg({}))
        _onnxruntime_devices.add(device)
    options.add_session_config_entry("session.use_env_allocators", "1")
