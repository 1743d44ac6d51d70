"""What a stack of Python's frames adds to an event: python_frames.py LIBRARY DEPTH WAY ROUNDS

WAY is `held` for calls that keep the interpreter's lock, `released` for calls that give it up, and `met` for calls that give
it up from functions that a call with the lock has met before. Prints the nanoseconds of each round."""

import ctypes
import sys
import time

library, depth, way, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])


def functions(loaded):
    loaded.trtalloc_allocate.restype = ctypes.c_void_p
    loaded.trtalloc_allocate.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32]
    loaded.trtalloc_deallocate.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return loaded


held, released = functions(ctypes.PyDLL(library)), functions(ctypes.CDLL(library))
used = held if way == "held" else released
allocator = ctypes.c_void_p()
assert held.trtalloc_create(b"driver=sim", ctypes.byref(allocator)) == 0
PAIRS = 1000


def pairs():
    """The processor time of an event."""
    allocate, deallocate = used.trtalloc_allocate, used.trtalloc_deallocate
    if way == "met":
        held.trtalloc_deallocate(allocator, held.trtalloc_allocate(allocator, 4096, 0, 0))
    begun = time.thread_time_ns()
    for _ in range(PAIRS):
        deallocate(allocator, allocate(allocator, 4096, 0, 0))
    return (time.thread_time_ns() - begun) / PAIRS / 2


# Each level is a function of its own, as in a program.
source = "def f1():\n    return pairs()\n" + "".join(f"def f{n}():\n    return f{n - 1}()\n" for n in range(2, depth - 1))
scope = {"pairs": pairs}
exec(compile(source, "levels.py", "exec"), scope)
# Two frames are `pairs` and this file.
work = scope[f"f{depth - 2}"] if depth > 2 else pairs


def with_history(options):
    assert held.trtalloc_history(allocator, options) == 0
    return work()


with_history(b"all,stacks=python")
for _ in range(rounds):
    without = with_history(b"all,stacks=none")
    print(with_history(b"all,stacks=python") - without)
