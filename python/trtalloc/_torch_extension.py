"""Compiles _torch_allocator.cpp against the installed PyTorch, keeps the result, and makes it PyTorch's allocator.

torch.utils.cpp_extension would need ninja and a CUDA toolkit; one call of the compiler needs neither, since PyTorch's own
packages have the headers.
"""

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from . import _library

_SOURCE = Path(__file__).with_name("_torch_allocator.cpp")
# The members of `Library` in _torch_allocator.cpp.
_FUNCTIONS = (
    "trtalloc_torch_malloc",
    "trtalloc_torch_malloc_or_throw",
    "trtalloc_torch_free",
    "trtalloc_torch_record_stream",
    "trtalloc_torch_init",
    "trtalloc_torch_reset",
    "trtalloc_torch_memory_fraction",
    "trtalloc_default",
    "trtalloc_deallocate",
    "trtalloc_last_status",
    "trtalloc_stats_get",
)
# The members of `Counters` there.
_COUNTERS = (
    "allocated",
    "freed",
    "held",
    "used",
    "segments_allocated",
    "segments_freed",
    "blocks_allocated",
    "blocks_freed",
)
# What trtalloc_torch_blocks writes for each block.
_BLOCK = (
    "device",
    "pool",
    "pool_of_handle",
    "segment",
    "segment_size",
    "stream",
    "small",
    "address",
    "size",
    "requested",
    "state",
)

_extension: Optional[Any] = None


def install() -> bool:
    """Makes it PyTorch's allocator. False, with one warning, where it cannot be compiled."""
    global _extension
    try:
        extension = ctypes.CDLL(str(_built()))
    except (OSError, RuntimeError) as error:
        warnings.warn(
            "PyTorch's graphs do not share memory, and torch.compile's graphs and MemPools do not work: trtalloc's allocator for "
            f"this PyTorch cannot be compiled: {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    functions = (ctypes.c_void_p * len(_FUNCTIONS))(*map(_library.address, _FUNCTIONS))
    reason = ctypes.create_string_buffer(1000)
    if extension.trtalloc_torch_install(functions, reason, ctypes.c_size_t(len(reason))) != 0:
        raise RuntimeError(reason.value.decode(errors="replace"))
    extension.trtalloc_torch_counters.restype = None
    extension.trtalloc_torch_blocks.restype = ctypes.c_size_t
    _extension = extension
    return True


def is_installed() -> bool:
    return _extension is not None


def counters(device: int) -> Optional[Dict[str, int]]:
    """What PyTorch has requested on a device, by the names of `Counters`; None without the extension."""
    if _extension is None:
        return None
    figures = (ctypes.c_uint64 * len(_COUNTERS))()
    _extension.trtalloc_torch_counters(device, figures)
    return dict(zip(_COUNTERS, figures))


def blocks() -> List[Dict[str, int]]:
    """The blocks of all private pools, in the order of their addresses in a pool."""
    if _extension is None:
        return []
    most = 0
    while True:
        figures = (ctypes.c_uint64 * (most * len(_BLOCK)))()
        count: int = _extension.trtalloc_torch_blocks(figures, ctypes.c_size_t(most))
        if count <= most:
            rows = range(0, count * len(_BLOCK), len(_BLOCK))
            return [dict(zip(_BLOCK, figures[row : row + len(_BLOCK)])) for row in rows]
        most = count * 2


def _built() -> Path:
    """The shared library for this PyTorch, compiled where it was not yet."""
    import torch

    if not getattr(torch, "__file__", None):
        raise RuntimeError("this PyTorch has no folder")
    compiler = os.environ.get("CXX", "c++").split()
    flags = _flags(Path(torch.__file__).parent)
    what = [torch.__version__, *compiler, *flags, sys.platform, os.uname().machine, _SOURCE.read_text()]
    key = hashlib.sha256("\0".join(what).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions") / "trtalloc"
    built = folder / f"torch-{torch.__version__}-{key}.so"
    if built.exists():
        return built
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed once it is complete: other processes may compile it at the same time.
    descriptor, part = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(descriptor)
    try:
        command = [*compiler, *flags, str(_SOURCE), "-o", part, *_libraries(Path(torch.__file__).parent)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        if done.returncode != 0:
            raise RuntimeError(_reason(done.stderr) or f"{compiler[0]} ended with {done.returncode}")
        os.chmod(part, 0o755)
        os.replace(part, built)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return built


def _reason(output: str) -> str:
    """The first line with an error, which the others follow from."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "")


def _version(torch: Any) -> Tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def _flags(folder: Path) -> List[str]:
    import torch

    # Later headers of PyTorch need C++20, and those of 2.8 compile with both.
    standard = "c++20" if _version(torch) >= (2, 9) else "c++17"
    flags = [f"-std={standard}", "-O2", "-fPIC", "-shared", "-w", "-fvisibility=hidden"]
    flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    ours = _SOURCE.with_name("_cuda_headers")
    for include in (ours, folder / "include", _cuda_headers(folder.parent)):
        flags += ["-isystem", str(include)]
    # NVIDIA's package of the runtime for CUDA 13 leaves out a file that it includes.
    return [*flags, "-idirafter", str(ours / "missing")]


def _libraries(folder: Path) -> List[str]:
    return [f"-L{folder / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cuda"]


def _cuda_headers(packages: Path) -> Path:
    """The folder of cuda_runtime_api.h: of a toolkit that the environment names, of PyTorch's packages, or of the machine."""
    toolkits = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders = [Path(toolkit) / "include" for toolkit in toolkits]
    folders += sorted(packages.glob("nvidia/cu*/include"), reverse=True)
    folders += [packages / "nvidia/cuda_runtime/include", Path("/usr/local/cuda/include")]
    for folder in folders:
        if (folder / "cuda_runtime_api.h").is_file():
            return folder
    raise RuntimeError("there is no cuda_runtime_api.h: install nvidia-cuda-runtime, or set CUDA_HOME")
