"""The package over the simulated device."""

import os
import shutil
import subprocess
import sys

import pytest


def test_statistics_and_limits(simulated):
    simulated(
        """
        import trtalloc
        zeroes = trtalloc.stats(0)
        assert set(zeroes.values()) == {0} and list(zeroes)[:2] == ["allocated", "allocated_peak"]
        from trtalloc import _library
        library, pool = _library.library, _library.default()
        memory = library.trtalloc_allocate(pool, 10_000_000, 0, 0)
        assert memory
        now = trtalloc.stats()
        assert now["requested"] == 10_000_000 <= now["allocated"] <= now["reserved"]
        assert library.trtalloc_deallocate(pool, memory)
        assert trtalloc.stats()["allocated"] == 0 and trtalloc.stats()["allocated_peak"] == now["allocated"]
        trtalloc.reset_peaks()
        assert trtalloc.stats()["allocated_peak"] == 0
        assert trtalloc.trim() == now["reserved"] and trtalloc.stats()["reserved"] == 0
        trtalloc.set_limit(1 << 20)
        assert trtalloc.stats()["limit"] == 1 << 20
        assert not library.trtalloc_allocate(pool, 10_000_000, 0, 0)
        assert trtalloc.Error.NAMES[library.trtalloc_last_status()] == "OUT_OF_MEMORY"
        """
    )


def test_bytes_are_whole_numbers_from_0_on(simulated):
    simulated(
        """
        import trtalloc
        trtalloc.set_limit(1 << 30)
        set_limit, trim = trtalloc.set_limit, lambda keep: trtalloc.trim(keep_bytes=keep)
        for call in (set_limit, trim, lambda limit: trtalloc.set_tag_limit("a", limit)):
            for value, kind in ((-1, ValueError), (1 << 64, ValueError), ("4GiB", TypeError), (1.5, TypeError)):
                try:
                    call(value)
                except kind as error:
                    assert repr(value) in str(error), error
                else:
                    raise SystemExit(f"no error for {value!r}")
        assert trtalloc.stats()["limit"] == 1 << 30
        trtalloc.set_limit((1 << 64) - 1)
        """
    )


