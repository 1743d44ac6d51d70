"""Real RMM over the pool."""

from conftest import needs

pytestmark = needs("rmm")


def test_buffers_come_from_the_pool(simulated):
    """Nothing is copied, and no device is asked for: RMM contains NVIDIA's runtime, which needs a GPU."""
    simulated(
        """
import rmm, rmm.mr, trtalloc
from rmm.pylibrmm.stream import DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM

def allocated():
    return trtalloc.stats(0)["allocated"]

resource = trtalloc.rmm_resource()
for stream in (DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM):
    address = resource.allocate(10_000, stream)
    assert address % 512 == 0 and allocated() == 10_240
    resource.deallocate(address, 10_000, stream)
    assert allocated() == 0 and trtalloc.stats(0)["pending"] == 0
    # The same stream has it again at once.
    assert resource.allocate(10_000, stream) == address
    resource.deallocate(address, 10_000, stream)
buffer = rmm.DeviceBuffer(size=1 << 20, mr=resource)
assert allocated() == 1 << 20
counted = rmm.mr.StatisticsResourceAdaptor(resource)
address = counted.allocate(1 << 20, DEFAULT_STREAM)
assert counted.allocation_counts.current_bytes == 1 << 20
counted.deallocate(address, 1 << 20, DEFAULT_STREAM)
del buffer
assert allocated() == 0
try:
    resource.allocate(1 << 45, DEFAULT_STREAM)
    raise SystemExit("it returned")
except MemoryError as error:
    print(error)
"""
    )
