"""TensorRT's own bindings with the pool, as far as no GPU is needed. TensorRT-RTX creates its objects without one. The bindings
of a lean runtime have the allocator's classes, which these tests call as TensorRT's C++ code does.

TRTALLOC_TEST_TENSORRT lists the bindings to test, as JSON: [module, folders]. Without it, the installed bindings are tested.
"""

import importlib.util
import json
import os
import shutil

import pytest

NAMED = json.loads(os.environ.get("TRTALLOC_TEST_TENSORRT", "[]"))
BINDINGS = NAMED or [
    [name, ""]
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_lean", "tensorrt_dispatch")
    if importlib.util.find_spec(name)
]

pytestmark = pytest.mark.skipif(not BINDINGS, reason="no TensorRT")

# These create their objects without a GPU.
WHOLE = [binding for binding in BINDINGS if "rtx" in binding[0]]

CALLS = """
import ctypes, functools, importlib, threading
def slots(allocator):
    # After Python's own fields, pybind11's object has a pointer to the C++ object, which begins with its table of functions.
    this = ctypes.c_void_p.from_address(id(allocator) + object.__basicsize__).value
    table = ctypes.c_void_p.from_address(this).value
    def slot(number, result, *arguments):
        entry = ctypes.c_void_p.from_address(table + 8 * number).value
        function = ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)(entry)
        return lambda *given: function(this, *given)
    p, u64, u32, yes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_bool
    return {
        "allocate": slot(4, p, u64, u64, u32),
        "reallocate": slot(5, p, p, u64, u64),
        "deallocate": slot(6, yes, p),
        "allocateAsync": slot(7, p, u64, u64, u32, p),
        "deallocateAsync": slot(8, yes, p, p),
    }
"""


def _program(binding, text):
    return text.replace("MODULE", binding[0])


def _variables(binding, **more):
    return {"PYTHONPATH": binding[1], **more}


@pytest.mark.parametrize("binding", WHOLE)
def test_importing_trtalloc_first_attaches_runtimes(anything, binding):
    program = """
    import warnings; warnings.simplefilter("error")
    import trtalloc
    import MODULE as trt
    IF
    logger = trt.Logger(trt.Logger.ERROR)
    runtime, builder = trt.Runtime(logger), trt.Builder(logger)
    """
    for how, variables, expected in [
        ("", {}, True),
        ("trtalloc.inject(False)", {}, False),
        ("", {"TRTALLOC_INJECT": "0"}, False),
        ("", {"TRTALLOC_DISABLE": "1"}, False),
        ("trtalloc.inject()", {"TRTALLOC_INJECT": "0"}, True),
    ]:
        done = anything(
            _program(binding, program).replace("IF", how),
            **_variables(binding, TRTALLOC_DRIVER="sim", TRTALLOC_LOG="info", **variables),
        )
        assert done.returncode == 0, done
        lines = [line for line in done.stderr.splitlines() if "allocates through trtalloc" in line]
        assert [line.split(" of ")[0].split()[-1] for line in lines] == (["IRuntime", "IBuilder"] if expected else []), done


