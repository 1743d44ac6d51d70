"""Allocates in code that is made anew for each call, and writes a snapshot: made_code.py LIBRARY SNAPSHOT"""

import ctypes
import sys
import types
import weakref

library_path, snapshot = sys.argv[1:]
library = ctypes.PyDLL(library_path)
library.trtalloc_allocate.restype = ctypes.c_void_p
library.trtalloc_allocate.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32]
library.trtalloc_deallocate.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
library.trtalloc_snapshot.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
allocator = ctypes.c_void_p()
assert library.trtalloc_create(b"driver=sim,history=all,stacks=python,max_entries=2000", ctypes.byref(allocator)) == 0


def made():
    return library.trtalloc_allocate(allocator, 1001, 0, 0)


# The library keeps two generations of 32,768.
ROUNDS = 80_000
codes = []
for _ in range(ROUNDS):
    code = made.__code__.replace()
    codes.append(weakref.ref(code))
    address = types.FunctionType(code, globals())()
    assert address
    library.trtalloc_deallocate(allocator, address)
del code
alive = sum(code() is not None for code in codes)
assert 2 <= alive <= 2 * 32768, alive
assert all(code() is not None for code in codes[-1000:])
library.trtalloc_snapshot(allocator, snapshot.encode())
