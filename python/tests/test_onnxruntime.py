"""Real ONNX Runtime over the pool."""

from conftest import needs

pytestmark = needs("onnxruntime")

# A model of one Identity node, as protobuf.
MODEL = """
def varint(n):
    return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])

def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data

def count(number, value):
    return varint(number << 3) + varint(value)

def value(name):
    shape = field(2, field(1, count(1, 1024)))
    return field(1, name) + field(2, field(1, count(1, 1) + shape))

node = field(1, b"x") + field(2, b"y") + field(4, b"Identity")
graph = field(1, node) + field(2, b"g") + field(11, value(b"x")) + field(12, value(b"y"))
model = count(1, 8) + field(7, graph) + field(8, field(1, b"") + count(2, 13))
"""


def test_a_session_uses_the_pools_memory(over_cuda):
    over_cuda(
        MODEL
        + """
import numpy, onnxruntime, trtalloc
options = trtalloc.onnxruntime_options()
session = onnxruntime.InferenceSession(model, providers=[("CUDAExecutionProvider", options)])
given = session.get_provider_options()["CUDAExecutionProvider"]
assert {key: given[key] for key in options} == options, given
before = trtalloc.stats()["allocations"]
numbers = numpy.arange(1024, dtype=numpy.float32)
x = onnxruntime.OrtValue.ortvalue_from_numpy(numbers, "cuda", 0)
binding = session.io_binding()
binding.bind_ortvalue_input("x", x)
binding.bind_output("y", "cuda")
session.run_with_iobinding(binding)
(y,) = binding.get_outputs()
assert (y.numpy() == numbers).all()
assert trtalloc.stats()["allocations"] >= before + 2
assert trtalloc.stats()["allocated"] >= 2 * 4096
"""
    )


def test_sessions_share_the_pool(over_cuda):
    """A session without the option has an arena of its own."""
    over_cuda(
        MODEL
        + """
import numpy, onnxruntime, trtalloc
numbers = numpy.arange(1024, dtype=numpy.float32)

def run(options):
    session = onnxruntime.InferenceSession(model, options, providers=["CUDAExecutionProvider"])
    before = trtalloc.stats()["allocations"]
    binding = session.io_binding()
    binding.bind_cpu_input("x", numbers)
    binding.bind_output("y", "cuda")
    session.run_with_iobinding(binding)
    (y,) = binding.get_outputs()
    assert (y.numpy() == numbers).all()
    return trtalloc.stats()["allocations"] - before, y

shared = onnxruntime.SessionOptions()
trtalloc.use_for_onnxruntime(shared)
count, y = run(shared)
assert count >= 2 and trtalloc.stats()["allocated"] >= 4096
# A second call for the device adds to other options only.
others = onnxruntime.SessionOptions()
trtalloc.use_for_onnxruntime(others)
assert run(others)[0] >= 2
assert run(onnxruntime.SessionOptions())[0] == 0
del y
assert trtalloc.stats()["allocated"] == 0
"""
    )


def test_a_shared_sessions_weights_are_the_pools(over_cuda):
    """A model of one Add node, whose weights are 1 MiB. It is not run: the kernel needs a GPU."""
    over_cuda(
        MODEL.replace("1024", "262144")
        + """
weights = count(1, 262144) + count(2, 1) + field(8, b"w") + field(9, bytes(1 << 20))
node = field(1, b"x") + field(1, b"w") + field(2, b"y") + field(4, b"Add")
graph = field(1, node) + field(2, b"g") + field(5, weights) + field(11, value(b"x")) + field(12, value(b"y"))
model = count(1, 8) + field(7, graph) + field(8, field(1, b"") + count(2, 13))
import onnxruntime, trtalloc
options = onnxruntime.SessionOptions()
trtalloc.use_for_onnxruntime(options)
session = onnxruntime.InferenceSession(model, options, providers=["CUDAExecutionProvider"])
assert trtalloc.stats()["allocated"] == 1 << 20
del session
assert trtalloc.stats()["allocated"] == 0
"""
    )


def test_an_invalid_address_disables_the_cuda_provider(over_cuda):
    """Shows that ONNX Runtime parses the addresses, so the test above depends on them."""
    over_cuda(
        MODEL
        + """
import onnxruntime, trtalloc
options = {**trtalloc.onnxruntime_options(), "gpu_external_alloc": "nowhere"}
session = onnxruntime.InferenceSession(model, providers=[("CUDAExecutionProvider", options), "CPUExecutionProvider"])
assert session.get_providers() == ["CPUExecutionProvider"]
"""
    )
