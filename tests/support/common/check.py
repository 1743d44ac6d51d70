"""Whether a snapshot is one that PyTorch's viewers open: check.py FILE [_memory_viz.py...]

Replays the history backwards from the final segments, as the viewer in the browser does, and stops at the first event that
it would break on. Opcodes and batches of a pickle are those the browser's unpickler has. With PyTorch's own file, its
functions run over the snapshot too."""

import importlib.util
import json
import pickle
import pickletools
import sys

KNOWN = """PROTO APPEND APPENDS LIST TUPLE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 NEWFALSE NEWTRUE NONE BINGET LONG_BINGET BINPUT
LONG_BINPUT BININT BININT1 BININT2 LONG1 BINFLOAT EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST FRAME MARK SHORT_BINUNICODE
BINUNICODE STOP""".split()


def check_opcodes(data):
    depth = []
    for opcode, argument, _ in pickletools.genops(data):
        assert opcode.name in KNOWN, opcode.name
        if opcode.name == "LONG1":
            assert -(2**63) <= argument < 2**63, argument
        if opcode.name == "MARK":
            depth.append(0)
        elif opcode.name in ("APPENDS", "SETITEMS"):
            depth.pop()
    assert not depth


def check_frames(frames):
    for frame in frames:
        assert isinstance(frame["name"], str) and isinstance(frame["filename"], str), frame
        assert isinstance(frame["line"], int), frame


def expanded(snapshot):
    """A snapshot from JSON as a pickle has it: stacks are numbers in a table there, and what all entries have is left out."""
    stacks = [[snapshot["frames"][number] for number in stack] for stack in snapshot["stacks"]]
    for segment in snapshot["segments"]:
        for owner in [segment, *segment["blocks"]]:
            owner["frames"] = stacks[owner.pop("stack", 0)]
    for trace in snapshot["device_traces"]:
        for entry in trace:
            for key, value in [("compile_context", "N/A"), ("user_metadata", ""), ("pool_id", (0, 0))]:
                entry.setdefault(key, value)
            entry["frames"] = stacks[entry.pop("stack", 0)]
    return snapshot


def check(snapshot):
    assert snapshot["device_traces"], "no device"
    assert isinstance(snapshot["allocator_settings"], dict)
    live, mapped, last = {}, {}, None
    for segment in snapshot["segments"]:
        device = segment["device"]
        place = (device, segment["address"])
        assert last is None or last < place, "segments are in order"
        last = place
        at, sums = segment["address"], [0, 0, 0]
        for block in segment["blocks"]:
            assert block["address"] == at and block["size"] > 0, (segment["address"], block)
            at += block["size"]
            check_frames(block["frames"])
            state = block["state"]
            assert state in ("active_allocated", "active_pending_free", "inactive"), state
            if state != "inactive":
                assert 0 < block["requested_size"] <= block["size"], block
                live[device, block["address"]] = (state, block["requested_size"])
                sums[0] += block["size"] if state == "active_allocated" else 0
                sums[1] += block["size"]
                sums[2] += block["requested_size"]
        assert at == segment["address"] + segment["total_size"], "blocks tile their segment"
        assert sums == [segment["allocated_size"], segment["active_size"], segment["requested_size"]], segment
        largest = max((b["requested_size"] for b in segment["blocks"] if b["state"] != "inactive"), default=None)
        small = segment["total_size"] <= 2 << 20 if largest is None else largest <= 1 << 20
        assert segment["segment_type"] == ("small" if small else "large"), segment
        assert len(segment["segment_pool_id"]) == 2
        mapped.setdefault(device, []).append((segment["address"], at))
        check_frames(segment["frames"])
    for device, trace in enumerate(snapshot["device_traces"]):
        ranges, time = mapped.get(device, []), None
        for entry in reversed(trace):
            assert time is None or entry["time_us"] <= time, "time runs forwards"
            time = entry["time_us"]
            check_frames(entry["frames"])
            assert entry["compile_context"] == "N/A" and isinstance(entry["user_metadata"], str)
            action, size = entry["action"], entry["size"]
            assert size > 0 or action == "snapshot", entry
            if action == "oom":
                assert entry["device_free"] >= 0
                continue
            if action == "snapshot":
                assert entry["addr"] == 0, entry
                continue
            address = entry["addr"]
            key = (device, address)
            if action in ("alloc", "free_requested", "free_completed"):
                assert any(start <= address < end for start, end in ranges), f"outside of every segment: {entry}"
            if action == "alloc":
                assert live.pop(key, None) == ("active_allocated", size), entry
            elif action == "free_requested":
                assert live.get(key, (None, 0))[0] == "active_pending_free", entry
                live[key] = ("active_allocated", size)
            elif action == "free_completed":
                assert key not in live, entry
                live[key] = ("active_pending_free", size)
            elif action in ("segment_map", "segment_alloc"):
                whole = [r for r in ranges if r[0] <= address and address + size <= r[1]]
                assert whole, f"in no segment: {entry}"
                there = [at for on, at in live if on == device and address <= at < address + size]
                assert not there, f"a block before its memory: {there} {entry}"
                start, end = whole[0]
                ranges.remove(whole[0])
                ranges += [(start, address)] if start < address else []
                ranges += [(address + size, end)] if address + size < end else []
            elif action in ("segment_unmap", "segment_free"):
                assert all(end <= address or address + size <= start for start, end in ranges), entry
                start, end = address, address + size
                for other in [r for r in ranges if r[1] == start or r[0] == end]:
                    ranges.remove(other)
                    start, end = min(start, other[0]), max(end, other[1])
                ranges.append((start, end))
            else:
                raise AssertionError(entry)


def main(path, *viewers):
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".json"):
        snapshot = expanded(json.loads(data))
    else:
        check_opcodes(data)
        snapshot = pickle.loads(data)
    check(snapshot)
    for viewer in viewers:
        spec = importlib.util.spec_from_file_location("memory_viz", viewer)
        theirs = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(theirs)
        # A flame graph would be drawn by a script from elsewhere; its lines are what is made here.
        lines = theirs.segments(snapshot, str), theirs.memory(snapshot, str)
        plots = theirs.trace_plot(snapshot), theirs.trace_plot(snapshot, plot_segments=True), theirs.segment_plot(snapshot)
        assert theirs.segsum(snapshot) and all(plots)
        assert any(snapshot["device_traces"]) == bool(theirs.trace(snapshot))
        assert all(lines) or not snapshot["segments"]
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    count = lambda name: sum(entry["action"] == name for entry in entries)
    state = lambda name: sum(block["state"] == name for block in blocks)
    print(json.dumps({
        "entries": len(entries),
        "actions": {name: count(name) for name in sorted({entry["action"] for entry in entries})},
        "states": {name: state(name) for name in sorted({block["state"] for block in blocks})},
        "total": sum(segment["total_size"] for segment in snapshot["segments"]),
        "dropped": snapshot["trtalloc"]["dropped"],
        "left_out": snapshot["trtalloc"]["left_out"],
        "names": sorted({frame["name"] for entry in entries + blocks for frame in entry["frames"]}),
        "stacks": [[frame["name"] for frame in frames] for frames in
                   {id(e["frames"]): e["frames"] for e in entries + blocks}.values()],
    }))


main(*sys.argv[1:])