def test_fit_compares_an_engine_with_the_pool(simulated):
    """With what stands in for an engine of TensorRT 10.1 and later, of 10.0, and of 8 and 9."""
    simulated(
        """
        import trtalloc
        from trtalloc import _library
        library, pool = _library.library, _library.default()
        MIB = 1 << 20

        class Old:
            device_memory_size = 100 * MIB

        class Early(Old):
            streamable_weights_size = 1

        class Unstreamed:
            device_memory_size_v2 = 100 * MIB
            streamable_weights_size = 0

            @property
            def weight_streaming_budget_v2(self):
                raise AssertionError("there is none")

        class Engine:
            def __init__(self, weights):
                self.streamable_weights_size, self.held = weights, None
                self.weight_streaming_budget_v2 = weights

            @property
            def device_memory_size_v2(self):
                return 100 * MIB + (16 * MIB if self.budget < self.streamable_weights_size else 0)

            @property
            def weight_streaming_budget_v2(self):
                return self.budget

            @weight_streaming_budget_v2.setter
            def weight_streaming_budget_v2(self, budget):
                assert library.trtalloc_deallocate(pool, self.held)
                self.budget, self.held = budget, library.trtalloc_allocate(pool, budget, 0, 0) if budget else None
                assert self.held or not budget

        def wrong(error, call):
            try:
                call()
            except error as raised:
                return raised
            raise AssertionError(error)

        assert wrong(trtalloc.Error, lambda: trtalloc.fit(Old())).name == "UNSUPPORTED"
        library.trtalloc_deallocate(pool, library.trtalloc_allocate(pool, 1, 0, 0))
        wrong(TypeError, lambda: trtalloc.fit(object()))
        wrong(ValueError, lambda: trtalloc.fit(Old(), -1))
        assert wrong(trtalloc.Error, lambda: trtalloc.fit(Old(), device=77)).name == "INVALID_ARGUMENT"

        fit = trtalloc.fit(Old(), 6)
        assert fit == (100 * MIB, 600 * MIB, 600 * MIB, 0, 0, False) and fit.fits and fit.missing == 0
        fit = trtalloc.fit(Old(), contexts=7)
        assert not fit.fits and fit.missing == 100 * MIB and fit.weight_streaming_budget is None
        for other in (Early(), Unstreamed()):
            assert trtalloc.fit(other) == (100 * MIB, 100 * MIB, 600 * MIB, 0, 0, False)

        # A name with a limit of its own: the lower of the two counts.
        with trtalloc.tag("model"):
            held = library.trtalloc_allocate(pool, 100 * MIB, 0, 0)
        trtalloc.set_tag_limit("model", 350 * MIB)
        fit = trtalloc.fit(Old(), 2, name="model")
        assert fit == (100 * MIB, 200 * MIB, 250 * MIB, 0, 0, True) and fit.fits
        assert trtalloc.fit(Old(), 3, name="model").missing == 50 * MIB
        for other in (None, "other", ""):
            fit = trtalloc.fit(Old(), 3, name=other)
            assert fit.fits and fit.available == 500 * MIB and not fit.limited_by_name
        trtalloc.set_tag_limit("model", 900 * MIB)
        assert not trtalloc.fit(Old(), 6, name="model").limited_by_name
        trtalloc.set_tag_limit("model", MIB)
        fit = trtalloc.fit(Old(), 1, name="model")
        assert fit.limited_by_name and fit.available == 0
        assert library.trtalloc_deallocate(pool, held)

        engine = Engine(400 * MIB)
        fit = trtalloc.fit(engine, 2)
        assert fit == (100 * MIB, 200 * MIB, 200 * MIB, 400 * MIB, 400 * MIB, False)
        assert fit.fits and fit.weight_streaming_budget == 400 * MIB
        fit, looks = trtalloc.fit(engine, 3), 0
        while not fit.fits and fit.weight_streaming_budget is not None:
            engine.weight_streaming_budget_v2 = fit.weight_streaming_budget
            fit, looks = trtalloc.fit(engine, 3), looks + 1
        assert (looks, fit.fits, engine.budget) == (2, True, 252 * MIB), (looks, fit)
        fit = trtalloc.fit(engine, 6)
        assert not fit.fits and fit.weight_streaming_budget is None
        """,
        TRTALLOC_LIMIT="600MiB",
    )


# With what stands in for a context of TensorRT 10.1 and later.
SCRATCH = """
import threading
import trtalloc

class Engine:
    device_memory_size_v2 = 100 << 20

class Context:
    engine = Engine()

    def __init__(self, needs):
        self.needs = needs

    def update_device_memory_size_for_shapes(self):
        return self.needs

    def set_device_memory(self, memory, size):
        self.has = memory, size

def held():
    return trtalloc.stats(0)["allocated"]

def wrong(error, call):
    try:
        call()
    except error as raised:
        return str(raised)
    raise AssertionError(error)

def lend(*arguments):
    with scratch.lend(*arguments):
        pass
"""


def test_contexts_share_scratch_memory(simulated):
    simulated(
        SCRATCH
        + """
MIB = 1 << 20
scratch = trtalloc.SharedScratch()
small, large = Context(3 * MIB), Context(10 * MIB)
assert scratch.size == 0 and scratch.address() is None
lend(small, 0)
first = small.has
assert first == (scratch.address(), 3 * MIB) and scratch.address() % 256 == 0
# It grows to the largest, and in place.
lend(large, 1)
assert large.has == (first[0], 10 * MIB) and scratch.size == held() == 10 * MIB
lend(small, 0)
assert small.has == (first[0], 10 * MIB) and held() == 10 * MIB
# Another stream would run at the same time.
assert "another stream" in wrong(ValueError, lambda: lend(large, 2))
scratch.ordered()
lend(large, 2)
assert "another stream" in wrong(ValueError, lambda: lend(large, 0))
wrong(TypeError, lambda: lend(large, None))
with scratch.lend(large, 2):
    assert "this thread" in wrong(ValueError, lambda: lend(small, 2))
# A context whose shapes are not set, and one that needs nothing.
small.needs = 0
assert "shapes" in wrong(ValueError, lambda: lend(small, 2))
small.engine = type("Engine", (), {"device_memory_size_v2": 0})
lend(small, 2)
assert small.has == (first[0], 10 * MIB)
# What does not fit leaves the context as it was.
trtalloc.set_limit(64 * MIB)
before, large.needs = large.has, 1 << 40
try:
    lend(large, 2)
except trtalloc.Error as error:
    assert error.name == "OUT_OF_MEMORY"
else:
    raise SystemExit("no error")
assert large.has == before and held() == 10 * MIB
scratch.close()
assert held() == 0 and "closed" in wrong(ValueError, lambda: lend(large, 2))

# TensorRT 10.0 and earlier.
class Old:
    engine = type("Engine", (), {"device_memory_size": 5 * MIB})

with trtalloc.SharedScratch() as scratch:
    old = Old()
    lend(old, 0)
    assert old.device_memory == scratch.address() and held() == 5 * MIB
assert held() == 0
"""
    )


