"""Prints where the bytes of a library's code are: python3 docs/measurements/2026-11-23-size.py target/shipped/libtrtalloc.so

Sums the sizes of `nm -SC` by the part that a function belongs to. The library must have its symbols."""

import collections
import re
import subprocess
import sys

# The first pattern that matches a function's name decides.
PARTS = [
    ("std: prints the backtrace of a panic", r"^std::backtrace_rs|^std::sys::backtrace|backtrace_rs::symbolize"),
    ("BTreeMap", r"btree"),
    ("hashbrown (HashMap)", r"hashbrown"),
    ("sorts of the standard library", r"core::slice::sort|alloc::slice.*sort"),
    ("gimli, addr2line, object, framehop", r"gimli|addr2line|object::|framehop"),
    ("rustc_demangle", r"rustc_demangle"),
    ("miniz_oxide, flate2", r"miniz_oxide|flate2"),
    *((f"trtalloc::{part}", rf"trtalloc::{part}") for part in (
        "pool", "allocator", "driver::sim", "driver::ascend", "driver::cuda", "driver", "support",
        "history::snapshot", "history::stack", "history::report", "history::symbols", "history", "ffi", "trace", "sync")),
    ("numbers with a fraction", r"flt2dec|dec2flt|fmt::float"),
    ("core, alloc, std: other", r"^<?&?\(?(dyn )?(core|alloc|std|__rustc)::|^<(&|\[|\(|u|i|f|bool|char|str)|^__rust|^rust_"),
]


def main(library):
    listing = subprocess.run(["nm", "-SC", library], check=True, capture_output=True, text=True).stdout
    sums, counts, seen = collections.Counter(), collections.Counter(), set()
    for line in listing.splitlines():
        # Address, size, kind, name; a symbol without a size has three fields.
        fields = re.match(r"(\w+) (\w{16}) (\w) (.*)", line)
        fields = fields.groups() if fields else ("", "", "", "")
        if fields[2] == "" or fields[2] not in "tTwW" or fields[0] in seen:
            continue
        seen.add(fields[0])
        part = next((part for part, pattern in PARTS if re.search(pattern, fields[3])), "the rest: C, C++, other crates")
        sums[part] += int(fields[1], 16)
        counts[part] += 1
    print("| part | bytes | functions |\n|---|---|---|")
    for part, bytes_ in sums.most_common():
        print(f"| {part} | {bytes_:,} | {counts[part]} |")


main(*sys.argv[1:])
