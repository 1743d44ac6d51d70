"""Blocks as arrays, over the simulated device: what the protocols demand of a producer, played by a consumer of this file's
own, and who frees the memory when. test_torch.py, test_cupy.py and test_numba.py have real consumers.
"""

import pytest
from conftest import needs

# A consumer that takes tensors from capsules, as DLPack's C structures have them.
CONSUMER = """
import ctypes, gc
import trtalloc
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object

class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p), ("device_type", c_int32), ("device", c_int32), ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8),
        ("lanes", c_uint16), ("shape", ctypes.POINTER(c_int64)), ("strides", ctypes.POINTER(c_int64)), ("byte_offset", c_uint64),
    ]

class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", ctypes.CFUNCTYPE(None, c_void_p))]

class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", ctypes.CFUNCTYPE(None, c_void_p)),
        ("flags", c_uint64), ("tensor", Tensor),
    ]

name = ctypes.PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", ctypes.pythonapi))
pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
rename = ctypes.PYFUNCTYPE(ctypes.c_int, py_object, c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}

def take(capsule):
    called = name(capsule)
    address = pointer(capsule, called)
    assert rename(capsule, USED[called]) == 0
    return (Managed if called == b"dltensor" else Versioned).from_address(address)

def let_go(managed):
    managed.deleter(ctypes.addressof(managed))

def held():
    gc.collect()
    return trtalloc.stats(0)["allocated"]

def wrong(error, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except error as raised:
        return str(raised)
    raise AssertionError((error, arguments, named))
"""


def test_a_block_says_what_it_is(simulated):
    simulated(
        CONSUMER
        + """
block = trtalloc.allocate(1_000_000, 0)
assert (block.size, block.shape, block.dtype, block.device, block.stream, block.closed) == (1_000_000, (1_000_000,), "uint8", 0, 0, False)
assert block.address % 512 == 0 and hex(block.address) in repr(block)
assert trtalloc.allocate(4096, alignment=1 << 16).address % (1 << 16) == 0
# 0 is no stream in the CUDA array interface, and 2 would be the consumer's own.
for stream, expected in ((0, 1), (1, 1), (2, 1), (None, None)):
    given = trtalloc.allocate(100, stream)
    interface = given.__cuda_array_interface__
    assert interface == {
        "shape": (100,), "typestr": "|u1", "data": (given.address, False), "strides": None, "descr": [("", "|u1")],
        "version": 3, "stream": expected,
    }, interface
array = block.view((50, 25), "float32")
assert (array.shape, array.dtype, array.size, array.address) == ((50, 25), "float32", 5000, block.address)
assert array.__cuda_array_interface__["typestr"] == "<f4" and block.view(10).shape == (10,)
types = {
    "bool": "|b1", "int8": "|i1", "uint16": "<u2", "int64": "<i8", "float16": "<f2", "float64": "<f8", "complex64": "<c8",
    "complex128": "<c16",
}
for dtype, typestr in types.items():
    assert block.view((2, 2), dtype).__cuda_array_interface__["typestr"] == typestr, dtype

class DataType:
    def __init__(self, name):
        self.name = name

for dtype, expected in (("FLOAT", "float32"), ("HALF", "float16"), ("BF16", "bfloat16"), ("INT64", "int64"), ("BOOL", "bool")):
    assert block.view(1, DataType(dtype)).dtype == expected
# Consumers ask with hasattr, and take DLPack instead.
assert not hasattr(block.view(4, "bfloat16"), "__cuda_array_interface__")
assert "bfloat16" in wrong(TypeError, block.view, 1, DataType("FP8"))
wrong(TypeError, block.view, 1, "fp8")
wrong(TypeError, block.view, 1.5)
assert "more than" in wrong(ValueError, block.view, (250_001,), "float32")
wrong(ValueError, block.view, (-1, -1))
assert "more than" in wrong(ValueError, array.view, 5001)
assert block.view((0, 5), "float32").size == 0
assert block.__dlpack_device__() == (2, 0)
import copy, pickle
for broken in (copy.deepcopy, pickle.dumps):
    wrong(TypeError, broken, block)
"""
    )


