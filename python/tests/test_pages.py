"""The Python of the package's pages, each block as a program over the simulated device, with stand-ins for the frameworks. They
have what the blocks call, and check what they are given; the other tests have the real frameworks.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A source distribution has no docs.
PAGES = [ROOT / "README.md", *(ROOT.parent / f"docs/{page}.md" for page in ("python", "frameworks"))]
PAGES = [page for page in PAGES if page.is_file()]

STANDINS = '''
import sys, types

def module(name, **members):
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(members)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, made)
    return made

class Array:
    """Takes memory as a consumer does: the capsule, or a reference to the object."""

    def __init__(self, taken):
        self.taken = taken

def from_dlpack(block):
    assert block.__dlpack_device__() == (2, 0)
    return Array(block.__dlpack__(stream=stream.cuda_stream or 1))

def as_array(block):
    assert block.__cuda_array_interface__["version"] == 3
    return Array(block)

class Stream:
    cuda_stream = 0

stream = Stream()

class Pluggable:
    def __init__(self, path, malloc, free):
        import ctypes
        library = ctypes.CDLL(path)
        assert hasattr(library, malloc) and hasattr(library, free)
        self.inner = type("Inner", (), {"set_record_stream_fn": lambda self, address: None})()

    def allocator(self):
        return self.inner

cuda = dict(is_initialized=lambda: False, current_stream=lambda: stream, MemPool=lambda allocator: allocator)
module("torch", from_dlpack=from_dlpack, empty=lambda *_, **__: None, _C=types.SimpleNamespace())
module("torch.cuda", **cuda)
module("torch.cuda.memory", CUDAPluggableAllocator=Pluggable, change_current_allocator=lambda allocator: None)
import contextlib
sys.modules["torch.cuda"].use_mem_pool = lambda pool: contextlib.nullcontext()
module("cupy", from_dlpack=from_dlpack, asarray=as_array)
module("cupy.cuda", set_allocator=lambda malloc: None)
module("cupy.cuda.memory", CFunctionAllocator=lambda *_: types.SimpleNamespace(malloc=None))
module("numba")
module("numba.cuda", as_cuda_array=as_array)

def session(model, providers):
    assert len(providers[0][1]) == 3
    return providers

onnxruntime, model = module("onnxruntime", InferenceSession=session), object()

class IOutputAllocator:
    pass

class IGpuAllocator:
    pass

class ExecutionContextAllocationStrategy:
    USER_MANAGED = object()

trt = module(
    "tensorrt", IGpuAllocator=IGpuAllocator, IOutputAllocator=IOutputAllocator,
    ExecutionContextAllocationStrategy=ExecutionContextAllocationStrategy,
)

class Runtime:
    gpu_allocator = None

Runtime.__module__ = "tensorrt"
runtime = Runtime()

def named(name):
    return types.SimpleNamespace(name=name)

class Engine:
    device_memory_size_v2, streamable_weights_size, num_io_tensors = 3 << 20, 0, 2

    def create_execution_context(self, strategy):
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        return context

    def get_tensor_name(self, number):
        return ("image", "boxes")[number]

    def get_tensor_mode(self, name):
        return named("INPUT" if name == "image" else "OUTPUT")

    def get_tensor_dtype(self, name):
        return named("FLOAT")

class Context:
    engine, outputs, scratch = Engine(), {}, None

    def set_output_allocator(self, name, allocator):
        assert isinstance(allocator, IOutputAllocator)
        self.outputs[name] = allocator
        return True

    def update_device_memory_size_for_shapes(self):
        return 2 << 20

    def set_device_memory(self, memory, size):
        assert memory and size == 2 << 20
        self.scratch = memory

    def execute_async_v3(self, handle):
        assert self.scratch and list(self.outputs) == ["boxes"] and handle == 0
        assert self.outputs["boxes"].reallocate_output_async("boxes", None, 400, 256, handle)
        self.outputs["boxes"].notify_shape("boxes", (20, 5))

context, engine = Context(), Engine()
import torch, cupy, numba.cuda
'''


def blocks():
    for page in PAGES:
        found = re.finditer(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        for number, block in enumerate(found):
            yield pytest.param(block.group(1), id=f"{page.name}-{number}")


@pytest.mark.parametrize("block", blocks())
def test_the_block_runs(simulated, block):
    # fit() needs a pool that has been used on the device.
    used = "import trtalloc; trtalloc.allocate(1).close()\n"
    # Other bindings of TensorRT are there only for the block that imports them: one module is the current one.
    if "tensorrt_rtx" in block:
        used = 'module("tensorrt_rtx", Runtime=lambda logger: object(), Logger=object)\n' + used
    done = simulated(f"import warnings; warnings.simplefilter('ignore')\n{STANDINS}\n{used}{block}")
    assert done.stderr == "", done


def test_every_function_of_the_pages_exists(simulated):
    """The names in the first columns of tables, and those that are written as `trtalloc.name`."""
    names = set()
    for page in PAGES:
        text = page.read_text()
        names |= set(re.findall(r"`trtalloc\.(\w+(?:\.\w+)?)", text))
        table = text.partition("## The functions\n")[2].partition("\n## ")[0]
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
            names |= {name.lstrip(".") for name in re.findall(r"`([\w.]+)(?:\(.*?\))?`", row) if not name.startswith(("python", "._"))}
    assert {"allocate", "OutputAllocator", "use_for_torch"} <= names
    simulated(
        f"""
        import operator, sys, trtalloc, types
        # What MemoryResource needs, which need not be installed.
        core = types.ModuleType("cuda.core")
        core.MemoryResource, core.Device, core.Buffer = object, object, type("Buffer", (), {{"from_handle": lambda address: None}})
        sys.modules.setdefault("cuda", types.ModuleType("cuda"))
        sys.modules.setdefault("cuda.core", core)
        for name in {sorted(names)}:
            assert operator.attrgetter(name)(trtalloc) is not None, name
        assert set(trtalloc.__all__) <= set(dir(trtalloc))
        for name in trtalloc.__all__:
            member = getattr(trtalloc, name)
            assert not callable(member) or member.__doc__, name
            for part, function in vars(member).items() if isinstance(member, type) else ():
                public = not part.startswith("_") and (callable(function) or isinstance(function, property))
                assert not public or function.__doc__, (name, part)
        """
    )