def test_scratch_memory_is_leased_to_one_thread_at_a_time(simulated):
    simulated(
        SCRATCH
        + """
scratch, inside, most = trtalloc.SharedScratch(), [], []
context = [Context(size << 20) for size in (1, 2, 3, 4)]

def work(mine):
    for _ in range(200):
        with scratch.lend(mine, 0):
            inside.append(1)
            most.append(len(inside))
            assert mine.has == (scratch.address(), scratch.size) and scratch.size >= mine.needs
            inside.pop()

threads = [threading.Thread(target=work, args=(each,)) for each in context]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(most) == 800 and set(most) == {1}
# With a block for each stream, leases on two of them exist at once.
scratch = trtalloc.SharedScratch(per_stream=True)
with scratch.lend(context[0], 0):
    with scratch.lend(context[1], 2):
        assert scratch.address(1) == context[0].has[0] != context[1].has[0] == scratch.address(2)
        assert scratch.size == 3 << 20
        wrong(ValueError, lambda: lend(context[2], 2))
    taken = threading.Thread(target=lend, args=(context[2], 1))
    taken.start()
    taken.join(0.2)
    assert taken.is_alive()
taken.join()
assert context[2].has[1] == 3 << 20 and scratch.size == 5 << 20
scratch.release(2)
assert scratch.size == 3 << 20 and scratch.address(2) is None
"""
    )


def test_the_default_stream_of_a_thread_is_another_one_in_each_thread(simulated):
    simulated(
        SCRATCH
        + """
MIB = 1 << 20
here, there = Context(1 * MIB), Context(2 * MIB)

def in_a_thread(call):
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]

scratch = trtalloc.SharedScratch()
lend(here, 2)
lend(here, 2)
assert "another stream" in in_a_thread(lambda: wrong(ValueError, lambda: lend(there, 2)))
scratch.ordered()
in_a_thread(lambda: lend(there, 2))
assert "another stream" in wrong(ValueError, lambda: lend(here, 2))

# Each has a block of its own, and both may be lent at once.
scratch = trtalloc.SharedScratch(per_stream=True)
with scratch.lend(here, 2):
    in_a_thread(lambda: lend(there, 2))
    assert here.has[0] != there.has[0] and scratch.size == 3 * MIB
assert scratch.address(2) == here.has[0]
scratch.release(2)
assert scratch.size == 2 * MIB
scratch.close()
assert held() == 0
"""
    )


