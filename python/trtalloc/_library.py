"""libtrtalloc.so through ctypes: the functions of trtalloc.h that the package calls, with their types."""

import ctypes
import os
import re
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint64, c_void_p
from pathlib import Path


class Error(RuntimeError):
    """A failed call of the library. `status` is its trtalloc_status."""

    NAMES = ("OK", "INVALID_ARGUMENT", "OUT_OF_MEMORY", "UNSUPPORTED", "DRIVER", "IO", "PANIC")

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status

    @property
    def name(self):
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


# The version of this package and of the library that it is written for.
VERSION = "0.1.0"
_SONAME = "libtrtalloc.so.0"


def _loaded():
    """The path of the library if the process has loaded it, as under `trtalloc run`. A second copy would be a second pool."""
    # A library of another version may have another soname. If it is preloaded or linked, its functions are found by name.
    library = ctypes.CDLL(None)
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


def _path():
    loaded = _loaded()
    if loaded:
        return loaded
    named = os.environ.get("TRTALLOC_LIBRARY")
    if named:
        return Path(named)
    carried = Path(__file__).with_name("libtrtalloc.so")
    if carried.is_file():
        return carried
    raise ImportError(
        f"{carried} is not there: install the wheel, or set TRTALLOC_LIBRARY to a libtrtalloc.so"
    )


def _check_version(library, path):
    """Refuses a library of another version, which may lack functions, or have different functions of the same name."""

    def refuse(why):
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


path = str(_path())
# With global symbols, so that libraries loaded later find the library's functions before TensorRT's: injection needs that.
library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

_SIGNATURES = {
    "trtalloc_default": (c_void_p, []),
    "trtalloc_version": (c_char_p, []),
    "trtalloc_last_error": (c_char_p, []),
    "trtalloc_last_status": (c_int, []),
    "trtalloc_allocate": (c_void_p, [c_void_p, c_uint64, c_uint64, ctypes.c_uint32]),
    "trtalloc_allocate_async": (c_void_p, [c_void_p, c_uint64, c_uint64, ctypes.c_uint32, c_void_p]),
    "trtalloc_reallocate": (c_void_p, [c_void_p, c_void_p, c_uint64, c_uint64]),
    "trtalloc_deallocate": (ctypes.c_bool, [c_void_p, c_void_p]),
    "trtalloc_deallocate_async": (ctypes.c_bool, [c_void_p, c_void_p, c_void_p]),
    "trtalloc_tensorrt_allocator_named": (c_void_p, [c_void_p, c_int32, c_char_p]),
    "trtalloc_inject": (c_int, [c_int32]),
    "trtalloc_stats_get": (c_int, [c_void_p, c_int32, POINTER(Stats), c_size_t]),
    "trtalloc_stats_reset_peaks": (c_int, [c_void_p, c_int32]),
    "trtalloc_trim": (c_int, [c_void_p, c_int32, c_uint64, POINTER(c_uint64)]),
    "trtalloc_set_limit": (c_int, [c_void_p, c_int32, c_uint64]),
    "trtalloc_history": (c_int, [c_void_p, c_char_p]),
    "trtalloc_snapshot": (c_int, [c_void_p, c_char_p]),
    "trtalloc_set_tag": (None, [c_char_p]),
    "trtalloc_set_tag_limit": (c_int, [c_void_p, c_int32, c_char_p, c_uint64]),
    "trtalloc_tag_stats_get": (c_int, [c_void_p, c_int32, c_char_p, POINTER(TagStats), c_size_t]),
    "trtalloc_stats_json": (c_size_t, [c_void_p, c_int32, c_void_p, c_size_t]),
    "trtalloc_metrics": (c_size_t, [c_void_p, c_void_p, c_size_t]),
}
_check_version(library, path)
for _name, (_result, _arguments) in _SIGNATURES.items():
    _function = getattr(library, _name)
    _function.restype, _function.argtypes = _result, _arguments


def default():
    """The process's own allocator."""
    return library.trtalloc_default()


def last_error():
    return library.trtalloc_last_error().decode(errors="replace")


def check(status):
    if status != 0:
        raise Error(status, last_error())


def stats(device):
    """A device's statistics, by the names of `struct trtalloc_stats`."""
    figures = Stats()
    check(library.trtalloc_stats_get(default(), device, ctypes.byref(figures), ctypes.sizeof(figures)))
    return {name: getattr(figures, name) for name, _ in figures._fields_}


def tag_stats(device, name):
    """A device's statistics for one tag or name, by the names of `struct trtalloc_tag_stats`."""
    figures = TagStats()
    size = ctypes.sizeof(figures)
    check(library.trtalloc_tag_stats_get(default(), device, name.encode(), ctypes.byref(figures), size))
    return {field: getattr(figures, field) for field, _ in figures._fields_}


def text(write):
    """The text of a function that is called like snprintf. Between two calls a number in it may get another digit."""
    size = 0
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = write(buffer, size)
        if length == 0:
            raise Error(library.trtalloc_last_status(), last_error())
        if length < size:
            return buffer.value.decode()
        size = length + 64


def address(name):
    """The address of an exported function, which frameworks require."""
    return ctypes.cast(getattr(library, name), c_void_p).value
