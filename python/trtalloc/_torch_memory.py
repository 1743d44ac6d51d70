"""Memory statistics, history and snapshots for torch.cuda and torch.accelerator, from the pool. For an allocator that is not its
own, PyTorch would raise an error or return zero.
"""

import threading
from typing import Any, Dict, List, Optional, Sequence

from . import _library, _torch_extension, memory

# PyTorch's names: each statistic of these kinds has all of these parts. docs/frameworks.md lists those that the pool counts.
_KINDS = (
    "active",
    "active_bytes",
    "allocated_bytes",
    "allocation",
    "inactive_split",
    "inactive_split_bytes",
    "oversize_allocations",
    "oversize_segments",
    "requested_bytes",
    "reserved_bytes",
    "segment",
)
_PARTS = ("current", "peak", "allocated", "freed")
_SPLIT = ("all", "small_pool", "large_pool")
_UNSPLIT = ("oversize_allocations", "oversize_segments")
_COUNTERS = (
    "num_alloc_retries",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
    "num_ooms",
    "num_sync_all_streams",
)

# The library's counters when a device's accumulated statistics, as PyTorch calls them, were last reset.
_resets: Dict[int, Dict[str, int]] = {}
_lock = threading.Lock()


def _figures(device: int) -> Dict[str, int]:
    """The library's figures, with the blocks of private pools in place of their segments."""
    figures = _library.stats(device)
    counters = _torch_extension.counters(device)
    figures.update(bytes_allocated=0, bytes_freed=0)
    if counters is not None:
        figures["allocated"] += counters["used"] - counters["held"]
        figures["requested"] += counters["used"] - counters["held"]
        figures["allocations"] += counters["blocks_allocated"] - counters["segments_allocated"]
        figures["frees"] += counters["blocks_freed"] - counters["segments_freed"]
        figures["bytes_allocated"], figures["bytes_freed"] = counters["allocated"], counters["freed"]
    return figures


def memory_stats(device: int) -> Dict[str, Any]:
    """A nested dictionary like that of torch.cuda.memory_stats_as_nested_dict."""
    figures = _figures(device)
    with _lock:
        before = _resets.get(device, {})
    nothing = dict.fromkeys(_PARTS, 0)
    stats: Dict[str, Any] = {
        kind: dict(nothing) if kind in _UNSPLIT else {pool: dict(nothing) for pool in _SPLIT} for kind in _KINDS
    }

    def since(name: str) -> int:
        return figures[name] - before.get(name, 0)

    def fill(kind: str, **parts: int) -> None:
        stats[kind]["all"].update(parts)

    allocated, active, peak = figures["allocated"], figures["allocated"] + figures["pending"], figures["allocated_peak"]
    in_total = {"allocated": since("bytes_allocated"), "freed": since("bytes_freed")}
    fill("allocated_bytes", current=allocated, peak=max(allocated, peak), **in_total)
    fill("active_bytes", current=active, peak=max(active, peak), **in_total)
    fill("requested_bytes", current=figures["requested"], peak=peak)
    fill("reserved_bytes", current=figures["reserved"], peak=figures["reserved_peak"])
    blocks = figures["allocations"] - figures["frees"]
    for kind in ("allocation", "active"):
        fill(kind, current=blocks, peak=blocks, allocated=since("allocations"), freed=since("frees"))
    stats.update(dict.fromkeys(_COUNTERS, 0), num_ooms=since("out_of_memory"), max_split_size=-1)
    return stats


def reset_peak_memory_stats(device: int) -> None:
    _library.check(_library.library.trtalloc_stats_reset_peaks(_library.default(), device))


def reset_accumulated_memory_stats(device: int) -> None:
    now = _figures(device)
    with _lock:
        names = ("allocations", "frees", "out_of_memory", "bytes_allocated", "bytes_freed")
        _resets[device] = {name: now[name] for name in names}


def set_memory_fraction(fraction: float, device: int) -> None:
    """Sets the limit to a fraction of the device's memory. Raises an error on failure, unlike PyTorch's own function."""
    # 0 bytes would mean no limit.
    limit = max(int(_total(device) * fraction), 1)
    _library.check(_library.library.trtalloc_set_limit(_library.default(), device, limit))


def memory_fraction(device: int) -> float:
    limit, total = _library.stats(device)["limit"], _total(device)
    return min(limit / total, 1.0) if limit else 1.0


def _total(device: int) -> int:
    import torch

    if not 0 <= device < torch.cuda.device_count():
        raise _library.Error(1, f"there is no device {device}: {torch.cuda.device_count()} are here")
    return int(torch.cuda.get_device_properties(device).total_memory)


