"""Blocks of the pool as objects that other packages take without copying: the CUDA array interface and DLPack."""

import ctypes
import numbers
import operator
import os
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

from . import _library

_Version = Tuple[int, int]


class _Type(NamedTuple):
    """An element type: DLPack's code and bits, and the CUDA array interface's string, which some types lack."""

    name: str
    code: int
    bits: int
    typestr: Optional[str]


_TYPES = {
    each.name: each
    for each in (
        _Type("bool", 6, 8, "|b1"),
        *(_Type(f"int{bits}", 0, bits, f"{'|' if bits == 8 else '<'}i{bits // 8}") for bits in (8, 16, 32, 64)),
        *(_Type(f"uint{bits}", 1, bits, f"{'|' if bits == 8 else '<'}u{bits // 8}") for bits in (8, 16, 32, 64)),
        *(_Type(f"float{bits}", 2, bits, f"<f{bits // 8}") for bits in (16, 32, 64)),
        _Type("bfloat16", 4, 16, None),
        *(_Type(f"complex{bits}", 5, bits, f"<c{bits // 8}") for bits in (64, 128)),
    )
}

# The names of TensorRT's DataType, and of NumPy and PyTorch, that differ.
_ALIASES = {"float": "float32", "half": "float16", "bf16": "bfloat16", "double": "float64", "bool_": "bool"}


def _element(dtype: object) -> _Type:
    """The element type that a name, or a type of TensorRT, NumPy or PyTorch, stands for."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
    word = str(name).rpartition(".")[2].lower()
    try:
        return _TYPES[_ALIASES.get(word, word)]
    except KeyError:
        raise TypeError(f"{dtype!r} is no element type here: {', '.join(_TYPES)}") from None


# CUDA's own bindings, and Numba, which may use them, take the handle 0 for the thread's default stream where these are set.
_PER_THREAD = {
    "cuda": ("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",),
    "numba": ("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM"),
}


def _null_of(stream: object) -> int:
    """Which stream the handle 0 of a stream object means: 0, the legacy default stream, or 2, the thread's."""
    variables = _PER_THREAD.get(type(stream).__module__.partition(".")[0], ())
    return 2 if any(os.environ.get(variable, "0").strip() not in ("", "0") for variable in variables) else 0


def stream_address(stream: object) -> Optional[int]:
    """A stream's handle; None for None. A number is a handle; 0 and 1 are the legacy default stream, 2 the thread's. The handle 0
    of a stream object is the default stream that its package means.
    """
    if stream is None:
        return None
    handle = stream
    if not isinstance(stream, int):
        protocol = getattr(stream, "__cuda_stream__", None)
        if protocol is not None:
            handle = (protocol() if callable(protocol) else protocol)[1]
        else:
            # PyTorch's, CuPy's and Numba's.
            for attribute in ("cuda_stream", "ptr", "handle"):
                if hasattr(stream, attribute):
                    handle = getattr(stream, attribute)
                    break
        # Numba has a ctypes.c_void_p, whose value is None for the default stream.
        handle = (handle.value or 0) if isinstance(handle, ctypes.c_void_p) else handle
    try:
        number = operator.index(handle)  # type: ignore[arg-type]
    except TypeError:
        try:
            # A handle of CUDA's own bindings converts to a number. So would other numbers and texts.
            if isinstance(handle, (numbers.Number, str, bytes, bytearray)):
                raise TypeError
            number = int(handle)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            raise TypeError(
                f"a stream is None, a number, or an object of cuda.core, PyTorch, CuPy or Numba, not {type(stream).__name__}"
            ) from None
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{number} is no stream")
    return number if number or isinstance(stream, int) else _null_of(stream)