def test_wrong_requests_are_refused(simulated):
    simulated(
        CONSUMER
        + """
for size in (0, -1, 1 << 63, (1 << 64) + 512):
    wrong(ValueError, trtalloc.allocate, size)
for size in (1.5, "1MiB", None):
    wrong(TypeError, trtalloc.allocate, size)
for stream in ("cuda", "2", b"2", 2.0, 1.5j, object(), []):
    assert "stream" in wrong(TypeError, trtalloc.allocate, 100, stream)
for stream in (-1, 1 << 64):
    wrong(ValueError, trtalloc.allocate, 100, stream)
wrong(ValueError, trtalloc.allocate(100).__dlpack__, stream=(1 << 64) + 1)
for arguments, name in (
    (dict(size=1 << 50), "OUT_OF_MEMORY"),
    (dict(size=100, device=7), "INVALID_ARGUMENT"),
    (dict(size=100, alignment=3), "INVALID_ARGUMENT"),
):
    try:
        trtalloc.allocate(**arguments)
    except trtalloc.Error as error:
        assert error.name == name, (arguments, error.name, error)
    else:
        raise SystemExit(f"no error: {arguments}")
assert held() == 0
"""
    )


def test_streams_of_other_packages_are_known(simulated):
    simulated(
        CONSUMER
        + """
class Stream:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

class Core:
    def __cuda_stream__(self):
        return (0, 2)

from trtalloc._block import stream_address
for stream in (2, Core(), Stream(cuda_stream=2), Stream(ptr=2), Stream(handle=2), Stream(handle=ctypes.c_void_p(2))):
    assert stream_address(stream) == 2, stream
    assert trtalloc.allocate(100, stream).stream == 2
assert stream_address(Stream(handle=ctypes.c_void_p(0))) == 0 and stream_address(None) is None
"""
    )


@pytest.mark.parametrize(
    "variable, packages",
    [
        ("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", ["cuda.bindings.driver", "numba.cuda.cudadrv.driver"]),
        ("NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM", ["numba.cuda.cudadrv.driver"]),
    ],
)
@pytest.mark.parametrize("value", ["1", "0"])
def test_a_null_stream_is_the_one_that_its_package_means(simulated, variable, packages, value):
    """Numba, and CUDA's own bindings, take their null stream for the thread's where a variable says so."""
    simulated(
        CONSUMER
        + f"packages, meant = {packages}, {2 if value == '1' else 0}"
        + """
from trtalloc._block import stream_address

class Numba:
    handle = ctypes.c_void_p(0)

class Bindings:
    def __int__(self):
        return 0

class Core:
    def __cuda_stream__(self):
        return (0, 0)

for kind in (Numba, Bindings, Core):
    # A package that knows no such variable, as PyTorch and CuPy: the legacy default stream.
    assert stream_address(kind()) == 0
    for package in ("cuda.bindings.driver", "numba.cuda.cudadrv.driver"):
        kind.__module__ = package
        assert stream_address(kind()) == (meant if package in packages else 0), (kind, package)
    assert trtalloc.allocate(100, kind()).stream in (0, meant)
# A number is a handle of CUDA's.
assert stream_address(0) == 0
""",
        **{variable: value},
    )


def test_a_consumer_without_a_stream_waits_for_a_threads_default_stream(simulated):
    """Its number means another stream to a consumer on another thread, so the legacy default stream stands for it."""
    simulated(
        CONSUMER
        + """
named, original = [], trtalloc.Block.__dlpack__

def export(block, **how):
    named.append(how)
    return original(block, **how)

trtalloc.Block.__dlpack__ = export
for stream, shown, orders in ((0, 1, []), (1, 1, []), (None, None, []), (2, 1, [{"stream": 1}])):
    block = trtalloc.allocate(100, stream)
    assert block.__cuda_array_interface__["stream"] == shown and named == orders, (stream, named)
del block
assert held() == 0
"""
    )


