"""Allocates in every way that Python calls C, and writes a snapshot: frames.py LIBRARY HELPER SNAPSHOT STACKS

A size says which way it was. PyDLL keeps the interpreter's lock in a call, CDLL gives it up."""

import ctypes
import sys
import threading

library_path, helper_path, snapshot, stacks = sys.argv[1:]


def functions(library):
    library.trtalloc_allocate.restype = ctypes.c_void_p
    library.trtalloc_allocate.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32]
    library.trtalloc_deallocate.restype = ctypes.c_bool
    library.trtalloc_deallocate.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.trtalloc_snapshot.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return library


held, released = functions(ctypes.PyDLL(library_path)), functions(ctypes.CDLL(library_path))
helper = ctypes.PyDLL(helper_path)
helper.on_a_thread_of_c.restype = ctypes.c_void_p
helper.on_a_thread_of_c.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
allocator = ctypes.c_void_p()
options = f"driver=sim,history=all,stacks={stacks}".encode()
assert held.trtalloc_create(options, ctypes.byref(allocator)) == 0


def get(size, library=held):
    address = library.trtalloc_allocate(allocator, size, 0, 0)
    assert address
    return address


def load_engine():
    return get(1001)  # line of the engine


def outer_function(depth):
    return outer_function(depth - 1) if depth else load_engine()


class Model:
    def forward(self):
        return [get(1002 + at) for at in range(2)]


def generated():
    yield get(1004)


def with_a_decorator(function):
    return lambda: function()


@with_a_decorator
def ünïcode_name():
    return get(1005)


def in_another_thread():
    get(1006)


def while_an_error_is_handled():
    try:
        raise KeyError("kept")
    except KeyError as error:
        get(1007)
        return error


class Dropped:
    def __del__(self):
        get(1008)


def deeply(depth):
    return deeply(depth - 1) if depth else get(1009)


def without_the_lock():
    get(2001, released)


def on_a_thread_of_c():
    where = ctypes.cast(held.trtalloc_allocate, ctypes.c_void_p).value
    assert helper.on_a_thread_of_c(where, allocator, 2002)


outer_function(3)
Model().forward()
list(generated())
ünïcode_name()
thread = threading.Thread(target=in_another_thread)
thread.start()
thread.join()
assert while_an_error_is_handled().args == ("kept",)
Dropped()
deeply(500)
exec(compile("def made_at_run_time():\n    return get(1010)\n\nmade_at_run_time()", "<made>", "exec"))
# A function that is gone when the snapshot is written.
del made_at_run_time
without_the_lock()
on_a_thread_of_c()

# Threads with and without the lock, all at once.
over = threading.Event()


def churn(library):
    # Four threads make at most 80,000 events. The history keeps 100,000, so those above stay in it.
    for _ in range(250):
        if over.is_set():
            break
        for size in range(3000, 3040):
            assert library.trtalloc_deallocate(allocator, get(size, library))


threads = [threading.Thread(target=churn, args=(library,)) for library in (held, released, held, released)]
for thread in threads:
    thread.start()
for _ in range(5):
    assert held.trtalloc_snapshot(allocator, snapshot.encode()) == 0
over.set()
for thread in threads:
    thread.join()
assert held.trtalloc_snapshot(allocator, snapshot.encode()) == 0
