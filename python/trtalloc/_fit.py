"""Whether execution contexts of an engine fit into the pool."""

from typing import Any, NamedTuple, Optional

from . import _library


class Fit(NamedTuple):
    """What a deserialized engine needs for execution contexts, beside what the pool can still give, in bytes."""

    per_context: int
    """The most that one context needs for any profile, as TensorRT says: activations and scratch, also the scratch for streamed
    weights. Not what TensorRT keeps beside them, and not the engine's weights, which are in the pool already."""

    needed: int
    """`per_context` for all contexts."""

    available: int
    """`available` of stats(): what is free in the pool, and what limit, headroom and device leave beyond it. Where the
    runtime's name has a limit that leaves less, that."""

    streamable_weights: int
    """The weights that can be streamed. 0 for an engine without BuilderFlag.WEIGHT_STREAMING, and before TensorRT 10.1."""

    streaming_budget_now: int
    """Of these, what may lie on the device now: the engine's present weight streaming budget."""

    limited_by_name: bool = False
    """Whether `available` is what the limit of the name leaves (set_tag_limit), not what the pool can give."""

    @property
    def fits(self) -> bool:
        """Whether `needed` is available. Another thread or process may take it before the contexts exist, and a large block may
        not find it in one piece."""
        return self.needed <= self.available

    @property
    def missing(self) -> int:
        """By how much the contexts miss; 0 if they fit."""
        return max(self.needed - self.available, 0)

    @property
    def weight_streaming_budget(self) -> Optional[int]:
        """The largest budget with which the contexts fit, for `engine.weight_streaming_budget_v2`, which TensorRT accepts only
        while the engine has no context; None where no budget makes them fit, or the engine does not stream. Streaming needs
        scratch, whose size TensorRT says only once a budget is set. So ask for the fit again afterwards.
        """
        left = self.streaming_budget_now + self.available - self.needed
        return min(left, self.streamable_weights) if self.streamable_weights and left >= 0 else None


def fit(engine: Any, contexts: int = 1, device: int = -1, name: Optional[str] = None) -> Fit:
    """Whether `contexts` more contexts of a deserialized engine fit into the pool. It allocates nothing and changes nothing.

    The engine's memory must come from the pool. Where its runtime has a name (attach(runtime, name="resnet")), pass that name:
    it may have a limit of its own. Raises Error if the pool has not been used on the device, so that it does not
    know the device's memory. Device -1 is the current one.
    """
    if contexts < 0:
        raise ValueError(f"{contexts} contexts")
    # TensorRT 10.1 and later, and before.
    new, old = getattr(engine, "device_memory_size_v2", None), getattr(engine, "device_memory_size", None)
    per_context = old if new is None else new
    if per_context is None:
        raise TypeError(f"fit requires TensorRT's ICudaEngine, not {type(engine).__name__}")
    weights = budget = 0
    # TensorRT 10.0 has another budget, which does not mix with this one.
    if hasattr(type(engine), "weight_streaming_budget_v2"):
        weights = max(engine.streamable_weights_size, 0)
        budget = min(max(engine.weight_streaming_budget_v2, 0), weights) if weights else 0
    now = _library.stats(device)
    if now["device_total"] == 0 and now["reserved"] == 0:
        unsupported = _library.Error.NAMES.index("UNSUPPORTED")
        raise _library.Error(unsupported, "the device's memory is not known: the pool has not been used on it")
    available, limited_by_name = now["available"], False
    if name is not None:
        named = _library.tag_stats(device, name)
        left = max(named["limit"] - named["allocated"], 0)
        limited_by_name = named["limit"] != 0 and left < available
        available = left if limited_by_name else available
    return Fit(per_context, per_context * contexts, available, weights, budget, limited_by_name)
