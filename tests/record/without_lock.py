"""Allocates with and without the interpreter's lock, and writes a snapshot:
without_lock.py LIBRARY HELPER SNAPSHOT STACKS CASE

PyDLL keeps the interpreter's lock in a call, CDLL gives it up. A pair is two blocks from one line: one of an even size with
the lock, and one of the next size without it."""

import asyncio
import ctypes
import gc
import os
import sys
import threading
import time

library_path, helper_path, snapshot, stacks, case = sys.argv[1:]


def functions(library):
    library.trtalloc_allocate.restype = ctypes.c_void_p
    library.trtalloc_allocate.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32]
    library.trtalloc_deallocate.restype = ctypes.c_bool
    library.trtalloc_deallocate.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.trtalloc_snapshot.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return library


held, released = functions(ctypes.PyDLL(library_path)), functions(ctypes.CDLL(library_path))
helper, helper_with_lock = ctypes.CDLL(helper_path), ctypes.PyDLL(helper_path)
helper.allocate_with_the_lock.restype = ctypes.c_void_p
helper.allocate_with_the_lock.argtypes = [ctypes.c_uint64]
helper.allocate_for_ever.argtypes = [ctypes.c_uint64]
helper.allocate_in_handler.argtypes = [ctypes.c_uint64, ctypes.c_int]
helper_with_lock.allocate_in_handler.argtypes = [ctypes.c_uint64, ctypes.c_int]
allocator = ctypes.c_void_p()
# The lock is kept while the recording begins, except where the main thread is to be asked.
creator = released if case == "asked" else held
options = f"driver=sim,history=all,context=alloc,stacks={stacks}".encode()
assert creator.trtalloc_create(options, ctypes.byref(allocator)) == 0
address = lambda function: ctypes.cast(function, ctypes.c_void_p)
helper.use(address(held.trtalloc_allocate), address(held.trtalloc_deallocate), allocator)


def get(size, library=released):
    block = library.trtalloc_allocate(allocator, size, 0, 0)
    assert block
    return block


def free(block):
    assert released.trtalloc_deallocate(allocator, block)


def write():
    assert released.trtalloc_snapshot(allocator, snapshot.encode()) == 0


def pair(size):
    for odd, library in enumerate([held, released]):
        library.trtalloc_allocate(allocator, size + odd, 0, 0)  # line of the pair


class Model:
    def forward(self):
        return [pair(1002) for _ in range(1)]  # line of forward


def recursive(depth, size):
    return recursive(depth - 1, size) if depth else pair(size)  # line of recursive


def generator(size):
    yield 1
    yield pair(size)  # line of the generator


async def awaited():
    pair(1006)


async def coroutine():
    await asyncio.sleep(0)
    await awaited()


class Dropped:
    def __del__(self):
        pair(1012)


def raises():
    try:
        raise KeyError("kept")
    except KeyError as error:
        pair(1008)
        return error
    finally:
        pair(1010)


def with_a_cell(value):
    return (lambda: pair(1030) or value)()


def traced():
    first = 1
    pair(1016)  # line of the traced pair
    return first


def tracer(frame, event, _):
    if event == "line" and frame.f_code.co_name == "traced" and frame.f_lineno % 2:
        sys.settrace(None)
        pair(1018)
        sys.settrace(tracer)
    return tracer


def profiled():
    pair(1020)


def far_below():
    # Lines that are far apart need longer entries in the table of lines.
    values = [
        1,
        2,





































































































































































        pair(1022),  # line far below
    ]
    return values


def many_constants():
    # More than 256 instructions before the call.
    total = 0
    total += 1; total += 2; total += 3; total += 4; total += 5; total += 6; total += 7; total += 8; total += 9
    total += 1; total += 2; total += 3; total += 4; total += 5; total += 6; total += 7; total += 8; total += 9
    total += 1; total += 2; total += 3; total += 4; total += 5; total += 6; total += 7; total += 8; total += 9
    total += 1; total += 2; total += 3; total += 4; total += 5; total += 6; total += 7; total += 8; total += 9
    for _ in range(1):
        if total:
            pair(1024)  # line after many instructions
    return total


def frames():
    pair(1000)
    Model().forward()
    recursive(3, 1004)
    asyncio.run(coroutine())
    assert raises().args == ("kept",)
    Dropped()
    list(generator(1014))
    sys.settrace(tracer)
    traced()
    sys.settrace(None)
    sys.setprofile(lambda *_: None)
    profiled()
    sys.setprofile(None)
    far_below()
    many_constants()
    recursive(500, 1026)
    exec(compile("def größe():\n\n    pair(1028)\n\ngröße()", "<日本>", "exec"), {"pair": pair})
    with_a_cell(1)
    max([1], key=lambda _: pair(1032) or 1)
    thread = threading.Thread(target=recursive, args=(2, 1034))
    thread.start()
    thread.join()
    write()


