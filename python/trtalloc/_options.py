"""The names of options in the environment, for those that are misspelt. src/support/config/mod.rs has the options themselves."""

from typing import List, Optional, Tuple

PREFIX = "TRTALLOC_"

KEYS = (
    "driver",
    "device",
    "limit",
    "headroom",
    "reserve",
    "share_budget",
    "backing",
    "release_threshold",
    "decay_ms",
    "streams",
    "captures",
    "peers",
    "share",
    "rdma",
    "kind",
    "rule",
    "pad",
    "wait_ms",
    "retry_ms",
    "history",
    "context",
    "stacks",
    "max_entries",
    "snapshot_on_oom",
    "snapshot_at_exit",
    "stats",
    "control",
    "log",
    "passthrough",
    "guard",
    "fill",
    "inject",
    "disable",
    "sim_memory",
    "sim_devices",
    "sim_driver",
    "sim_latency",
    "sim_integrated",
    "sim_shared",
)

OTHERS = ("LIBRARY", "BLESS", "SONAME")
OTHER_PREFIXES = ("TEST_", "STRESS_")


def _distance(one: str, other: str) -> int:
    """The edit distance: how many letters are added, removed, replaced, or swapped with the next one."""
    before: Optional[List[int]] = None
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        row = [i + 1]
        for j, match in enumerate(other):
            cost = min(last[j] + (letter != match), last[j + 1] + 1, row[j] + 1)
            if before and j and letter == other[j - 1] and one[i - 1] == match:
                cost = min(cost, before[j - 1] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def nearest(name: str) -> Optional[str]:
    """The option most similar to a variable's name. None if the variable is an option, or is not named like one."""
    if not name.startswith(PREFIX):
        return None
    rest = name[len(PREFIX) :]
    if rest in OTHERS or rest.startswith(OTHER_PREFIXES) or any(rest == key.upper() for key in KEYS):
        return None
    word = rest.lower()

    def far(key: str) -> Tuple[bool, int]:
        part = len(word) > 2 and (key in word or word in key)
        return not part, _distance(word, key)

    return PREFIX + min(KEYS, key=far).upper()
