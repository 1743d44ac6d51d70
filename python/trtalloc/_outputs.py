"""TensorRT's IOutputAllocator over the pool, for outputs whose size is known only when they are computed."""

import importlib
import operator
import sys
import threading
import weakref
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

from . import _library, _tensorrt
from ._block import _TYPES, Block, Owner

_RESIZABLE = 1
# From this size on an output's block grows in place. A smaller output gets a block of the next power of two.
_PAGE = 2 << 20
_MIN_BLOCK = 512


class Output(NamedTuple):
    """An output as TensorRT last requested it. The memory is the allocator's."""

    address: int
    """The address of the memory."""

    bytes: int
    """Bytes that TensorRT requested: the tensor's, or more."""

    capacity: int
    """Bytes of the memory."""

    shape: Tuple[int, ...]
    """The shape, once TensorRT has said it."""


class _Tensor:
    __slots__ = ("bytes", "owner", "shape")

    def __init__(self) -> None:
        self.owner: Optional[Owner] = None
        self.bytes = 0
        self.shape: Tuple[int, ...] = ()


class OutputAllocator:
    """The outputs of one execution context whose sizes are known only when they are computed. Each has the memory that its
    largest size so far needed, not that of the largest possible size.

        outputs = trtalloc.OutputAllocator()
        outputs.attach(context)                              # or context.set_output_allocator("boxes", outputs)
        context.execute_async_v3(stream)
        boxes = outputs.take("boxes", trt.float32)           # a trtalloc.Block of the output's shape
        tensor = torch.from_dlpack(boxes)                    # waits for the context's stream

    The object is an IOutputAllocator of `tensorrt`: the module of TensorRT's bindings. Without one it is that of the bindings
    which are imported, or else of `tensorrt`, which is imported. Raises ImportError where there are none, and TypeError for a
    module that has no IOutputAllocator: TensorRT has it from 8.5 on.

    What was taken is the caller's, as long as it is used, and the next execution gets other memory. What was not taken stays
    for the next execution, which overwrites it; from 2 MiB on it grows in place. Two contexts must not share an object, which
    must exist as long as the context executes: `attach` provides for that, `set_output_allocator` does not. Its methods may be
    called from any thread. TensorRT calls it with Python's lock, whenever it needs an output's memory.
    """

    _tensors: Dict[str, _Tensor]
    _lock: threading.Lock
    _closed: bool
    # IOutputAllocator, in the subclasses that have it.
    _interface: Any

    def __new__(cls, tensorrt: Optional[ModuleType] = None) -> "OutputAllocator":
        base = _base(tensorrt)
        if not issubclass(cls, base):
            cls = _bound(cls, base)
        made: OutputAllocator = base.__new__(cls)
        return made

    def __init__(self, tensorrt: Optional[ModuleType] = None) -> None:
        # The bindings refuse an object whose C++ part was not initialized.
        self._interface.__init__(self)
        self._tensors, self._lock, self._closed = {}, threading.Lock(), False

    def attach(self, context: Any, names: Optional[Sequence[str]] = None) -> None:
        """Sets the allocator for these outputs of an execution context, or for all of its outputs, and keeps it as long as the
        context exists. Raises ValueError if the context has no such output.
        """
        if names is None:
            engine = context.engine
            every = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
            names = [name for name in every if getattr(engine.get_tensor_mode(name), "name", "") == "OUTPUT"]
        # It keeps this object until the context is collected, or the process ends.
        setattr(weakref.finalize(context, lambda _: None, self), "atexit", False)
        for name in names:
            if not context.set_output_allocator(name, self):
                raise ValueError(f"the context has no output {name!r}")

    def get(self, name: str) -> Output:
        """An output as it was last requested. The next execution may overwrite and move it. Raises KeyError before TensorRT has
        requested it, after `take` and `release`, and while it grows on another thread.
        """
        with self._lock:
            return self._output(name)

    def _output(self, name: str) -> Output:
        tensor = self._tensors.get(name)
        if tensor is None or tensor.owner is None:
            raise KeyError(f"no output {name!r} was requested since it was last taken")
        return Output(tensor.owner.address, tensor.bytes, tensor.owner.capacity, tensor.shape)

    def take(self, name: str, dtype: object = None) -> Block:
        """An output's memory, which becomes the caller's: the next execution gets other memory. With `dtype`, a name or
        TensorRT's data type, the block has the output's shape; otherwise it is an array of the bytes that TensorRT requested.
        It is freed on the stream of the execution. Raises KeyError as `get`, and TypeError as `Block.view`; the memory then
        stays.
        """
        with self._lock:
            output = self._output(name)
            owner = self._tensors[name].owner
            assert owner is not None
            block = Block(owner, (output.bytes,), _TYPES["uint8"])
            if dtype is not None:
                block = block.view(output.shape, dtype)
            del self._tensors[name]
        return block

    def release(self, name: Optional[str] = None) -> None:
        """Frees one output's memory, or that of all, once the work that is queued by then has completed. An output that does not
        exist has none. What TensorRT requests at this moment, on another thread, is not freed.
        """
        with self._lock:
            released = self._released(name)
        for owner in released:
            _drop(owner)

    def close(self) -> None:
        """Frees the memory of all outputs, as `release`. A request for an output's memory fails from then on, also one that waits
        for memory at this moment. A second `close` does nothing.
        """
        with self._lock:
            self._closed = True
            released = self._released(None)
        for owner in released:
            _drop(owner)

    def _released(self, name: Optional[str]) -> List[Optional[Owner]]:
        names = list(self._tensors) if name is None else [name]
        owners = []
        for tensor in [self._tensors.pop(each) for each in names if each in self._tensors]:
            owners.append(tensor.owner)
            # A request that waits has the tensor, and must not keep its memory.
            tensor.owner = None
        return owners

    def reallocate_output(self, tensor_name: str, memory: object, size: int, alignment: int) -> int:
        """Called by TensorRT: an address of `size` bytes for an output, for use on any stream at once; 0 on failure."""
        return self._reallocate(tensor_name, size, alignment, None)

    def reallocate_output_async(
        self, tensor_name: str, memory: object, size: int, alignment: int, stream: object
    ) -> int:
        """Called by TensorRT 10 and later: as `reallocate_output`, for work queued on `stream` from now on."""
        return self._reallocate(tensor_name, size, alignment, _tensorrt._address(stream) or 0)

    def notify_shape(self, tensor_name: str, shape: Any) -> None:
        """Called by TensorRT, once an output's shape is known."""
        with self._lock:
            if not self._closed:
                self._tensors.setdefault(tensor_name, _Tensor()).shape = tuple(operator.index(extent) for extent in shape)

    def _reallocate(self, name: str, size: int, alignment: int, stream: Optional[int]) -> int:
        size, alignment = operator.index(size), operator.index(alignment)
        with self._lock:
            if self._closed or size <= 0:
                return 0
            tensor = self._tensors.setdefault(name, _Tensor())
            owner, grown = tensor.owner, None
            if owner is not None and owner.stream == stream and owner.address % max(alignment, 1) == 0:
                if size <= owner.capacity:
                    tensor.bytes = size
                    return owner.address
                if owner.capacity >= _PAGE:
                    # No other thread may have it while it grows.
                    grown, tensor.owner = owner, None
            del owner
        # The pool may wait for memory now, so no lock is held: another thread may release what it waits for.
        if grown is not None:
            if grown.resize(size):
                return self._set(name, grown, size)
            self._put_back(name, tensor, grown)
            del grown
        whole = size if size >= _PAGE else max(1 << (size - 1).bit_length(), _MIN_BLOCK)
        try:
            new = Owner(whole, stream, alignment=alignment, flags=_RESIZABLE if whole >= _PAGE else 0)
        except _library.Error:
            # The library has logged the reason. The output keeps its memory.
            return 0
        return self._set(name, new, size)

    def _set(self, name: str, owner: Owner, size: int) -> int:
        """Makes `owner` the memory of an output; its address, or 0 after `close`."""
        with self._lock:
            closed, unused = self._closed, self._tensors.get(name)
            former = unused.owner if unused is not None else None
            if not closed:
                tensor = self._tensors.setdefault(name, _Tensor())
                tensor.owner, tensor.bytes = owner, size
        _drop(owner if closed else former)
        return 0 if closed else owner.address

    def _put_back(self, name: str, tensor: _Tensor, owner: Owner) -> None:
        """Gives an output what could not grow, unless it was released meanwhile."""
        with self._lock:
            kept = self._tensors.get(name) is tensor and tensor.owner is None
            if kept:
                tensor.owner = owner
        if not kept:
            _drop(owner)