def test_scratch_memory_is_released_while_it_is_lent(simulated):
    """What is lent stays until the lease ends, and a stream has one lease, also where its memory was released meanwhile."""
    simulated(
        SCRATCH
        + """
MIB = 1 << 20
small, large = Context(1 * MIB), Context(2 * MIB)

for release in (lambda: scratch.release(7), lambda: scratch.close()):
    scratch = trtalloc.SharedScratch(per_stream=True)
    results = []

    def wait(context):
        try:
            with scratch.lend(context, 7):
                results.append((inside, context.has, scratch.size))
        except ValueError as error:
            results.append(str(error))

    inside = True
    with scratch.lend(small, 7):
        lent = small.has
        waits = threading.Thread(target=wait, args=(large,))
        waits.start()
        waits.join(0.2)
        release()
        release()
        assert scratch.address(7) == lent[0] and scratch.size == held() == MIB
        # A thread that comes after the release waits too: there is one lease.
        # After a close it is refused, and does not wait for that.
        later = threading.Thread(target=wait, args=(large,), daemon=True)
        later.start()
        later.join(0.2)
        if scratch._closed:
            assert results.pop() == "the scratch memory is closed" and not later.is_alive()
            later = None
        assert not results and waits.is_alive() and scratch.size == held() == MIB
        inside = False
    waits.join()
    if later:
        later.join()
        # Both had the memory that the first of them requested, since the released one was free by then.
        assert [(each[0], each[1][1], each[2]) for each in results] == 2 * [(False, 2 * MIB, 2 * MIB)], results
        assert held() == 2 * MIB
        release()
    else:
        assert results == ["the scratch memory is closed"], results
    assert held() == 0 == scratch.size and not scratch._slots
    # Of a stream that has nothing.
    scratch.release(8)
    assert held() == 0
    scratch.close()
    scratch.close()
    assert "closed" in wrong(ValueError, lambda: lend(small, 2))

# A context that needs no memory has an address all the same.
scratch, small.needs = trtalloc.SharedScratch(), 0
small.engine = type("Engine", (), {"device_memory_size_v2": 0})
lend(small, 0)
assert small.has == (scratch.address(), 256) and small.has[0]
scratch.close()
small.needs = MIB

# A thread that is about to wait has the slot, so a release leaves it to the stream.
scratch = trtalloc.SharedScratch(per_stream=True)
lend(small, 2)
slot = scratch._slot(2)
scratch.release(2)
assert held() == 0 and scratch._slots[2] is slot

# A lease that fails leaves nothing behind.
scratch = trtalloc.SharedScratch(per_stream=True)
trtalloc.set_limit(64 * MIB)
wrong(trtalloc.Error, lambda: lend(Context(1 << 40), 3))
assert not scratch._slots
class Broken(Context):
    def set_device_memory(self, memory, size):
        raise KeyError("broken")
wrong(KeyError, lambda: lend(Broken(MIB), 3))
lend(small, 3)
assert scratch.size == MIB
scratch.close()
assert held() == 0
"""
    )


def test_scratch_memory_of_a_stream_has_one_lease_while_others_release_it(simulated):
    simulated(
        SCRATCH
        + """
import time
scratch, inside, most, over = trtalloc.SharedScratch(per_stream=True), [], [], []

def work(mine):
    for _ in range(300):
        with scratch.lend(mine, 7):
            inside.append(1)
            time.sleep(0)
            most.append(len(inside))
            assert scratch.address(7) == mine.has[0] and scratch.size >= mine.needs
            inside.pop()

def release():
    while not over:
        scratch.release(7)
        time.sleep(0)

threads = [threading.Thread(target=work, args=(Context(size << 20),)) for size in (1, 2, 3)]
releases = threading.Thread(target=release)
[thread.start() for thread in [releases, *threads]]
[thread.join() for thread in threads]
over.append(1)
releases.join()
assert len(most) == 900 and set(most) == {1}, set(most)
scratch.release(7)
assert held() == 0 and not scratch._slots
"""
    )


def test_outputs_need_tensorrt(simulated):
    """Without a package of it, the error says so; with one that is too old too."""
    simulated(
        """
        import sys, types, trtalloc
        from trtalloc import _tensorrt
        for name in _tensorrt._PACKAGES:
            sys.modules[name] = None
        try:
            trtalloc.OutputAllocator()
        except ImportError as error:
            assert "TensorRT's Python package" in str(error) and "tensorrt_rtx" in str(error), error
        else:
            raise SystemExit("no error")
        for module in (types.ModuleType("tensorrt"), sys):
            try:
                trtalloc.OutputAllocator(module)
            except TypeError as error:
                assert "has no IOutputAllocator: is it TensorRT 8.5 or later?" in str(error), error
            else:
                raise SystemExit("no error")
        """
    )