class Owner:
    """One owner of a native block. The block is freed when its last owner has gone: this object, and each tensor that a
    consumer has taken through DLPack. Calls hold a reference to it, so no other thread frees the block below them.
    """

    __slots__ = ("address", "alignment", "capacity", "device", "device_type", "native", "ordered", "stream", "stream_object")

    def __init__(self, size: int, stream: object = None, device: int = -1, alignment: int = 0, flags: int = 0) -> None:
        self.native: Optional[int] = None
        self.stream = stream_address(stream)
        # A stream that its object destroys must exist as long as the block is freed on it.
        self.stream_object = None if isinstance(stream, int) else stream
        self.ordered = True
        self.alignment = alignment
        native = _library.library.trtalloc_dlpack_allocate(
            size, alignment, flags, device, _library.NO_STREAM if self.stream is None else self.stream
        )
        if not native:
            raise _library.failure()
        self.native = native
        self._describe()

    def _describe(self) -> None:
        info = self.info()
        self.address: int = info.memory
        self.capacity: int = info.bytes
        self.device_type: int = info.device_type
        self.device: int = info.device

    def info(self) -> _library.DlpackInfo:
        """What the library knows of the block."""
        info = _library.DlpackInfo()
        if not _library.library.trtalloc_dlpack_get(self.native, ctypes.byref(info)):
            raise _library.failure()
        return info

    def resize(self, size: int) -> bool:
        """Resizes the block, which has no other owner. Returns False where that is not possible."""
        if not _library.library.trtalloc_dlpack_reallocate(self.native, size):
            return False
        self._describe()
        return True

    def __reduce__(self) -> Any:
        raise TypeError("a block of device memory cannot be pickled or copied")

    # The interpreter may have cleared the modules.
    def __del__(
        self,
        get: Any = _library.library.trtalloc_dlpack_get,
        release: Any = _library.library.trtalloc_dlpack_release,
        Info: Any = _library.DlpackInfo,
        byref: Any = ctypes.byref,
    ) -> None:
        if self.native is None:
            return
        ordered = self.ordered
        if ordered and self.stream_object is not None:
            # Consumers may keep the block longer than this object keeps the stream.
            info = Info()
            ordered = bool(get(self.native, byref(info))) and info.owners == 1
        release(self.native, ordered)
        self.native = None


