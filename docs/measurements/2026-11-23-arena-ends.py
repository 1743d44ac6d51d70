#!/usr/bin/env python3
"""What a stream's arena holds if blocks are taken from one end or from two: the table in 2026-11-23-serve-lifetimes.md.

A simulation without handles and without time. The requests are those of `trtalloc bench serve`; sizes are in MiB."""

import bisect
import random

SEEDS, REQUESTS, PAGE, APART = 24, 1300, 2, 32
TENTHS = (40, 20, 10, 3)


class Arena:
    """Free ranges by address. The arena grows at its end."""

    def __init__(self):
        self.free, self.end = [], 0

    def take(self, size, high):
        order = range(len(self.free))
        for at in reversed(order) if high else order:
            start, end = self.free[at]
            if end - start >= size:
                rest = (start, end - size) if high else (start + size, end)
                self.free[at : at + 1] = [rest] if rest[0] < rest[1] else []
                return end - size if high else start
        joins = self.free and self.free[-1][1] == self.end
        start = self.free.pop()[0] if joins else self.end
        self.end = start + size
        return start

    def give(self, start, size):
        end = start + size
        at = bisect.bisect(self.free, (start, start))
        if at < len(self.free) and self.free[at][0] == end:
            end = self.free.pop(at)[1]
        if at > 0 and self.free[at - 1][1] == start:
            at -= 1
            start = self.free.pop(at)[0]
        self.free.insert(at, (start, end))


class Stream:
    """`ends`: one, two, or longer: two while smaller blocks outlive larger ones (src/pool/stream_cache/lifetimes.rs)."""

    def __init__(self, ends):
        self.ends, self.arena = ends, Arena()
        self.used = self.needs = self.made = 0
        self.larger = self.outliving = 0.0

    def take(self, size):
        size = -(-int(size) // PAGE) * PAGE
        smaller = APART <= size < max(self.needs, 1) / 8
        high = smaller and (self.ends == "two" or self.ends == "longer" and self.outliving > 1 / 8)
        start = self.arena.take(size, high)
        self.used += size
        self.needs = max(self.needs, self.used)
        self.made += 1
        return start, size, self.made - 1

    def give(self, block):
        start, size, before = block
        self.arena.give(start, size)
        self.used -= size
        life = self.made - before
        if size < APART:
            return
        if size >= self.needs / 8:
            self.larger += (min(life, 4 * self.larger) - self.larger) / 64 if self.larger else life
        elif self.larger:
            self.outliving += ((life > 2 * self.larger) - self.outliving) / 64


def serve(kind, eight, ends, seed):
    """Memory over needs in the end."""
    draw, stream = random.Random(seed), Stream(ends)
    unit = lambda: 32 * draw.randint(1, 8) if eight else draw.uniform(28, 280)
    held, weights = [], []
    for number in range(REQUESTS):
        size = unit()
        if kind == "weights":
            if number % 8 == 0 and len(weights) >= 6:
                stream.give(weights.pop(0))
            while len(weights) < 6:
                weights.append(stream.take(2 * unit()))
        for at, block in enumerate([stream.take(size * tenths / 10) for tenths in TENTHS]):
            if kind == "two contexts":
                held.append((block, number + 1))
            elif kind == "outputs" and at == 2:
                held.append((block, number + draw.randint(0, 8)))
            else:
                stream.give(block)
        for block, last in held:
            if last <= number:
                stream.give(block)
        held = [(block, last) for block, last in held if last > number]
    return stream.arena.end / stream.needs


for kind in ("one request at a time", "two contexts", "outputs", "weights"):
    for eight in (True, False):
        means = [sum(serve(kind, eight, ends, seed) for seed in range(SEEDS)) / SEEDS for ends in ("one", "two", "longer")]
        print(f"{kind}, {'8 shapes' if eight else 'any size'}:", *(f"{mean:.2f}" for mean in means))
