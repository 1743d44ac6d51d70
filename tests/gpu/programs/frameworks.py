"""Frameworks that are installed here, on the pool: each in a process of its own. What is not installed is not asked.

    python frameworks.py            in the pack, whose python/ has the package and its tests
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import rows

PACKAGE = Path(os.environ.get("PACK_PYTHON", Path(__file__).resolve().parent.parent / "python"))


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise rows.NotAsked(f"{module} is not installed")


def run(command, seconds, **variables):
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return done


def program(text, seconds=120):
    """A program that raises where something is wrong; its last line is the evidence."""
    done = run([sys.executable, "-c", text], seconds)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return ("yes" if done.returncode == 0 else "no"), lines[-1] if lines else f"status {done.returncode}"


def torch_gpu():
    needs("torch")
    import torch

    if not torch.cuda.is_available():
        raise rows.NotAsked("torch.cuda.is_available() is False")


def torch_results():
    torch_gpu()
    done = run([sys.executable, str(PACKAGE / "tests/gpu_torch.py")], 240)
    lines = " / ".join(" ".join(line.split()) for line in done.stdout.splitlines())
    good = done.returncode == 0 and "results are equal" in done.stdout
    return ("yes" if good else "no"), lines or done.stderr[-300:]


TORCH_GRAPH = """
import torch, trtalloc
trtalloc.use_for_torch()
x = torch.randn(64, 1024, device="cuda")
layer = torch.nn.Linear(1024, 1024, device="cuda")
with torch.no_grad():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            layer(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x).relu()
    for seed in range(3):
        x.copy_(torch.randn(64, 1024, device="cuda"))
        graph.replay()
        assert torch.equal(y, layer(x).relu()), seed
print(trtalloc.stats(0)["reserved"], "bytes reserved; three replays agree")
"""

CUPY = """
import cupy, trtalloc
stream = cupy.cuda.Stream()
for consumer in (cupy.from_dlpack, cupy.asarray):
    block = trtalloc.allocate(4 << 20, stream)
    array = consumer(block.view(1 << 20, "float32"))
    assert array.data.ptr == block.address
    array.fill(1.5)
    assert float(array.sum()) == 1.5 * (1 << 20)
    del block, array
    assert trtalloc.stats()["allocated"] == 0
trtalloc.use_for_cupy()
assert float(cupy.arange(1000, dtype="float64").sum()) == 499500
print("from_dlpack, asarray, and arrays of its own;", trtalloc.stats()["reserved"], "bytes reserved")
"""

NUMBA = """
import numpy, trtalloc
from numba import cuda
cuda.select_device(0)

@cuda.jit
def twice(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2

stream = cuda.stream()
block = trtalloc.allocate(4096, stream)
array = cuda.as_cuda_array(block.view(1024, numpy.float32))
array.copy_to_device(numpy.arange(1024, dtype=numpy.float32), stream=stream)
twice[4, 256, stream](array)
assert (array.copy_to_host(stream=stream) == 2 * numpy.arange(1024)).all()
print("a kernel wrote", block.size, "bytes")
"""

RMM = """
import ctypes, os
import rmm, trtalloc
library = ctypes.CDLL(os.environ["TRTALLOC_LIBRARY"])
library.trtalloc_default.restype = ctypes.c_void_p
library.trtalloc_allocate_async.restype = ctypes.c_void_p
library.trtalloc_allocate_async.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p]
library.trtalloc_deallocate_async.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
pool = library.trtalloc_default()
handle = lambda stream: stream.value() if hasattr(stream, "value") else 0
resource = rmm.mr.CallbackMemoryResource(
    lambda size, stream=None: library.trtalloc_allocate_async(pool, size, 256, 0, handle(stream)),
    lambda address, size, stream=None: library.trtalloc_deallocate_async(pool, address, handle(stream)),
)
rmm.mr.set_current_device_resource(resource)
data = bytes(range(256)) * 4096
buffer = rmm.DeviceBuffer.to_device(data)
assert buffer.tobytes() == data
assert trtalloc.stats(0)["allocated"] >= len(data)
del buffer
assert trtalloc.stats(0)["allocated"] == 0
print(len(data), "bytes went there and back")
"""

TENSORRT = """
import ctypes
import numpy, trtalloc
try:
    import tensorrt as trt
except ImportError:
    try:
        import tensorrt_rtx as trt
    except ImportError:
        import tensorrt_rtx_bindings as trt
logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network, config = builder.create_network(0), builder.create_builder_config()
tensor = network.add_input("input", trt.float32, (4, 8))
relu = network.add_activation(tensor, trt.ActivationType.RELU).get_output(0)
relu.name = "output"
network.mark_output(relu)
plan = builder.build_serialized_network(network, config)
runtime = trt.Runtime(logger)
trtalloc.attach(runtime, name="relu")
engine = runtime.deserialize_cuda_engine(plan)
context = engine.create_execution_context()
cuda = ctypes.CDLL("libcuda.so.1")
stream = ctypes.c_void_p()
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
given = numpy.linspace(-1, 1, 32, dtype=numpy.float32)
there, back = trtalloc.allocate(128, stream.value), trtalloc.allocate(128, stream.value)
assert cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(there.address), given.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(128)) == 0
context.set_tensor_address("input", there.address)
context.set_tensor_address("output", back.address)
assert context.execute_async_v3(stream.value)
assert cuda.cuStreamSynchronize(stream) == 0
got = numpy.zeros(32, dtype=numpy.float32)
assert cuda.cuMemcpyDtoH_v2(got.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(back.address), ctypes.c_size_t(128)) == 0
assert (got == numpy.maximum(given, 0)).all()
print(trt.__version__, trtalloc.tag_stats(0))
"""


def tensorrt():
    if not any(importlib.util.find_spec(name) for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")):
        raise rows.NotAsked("neither TensorRT nor TensorRT-RTX is installed")
    needs("numpy")
    return program(TENSORRT, 240)


def package_tests():
    needs("pytest")
    files = [str(PACKAGE / "tests" / f"test_{name}.py") for name in ("torch", "blocks", "cupy", "numba", "tensorrt")]
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files], 400)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
    return ("yes" if done.returncode == 0 else "no"), last[0]


def with_modules(text, *modules):
    def put():
        needs(*modules)
        return program(text)

    return put


def torch_graph():
    torch_gpu()
    return program(TORCH_GRAPH)


def main():
    rows.header()
    rows.ask("PyTorch: training and inference have the same results on the pool", torch_results)
    rows.ask("PyTorch: a CUDA graph on the pool replays", torch_graph)
    rows.ask("CuPy: takes blocks, and allocates from the pool", with_modules(CUPY, "cupy"))
    rows.ask("Numba: a kernel writes to a block", with_modules(NUMBA, "numba", "numpy"))
    rows.ask("RMM: buffers on the pool", with_modules(RMM, "rmm"))
    rows.ask("TensorRT: an engine runs on the pool", tensorrt)
    rows.ask("the Python package's own tests", package_tests)


if __name__ == "__main__":
    main()