def asked():
    """No call has the lock. The main thread compares between two of its instructions."""
    get(1)  # line of the first block
    write()


def locks():
    """A thread holds the interpreter's lock and waits for a lock of the thread that allocates."""

    def work():
        assert helper.allocate_with_the_lock(1)  # line with the lock

    thread = threading.Thread(target=work)
    thread.start()
    while not helper.is_locked():
        time.sleep(0.001)
    helper_with_lock.wait_for_the_lock()
    thread.join()
    write()


def daemons():
    """Threads that the end of the interpreter overtakes, in Python and in C."""

    def churn(library):
        while True:
            library.trtalloc_deallocate(allocator, library.trtalloc_allocate(allocator, 7, 0, 0))
            # No event may be dropped: a block whose allocation was dropped has no stack.
            time.sleep(0.0003)

    def outlive():
        helper.allocate_for_ever(9)

    assert helper.outlive_the_interpreter() == 0

    class Dropped:
        def __del__(self, allocate=released.trtalloc_allocate, allocator=allocator):
            allocate(allocator, 13, 0, 0)

    # Dropped while the interpreter ends; the second takes a while.
    sys.modules["threading"].last = Dropped()
    sys.modules["threading"].much = [[number] for number in range(200_000)]
    for work in [lambda: churn(released), lambda: churn(released), lambda: churn(held), outlive]:
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)


def forks():
    """Children of a process whose threads take stacks. A child is refused memory, and ends."""
    over = threading.Event()

    def fresh(name, body):
        # A new function is a new stack, which takes the locks of the tables of stacks and of code.
        scope = {"get": get, "free": free, "released": released, "held": held}
        exec(compile(f"def {name}():\n    {body}\n", "<forks>", "exec"), scope)
        return scope[name]()

    def churn(thread):
        number = 0
        while not over.is_set():
            fresh(f"churn_{thread}_{number}", "free(get(7))")
            number += 1

    threads = [threading.Thread(target=churn, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for number in range(40):
        child = os.fork()
        if child == 0:
            # It takes none of the locks that a thread of the parent may have had.
            try:
                fresh(f"child_{number}", "get(8)")
                os._exit(1)
            except AssertionError:
                pass
            refused = not released.trtalloc_allocate(allocator, 1, 0, 0)
            refused = refused and not held.trtalloc_allocate(allocator, 1, 0, 0)
            sum(range(100_000))
            os._exit(0 if refused else 1)
        assert os.waitpid(child, 0)[1] == 0
    over.set()
    for thread in threads:
        thread.join()
    get(11)  # line after the forks
    write()


def reused():
    """Functions that come and go, at the same addresses."""
    addresses = set()
    for number in range(300):
        # Each has another name, or another line, or another file.
        name, lines, file = f"f{number // 4}", number % 2, f"<{number // 2 % 2}>"
        scope = {"get": get}
        exec(compile("\n" * lines + f"def {name}():\n    get(2000 + {number})\n", file, "exec"), scope)
        addresses.add(id(scope[name].__code__))
        scope[name]()
        del scope
        gc.collect()
    assert len(addresses) < 150, "addresses are not used again here"
    write()


def signals():
    """Handlers that allocate, with and without the lock, on the thread's stack and on another."""

    def send(library, size, own_stack):
        assert library.allocate_in_handler(size, own_stack) == 0

    send(helper, 21, 0)
    send(helper, 22, 1)
    send(helper_with_lock, 23, 0)
    send(helper_with_lock, 24, 1)

    def references(own_stack):
        # The interpreter's functions give a code object that is met first to the library, which keeps it.
        scope = {"send": send, "library": helper_with_lock}
        exec(f"def fresh():\n    send(library, 25, {own_stack})\n", scope)
        before = sys.getrefcount(scope["fresh"].__code__)
        scope["fresh"]()
        return sys.getrefcount(scope["fresh"].__code__) - before

    # They must not be called on a stack for handlers: a handler may have interrupted them.
    assert (references(0), references(1)) == (1, 0)
    write()


def refused():
    get(31)
    assert helper.refuse_reading() == 0
    get(32)
    get(33, held)
    write()


def interpreters():
    """A second interpreter, and none again."""
    get(41)
    try:
        import _interpreters as module
    except ImportError:
        import _xxsubinterpreters as module
    second = module.create()
    get(42)
    get(43, held)
    module.destroy(second)
    get(44)
    write()


def version():
    get(51)
    get(52, held)
    get(53)
    get(54, held)
    get(55, held)
    get(56)
    write()


{
    function.__name__: function
    for function in [frames, asked, locks, daemons, forks, reused, signals, refused, interpreters, version]
}[case]()
