"""The types of the public functions, which mypy checks (tests/packaging/python/package.rs); it is not run. Each `type: ignore` is an
error that mypy must find, since `--strict` refuses one that is not needed.
"""

from typing import Any, Dict, Optional, Tuple

import trtalloc
import trtalloc.memory
from typing_extensions import assert_type


def blocks(stream: object) -> None:
    with trtalloc.allocate(1 << 20, stream, device=0, alignment=256) as block:
        assert_type(block, trtalloc.Block)
        assert_type(block.view((2, 3), "float32").shape, Tuple[int, ...])
        assert_type((block.address, block.size, block.device, block.closed), Tuple[int, int, int, bool])
        assert_type((block.stream, block.dtype), Tuple[Optional[int], str])
        assert_type(block.__dlpack_device__(), Tuple[int, int])
        assert_type(block.__cuda_array_interface__, Dict[str, Any])
        block.__dlpack__(stream=1, max_version=(1, 0), dl_device=(2, 0), copy=False)
        block.record_stream(stream)
    trtalloc.allocate("1MiB")  # type: ignore[arg-type]
    block.__dlpack__(1)  # type: ignore[misc]
    block.size = 5  # type: ignore[misc]


def tensorrt(module: Any, runtime: Any, engine: Any, context: Any) -> None:
    trtalloc.inject(False)
    trtalloc.attach(runtime, name="resnet")
    trtalloc.tensorrt_allocator(module, "resnet")
    assert_type(trtalloc.fit(engine, contexts=4, name="resnet"), trtalloc.Fit)
    outputs = trtalloc.OutputAllocator(module)
    assert_type(outputs, trtalloc.OutputAllocator)
    outputs.attach(context, ["boxes"])
    assert_type(outputs.get("boxes").shape, Tuple[int, ...])
    assert_type(outputs.take("boxes", dtype="float32"), trtalloc.Block)
    outputs.release("boxes")
    outputs.close()
    scratch = trtalloc.SharedScratch(per_stream=True)
    with scratch.lend(context, 0):
        pass
    assert_type((scratch.size, scratch.address(0)), Tuple[int, Optional[int]])
    scratch.ordered()
    scratch.release(0)
    scratch.close()
    outputs.take(1)  # type: ignore[arg-type]


def statistics() -> None:
    assert_type(trtalloc.stats(), Dict[str, int])
    assert_type(trtalloc.tag_stats(device=0), Dict[str, Dict[str, int]])
    assert_type(trtalloc.metrics(), str)
    assert_type(trtalloc.trim(keep_bytes=1 << 20), int)
    assert_type((trtalloc.__version__, trtalloc.library_path), Tuple[str, str])
    with trtalloc.tag("engine"):
        trtalloc.set_tag_limit("engine", 1 << 30)
    trtalloc.set_limit(1 << 30)
    trtalloc.reset_peaks()
    try:
        trtalloc.stats(5)
    except trtalloc.Error as error:
        assert_type((error.status, error.name), Tuple[int, str])
    trtalloc.stats("cuda:0")  # type: ignore[arg-type]


def frameworks(options: Any) -> None:
    trtalloc.use_for_torch()
    trtalloc.torch_mem_pool()
    trtalloc.use_for_cupy()
    trtalloc.rmm_resource()
    trtalloc.use_for_onnxruntime(options, device=1)
    assert_type(trtalloc.onnxruntime_options(), Dict[str, str])
    assert_type(trtalloc.MemoryResource(0).device_id, int)
    trtalloc.MemoryResources()  # type: ignore[attr-defined]
    trtalloc.use_for_onnxruntime(options, device="cuda")  # type: ignore[arg-type]
    trtalloc.memory._record_memory_history("all", max_entries=1000)
    assert_type(trtalloc.memory._snapshot(), Dict[str, Any])
    trtalloc.memory._dump_snapshot("snapshot.pickle")
