"""Snapshots as PyTorch has written them over the years: torch.py FOLDER"""

import pickle
import sys

BASE = 0x7F0000000000
SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
            "expandable_segments": True, "roundup_power2_divisions": {str(2**i): 0 for i in range(16)}}


def frame(name, line):
    return {"name": name, "filename": "/srv/model.py", "line": line}


def block(address, size, requested, state, **more):
    return {"address": address, "size": size, "requested_size": requested, "state": state, **more}


def segment(device, address, size, blocks, **more):
    sums = {"allocated_size": 0, "active_size": 0, "requested_size": 0}
    return {"device": device, "address": address, "total_size": size, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks, **sums, **more}


def entry(action, address, size, time, **more):
    return {"action": action, "device_free" if action == "oom" else "addr": address, "size": size, "stream": 0,
            "time_us": 1_700_000_000_000_000 + time, "compile_context": "N/A", "user_metadata": "", **more}


def today():
    """Two devices: a caching one with a stream's handle above 2^63, and an expandable one."""
    forward = [frame("forward", 10), frame("main", 99)]
    backward = [frame("backward", 20), frame("main", 100)]
    stream = -(2**63) + 5
    first = segment(0, BASE, 20 << 20, [
        block(BASE, 4 << 20, (4 << 20) - 100, "active_allocated", frames=forward),
        block(BASE + (4 << 20), 6 << 20, 6 << 20, "active_pending_free", frames=backward),
        block(BASE + (10 << 20), 10 << 20, 0, "inactive", frames=[])])
    high = (1 << 63) + 4096
    second = segment(1, high, 8 << 20, [
        block(high, 2 << 20, 2 << 20, "active_allocated", frames=forward),
        block(high + (2 << 20), 6 << 20, 0, "inactive", frames=[])], is_expandable=True, stream=stream)
    return {
        "segments": [first, second],
        "device_traces": [[
            entry("segment_alloc", BASE, 20 << 20, 1, frames=forward),
            entry("alloc", BASE, (4 << 20) - 100, 2, frames=forward, user_metadata="layer 1"),
            entry("annotate", 0, 0, 3, frames=[], user_metadata="epoch 1"),
            entry("alloc", BASE + (4 << 20), 6 << 20, 4, frames=backward),
            entry("alloc", BASE + (10 << 20), 9 << 20, 5, frames=backward),
            entry("free_requested", BASE + (4 << 20), 6 << 20, 6, frames=[]),
            entry("oom", 3 << 20, 40 << 20, 7, frames=[]),
            entry("free_requested", BASE + (10 << 20), 9 << 20, 8, frames=[]),
            entry("free_completed", BASE + (10 << 20), 9 << 20, 9, frames=[]),
            entry("snapshot", 0, 0, 10, frames=[]),
        ], [
            entry("segment_map", high, 4 << 20, 1, frames=[], stream=stream),
            entry("alloc", high, 2 << 20, 2, frames=forward, stream=stream),
            entry("segment_map", high + (4 << 20), 6 << 20, 3, frames=[], stream=stream),
            entry("segment_unmap", high + (8 << 20), 2 << 20, 4, frames=[], stream=stream),
        ], []],
        "allocator_settings": SETTINGS,
        "external_annotations": [],
    }


def yesterday():
    """2.0: no metadata, no times, no requested size, one event for a free, frames of an oom missing."""
    blocks = [{"size": 1 << 20, "state": "active_allocated",
               "history": [{"addr": BASE, "real_size": 1_000_000, "frames": [frame("forward", 10)]}]},
              {"size": 1 << 20, "state": "inactive"}]
    trace = [{"action": "segment_alloc", "addr": BASE, "size": 2 << 20, "stream": 0, "frames": []},
             {"action": "alloc", "addr": BASE + (1 << 20), "size": 512, "stream": 0, "frames": []},
             {"action": "alloc", "addr": BASE, "size": 1 << 20, "stream": 0, "frames": []},
             {"action": "oom", "device_free": 0, "size": 1 << 30, "stream": 0},
             {"action": "free", "addr": BASE + (1 << 20), "size": 512, "stream": 0, "frames": []}]
    memory = {"device": 0, "address": BASE, "total_size": 2 << 20, "allocated_size": 1 << 20, "active_size": 1 << 20,
              "segment_type": "large", "blocks": blocks}
    return {"segments": [memory], "device_traces": [trace]}


def write(folder):
    for protocol in (2, 3, 4, 5):
        with open(f"{folder}/today-{protocol}.pickle", "wb") as file:
            pickle.dump(today(), file, protocol)
    with open(f"{folder}/yesterday.pickle", "wb") as file:
        pickle.dump(yesterday(), file, 4)
    # Before that it was the list of segments alone.
    with open(f"{folder}/segments.pickle", "wb") as file:
        pickle.dump(yesterday()["segments"], file, 4)
    with open(f"{folder}/0.pickle", "wb") as file:
        pickle.dump(today(), file, 0)
    # Without a memo, each text is written each time, and each key.
    with open(f"{folder}/fast.pickle", "wb") as file:
        pickler = pickle.Pickler(file, 4)
        pickler.fast = True
        pickler.dump(today())


write(*sys.argv[1:])