def memory_snapshot(wanted: Optional[Sequence[Any]] = None) -> Dict[str, Any]:
    """As torch._C._cuda_memorySnapshot: `wanted` is None, or the two numbers of a private pool and whether events are included."""
    snapshot = memory._snapshot()
    pools = _private_segments()
    snapshot["segments"] = [part for segment in snapshot["segments"] for part in _divided(segment, pools)]
    # Of MemPools with an allocator of their own.
    snapshot["segments"] += pools.values()
    for name in ("host_segments", "host_traces"):
        snapshot.setdefault(name, [])
    if wanted is not None and tuple(wanted[:2]) != (0, 0):
        pool = tuple(wanted[:2])
        snapshot["segments"] = [segment for segment in snapshot["segments"] if segment["segment_pool_id"] == pool]
    if wanted is not None and len(wanted) > 2 and not wanted[2]:
        snapshot["device_traces"] = [[] for _ in snapshot["device_traces"]]
    return snapshot


_STATES = ("inactive", "active_allocated", "active_pending_free")


def _private_segments() -> Dict[int, Dict[str, Any]]:
    """The segments of private pools in PyTorch's form, by their addresses."""
    segments: Dict[int, Dict[str, Any]] = {}
    for block in _torch_extension.blocks():
        segment = segments.setdefault(
            block["segment"],
            {
                "device": block["device"],
                "address": block["segment"],
                "total_size": block["segment_size"],
                "stream": block["stream"],
                "segment_type": "small" if block["small"] else "large",
                "segment_pool_id": (block["pool"], block["pool_of_handle"]),
                "is_expandable": False,
                "frames": [],
                "blocks": [],
            },
        )
        segment["blocks"].append(
            {
                "address": block["address"],
                "size": block["size"],
                "requested_size": block["requested"],
                "state": _STATES[block["state"]],
                "frames": [],
            }
        )
    for segment in segments.values():
        _sum(segment)
    return segments


def _sum(segment: Dict[str, Any]) -> None:
    """The sums over a segment's blocks."""

    def total(name: str, *states: str) -> int:
        return sum(block[name] for block in segment["blocks"] if block["state"] in states)

    segment["allocated_size"] = total("size", "active_allocated")
    segment["active_size"] = total("size", *_STATES[1:], "active_awaiting_free")
    segment["requested_size"] = total("requested_size", "active_allocated")


def _divided(segment: Dict[str, Any], pools: Dict[int, Dict[str, Any]]) -> List[Dict[str, Any]]:
    """A segment of the library, whose blocks may be segments of private pools, as one segment or several. Takes those from `pools`."""
    if not any(block["address"] in pools for block in segment["blocks"]):
        return [segment]
    parts: List[Dict[str, Any]] = []
    own: Optional[Dict[str, Any]] = None
    for block in segment["blocks"]:
        private = pools.pop(block["address"], None)
        if private is not None:
            # Where it was allocated.
            private["frames"] = block.get("frames", [])
            parts.append(private)
            own = None
            continue
        if own is None:
            own = {**segment, "address": block["address"], "total_size": 0, "blocks": []}
            parts.append(own)
        own["blocks"].append(block)
        own["total_size"] += block["size"]
    for part in parts:
        if part["segment_pool_id"] == (0, 0):
            _sum(part)
    return parts


def record_history(
    enabled: Optional[str],
    context: Optional[str],
    stacks: str,
    max_entries: int,
    clear_history: bool = False,
    *ignored: Any,
) -> None:
    """As torch._C._cuda_record_memory_history. What the library does not record, as compile contexts, is ignored."""
    if clear_history:
        memory._record_memory_history(None)
    memory._record_memory_history(enabled, context, stacks, max_entries)


def record_history_legacy(
    enabled: bool,
    record_context: bool = True,
    max_entries: int = 1,
    alloc_context: bool = False,
    native: bool = False,
    clear_history: bool = False,
    *ignored: Any,
) -> None:
    """As torch._C._cuda_record_memory_history_legacy, which takes True and False."""
    context = "alloc" if alloc_context else "state" if record_context else None
    # One entry, PyTorch's default here, stands for none.
    kind = None if not enabled else "all" if max_entries > 1 else "state"
    record_history(kind, context, "all" if native else "python", max_entries, clear_history)


def supply() -> None:
    """Replaces the functions of PyTorch's C module that this PyTorch has. All of PyTorch's own functions call that module."""
    import torch

    def initialized() -> bool:
        return bool(torch.cuda.is_initialized())

    def empty_cache() -> None:
        torch._C._cuda_emptyCache()

    for name, function in {
        "_cuda_memoryStats": memory_stats,
        "_cuda_resetPeakMemoryStats": reset_peak_memory_stats,
        "_cuda_resetAccumulatedMemoryStats": reset_accumulated_memory_stats,
        "_cuda_setMemoryFraction": set_memory_fraction,
        "_cuda_getMemoryFraction": memory_fraction,
        "_cuda_memorySnapshot": memory_snapshot,
        "_cuda_record_memory_history": record_history,
        "_cuda_record_memory_history_legacy": record_history_legacy,
        "_cuda_isHistoryEnabled": memory.is_recording,
        "_accelerator_isAllocatorInitialized": initialized,
        "_accelerator_getDeviceStats": memory_stats,
        "_accelerator_resetPeakStats": reset_peak_memory_stats,
        "_accelerator_resetAccumulatedStats": reset_accumulated_memory_stats,
        "_accelerator_emptyCache": empty_cache,
    }.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)
