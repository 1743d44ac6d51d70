#!/usr/bin/env python3
"""What it costs a program's start that a preloaded library names libpthread and libdl: the end of 2026-11-23-first-snapshot.md.

    python3 docs/measurements/2026-11-23-two-names.py

An empty C program starts by turns alone, with an empty C library preloaded, and with the same library that also names the two.
Prints the lower tenth of the times of 400 starts each, less that of the program alone. It needs cc.
"""

import os
import subprocess
import tempfile
import time

STARTS = 400


def start(program, preload):
    environment = {"LD_PRELOAD": preload} if preload else {}
    before = time.perf_counter()
    child = os.posix_spawn(program, [program], environment)
    _, status = os.waitpid(child, 0)
    took = time.perf_counter() - before
    assert status == 0, (program, preload, status)
    return took


def lower_tenth(times):
    return sorted(times)[len(times) // 10]


with tempfile.TemporaryDirectory() as folder:
    program, without, named = (os.path.join(folder, name) for name in ("program", "without.so", "named.so"))
    source = os.path.join(folder, "empty.c")
    with open(source, "w") as file:
        file.write("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-O2", source, "-o", program], check=True)
    with open(source, "w") as file:
        file.write("int nothing(void) { return 0; }\n")
    library = ["cc", "-O2", "-shared", "-fPIC", source]
    # A newer glibc's libpthread.a and libdl.a are empty, so -lpthread would name nothing.
    names = ["-Wl,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2"]
    subprocess.run([*library, "-o", without], check=True)
    subprocess.run([*library, *names, "-o", named], check=True)
    times = {preload: [] for preload in ("", without, named)}
    for _ in range(STARTS):
        for preload, of in times.items():
            of.append(start(program, preload))
    alone, without_ms, named_ms = (1e3 * lower_tenth(of) for of in times.values())
    print(f"the program alone                {alone:.3f} ms")
    print(f"an empty library                 {without_ms - alone:+.3f} ms")
    print(f"one that names libpthread, libdl {named_ms - alone:+.3f} ms")