def _drop(owner: Optional[Owner]) -> None:
    """Makes the end of an output's memory one that waits for all streams."""
    if owner is not None:
        # The application may have used its address on any stream.
        owner.ordered = False


def _base(module: Optional[ModuleType]) -> Any:
    """The class IOutputAllocator of that module, or of the bindings that are there."""
    if module is None:
        imported = (name for package in _tensorrt._PACKAGES for name in (package, f"{package}_bindings"))
        module = next((sys.modules[name] for name in imported if sys.modules.get(name) is not None), None)
    if module is None:
        for name in _tensorrt._PACKAGES:
            try:
                module = importlib.import_module(name)
                break
            except ImportError:
                continue
        else:
            raise ImportError(
                f"OutputAllocator requires TensorRT's Python package: {', '.join(_tensorrt._PACKAGES)} are not installed"
            )
    try:
        return module.IOutputAllocator
    except AttributeError:
        raise TypeError(
            f"{getattr(module, '__name__', module)!s} has no IOutputAllocator: is it TensorRT 8.5 or later?"
        ) from None


_classes: Dict[Tuple[type, type], Type[OutputAllocator]] = {}


def _bound(cls: Type[OutputAllocator], base: Any) -> Type[OutputAllocator]:
    """The subclass of both classes."""
    known = _classes.get((cls, base))
    if known is None:
        made = type(base)(cls.__name__, (cls, base), {"__module__": cls.__module__, "__doc__": cls.__doc__, "_interface": base})
        known = _classes.setdefault((cls, base), made)
    return known
