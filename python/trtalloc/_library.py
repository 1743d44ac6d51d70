"""libtrtalloc.so through ctypes: the functions of trtalloc.h that the package calls, with their types."""

import ctypes
import operator
import os
import re
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple


class Error(RuntimeError):
    """A failed call of the library, with the library's reason. `status` is its trtalloc_status, and `name` that by its name."""

    # Where users find it, and where tracebacks place it.
    __module__ = "trtalloc"

    NAMES = ("OK", "INVALID_ARGUMENT", "OUT_OF_MEMORY", "UNSUPPORTED", "DRIVER", "IO", "PANIC")

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    def __reduce__(self) -> Tuple[Any, ...]:
        return Error, (self.status, str(self))

    @property
    def name(self) -> str:
        """The status by its name, as "OUT_OF_MEMORY"."""
        return self.NAMES[self.status] if 0 <= self.status < len(self.NAMES) else str(self.status)


class Stats(ctypes.Structure):
    """`struct trtalloc_stats`."""

    _fields_ = [
        (name, c_uint64)
        for name in (
            "allocated",
            "allocated_peak",
            "requested",
            "cached",
            "pending",
            "reserved",
            "reserved_peak",
            "limit",
            "allocations",
            "frees",
            "reallocations",
            "reallocations_in_place",
            "out_of_memory",
            "driver_calls",
            "driver_queries",
            "bytes_copied",
            "remaps",
            "device_free",
            "device_total",
            "held_by_others",
            "largest_free",
            "waits",
            "wait_ns",
            "trims",
            "trim_ns",
            "driver_ns",
            "available",
            "awaiting_work",
        )
    ]


class TagStats(ctypes.Structure):
    """`struct trtalloc_tag_stats`."""

    _fields_ = [
        (name, c_uint64)
        for name in ("allocated", "allocated_peak", "limit", "allocations", "frees", "out_of_memory")
    ]


class DlpackInfo(ctypes.Structure):
    """`struct trtalloc_dlpack_info`."""

    _fields_ = [
        ("memory", c_void_p),
        ("bytes", c_uint64),
        ("owners", c_uint64),
        ("device_type", c_int32),
        ("device", c_int32),
    ]


class _DlpackPython(ctypes.Structure):
    """`struct trtalloc_dlpack_python`."""

    _fields_ = [("capsule_new", c_void_p), ("capsule_is_valid", c_void_p), ("capsule_get_pointer", c_void_p)]


class _Device(c_int32):
    """A device's number. ctypes would cut a larger one to 32 bits; the library refuses the largest one."""

    @classmethod
    def from_param(cls, value: Any) -> "_Device":
        return cls(max(-(1 << 31), min(operator.index(value), (1 << 31) - 1)))


# The stream that stands for none, in the functions named trtalloc_dlpack_.
NO_STREAM = (1 << 64) - 1


# The version of this package and of the library that it is written for.
VERSION = "0.1.0"
_SONAME = "libtrtalloc.so.0"