def test_tags(simulated):
    simulated(
        """
        import types, trtalloc
        from trtalloc import _library
        library, pool = _library.library, _library.default()
        assert trtalloc.tag_stats(0) == {} and trtalloc.metrics().endswith("# EOF\\n")

        def allocate(size):
            return library.trtalloc_allocate(pool, size, 0, 0)

        with trtalloc.tag("outer"):
            with trtalloc.tag("inner, \\"quoted\\" and \u00fc"):
                assert allocate(512)
            assert allocate(1024)
        assert allocate(2048)
        figures = trtalloc.tag_stats()
        assert list(figures) == ["outer", "inner, \\"quoted\\" and \u00fc"]
        assert [tag["allocated"] for tag in figures.values()] == [1024, 512]
        trtalloc.set_tag_limit("outer", 1024)
        with trtalloc.tag("outer"):
            assert not allocate(512)
        assert 'trtalloc_tag_out_of_memory_total{device="0",tag="outer"} 1' in trtalloc.metrics()
        for wrong in ("", "x" * 256, "outer\\0inner"):
            try:
                with trtalloc.tag(wrong):
                    raise SystemExit("no error")
            except ValueError:
                pass
        # ctypes would pass a part of it.
        for call in (
            lambda: trtalloc.set_tag_limit("outer\\0inner", 1),
            lambda: trtalloc.tensorrt_allocator(types.SimpleNamespace(IGpuAllocator=object), "outer\\0inner"),
            lambda: _library.tag_stats(0, "outer\\0inner"),
        ):
            try:
                call()
            except ValueError as error:
                assert "NUL" in str(error), error
            else:
                raise SystemExit("no error")
        assert trtalloc.tag_stats()["outer"]["limit"] == 1024
        """
    )


def test_devices_are_not_cut_to_32_bits(simulated):
    simulated(
        """
        import trtalloc
        trtalloc.allocate(100)
        for device in (1 << 32, -(1 << 32), 1 << 31, -2, 1 << 80):
            for call in (
                trtalloc.stats,
                trtalloc.reset_peaks,
                trtalloc.trim,
                trtalloc.tag_stats,
                lambda device: trtalloc.set_limit(1, device),
                lambda device: trtalloc.set_tag_limit("tag", 1, device),
                lambda device: trtalloc.allocate(100, device=device),
            ):
                try:
                    call(device)
                except trtalloc.Error as error:
                    assert error.name == "INVALID_ARGUMENT" and "device" in str(error), error
                else:
                    raise SystemExit(f"no error: {device}")
        assert trtalloc.stats(0)["limit"] == 0
        """
    )


