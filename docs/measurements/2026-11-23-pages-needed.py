#!/usr/bin/env python3
"""What a trace needs if each block that is ever resized has pages of its own: the end of 2026-11-23-serve-lifetimes.md.

    trtalloc trace growing -o growing.csv.gz && python3 docs/measurements/2026-11-23-pages-needed.py growing.csv.gz"""

import csv
import gzip
import sys

PAGE, MIB = 2 << 20, 1 << 20
whole = lambda size: -(-size // PAGE) * PAGE

with gzip.open(sys.argv[1], "rt") as file:
    rows = list(csv.DictReader(file))
resized = {row["id"] for row in rows if row["op"] == "realloc"}
live, used, pages = {}, [], []
for row in rows:
    if row["op"] == "free":
        live.pop(row["id"], None)
    else:
        live[row["id"]] = int(row["bytes"])
    own = [size for block, size in live.items() if block in resized]
    used.append(sum(live.values()))
    pages.append(sum(map(whole, own)) + whole(used[-1] - sum(own)))
peak = max(used)
print(f"peak in use {peak / MIB:.1f} MiB, in pages {max(pages) / MIB:.1f} MiB: {max(pages) / peak:.3f}")
print(sum(size > 1.02 * peak for size in pages), "rows need more than 1.02 times the peak")