class Block:
    """A block of device memory, which `allocate` returns. CuPy, PyTorch, Numba and others take it without copying, as an array
    of bytes or, through `view`, of another type: `torch.from_dlpack(block)`, `cupy.asarray(block)`,
    `numba.cuda.as_cuda_array(block)`.

    The memory is freed when the last user lets go: this object and its views, each tensor that a consumer took through DLPack,
    and each consumer of `__cuda_array_interface__`, which keeps a reference to this object. It is freed on the stream on which
    it was allocated, and on the streams that consumers named: work that is queued there may still use it. If it was passed on
    through `__cuda_array_interface__`, whose consumers name no stream, work that is queued on any stream may. A stream that
    no call named, and that is not ordered before the end of the last user, needs `record_stream`.

    A block may be used from any thread. Every use after `close` raises ValueError.
    """

    __slots__ = ("__weakref__", "_lent", "_owner", "_shape", "_type")

    def __init__(self, owner: Owner, shape: Tuple[int, ...], element: _Type) -> None:
        self._owner: Optional[Owner] = owner
        # The owner, as long as a consumer may use the memory through this object.
        self._lent: Optional[Owner] = None
        self._shape = shape
        self._type = element

    def _open(self) -> Owner:
        owner = self._owner
        if owner is None:
            raise ValueError("the block is closed")
        return owner

    @property
    def address(self) -> int:
        """The address of the memory. It is valid until the block is closed or collected."""
        return self._open().address

    @property
    def size(self) -> int:
        """The array's size in bytes."""
        count = self._type.bits // 8
        for extent in self._shape:
            count *= extent
        return count

    @property
    def shape(self) -> Tuple[int, ...]:
        """The array's extents, in elements. A new block has one, its bytes."""
        return self._shape

    @property
    def dtype(self) -> str:
        """The name of the element type, as NumPy has it: "uint8" for a new block."""
        return self._type.name

    @property
    def device(self) -> int:
        """The number of the device; 0 for pinned host memory."""
        return self._open().device

    @property
    def stream(self) -> Optional[int]:
        """The handle of the stream on which the block was allocated; None: no stream."""
        return self._open().stream

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._owner is None

    def close(self) -> None:
        """Ends the use of this object. The memory is freed now if this was its last user. A consumer that took it stays valid:
        through DLPack until it lets go, through `__cuda_array_interface__` until this object is collected. A second call has no
        effect.
        """
        self._owner = None

    def __enter__(self) -> "Block":
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def view(self, shape: Union[int, Sequence[int]], dtype: object = "uint8") -> "Block":
        """The beginning of the memory as a contiguous array of that shape and element type, with a share in the memory. `dtype`
        is a name as "float32", or a type of TensorRT, NumPy or PyTorch. Raises ValueError if the array is larger than this one,
        and TypeError for a type that DLPack 1.0 lacks (INT4, FP8, FP4): take "uint8", and reinterpret it.
        """
        owner, element = self._open(), _element(dtype)
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        extents = tuple(operator.index(extent) for extent in extents)
        if any(extent < 0 for extent in extents):
            raise ValueError(f"{extents} is no shape")
        array = Block(owner, extents, element)
        if array.size > self.size:
            raise ValueError(f"{extents} of {element.name} are {array.size} bytes, more than {self.size}")
        return array

    def record_stream(self, stream: object) -> None:
        """Declares that the memory is also used on `stream`: once freed, it is not reused before the work queued there until
        then has completed. The stream must exist: CUDA does not check a handle.
        """
        handle = stream_address(stream)
        if handle is None:
            raise TypeError("record_stream requires a stream")
        _library.check(_library.library.trtalloc_record_stream(_library.default(), self._open().address, handle))

    @property
    def __cuda_array_interface__(self) -> "dict[str, Any]":
        """The CUDA array interface, version 3. `stream` is the block's stream, for which a consumer waits; None: no stream. A block of
        a thread's default stream has the legacy default stream there, which waits for that stream from now on: the consumer may
        be another thread.
        """
        owner = self._open()
        if self._type.typestr is None:
            # Consumers then look for DLPack.
            raise AttributeError(f"the CUDA array interface has no {self._type.name}; use DLPack")
        # A consumer keeps this object, and names no stream.
        if owner.stream == 2:
            # The tensor is deleted at once. The order of the streams stays.
            self.__dlpack__(stream=1)
        self._lent = owner
        owner.ordered = False
        return {
            "shape": self._shape,
            "typestr": self._type.typestr,
            "data": (owner.address, False),
            "strides": None,
            "descr": [("", self._type.typestr)],
            "version": 3,
            # 0 is not allowed, since it could mean either default stream.
            "stream": 1 if owner.stream in (0, 2) else owner.stream,
        }

    def __dlpack_device__(self) -> Tuple[int, int]:
        """DLPack's type and number of the device: 2 for CUDA memory, 3 for pinned host memory."""
        owner = self._open()
        return owner.device_type, owner.device

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[_Version] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A capsule with the memory for DLPack, as Python's array API standard has it. Consumers call it, as
        `torch.from_dlpack`.

        `stream` is the consumer's: work on it from now on waits for what is queued on the block's stream. 1 or None is the
        legacy default stream, 2 the thread's default stream, another number a handle, and -1 no stream: the consumer then
        orders its work itself. From a `max_version` of (1, 0) on the capsule is a versioned one. Raises ValueError for another
        stream, and BufferError if a copy or another device is requested.
        """
        owner = self._open()
        if copy:
            raise BufferError("the pool's memory is not copied; copy what takes it")
        if dl_device is not None and tuple(dl_device) != (owner.device_type, owner.device):
            raise BufferError(f"the memory is on device {(int(owner.device_type), owner.device)}, not {tuple(dl_device)}")
        if stream is None:
            # A consumer on the host has no stream.
            consumer = 1 if owner.device_type == _CUDA else _library.NO_STREAM if owner.stream is None else owner.stream
        else:
            consumer = operator.index(stream)
            if consumer == 0 or not -1 <= consumer < 1 << 63:
                raise ValueError(f"stream {consumer}: 1 is the legacy default stream, 2 the thread's, -1 none")
            consumer = _library.NO_STREAM if consumer == -1 else consumer
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        extents = (ctypes.c_int64 * len(self._shape))(*self._shape)
        tensor = _library.library.trtalloc_dlpack_export(
            owner.native, self._type.code, self._type.bits, extents, len(extents), consumer, versioned
        )
        if not tensor:
            raise _library.failure()
        return _library.capsule(tensor, versioned)

    def __repr__(self) -> str:
        owner = self._owner
        if owner is None:
            return "<trtalloc.Block, closed>"
        shape = ", ".join(map(str, self._shape))
        return f"<trtalloc.Block of {self._type.name}[{shape}] at {owner.address:#x} on device {owner.device}>"


# kDLCUDA of DLPack.
_CUDA = 2


def allocate(size: int, stream: object = None, device: int = -1, alignment: int = 0) -> Block:
    """Allocates `size` bytes of the process's pool, for work queued on `stream` from now on.

    `stream` is a handle, a stream of PyTorch, CuPy or Numba, or an object with `__cuda_stream__`; 0 is the legacy default
    stream. A stream that is given as a number must exist as long as the memory. None: the memory may be used on any stream at
    once, and is freed when the work queued on all streams has completed. `device` -1 is the stream's or the current device.
    `alignment` in bytes is 0 or a power of two up to 2 MiB; every block is aligned to 512 bytes.

    Raises ValueError for a size below 1, TypeError if `stream` is no stream, and Error otherwise, whose `name` is OUT_OF_MEMORY
    if the memory is not there.
    """
    size = operator.index(size)
    if not 0 < size < 1 << 63:
        raise ValueError(f"a size of {size} bytes")
    alignment = operator.index(alignment)
    if not 0 <= alignment < 1 << 63:
        raise ValueError(f"an alignment of {alignment} bytes")
    return Block(Owner(size, stream, device, alignment), (size,), _TYPES["uint8"])