def test_errors_have_a_status_and_a_reason(simulated):
    simulated(
        """
        import os, pickle, trtalloc
        from trtalloc import _library
        assert _library.library.trtalloc_allocate(_library.default(), 512, 0, 0)
        try:
            trtalloc.stats(5)
        except trtalloc.Error as error:
            assert error.name == "INVALID_ARGUMENT" and "device 5 of 1" in str(error), error
            assert f"{type(error).__module__}.{type(error).__qualname__}" == "trtalloc.Error"
            # As multiprocessing passes it to the parent.
            copy = pickle.loads(pickle.dumps(error))
            assert (type(copy), copy.name, str(copy)) == (trtalloc.Error, error.name, str(error)), copy
        else:
            raise SystemExit("no error")
        # Functions that return text raise errors too, as in a forked child.
        child = os.fork()
        if child == 0:
            try:
                trtalloc.tag_stats(0)
            except trtalloc.Error as error:
                os._exit(0 if error.name == "UNSUPPORTED" else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )


def test_history_and_snapshots(simulated):
    """History and snapshots work, or the library reports that this version does not support them."""
    simulated(
        """
        import os, stat, tempfile, trtalloc
        from trtalloc import _library, memory
        assert _library.library.trtalloc_allocate(_library.default(), 4096, 0, 0)
        try:
            memory._record_memory_history("all", context="all", stacks="python", max_entries=1000)
        except trtalloc.Error as error:
            assert error.name == "UNSUPPORTED", error
            try:
                memory._snapshot()
            except trtalloc.Error as error:
                assert error.name == "UNSUPPORTED", error
            else:
                raise SystemExit("no error")
        else:
            snapshot = memory._snapshot()
            assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == 4096
            assert snapshot["device_traces"]
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "dump")
                memory._dump_snapshot(path)
                assert os.path.getsize(path) > 0 and os.listdir(folder) == ["dump"]
                memory._dump_snapshot(path)
                # As PyTorch, it puts no file into a folder, and replaces no device.
                os.mkdir(os.path.join(folder, "folder"))
                try:
                    memory._dump_snapshot(os.path.join(folder, "folder"))
                except IsADirectoryError:
                    assert os.listdir(os.path.join(folder, "folder")) == []
                else:
                    raise SystemExit("no error")
                pipe = os.path.join(folder, "pipe")
                os.mkfifo(pipe)
                read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
                memory._dump_snapshot(pipe)
                assert stat.S_ISFIFO(os.stat(pipe).st_mode) and os.read(read, 2) == b"\\x80\\x04"
                os.close(read)
                # A name has any bytes.
                odd = os.path.join(os.fsencode(folder), b"odd\\xff.pickle")
                memory._dump_snapshot(os.fsdecode(odd))
                assert os.path.getsize(odd) > 0
            memory._record_memory_history(None)
        for enabled in (True, False):
            try:
                memory._record_memory_history(enabled)
            except ValueError:
                continue
            raise SystemExit("no error")
        """
    )


def test_the_number_of_events_is_stated(simulated):
    """PyTorch's unbounded default is the library's maximum, of which only what is used takes memory."""
    simulated(
        """
        import sys, trtalloc
        from trtalloc import memory

        def kept(**options):
            memory._record_memory_history("all", stacks=None, **options)
            for _ in range(100):
                trtalloc.allocate(4096, 0).close()
            return memory._snapshot()["trtalloc"]["max_entries"]

        assert kept() == kept(max_entries=sys.maxsize) == kept(max_entries=1 << 26) == 1 << 26
        assert kept(max_entries=5000) == 5000
        for refused in (0, -1, (1 << 26) + 1, sys.maxsize - 1):
            try:
                kept(max_entries=refused)
            except trtalloc.Error as error:
                assert error.name == "INVALID_ARGUMENT" and "67108864" in str(error), error
            else:
                raise SystemExit(f"no error: {refused}")
        with open("/proc/self/statm") as figures:
            assert int(figures.read().split()[1]) * 4096 < 1 << 30
        """
    )


RECORD = """
import resource, warnings, trtalloc
from trtalloc import memory

GIB, MAX = 1 << 30, 1 << 26
__file__ = "<string>"
trtalloc.allocate(4096, 0).close()

