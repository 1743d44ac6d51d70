"""share_budget with several processes over this driver: what they hold together, and what goes from one to another."""

import os
import sys
import threading
import time

import rows

MIB = 1 << 20
BLOCK = 32 * MIB
BLOCKS = 16


def held(children):
    return sum(child.ask("stats")["reserved"] for child in children)


def main():
    rows.header()
    name = f"pack-{os.getpid()}"
    budget = {"TRTALLOC_SHARE_BUDGET": f"{name}:{BLOCKS * 32}MiB", "TRTALLOC_WAIT_MS": "2000", "TRTALLOC_LOG": "error"}
    children = [rows.Child(**budget) for _ in range(3)]

    def together():
        first = children[0].ask("device")
        had = [child.ask("allocate", 8, BLOCK, False) for child in children]
        bytes_held = held(children)
        less = first - children[0].ask("device")
        good = sum(had) == BLOCKS and bytes_held <= BLOCKS * BLOCK
        return ("yes" if good else "no"), (
            f"{had} blocks of 32 MiB of {BLOCKS}; {bytes_held / MIB:.0f} MiB reserved; the first process sees {less / MIB:.0f} MiB less"
        )

    def killed():
        before = children[2].ask("allocate", 1, BLOCK, False)
        children.pop(0).kill()
        had = children[1].ask("allocate", 8, BLOCK, False)
        good = before == 0 and had == 8 and held(children) <= BLOCKS * BLOCK
        return ("yes" if good else "no"), f"{before} blocks before the first process was killed, {had} after"

    def given():
        first, second = children
        first.ask("free", 8)
        began, result = time.monotonic(), []
        thread = threading.Thread(target=lambda: result.append(second.ask("allocate", 4, BLOCK, False)))
        thread.start()
        thread.join(30)
        seconds = time.monotonic() - began
        good = result == [4] and held(children) <= BLOCKS * BLOCK
        return ("yes" if good else "no"), f"{result} of 4 blocks after {seconds:.2f} s, of which another process had the memory free"

    def ends():
        statuses = [child.end() for child in children]
        return ("yes" if statuses == [0, 0] else "no"), f"statuses {statuses}"

    rows.ask("share_budget: three processes hold the budget and no more", together)
    rows.ask("share_budget: what a killed process held serves another", killed)
    rows.ask("share_budget: free memory of one process goes to another that waits", given)
    rows.ask("share_budget: the processes end well", ends)


if __name__ == "__main__":
    rows.serve() if len(sys.argv) > 1 else main()