def test_dlpack_tensors_are_as_documented(simulated):
    simulated(
        CONSUMER
        + """
block = trtalloc.allocate(1 << 20, 0)
array = block.view((3, 5, 7), "float16")
for version, form, expected in ((None, Managed, b"dltensor"), ((0, 8), Managed, b"dltensor"),
                                ((1, 0), Versioned, b"dltensor_versioned"), ((2, 3), Versioned, b"dltensor_versioned")):
    capsule = array.__dlpack__(max_version=version)
    assert name(capsule) == expected
    managed = take(capsule)
    assert isinstance(managed, form)
    if form is Versioned:
        assert (managed.major, managed.minor, managed.flags) == (1, 0, 0)
    tensor = managed.tensor
    assert (tensor.data, tensor.device_type, tensor.device) == (block.address, 2, 0)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset, tensor.ndim) == (2, 16, 1, 0, 3)
    assert tensor.shape[:3] == [3, 5, 7] and tensor.strides[:3] == [35, 7, 1]
    let_go(managed)
for dtype, code in (("bool", 6), ("int32", 0), ("uint8", 1), ("bfloat16", 4), ("complex64", 5)):
    managed = take(block.view(4, dtype).__dlpack__())
    assert managed.tensor.code == code
    let_go(managed)
scalar = take(block.view((), "float32").__dlpack__())
assert scalar.tensor.ndim == 0
let_go(scalar)
# The rules of Python's array API for streams, devices and copies.
for stream in (None, 1, 2, -1):
    let_go(take(block.__dlpack__(stream=stream)))
for stream in (0, -2):
    wrong(ValueError, block.__dlpack__, stream=stream)
wrong(TypeError, block.__dlpack__, stream="0")
wrong(TypeError, block.__dlpack__, 1)
for device in ((1, 0), (2, 1)):
    wrong(BufferError, block.__dlpack__, dl_device=device)
wrong(BufferError, block.__dlpack__, copy=True)
let_go(take(block.__dlpack__(dl_device=(2, 0), copy=False)))
del block, array
assert held() == 0
"""
    )


def test_the_last_user_frees_the_memory(simulated):
    simulated(
        CONSUMER
        + """
block = trtalloc.allocate(1000, 0)
# Its capsule was never taken.
for version in (None, (1, 0)):
    capsule = block.__dlpack__(max_version=version)
    del block
    assert held() == 1024
    del capsule
    assert held() == 0
    block = trtalloc.allocate(1000, 0)
# A consumer has it, longer than the capsule and the block.
for version in (None, (1, 0)):
    first, second = take(block.__dlpack__(max_version=version)), take(block.__dlpack__())
    block.close()
    assert held() == 1024
    let_go(first)
    assert held() == 1024
    let_go(second)
    assert held() == 0
    block = trtalloc.allocate(1000, 0)
# A view has a share.
view = block.view(10)
del block
assert held() == 1024
view.close()
assert held() == 0
# A consumer of the CUDA array interface has the object.
block = trtalloc.allocate(1000, 0)
address = block.__cuda_array_interface__["data"]
block.close()
assert held() == 1024 and block.closed
del block
assert held() == 0
with trtalloc.allocate(1000) as block:
    assert held() == 1024
assert held() == 0
# After the end.
block.close()
for use in (
    lambda: block.address, lambda: block.device, lambda: block.stream, lambda: block.view(1), block.__dlpack__,
    block.__dlpack_device__, lambda: block.__cuda_array_interface__, block.__enter__, lambda: block.record_stream(0),
):
    assert wrong(ValueError, use) == "the block is closed"
assert repr(block) == "<trtalloc.Block, closed>"
trtalloc.allocate(1000, 0)
assert held() == 0
"""
    )


def test_a_capsule_does_not_disturb_an_exception(simulated):
    """The capsule is destroyed while the exception unwinds the expression."""
    simulated(
        CONSUMER
        + """
block = trtalloc.allocate(1000, 0)
for version in (None, (1, 0)):
    assert wrong(ZeroDivisionError, lambda: (block.__dlpack__(max_version=version), 1 / 0)) == "division by zero"
del block
assert held() == 0
"""
    )


def test_a_consumer_may_let_go_after_python_has_ended(simulated):
    done = simulated(
        CONSUMER
        + """
block = trtalloc.allocate(1000, 0)
held_by_c = take(block.__dlpack__())
libc = ctypes.CDLL(None)
libc.__cxa_atexit.argtypes = [c_void_p, c_void_p, c_void_p]
deleter = ctypes.cast(held_by_c.deleter, c_void_p)
assert libc.__cxa_atexit(deleter, ctypes.addressof(held_by_c), None) == 0
import sys, types
sys.modules["late"] = types.ModuleType("late")
sys.modules["late"].kept = [trtalloc.allocate(1000, 0), trtalloc.allocate(1000).__dlpack__(), block]
print("done")
"""
    )
    assert done.stdout == "done\n" and done.stderr == "", done