def record(**options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        memory._record_memory_history("all", stacks=None, **options)
    trtalloc.allocate(4096, 0).close()
    snapshot = memory._snapshot()
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    assert "free_completed" in actions, "it records"
    kept = snapshot["trtalloc"]["max_entries"]
    memory._record_memory_history(None)
    said = [str(each.message) for each in caught]
    assert all(each.category is RuntimeWarning and each.filename == __file__ for each in caught), caught
    assert len(said) == (kept < MAX and not options), said
    assert not said or f"{kept:,} events" in said[0], said
    return kept
"""


def test_the_default_history_is_a_part_of_what_the_process_may_reserve(simulated):
    """The figures of other hosts: an eighth of what is left, in whole rings."""
    simulated(
        RECORD
        + """
figures = {"/proc/sys/vm/overcommit_memory": "0", "/proc/self/statm": "9 9 9 9 9 9 9"}
memory._read = lambda path: figures[path]
assert memory._room() is None and memory._bound() == MAX == record()
figures["/proc/sys/vm/overcommit_memory"] = "2"
figures["/proc/meminfo"] = "MemTotal: 9 kB\\nCommitLimit: 3145728 kB\\nCommitted_AS:   1048576 kB\\n"
assert memory._room() == 2 * GIB and memory._bound() == (1 << 22) * 8 // 9 == record()
figures["/proc/meminfo"] = "CommitLimit: 10 kB\\nCommitted_AS: 11 kB\\n"
assert memory._room() == 0 and record() == 100_000
figures["/proc/meminfo"] = "CommitLimit: 40000000 kB\\nCommitted_AS: 11 kB\\n"
assert record() == MAX
# Of several bounds the least holds.
resource.setrlimit(resource.RLIMIT_AS, (1 << 44, resource.RLIM_INFINITY))
assert memory._room() == (40_000_000 - 11) << 10
# Without figures, the host's refusal says it. Another error is no reason for fewer events.
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
figures["/proc/meminfo"] = ""
assert memory._room() is None
try:
    memory._record_memory_history("all", context="nonsense")
except trtalloc.Error as error:
    assert error.name == "INVALID_ARGUMENT", error
else:
    raise SystemExit("no error")
"""
    )


@pytest.mark.parametrize("limit, figure", [("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)])
def test_the_default_history_never_fails_for_lack_of_address_space(simulated, limit, figure):
    """It does not fail where 4 GiB of address space are refused. It keeps fewer events, and says how many."""
    simulated(
        RECORD
        + f"LIMIT, FIGURE = resource.{limit}, {figure}"
        + """
used = int(memory._read("/proc/self/statm").split()[FIGURE]) * resource.getpagesize()
resource.setrlimit(LIMIT, (used + GIB + GIB // 4, resource.RLIM_INFINITY))
assert GIB < memory._room() <= GIB + GIB // 4
assert record() == (1 << 21) * 8 // 9, "an eighth, in whole rings"
# Where the figures promise too much, it is halved until the host agrees.
memory._room = lambda: None
assert record() == 1 << 23, "1 GiB with the spare slots of a ring"
# A number that was given is not changed.
assert record(max_entries=200_000) == 200_000
try:
    memory._record_memory_history("all", max_entries=60_000_000)
except trtalloc.Error as error:
    assert error.name == "OUT_OF_MEMORY", error
else:
    raise SystemExit("no error")
"""
    )


def test_options_for_onnx_runtime_are_addresses(simulated):
    simulated(
        """
        import ctypes, trtalloc
        options = trtalloc.onnxruntime_options()
        assert sorted(options) == ["gpu_external_alloc", "gpu_external_empty_cache", "gpu_external_free"]
        alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(int(options["gpu_external_alloc"]))
        free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(options["gpu_external_free"]))
        memory = alloc(1000)
        assert memory and trtalloc.stats()["requested"] == 1000
        free(memory)
        ctypes.CFUNCTYPE(None)(int(options["gpu_external_empty_cache"]))()
        assert trtalloc.stats()["reserved"] == 0
        """
    )


def _library(tmp_path, version, names):
    """A library of that version with those functions."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "library.c", tmp_path / "libtrtalloc.so"
    functions = "".join(f"int {name}(void) {{ return 0; }}\n" for name in names if name != "trtalloc_version")
    source.write_text(functions + f'const char *trtalloc_version(void) {{ return "{version}"; }}\n')
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def test_a_library_of_another_version_is_refused_at_import(anything, simulated, tmp_path):
    package = simulated("from trtalloc import _library; print(_library.VERSION, *_library._SIGNATURES)")
    version, *names = package.stdout.split()
    major, minor = (int(part) for part in version.split(".")[:2])
    others = [f"{major}.{minor + 1}.0", f"{major + 1}.{minor}.0", "0.0.9"]
    for other in others:
        library = _library(tmp_path, other, names)
        done = anything("import trtalloc", TRTALLOC_LIBRARY=str(library))
        assert done.returncode == 1 and "ImportError: " in done.stderr, done
        last = done.stderr.strip().splitlines()[-1]
        assert f"trtalloc {version} (" in last and f"{library} is {other}" in last, last
    # A library of the same version without one of the functions, as if built from older sources.
    library = _library(tmp_path, version, names[:-1])
    done = anything("import trtalloc", TRTALLOC_LIBRARY=str(library))
    assert done.returncode == 1 and f"{library} ({version}) has no {names[-1]}" in done.stderr, done
    # Another patch version is accepted.
    library = _library(tmp_path, f"{major}.{minor}.999", names)
    done = anything("from trtalloc import _library", TRTALLOC_LIBRARY=str(library))
    assert "ImportError" not in done.stderr, done


def test_a_library_that_cannot_be_loaded_is_an_import_error(anything, tmp_path):
    (tmp_path / "libtrtalloc.so").write_text("no library")
    for library in (tmp_path / "libtrtalloc.so", tmp_path / "nowhere.so"):
        done = anything("import trtalloc", TRTALLOC_LIBRARY=str(library))
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 1 and last.startswith(f"ImportError: TRTALLOC_LIBRARY={library}: "), done


def test_a_library_is_found_by_a_relative_path(simulated, tmp_path):
    path = simulated("import trtalloc; print(trtalloc.library_path)").stdout.strip()
    (tmp_path / "libother.so").symlink_to(path)
    (tmp_path / "folder").mkdir()
    for named in ("./libother.so", "folder/../libother.so"):
        simulated(
            f"""
            import os
            os.chdir({str(tmp_path)!r})
            os.environ["TRTALLOC_LIBRARY"] = {named!r}
            import trtalloc
            os.chdir("/")
            assert os.path.samefile(trtalloc.library_path, {path!r})
            """
        )


def test_a_preloaded_library_of_another_version_is_refused_at_import(anything, tmp_path):
    library = _library(tmp_path, "0.0.9", ["trtalloc_default"])
    done = anything("import trtalloc", LD_PRELOAD=str(library))
    assert done.returncode == 1 and "ImportError: " in done.stderr and f"{library} is 0.0.9" in done.stderr, done


def test_doctor(anything):
    doctor = [sys.executable, "-m", "trtalloc", "doctor"]
    done = anything(doctor, TRTALLOC_DRIVER="sim", TRTALLOC_LIMIT="1GiB")
    assert done.returncode == 0, done
    assert "TRTALLOC_LIMIT=1GiB" in done.stdout and "limit 1073741824 bytes" in done.stdout
    assert "is no option" not in done.stdout + done.stderr
    done = anything(doctor, TRTALLOC_DRIVER="sim", TRTALLOC_LIMTI="1GiB", TRTALLOC_TEST_X="")
    assert done.returncode == 0, done
    said = "TRTALLOC_LIMTI is no option; the nearest is TRTALLOC_LIMIT"
    assert said in done.stdout and done.stderr.count(said) == 1, done
    assert "TRTALLOC_LIMTI=" not in done.stdout and "TRTALLOC_TEST_X=" in done.stdout
    done = anything(doctor, TRTALLOC_DRIVER="sim", TRTALLOC_LIMIT="much")
    assert done.returncode == 1 and "TRTALLOC_LIMIT: cannot read `much`" in done.stdout, done
    done = anything(doctor, TRTALLOC_DRIVER="ascend")
    assert done.returncode == 1 and "pool         no memory: " in done.stdout, done
    # What the output cannot show.
    done = anything(doctor, TRTALLOC_DRIVER="sim", TRTALLOC_LOG="w\xe4rn\udcff", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "TRTALLOC_LOG=w\\xe4rn\\udcff" in done.stdout, done
    done = anything([sys.executable, "-m", "trtalloc", "--help"])
    assert done.returncode == 0 and "usage" in done.stdout and not done.stderr, done
    # A reader that has seen enough.
    read, write = os.pipe()
    os.close(read)
    variables = {**os.environ, "TRTALLOC_DRIVER": "sim"}
    closed = subprocess.run(doctor, stdout=write, stderr=subprocess.PIPE, text=True, env=variables)
    os.close(write)
    assert (closed.returncode, closed.stderr) == (0, ""), closed
    with open("/dev/full", "w") as full:
        unwritten = subprocess.run(doctor, stdout=full, stderr=subprocess.PIPE, text=True, env=variables)
    assert unwritten.returncode == 1 and unwritten.stderr.startswith("stdout: "), unwritten
    assert "No space left" in unwritten.stderr and "Traceback" not in unwritten.stderr, unwritten
    done = anything(["sh", "-c", 'exec "$0" -m trtalloc doctor >&-', sys.executable], TRTALLOC_DRIVER="sim")
    assert (done.returncode, done.stderr) == (1, "stdout: it is closed\n"), done
    done = anything([sys.executable, "-m", "trtalloc", "mend"])
    assert done.returncode == 2 and "usage" in done.stderr and not done.stdout, done