@pytest.mark.parametrize("binding", WHOLE)
def test_attach_accepts_existing_objects(simulated, binding):
    simulated(
        _program(
            binding,
            """
            import gc, sys, warnings
            import MODULE as trt
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                import trtalloc
            assert [warning.category for warning in said] == [RuntimeWarning] and "MODULE" in str(said[0].message), said
            logger = trt.Logger(trt.Logger.ERROR)
            runtime, builder = trt.Runtime(logger), trt.Builder(logger)
            before = sys.getrefcount(trtalloc.tensorrt_allocator(trt))
            allocator = trtalloc.attach(runtime)
            # There is one for all of TensorRT, and each object keeps it alive.
            assert trtalloc.attach(builder) is allocator is trtalloc.tensorrt_allocator(trt)
            assert isinstance(allocator, trt.IGpuAllocator)
            assert sys.getrefcount(allocator) == before + 3, sys.getrefcount(allocator)
            try:
                runtime.gpu_allocator
            except AttributeError:
                pass
            else:
                raise SystemExit("gpu_allocator can be read: the documentation should say so")
            # This is why the subclass calls the base's __init__ by name.
            class Without(trt.IGpuAllocator):
                def __init__(self):
                    pass
            try:
                runtime.gpu_allocator = Without()
            except TypeError:
                pass
            else:
                raise SystemExit("no error")
            network = builder.create_network(0)
            given = network.add_input("a", trt.float32, (4, 4))
            network.mark_output(network.add_elementwise(given, given, trt.ElementWiseOperation.SUM).get_output(0))
            config = builder.create_builder_config()
            config.num_compute_capabilities = 1
            config.set_compute_capability(trt.ComputeCapability.SM89, 0)
            plan = builder.build_serialized_network(network, config)
            assert plan.nbytes > 1000
            del network, config, builder, runtime
            gc.collect()
            memory = allocator.allocate(1 << 20, 256, 0)
            assert allocator.deallocate(memory) is True
            # An object of the program's own subclass, attached twice.
            class Mine(trt.Runtime):
                pass
            mine = Mine(logger)
            assert trtalloc.attach(mine) is trtalloc.attach(mine) is allocator
            class Alike:
                gpu_allocator = None
            for wrong in (Alike(), trt.Runtime):
                try:
                    trtalloc.attach(wrong)
                except TypeError:
                    continue
                raise SystemExit("no error")
            for wrong in (logger, object(), 5, None):
                try:
                    trtalloc.attach(wrong)
                except TypeError as error:
                    assert "Runtime" in str(error)
                else:
                    raise SystemExit("no error")
            try:
                trtalloc.tensorrt_allocator(sys)
            except TypeError as error:
                assert "sys has no IGpuAllocator" in str(error)
            else:
                raise SystemExit("no error")
            """,
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", BINDINGS)
def test_the_allocator_follows_the_documented_interface(simulated, binding):
    """Calls the methods as documented: both argument orders of the asynchronous call, and the names of both generations."""
    simulated(
        _program(
            binding,
            """
            import trtalloc
            import MODULE as trt
            pool = trtalloc.tensorrt_allocator(trt)
            resizable = 1 << int(trt.AllocatorFlag.RESIZABLE)
            assert pool.allocate(0, 0, 0) is None
            assert pool.allocate(1 << 50, 0, 0) is None
            assert pool.allocate(512, 3, 0) is None
            memory = pool.allocate(1000, 256, resizable)
            assert isinstance(memory, int) and memory % 256 == 0
            grown = pool.reallocate(memory, 256, 8 << 20)
            assert grown and trtalloc.stats()["bytes_copied"] == 0
            assert pool.reallocate(grown, 256, 1 << 50) is None
            assert pool.free(grown) is None and trtalloc.stats()["allocated"] == 0
            assert pool.deallocate(None) is True and pool.deallocate_async(None, 0) is True
            assert pool.deallocate(grown) is False and pool.deallocate_async(0x1000, 0) is False
            for arguments in [(0, 0), (resizable, 0), (0, 1), (1, resizable)]:
                memory = pool.allocate_async(4096, 256, *arguments)
                assert memory and pool.deallocate_async(memory, 0), arguments
            memory = pool.allocate_async(4096, alignment=256, stream=0, flags=resizable)
            assert pool.reallocate(memory, 0, 8192) and pool.deallocate_async(memory, 0)
            assert trtalloc.stats()["allocated"] == 0 and trtalloc.stats()["reallocations"] == 2
            """,
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", BINDINGS)
def test_cpp_calls_reach_the_pool(simulated, binding):
    """Calls through the table of functions that the bindings pass to TensorRT; also from four threads at once."""
    simulated(
        CALLS
        + _program(
            binding,
            """
import trtalloc
import MODULE as trt
call = slots(trtalloc.tensorrt_allocator(trt))
assert call["allocate"](0, 0, 0) is None and call["allocate"](1 << 50, 256, 0) is None
memory = call["allocate"](1000, 256, 1)
grown = call["reallocate"](memory, 256, 80 << 20)
assert grown and call["reallocate"](grown, 256, 1 << 50) is None
assert call["deallocate"](grown) and call["deallocate"](None) and not call["deallocate"](grown)
memory = call["allocateAsync"](4096, 256, 1, None)
again = call["reallocate"](memory, 256, 8192)
assert again and call["deallocateAsync"](again, None)

def work():
    for size in range(512, 100_000, 512):
        memory = call["allocateAsync"](size, 256, 0, None)
        assert memory and call["deallocateAsync"](memory, None)
        done.append(1)

done = []
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(done) == 4 * 195 and trtalloc.stats()["allocated"] == 0

# The stream and the flags are distinguished in either order in which the bindings pass them.
class Spy:
    asked = []

    def __getattr__(self, name):
        return lambda *given: self.asked.append((name, *given[1:])) or 0x5000

from trtalloc import _tensorrt
spy = Spy()
requests = [functools.partial(of, None) for of in (spy.trtalloc_allocate, spy.trtalloc_allocate_async)]
pool = _tensorrt._subclass(_tensorrt._base(trt), spy, None, *requests)()
call = slots(pool)
assert call["allocateAsync"](100, 256, 1, 0x7000) == 0x5000
assert call["allocateAsync"](100, 256, 0, 0x7000) == 0x5000
call["allocateAsync"](100, 256, 1, None)
call["deallocateAsync"](0x5000, 0x7000)
asynchronous = "trtalloc_allocate_async"
assert spy.asked == [
    (asynchronous, 100, 256, 1, 0x7000),
    (asynchronous, 100, 256, 0, 0x7000),
    (asynchronous, 100, 256, 1, 0),
    ("trtalloc_deallocate_async", 0x5000, 0x7000),
], spy.asked
""",
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", BINDINGS)
def test_blocks_count_for_the_name(simulated, binding):
    """As TensorRT's C++ code calls it, from a thread with a tag of its own."""
    simulated(
        CALLS
        + _program(
            binding,
            """
import trtalloc
import MODULE as trt
one, other = (trtalloc.tensorrt_allocator(trt, name) for name in ("one", "other"))
plain = trtalloc.tensorrt_allocator(trt)
assert len({id(one), id(other), id(plain)}) == 3
assert one is trtalloc.tensorrt_allocator(trt, name="one")
assert plain is trtalloc.tensorrt_allocator(trt, None) is trtalloc.tensorrt_allocator(trt, "")
with trtalloc.tag("thread"):
    blocks = [
        slots(one)["allocate"](1 << 20, 256, 1),
        slots(other)["allocateAsync"](2 << 20, 256, 0, None),
        slots(plain)["allocate"](4 << 20, 256, 0),
    ]
blocks[0] = slots(plain)["reallocate"](blocks[0], 256, 3 << 20)
assert all(blocks)
held = {name: figures["allocated"] for name, figures in trtalloc.tag_stats().items()}
assert held == {"one": 3 << 20, "other": 2 << 20, "thread": 4 << 20}, held
assert 'tag="other"} 2097152' in trtalloc.metrics()
trtalloc.set_tag_limit("other", 3 << 20)
assert slots(other)["allocate"](2 << 20, 256, 0) is None and slots(one)["deallocate"](blocks[1])
assert slots(plain)["deallocate"](blocks[0]) and slots(other)["deallocateAsync"](blocks[2], None)
assert all(figures["allocated"] == 0 for figures in trtalloc.tag_stats().values())
assert trtalloc.tag_stats()["other"]["out_of_memory"] == 1
quoted = trtalloc.tensorrt_allocator(trt, 'say "hi"' + chr(0xD800))
block = slots(quoted)["allocate"](1 << 20, 256, 0)
assert trtalloc.tag_stats()['say "hi"?']["allocated"] == 1 << 20
assert slots(quoted)["deallocate"](block)
""",
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", WHOLE)
def test_attach_gives_a_runtime_a_name(simulated, binding):
    simulated(
        _program(
            binding,
            """
            import warnings; warnings.simplefilter("ignore")
            import trtalloc
            import MODULE as trt
            runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
            allocator = trtalloc.attach(runtime, name="resnet")
            assert allocator is trtalloc.tensorrt_allocator(trt, "resnet")
            memory = allocator.allocate(1 << 20, 256, 0)
            assert trtalloc.tag_stats()["resnet"]["allocated"] == 1 << 20
            for _ in range(1000):
                assert trtalloc.attach(trt.Runtime(trt.Logger(trt.Logger.ERROR)), "resnet") is allocator
            assert allocator.deallocate(memory)
            """,
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", WHOLE)
def test_runtimes_with_names_take_no_more_memory(simulated, binding):
    """A server that loads and unloads models; a million with TRTALLOC_TEST_RUNTIMES=1000000."""
    simulated(
        _program(
            binding,
            f"""
            COUNT = {int(os.environ.get("TRTALLOC_TEST_RUNTIMES", 20000))}
            """
            """
            import warnings; warnings.simplefilter("ignore")
            import trtalloc
            import MODULE as trt

            def resident():
                with open("/proc/self/statm") as figures:
                    return int(figures.read().split()[1]) * 4096

            logger = trt.Logger(trt.Logger.ERROR)
            for number in range(COUNT):
                if number == COUNT // 10:
                    before = resident()
                allocator = trtalloc.attach(trt.Runtime(logger), name="model " + str(number % 20))
                assert allocator.deallocate(allocator.allocate(1 << 20, 256, 0))
            grown = resident() - before
            assert grown < 1 << 20, grown
            figures = trtalloc.tag_stats()
            assert len(figures) == 20 and sum(each["frees"] for each in figures.values()) == COUNT
            """,
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", WHOLE)
def test_objects_left_at_exit_do_no_harm(simulated, binding):
    """Objects in modules, in cycles and in running threads when the interpreter ends; and threads that attach at once."""
    done = simulated(
        _program(
            binding,
            """
            import sys, threading, types
            import trtalloc
            import MODULE as trt
            logger = trt.Logger(trt.Logger.ERROR)
            seen = set()

            def attach():
                barrier.wait()
                runtime = trt.Runtime(logger)
                seen.add(id(trtalloc.attach(runtime)))
                kept.append(runtime)

            kept, barrier = [], threading.Barrier(4)
            threads = [threading.Thread(target=attach) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            assert len(seen) == 1
            cycle = [trt.Runtime(logger)]
            cycle.append(cycle)
            trtalloc.attach(cycle[0])
            sys.modules["late"] = types.ModuleType("late")
            sys.modules["late"].builder = trt.Builder(logger)
            trtalloc.attach(sys.modules["late"].builder)
            del cycle
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            del trtalloc
            print("done")
            """,
        ),
        **_variables(binding),
    )
    assert done.stdout == "done\n" and done.stderr == "", done


@pytest.mark.parametrize("binding", BINDINGS[:1])
def test_a_preloaded_library_is_used(anything, binding, tmp_path):
    path = anything("import trtalloc; print(trtalloc.library_path)").stdout.strip()
    other = shutil.copy(path, tmp_path / "libtrtalloc.so")
    done = anything("import trtalloc; print(trtalloc.library_path)", LD_PRELOAD=str(other))
    assert done.returncode == 0 and done.stdout.strip() == str(other), done


@pytest.mark.parametrize("binding", BINDINGS)
def test_engines_say_what_fit_reads(simulated, binding):
    """An engine cannot be deserialized without a GPU. Its class has the properties."""
    simulated(
        _program(
            binding,
            """
            import MODULE as trt
            for name in ("device_memory_size_v2", "streamable_weights_size", "weight_streaming_budget_v2"):
                assert isinstance(vars(trt.ICudaEngine)[name], property), name
            assert vars(trt.ICudaEngine)["weight_streaming_budget_v2"].fset
            """,
        ),
        **_variables(binding),
    )


OUTPUTS = """
import ctypes, gc, sys, threading
import trtalloc
import MODULE as trt

class Dims(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int32), ("extents", ctypes.c_int64 * 8)]

def calls(outputs):
    # The pointer to the C++ object, whose first word is its table of functions, follows Python's own fields.
    this = ctypes.c_void_p.from_address(id(outputs) + object.__basicsize__).value
    table = ctypes.c_void_p.from_address(this).value
    # TensorRT-RTX has no reallocateOutput.
    first = 4 if "rtx" in trt.__name__ else 5
    def slot(number, result, *arguments):
        entry = ctypes.c_void_p.from_address(table + 8 * number).value
        function = ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_char_p, *arguments)(entry)
        return lambda *given: function(this, *given)
    p, u64 = ctypes.c_void_p, ctypes.c_uint64
    return (
        slot(first, p, p, u64, u64, p),
        slot(first + 1, None, ctypes.POINTER(Dims)),
        slot(4, p, p, u64, u64) if first == 5 else None,
    )

def held():
    gc.collect()
    return trtalloc.stats(0)["allocated"]

def missing(name):
    try:
        outputs.get(name)
    except KeyError:
        return True
"""


@pytest.mark.parametrize("binding", BINDINGS)
def test_outputs_grow_and_are_taken(simulated, binding):
    """As TensorRT's C++ code calls it: through the table of functions that the bindings pass on."""
    simulated(
        _program(
            binding,
            OUTPUTS
            + """
outputs = trtalloc.OutputAllocator(trt)
assert isinstance(outputs, trt.IOutputAllocator) and isinstance(outputs, trtalloc.OutputAllocator)
reallocate, notify, synchronous = calls(outputs)
assert missing(b"boxes")
address = reallocate(b"boxes", None, 1000, 256, None)
notify(b"boxes", Dims(2, (10, 25)))
assert outputs.get("boxes") == (address, 1000, 1024, (10, 25))
# It has room for this one.
assert reallocate(b"boxes", address, 1024, 256, None) == address and outputs.get("boxes").bytes == 1024
# A large one grows in place.
large = reallocate(b"boxes", address, 3 << 20, 256, None)
assert large and reallocate(b"boxes", large, 30 << 20, 256, None) == large
assert trtalloc.stats(0)["bytes_copied"] == 0 and held() == 30 << 20
assert reallocate(b"boxes", large, 100, 256, None) == large
# Another output, and a stream that the memory was not allocated for.
scores = reallocate(b"scores", None, 4096, 256, None)
assert reallocate(b"scores", scores, 4096, 256, 2) != scores
assert outputs.get("scores").address != scores and outputs.get("boxes").address == large
# What does not fit ends the execution, and the output keeps its memory.
assert not reallocate(b"boxes", large, 1 << 60, 256, None)
assert outputs.get("boxes").address == large
# The caller has it, and TensorRT gets other memory.
notify(b"boxes", Dims(2, (5, 5)))
boxes = outputs.take("boxes", trt.float32)
assert (boxes.shape, boxes.dtype, boxes.address, boxes.stream) == ((5, 5), "float32", large, 0)
assert missing("boxes")
again = reallocate(b"boxes", large, 100, 256, None)
assert again and again != large
capsule = boxes.__dlpack__(stream=2)
del boxes
assert held() > 30 << 20
del capsule
assert held() == 4096 + 512
block = outputs.take("scores")
assert (block.shape, block.dtype, block.stream) == ((4096,), "uint8", 2)
# An empty tensor has bytes, and a shape of none.
notify(b"boxes", Dims(2, (0, 4)))
assert outputs.take("boxes", "float32").shape == (0, 4)
reallocate(b"boxes", None, 512, 256, None)
notify(b"boxes", Dims(1, (1 << 40,)))
try:
    outputs.take("boxes", "float32")
except ValueError as error:
    assert "more than 512" in str(error)
assert outputs.get("boxes").bytes == 512
outputs.release("boxes")
assert missing("boxes")
if synchronous:
    memory = synchronous(b"boxes", None, 100, 256)
    assert memory and outputs.take("boxes").stream is None
del block
outputs.close()
assert held() == 0 and not reallocate(b"boxes", None, 100, 256, None)
other = trtalloc.OutputAllocator()
assert isinstance(other, trt.IOutputAllocator) and type(other) is type(outputs)
calls(other)[0](b"boxes", None, 100, 256, None)
assert held() == 512
del other
assert held() == 0
"""
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", BINDINGS)
def test_outputs_are_safe_from_several_threads(simulated, binding):
    simulated(
        _program(
            binding,
            OUTPUTS
            + """
outputs = trtalloc.OutputAllocator(trt)
reallocate, notify, _ = calls(outputs)
done = []

def execute(name):
    for size in range(512, 200_000, 1024):
        assert reallocate(name, None, size, 256, None)
        notify(name, Dims(1, (size // 4,)))
        with outputs.take(name.decode(), "float32") as block:
            assert block.size == size
    done.append(1)

threads = [threading.Thread(target=execute, args=(name,)) for name in (b"a", b"b", b"c")]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(done) == 3 and held() == 0
"""
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", BINDINGS)
def test_outputs_exist_as_long_as_their_context(simulated, binding):
    """An engine cannot be deserialized without a GPU, so this is a stand-in of the context's methods that are called."""
    simulated(
        _program(
            binding,
            OUTPUTS
            + """
class Mode:
    def __init__(self, name):
        self.name = name

class Engine:
    tensors = {"image": Mode("INPUT"), "boxes": Mode("OUTPUT"), "scores": Mode("OUTPUT")}
    num_io_tensors = 3

    def get_tensor_name(self, number):
        return list(self.tensors)[number]

    def get_tensor_mode(self, name):
        return self.tensors[name]

class Context:
    engine = Engine()

    def __init__(self):
        self.set = []

    def set_output_allocator(self, name, allocator):
        assert isinstance(allocator, trt.IOutputAllocator)
        self.set.append(name)
        return name in self.engine.tensors

context = Context()
outputs = trtalloc.OutputAllocator(trt)
outputs.attach(context)
assert context.set == ["boxes", "scores"]
outputs.attach(context, ["boxes"])
try:
    outputs.attach(context, ["masks"])
except ValueError as error:
    assert "masks" in str(error)
else:
    raise SystemExit("no error")
reallocate = calls(outputs)[0]
reallocate(b"boxes", None, 100, 256, None)
del outputs
assert held() == 512 and reallocate(b"boxes", None, 100, 256, None)
del context
assert held() == 0
# The real classes have what is called.
for name in ("set_output_allocator", "update_device_memory_size_for_shapes", "set_device_memory", "engine"):
    assert hasattr(trt.IExecutionContext, name), name
for name in ("num_io_tensors", "get_tensor_name", "get_tensor_mode"):
    assert hasattr(trt.ICudaEngine, name), name
assert trt.TensorIOMode.OUTPUT.name == "OUTPUT" and trt.ExecutionContextAllocationStrategy.USER_MANAGED

try:
    trtalloc.OutputAllocator(sys)
except TypeError as error:
    assert "sys has no IOutputAllocator" in str(error)
else:
    raise SystemExit("no error")
# The data types that an output may have.
sizes = {"FLOAT": 4, "HALF": 2, "BF16": 2, "INT8": 1, "INT32": 4, "INT64": 8, "BOOL": 1, "UINT8": 1}
block = trtalloc.allocate(1000)
for name, size in sizes.items():
    assert block.view(10, getattr(trt.DataType, name)).size == 10 * size, name
"""
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", BINDINGS)
def test_outputs_that_do_not_exist_and_a_second_close(simulated, binding):
    simulated(
        _program(
            binding,
            OUTPUTS
            + """
outputs = trtalloc.OutputAllocator(trt)
reallocate, notify, _ = calls(outputs)
assert reallocate(b"boxes", None, 1000, 256, None)
# An output of that name was not requested: it has no memory to take, and none to free.
for call in (outputs.get, outputs.take, lambda name: outputs.take(name, "float32")):
    try:
        call("masks")
    except KeyError as error:
        assert "masks" in str(error)
    else:
        raise SystemExit("no error")
outputs.release("masks")
# A shape alone is no memory.
notify(b"masks", Dims(1, (4,)))
assert missing("masks")
outputs.release("masks")
assert outputs.get("boxes").bytes == 1000 and held() == 1024
# What TensorRT never requests, and what there cannot be.
assert not reallocate(b"masks", None, 0, 256, None) and missing("masks")
assert outputs.reallocate_output_async("masks", 0, 1 << 60, 256, 0) == 0 and missing("masks")
# An address for any alignment: of two neighbours, one has another address than before.
other = reallocate(b"other", None, 1000, 256, None)
for name in (b"boxes", b"other"):
    assert reallocate(name, None, 1000, 1 << 20, None) % (1 << 20) == 0
# The application may have used an address on any stream, so its end waits for all of them, and not only for the output's own.
waits = trtalloc.stats(0)["pending"]
assert waits > 0, "what was replaced"
outputs.release("other")
assert trtalloc.stats(0)["pending"] > waits
# What was taken is not the allocator's to free.
boxes = outputs.take("boxes")
outputs.release("boxes")
assert reallocate(b"other", None, 1000, 256, None)
waits = trtalloc.stats(0)["pending"]
outputs.close()
assert trtalloc.stats(0)["pending"] > waits
outputs.close()
outputs.release()
outputs.release("boxes")
assert held() == 1024 and missing("boxes")
notify(b"boxes", Dims(1, (4,)))
requests = trtalloc.stats(0)["allocations"]
assert not reallocate(b"boxes", None, 1000, 256, None) and missing("boxes")
assert trtalloc.stats(0)["allocations"] == requests and not outputs._tensors
del boxes
assert held() == 0
"""
        ),
        **_variables(binding),
    )


@pytest.mark.parametrize("binding", BINDINGS)
def test_outputs_are_released_beside_a_request_that_waits(simulated, binding):
    """The pool waits for other threads to free blocks (`retry_ms`), for much longer than the test's patience."""
    simulated(
        _program(
            binding,
            OUTPUTS
            + """
import time
MIB = 1 << 20
outputs = trtalloc.OutputAllocator(trt)
reallocate = calls(outputs)[0]

class Request(threading.Thread):
    def __init__(self, *arguments):
        super().__init__(daemon=True)
        self.arguments, self.began = arguments, time.monotonic()
        self.start()
        self.join(0.3)
        assert self.is_alive(), "the request waits"

    def run(self):
        self.result = reallocate(*self.arguments)

    def done(self):
        self.join(5)
        assert not self.is_alive() and time.monotonic() - self.began < 10, "the request waited for nothing"
        return self.result

# Another output's memory is what the request waits for.
assert reallocate(b"first", None, 40 * MIB, 256, None)
request = Request(b"second", None, 36 * MIB, 256, None)
assert outputs.get("first").bytes == 40 * MIB and missing("second")
outputs.release("first")
address = request.done()
assert address and outputs.get("second") == (address, 36 * MIB, 36 * MIB, ()) and missing("first")

# A release of all outputs, beside one that grows. What TensorRT requests meanwhile is not freed.
assert reallocate(b"first", None, 8 * MIB, 256, None)
request = Request(b"second", None, 58 * MIB, 256, None)
outputs.release()
address = request.done()
assert address and outputs.get("second").address == address and missing("first")
assert held() == 58 * MIB

# No other thread has what grows. If it was released meanwhile and does not grow, it is freed.
assert reallocate(b"first", None, 4 * MIB, 256, None)
request = Request(b"second", None, 61 * MIB, 256, None)
assert missing("second")
outputs.release("first")
assert request.done() == address and held() == 61 * MIB == outputs.get("second").bytes

# What an output had before is freed while a request for it on another stream waits.
outputs.release()
assert reallocate(b"second", None, 40 * MIB, 256, None)
request = Request(b"second", None, 36 * MIB, 256, 2)
assert outputs.get("second").bytes == 40 * MIB
outputs.release("second")
assert request.done() and held() == 36 * MIB == outputs.get("second").bytes

# After a close, the request that waits gets nothing, and leaves nothing.
outputs.release()
assert reallocate(b"first", None, 40 * MIB, 256, None)
request = Request(b"second", None, 36 * MIB, 256, None)
outputs.close()
assert not request.done() and held() == 0 and missing("first") and missing("second")
"""
        ),
        **_variables(binding, TRTALLOC_LIMIT="64MiB", TRTALLOC_RETRY_MS="60000"),
    )


@pytest.mark.parametrize("binding", BINDINGS)
def test_an_output_that_cannot_grow_keeps_its_memory_unless_it_was_released(simulated, binding):
    simulated(
        _program(
            binding,
            OUTPUTS
            + """
import time
MIB = 1 << 20
outputs = trtalloc.OutputAllocator(trt)
reallocate = calls(outputs)[0]
kept = trtalloc.allocate(40 * MIB)
address = reallocate(b"boxes", None, 8 * MIB, 256, None)
assert not reallocate(b"boxes", None, 30 * MIB, 256, None)
assert outputs.get("boxes") == (address, 8 * MIB, 8 * MIB, ())
# TensorRT's request fails, and the release that came while it waited holds, as any other: for work on every stream.
owner = outputs._tensors["boxes"].owner
request = threading.Thread(target=reallocate, args=(b"boxes", None, 30 * MIB, 256, None))
request.start()
while outputs._tensors["boxes"].owner is not None:
    time.sleep(0.001)
outputs.release("boxes")
request.join()
assert missing("boxes") and not owner.ordered
del owner
assert held() == 40 * MIB
"""
        ),
        **_variables(binding, TRTALLOC_LIMIT="64MiB", TRTALLOC_RETRY_MS="300"),
    )