def _loaded() -> Optional[Path]:
    """The path of the library if the process has loaded it, as under `trtalloc run`. A second copy would be a second pool."""
    # A library of another version may have another soname. If it is preloaded or linked, its functions are found by name.
    library: Any = ctypes.CDLL(None)
    if not hasattr(library, "trtalloc_version"):
        try:
            library = ctypes.CDLL(_SONAME, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            return None

    class Info(ctypes.Structure):
        _fields_ = [("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p)]

    info = Info()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = [c_void_p, POINTER(Info)]
    found = dladdr(ctypes.cast(library.trtalloc_version, c_void_p), ctypes.byref(info))
    return Path(os.fsdecode(info.file)) if found and info.file else None


def _path() -> Path:
    loaded = _loaded()
    if loaded:
        return loaded
    named = os.environ.get("TRTALLOC_LIBRARY")
    if named:
        # Without a slash, the loader searches its folders.
        return Path(os.path.abspath(named) if "/" in named else named)
    carried = Path(__file__).with_name("libtrtalloc.so")
    if carried.is_file():
        return carried
    raise ImportError(
        f"{carried} is not there: install the wheel, or set TRTALLOC_LIBRARY to a libtrtalloc.so"
    )


def _check_version(library: Any, path: str) -> None:
    """Refuses a library of another version, which may lack functions, or have different functions of the same name."""

    def refuse(why: str) -> NoReturn:
        raise ImportError(
            f"trtalloc {VERSION} ({Path(__file__).parent}) needs a libtrtalloc.so of its own version, and {path} {why}: "
            "install the package and the library of one version, or set TRTALLOC_LIBRARY to a libtrtalloc.so of this one"
        )

    if not hasattr(library, "trtalloc_version"):
        refuse("is no libtrtalloc.so")
    library.trtalloc_version.restype = c_char_p
    found = library.trtalloc_version().decode(errors="replace")
    # As with the soname: before 1.0 the minor versions must be equal. From 1.0 on the library may be newer.
    mine, its = (tuple(int(part) for part in re.findall(r"\d+", text)[:2]) for text in (VERSION, found))
    if its != mine and not (its[:1] == mine[:1] != (0,) and its > mine):
        refuse(f"is {found}")
    missing = [name for name in _SIGNATURES if not hasattr(library, name)]
    if missing:
        refuse(f"({found}) has no {missing[0]}")


def _load(path: str) -> Any:
    """The library with global symbols, so that libraries loaded later find its functions before TensorRT's: injection needs that."""
    try:
        return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        variable = os.environ.get("TRTALLOC_LIBRARY", "")
        named = "TRTALLOC_LIBRARY=" if path in (variable, os.path.abspath(variable)) else ""
        reason = str(error) if str(error).startswith(path) else f"{path}: {error}"
        raise ImportError(named + reason) from None


path = str(_path())
library: Any = _load(path)

_SIGNATURES: Dict[str, Tuple[Any, List[Any]]] = {
    "trtalloc_default": (c_void_p, []),
    "trtalloc_version": (c_char_p, []),
    "trtalloc_last_error": (c_char_p, []),
    "trtalloc_last_status": (c_int, []),
    "trtalloc_allocate": (c_void_p, [c_void_p, c_uint64, c_uint64, ctypes.c_uint32]),
    "trtalloc_allocate_async": (c_void_p, [c_void_p, c_uint64, c_uint64, ctypes.c_uint32, c_void_p]),
    "trtalloc_reallocate": (c_void_p, [c_void_p, c_void_p, c_uint64, c_uint64]),
    "trtalloc_allocate_on": (c_void_p, [c_void_p, _Device, c_uint64, c_uint64, ctypes.c_uint32, c_void_p]),
    "trtalloc_deallocate": (ctypes.c_bool, [c_void_p, c_void_p]),
    "trtalloc_deallocate_async": (ctypes.c_bool, [c_void_p, c_void_p, c_void_p]),
    "trtalloc_record_stream": (c_int, [c_void_p, c_void_p, c_void_p]),
    "trtalloc_dlpack_allocate": (c_void_p, [c_uint64, c_uint64, ctypes.c_uint32, _Device, c_void_p]),
    "trtalloc_dlpack_get": (ctypes.c_bool, [c_void_p, POINTER(DlpackInfo)]),
    "trtalloc_dlpack_reallocate": (ctypes.c_bool, [c_void_p, c_uint64]),
    "trtalloc_dlpack_release": (None, [c_void_p, ctypes.c_bool]),
    "trtalloc_dlpack_export": (
        c_void_p,
        [c_void_p, ctypes.c_uint8, ctypes.c_uint8, POINTER(ctypes.c_int64), c_int32, c_void_p, ctypes.c_bool],
    ),
    "trtalloc_dlpack_capsule": (ctypes.py_object, [POINTER(_DlpackPython), c_void_p, ctypes.c_bool]),
    "trtalloc_tensorrt_allocator_named": (c_void_p, [c_void_p, c_int32, c_char_p]),
    "trtalloc_inject": (c_int, [c_int32]),
    "trtalloc_stats_get": (c_int, [c_void_p, _Device, POINTER(Stats), c_size_t]),
    "trtalloc_stats_reset_peaks": (c_int, [c_void_p, _Device]),
    "trtalloc_trim": (c_int, [c_void_p, _Device, c_uint64, POINTER(c_uint64)]),
    "trtalloc_set_limit": (c_int, [c_void_p, _Device, c_uint64]),
    "trtalloc_history": (c_int, [c_void_p, c_char_p]),
    "trtalloc_snapshot": (c_int, [c_void_p, c_char_p]),
    "trtalloc_set_tag": (None, [c_char_p]),
    "trtalloc_set_tag_limit": (c_int, [c_void_p, _Device, c_char_p, c_uint64]),
    "trtalloc_tag_stats_get": (c_int, [c_void_p, _Device, c_char_p, POINTER(TagStats), c_size_t]),
    "trtalloc_stats_json": (c_size_t, [c_void_p, _Device, c_void_p, c_size_t]),
    "trtalloc_metrics": (c_size_t, [c_void_p, c_void_p, c_size_t]),
}
_check_version(library, path)
for _name, (_result, _arguments) in _SIGNATURES.items():
    _function = getattr(library, _name)
    _function.restype, _function.argtypes = _result, _arguments


# Unlike the others, this one is called with the interpreter's lock held.
_make_capsule = ctypes.PyDLL(path).trtalloc_dlpack_capsule
_make_capsule.restype, _make_capsule.argtypes = _SIGNATURES["trtalloc_dlpack_capsule"]
_capsules = _DlpackPython(
    *(
        ctypes.cast(getattr(ctypes.pythonapi, function), c_void_p)
        for function in ("PyCapsule_New", "PyCapsule_IsValid", "PyCapsule_GetPointer")
    )
)


def capsule(tensor: int, versioned: bool) -> Any:
    """The capsule of a DLPack tensor, which it owns."""
    return _make_capsule(ctypes.byref(_capsules), tensor, versioned)


def default() -> int:
    """The process's own allocator."""
    allocator: int = library.trtalloc_default()
    return allocator


def last_error() -> str:
    reason: bytes = library.trtalloc_last_error()
    return reason.decode(errors="replace")


def failure() -> Error:
    """The error of this thread's last call, which failed."""
    return Error(library.trtalloc_last_status(), last_error())


def whole_bytes(value: int) -> int:
    """A number of bytes, which ctypes would cut to 64 bits without an error."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"bytes are a whole number, not {value!r}") from None
    if not 0 <= count < 1 << 64:
        raise ValueError(f"{count} bytes")
    return count


def encoded(name: str, errors: str = "strict") -> bytes:
    """A tag or a name as C has it, which would end it at a NUL."""
    if "\0" in name:
        raise ValueError(f"a name with a NUL: {name!r}")
    return name.encode(errors=errors)


def check(status: int) -> None:
    if status != 0:
        raise Error(status, last_error())


def stats(device: int) -> Dict[str, int]:
    """A device's statistics, by the names of `struct trtalloc_stats`."""
    figures = Stats()
    check(library.trtalloc_stats_get(default(), device, ctypes.byref(figures), ctypes.sizeof(figures)))
    return {field[0]: getattr(figures, field[0]) for field in figures._fields_}


def tag_stats(device: int, name: str) -> Dict[str, int]:
    """A device's statistics for one tag or name, by the names of `struct trtalloc_tag_stats`."""
    figures = TagStats()
    size = ctypes.sizeof(figures)
    check(library.trtalloc_tag_stats_get(default(), device, encoded(name), ctypes.byref(figures), size))
    return {field[0]: getattr(figures, field[0]) for field in figures._fields_}


def text(write: Callable[[Any, int], int]) -> str:
    """The text of a function that is called like snprintf. Between two calls a number in it may get another digit."""
    size = 0
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = write(buffer, size)
        if length == 0:
            raise failure()
        if length < size:
            return buffer.value.decode()
        size = length + 64


def address(name: str) -> Optional[int]:
    """The address of an exported function, which frameworks require."""
    return ctypes.cast(getattr(library, name), c_void_p).value
