"""What many programs in Python do: threads, processes in three ways, ctypes, an uncaught exception at the end."""

import concurrent.futures
import ctypes
import ctypes.util
import hashlib
import json
import multiprocessing
import subprocess
import sys


def work(number):
    return hashlib.sha256(str(number).encode() * 1000).hexdigest()[:8]


if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        print(json.dumps(list(threads.map(work, range(32)))))
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(work, range(4)))
    libc = ctypes.CDLL("libc.so.6")
    libm = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
    libm.cos.restype, libm.cos.argtypes = ctypes.c_double, [ctypes.c_double]
    print(libc.abs(-3), libm.cos(0.0), hasattr(libc, "no_such_function"), ctypes.CDLL(None).getpid() > 0)
    try:
        ctypes.CDLL("libnone.so")
    except OSError as error:
        print(error)
    print(subprocess.run(["sh", "-c", "echo $0 child; exit 3"], capture_output=True, text=True))
    if "numpy" in sys.argv:
        import numpy

        numbers = numpy.arange(10000, dtype=numpy.float64).reshape(100, 100) % 7
        print(numpy.linalg.norm(numbers @ numbers), numpy.fft.fft(numbers[0])[1])
    raise RuntimeError("at the end")
