"""Real cuda.core over the pool."""

from conftest import needs

pytestmark = needs("cuda.core")

START = """
import gc, inspect, sys, threading, trtalloc
assert "cuda.core" not in sys.modules
from cuda.core import Buffer, Device

def allocated():
    return trtalloc.stats(0)["allocated"]

device = Device(0)
device.set_current()
stream = device.create_stream()
resource = trtalloc.MemoryResource()
assert "cuda.core" in sys.modules
"""


def test_buffers_come_from_the_pool(over_cuda):
    over_cuda(
        START
        + """
buffer = resource.allocate(10_000, stream=stream)
assert (buffer.size, buffer.device_id, buffer.memory_resource) == (10_000, 0, resource)
assert buffer.is_device_accessible and not buffer.is_host_accessible
address = int(buffer.handle)
assert address % 512 == 0 and allocated() == 10_240
buffer.close()
assert allocated() == 0
again = resource.allocate(10_000, stream=stream)
if "stream" in inspect.signature(Buffer.from_handle).parameters:
    # From 1.2 on, it is freed on its stream, which has it again at once.
    assert int(again.handle) == address
assert again.__dlpack_device__() == (2, 0)
del again
gc.collect()
assert allocated() == 0
# Another stream frees it.
other = device.create_stream()
resource.allocate(10_000, stream=stream).close(other)
assert allocated() == 0
empty = resource.allocate(0, stream=stream)
assert empty.size == 0
empty.close()
"""
    )


def test_a_device_allocates_from_the_pool(over_cuda):
    over_cuda(
        START
        + """
device.memory_resource = resource
buffer = device.allocate(1 << 20, stream=stream)
assert buffer.memory_resource is resource and allocated() == 1 << 20
copy = buffer.copy_to(stream=stream)
assert allocated() == 2 << 20
del buffer, copy
gc.collect()
assert allocated() == 0
"""
    )


def test_a_threads_default_stream_is_not_named_by_another_thread(over_cuda):
    """Freed on the handle of that stream by another thread, the memory would be free for this thread's stream at once."""
    over_cuda(
        START
        + """
from cuda.core import PER_THREAD_DEFAULT_STREAM
buffers = [resource.allocate(1 << 20, stream=PER_THREAD_DEFAULT_STREAM)]
pending = []

def free():
    device.set_current()
    buffers.pop().close()
    # On the stream's handle it would not be pending.
    pending.append(trtalloc.stats(0)["pending"])

thread = threading.Thread(target=free)
thread.start()
thread.join()
assert pending == [1 << 20] and allocated() == 0
"""
    )


def test_failures_raise(over_cuda):
    over_cuda(
        START
        + """
try:
    resource.allocate(1 << 45, stream=stream)
    raise SystemExit("it returned")
except trtalloc.Error as error:
    assert error.name == "OUT_OF_MEMORY"
for wrong in (lambda: resource.allocate(-1, stream=stream), lambda: trtalloc.MemoryResource(99)):
    try:
        wrong()
        raise SystemExit("it returned")
    except (ValueError, RuntimeError):
        pass
for wrong in (None, "stream"):
    try:
        resource.allocate(512, stream=wrong)
        raise SystemExit("it returned")
    except TypeError:
        pass
# cuda.core takes no number for a stream. The memory is freed then.
if "stream" in inspect.signature(Buffer.from_handle).parameters:
    try:
        resource.allocate(512, stream=1)
        raise SystemExit("it returned")
    except TypeError:
        assert allocated() == 0
assert resource == trtalloc.MemoryResource(device) == trtalloc.MemoryResource(0) and resource != object()
assert len({resource, trtalloc.MemoryResource(0)}) == 1
"""
    )


def test_without_cuda_core_an_import_error_names_it(anything):
    program = """
import sys
sys.modules["cuda.core"] = None
import trtalloc
try:
    trtalloc.MemoryResource
    raise SystemExit("it returned")
except ImportError as error:
    assert "cuda.core" in str(error)
assert not hasattr(trtalloc, "MemoryResources")
"""
    done = anything(program, TRTALLOC_DRIVER="sim")
    assert done.returncode == 0, done.stderr
