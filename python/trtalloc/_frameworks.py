"""The library's hooks, given to the frameworks that take them. Frameworks are imported only by the call that needs them."""

from . import _library, _torch_memory

# What PyTorch uses must stay alive as long as its tensors: until the process ends.
_torch_allocator = None
_torch_pool_allocator = None
_cupy_allocator = None

# PyTorch's optional setters, each with what it is given.
_TORCH_SETTERS = {
    "set_init_fn": "trtalloc_torch_init",
    "set_reset_fn": "trtalloc_torch_reset",
    "set_memory_fraction_fn": "trtalloc_torch_memory_fraction",
    "set_record_stream_fn": "trtalloc_torch_record_stream",
}


def _pluggable(malloc):
    from torch.cuda import memory

    if not hasattr(memory, "CUDAPluggableAllocator"):
        raise RuntimeError("this PyTorch takes no allocator from outside: CUDAPluggableAllocator came with 2.0")
    pluggable = memory.CUDAPluggableAllocator(_library.path, malloc, "trtalloc_torch_free")
    inner = pluggable.allocator()
    for setter, hook in _TORCH_SETTERS.items():
        # What is used on other streams would be handed out too early without this one.
        if setter != "set_record_stream_fn" and not hasattr(inner, setter):
            continue
        getattr(inner, setter)(_library.address(hook))
    return pluggable


def use_for_torch():
    """Makes the pool PyTorch's CUDA allocator; must come before PyTorch first touches CUDA. Returns PyTorch's object.

    A request that cannot be met raises torch.OutOfMemoryError. torch.cuda.memory_stats and what belongs to it then tell the
    pool's figures. Twice is harmless.
    """
    global _torch_allocator
    if _torch_allocator is None:
        import torch

        if _torch_pool_allocator is not None:
            raise RuntimeError("trtalloc.torch_mem_pool() was called before: a process has the one or the other")
        if torch.cuda.is_initialized():
            raise RuntimeError("PyTorch has used CUDA already; call trtalloc.use_for_torch() before that")
        pluggable = _pluggable("trtalloc_torch_malloc_or_throw")
        torch.cuda.memory.change_current_allocator(pluggable)
        _torch_memory.supply()
        _torch_allocator = pluggable
    return _torch_allocator


def torch_mem_pool():
    """A torch.cuda.MemPool whose memory comes from the pool, for torch.cuda.use_mem_pool; the rest of PyTorch keeps its
    own allocator. Within it PyTorch caches by itself, asks for segments of 2 MiB or more, and gives them back when the MemPool
    goes, not at torch.cuda.empty_cache().
    """
    global _torch_pool_allocator
    import torch

    if _torch_allocator is not None:
        raise RuntimeError(
            "trtalloc.use_for_torch() was called before: all of PyTorch draws on the pool, and PyTorch has no MemPool over an "
            "allocator from outside"
        )
    if not hasattr(torch.cuda, "MemPool"):
        raise RuntimeError("this PyTorch has no torch.cuda.MemPool: it came with 2.6")
    if _torch_pool_allocator is None:
        # PyTorch looks at NULL here.
        _torch_pool_allocator = _pluggable("trtalloc_torch_malloc")
    return torch.cuda.MemPool(_torch_pool_allocator.allocator())


def use_for_cupy():
    """Makes the pool CuPy's allocator, and returns CuPy's object. Twice is harmless.

    CuPy passes no stream: what it frees is reused once all that was queued in the process's contexts has completed.
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


def onnxruntime_options():
    """Options by which ONNX Runtime's CUDA provider (and its TensorRT provider, which takes the same) draws on the pool.

    ONNX Runtime passes no stream: what it frees is reused once all that was queued has completed.
    """
    return {
        "gpu_external_alloc": str(_library.address("trtalloc_ort_alloc")),
        "gpu_external_free": str(_library.address("trtalloc_ort_free")),
        "gpu_external_empty_cache": str(_library.address("trtalloc_ort_empty_cache")),
    }