def test_a_forked_child_frees_nothing(simulated):
    simulated(
        CONSUMER
        + """
import os
block = trtalloc.allocate(1000, 0)
capsule = block.__dlpack__()
child = os.fork()
if child == 0:
    del block, capsule
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert held() == 1024
del block, capsule
assert held() == 0
"""
    )


def test_threads_may_share_a_block(simulated):
    """While one closes it, the others either have it or get the error."""
    simulated(
        CONSUMER
        + """
import threading

def work(block, barrier, done):
    barrier.wait()
    for _ in range(50):
        try:
            managed = take(block.__dlpack__(max_version=(1, 0), stream=1))
            assert managed.tensor.data == address
            let_go(managed)
            block.view(1)
        except ValueError as error:
            assert str(error) == "the block is closed"
    done.append(1)

for _ in range(20):
    block, barrier, done = trtalloc.allocate(1000, 0), threading.Barrier(4), []
    address = block.address
    threads = [threading.Thread(target=work, args=(block, barrier, done)) for _ in range(3)]
    [thread.start() for thread in threads]
    barrier.wait()
    block.close()
    [thread.join() for thread in threads]
    assert len(done) == 3 and held() == 0
"""
    )


@needs("numpy")
def test_numpy_takes_pinned_memory_and_refuses_the_devices(simulated):
    simulated(
        CONSUMER
        + """
import numpy
block = trtalloc.allocate(4096, 0)
assert block.__dlpack_device__() == (3, 0)
numbers = numpy.from_dlpack(block.view((4, 8), "float32"))
# Some versions take it for reading only.
ctypes.memmove(block.address, b"\\0\\0\\xc0\\x3f" * 32, 128)
assert numbers.ctypes.data == block.address and numpy.from_dlpack(block)[:4].tolist() == [0, 0, 192, 63]
del block
assert held() == 4096 and numbers.sum() == 48
del numbers
assert held() == 0
""",
        TRTALLOC_KIND="pinned",
    )
    simulated(
        CONSUMER
        + """
import numpy
block = trtalloc.allocate(4096, 0)
wrong((BufferError, RuntimeError, ValueError), numpy.from_dlpack, block)
del block
assert held() == 0
"""
    )


@pytest.mark.parametrize("option", ["backing=malloc", "passthrough=1", "guard=1"])
def test_every_kind_of_memory_is_lent(simulated, option):
    key, value = option.split("=")
    simulated(
        CONSUMER
        + """
block = trtalloc.allocate(1000, 0)
managed = take(block.__dlpack__(stream=2))
assert managed.tensor.data == block.address and managed.tensor.device == 0
del block
assert trtalloc.stats(0)["requested"] == 1000
let_go(managed)
assert trtalloc.stats(0)["requested"] == 0
""",
        **{f"TRTALLOC_{key.upper()}": value},
    )


def test_the_free_is_ordered_where_its_streams_are_known(simulated):
    """On the block's own stream, as long as that must exist and every consumer named its stream."""
    simulated(
        CONSUMER
        + """
from trtalloc._block import Owner

class Stream:
    cuda_stream = 2

get, release, *others = Owner.__del__.__defaults__
ordered = []
Owner.__del__.__defaults__ = (get, lambda block, how: (ordered.append(how), release(block, how)), *others)

def freed(stream, use, after=None):
    block = trtalloc.allocate(100, stream)
    kept = use(block)
    block.close()
    del block
    gc.collect()
    if kept is not None:
        let_go(kept)
    assert held() == 0
    return ordered.pop()

nothing = lambda block: None
assert freed(2, nothing) and freed(Stream(), nothing) and freed(None, nothing)
# The number's stream must exist as long as a consumer has the memory; the object's may be destroyed with it.
lent = lambda block: take(block.__dlpack__(stream=1))
assert freed(2, lent) and not freed(Stream(), lent)
# This object had the stream until the end.
assert freed(Stream(), lambda block: let_go(lent(block)))
def interface(block):
    block.view(1).__cuda_array_interface__
assert not freed(2, interface)
assert ordered == []
"""
    )
