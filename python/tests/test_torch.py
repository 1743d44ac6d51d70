"""Real PyTorch with the pool: for all of its memory, and in a MemPool."""

import textwrap

from conftest import needs

pytestmark = needs("torch")


def test_tensors_come_from_the_pool(over_cuda):
    over_cuda(
        """
        import torch, trtalloc
        assert trtalloc.use_for_torch() is trtalloc.use_for_torch()
        numbers = torch.arange(1 << 18)
        there = numbers.cuda()
        assert trtalloc.stats()["allocated"] == 2 << 20
        assert (there.cpu() == numbers).all()

        # A stream reuses what it freed, and no other stream does.
        address = there.data_ptr()
        del there
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            other = torch.empty(1 << 18, dtype=torch.int64, device="cuda")
        again = torch.empty(1 << 18, dtype=torch.int64, device="cuda")
        assert again.data_ptr() == address != other.data_ptr()
        again.record_stream(stream)
        nothing = torch.empty(0, device="cuda")
        nothing.record_stream(stream)
        del other, again, nothing
        torch.cuda.synchronize()
        assert trtalloc.stats()["allocated"] == 0 < trtalloc.stats()["reserved"]
        torch.cuda.empty_cache()
        assert trtalloc.stats()["reserved"] == 0
        """
    )


def test_out_of_memory_raises_pytorchs_own_error(over_cuda):
    over_cuda(
        """
        import re, threading, torch, trtalloc
        trtalloc.use_for_torch()
        torch.empty(1, device="cuda")
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(0.01)
        assert trtalloc.stats()["limit"] == int(total * 0.01)
        caught = []

        def attempts():
            for _ in range(20):
                try:
                    torch.empty(int(total * 0.02), dtype=torch.uint8, device="cuda")
                except torch.cuda.OutOfMemoryError as error:
                    words = (
                        r"CUDA out of memory\\. Tried to allocate \\S+ MiB\\. GPU 0 has a total capacity of \\S+ GiB "
                        r"of which \\S+ GiB is free\\. trtalloc: out of memory: "
                    )
                    assert re.match(words, str(error)), error
                    caught.append(error)

        threads = [threading.Thread(target=attempts) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(caught) == 80
        assert torch.empty(1 << 20, device="cuda").data_ptr()
        """
    )


def test_a_memory_fraction_of_a_missing_device_raises(over_cuda):
    over_cuda(
        """
        import torch, trtalloc
        trtalloc.use_for_torch()
        torch.empty(1, device="cuda")
        for device in (torch.cuda.device_count(), 63):
            try:
                torch.cuda.set_per_process_memory_fraction(0.5, device)
            except RuntimeError as error:
                assert f"no device {device}" in str(error), error
            else:
                raise SystemExit("no error")
        assert trtalloc.stats()["limit"] == 0
        if hasattr(torch.cuda, "get_per_process_memory_fraction"):
            assert torch.cuda.get_per_process_memory_fraction() == 1
            torch.cuda.set_per_process_memory_fraction(0.25)
            assert torch.cuda.get_per_process_memory_fraction() == 0.25
        """
    )


def test_pytorch_reports_the_pools_statistics(over_cuda):
    keys = """
        import torch
        torch.empty(1, device="cuda")
        print(*sorted(torch.cuda.memory_stats()))
        """
    theirs = set(over_cuda(keys).stdout.split())
    ours = set(over_cuda("import trtalloc; trtalloc.use_for_torch()\n" + textwrap.dedent(keys)).stdout.split())
    assert theirs and theirs <= ours, theirs - ours
    over_cuda(
        """
        import torch, trtalloc
        trtalloc.use_for_torch()
        assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_stats() == {}
        kept = torch.empty(1 << 20, device="cuda")
        more = torch.empty(1 << 20, device="cuda")
        mib = 1 << 20
        figures = trtalloc.stats()
        assert torch.cuda.memory_allocated() == torch.cuda.memory_allocated("cuda:0") == 8 * mib == figures["allocated"]
        assert torch.cuda.memory_reserved() == figures["reserved"] >= 8 * mib
        del more
        assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (4 * mib, 8 * mib)
        stats = torch.cuda.memory_stats()
        counts = [stats[f"allocation.all.{part}"] for part in ("current", "allocated", "freed")]
        assert counts == [1, 2, 1], counts
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 4 * mib
        assert stats["num_ooms"] == 0
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            pass
        assert torch.cuda.memory_stats()["num_ooms"] == trtalloc.stats()["out_of_memory"]
        torch.cuda.reset_accumulated_memory_stats()
        stats = torch.cuda.memory_stats()
        assert stats["num_ooms"] == stats["allocation.all.allocated"] == 0 and stats["allocation.all.current"] == 1
        assert "Allocated memory" in torch.cuda.memory_summary() and "4096 KiB" in torch.cuda.memory_summary()
        # PyTorch 2.9.
        if hasattr(getattr(torch, "accelerator", None), "memory_allocated"):
            assert torch.accelerator.memory_allocated() == 4 * mib
            assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
            torch.accelerator.reset_peak_memory_stats()
            torch.accelerator.reset_accumulated_memory_stats()
            assert torch.accelerator.max_memory_allocated() == 4 * mib
            del kept
            torch.accelerator.empty_cache()
            assert torch.accelerator.memory_reserved() == 0
        """
    )


def test_pytorchs_history_and_snapshots_are_the_pools(over_cuda, tmp_path):
    over_cuda(
        f"""
        import inspect, pickle, torch, trtalloc
        trtalloc.use_for_torch()
        history = torch.cuda.memory._record_memory_history
        is_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: None)
        assert not is_enabled()
        history()
        kept = torch.empty(1 << 20, device="cuda")
        del kept
        kept = torch.empty(1 << 20, device="cuda")
        assert is_enabled() in (True, None)

        def blocks(segments):
            return {{b["address"]: b["state"] for s in segments for b in s["blocks"]}}

        snapshot = torch.cuda.memory._snapshot()
        for segments in (snapshot["segments"], torch.cuda.memory_snapshot(), trtalloc.memory._snapshot()["segments"]):
            assert blocks(segments)[kept.data_ptr()] == "active_allocated"
        actions = [event["action"] for event in snapshot["device_traces"][0]]
        assert actions.count("alloc") == 2 and actions.count("free_completed") == 1, actions
        torch.cuda.memory._dump_snapshot({str(tmp_path / "snapshot")!r})
        with open({str(tmp_path / "snapshot")!r}, "rb") as file:
            assert blocks(pickle.load(file)["segments"]) == blocks(snapshot["segments"])
        # The older form, and off.
        history(True, trace_alloc_max_entries=1000)
        torch.empty(1 << 20, device="cuda")
        assert "free_completed" in [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
        history(None)
        assert not is_enabled()
        # PyTorch's parameters in its order. Newer versions have more.
        theirs = list(inspect.signature(history).parameters)
        ours = list(inspect.signature(trtalloc.memory._record_memory_history).parameters)
        assert ours == theirs[: len(ours)], (ours, theirs)
        """
    )


def test_allocator_and_mem_pool_exclude_each_other(over_cuda):
    for first, second in (("use_for_torch(extension=False)", "torch_mem_pool()"), ("torch_mem_pool()", "use_for_torch()")):
        over_cuda(
            f"""
            import torch, trtalloc
            kept = trtalloc.{first}
            try:
                trtalloc.{second}
            except RuntimeError as error:
                assert "trtalloc.{first.split("(")[0]}() was called before" in str(error), error
            else:
                raise SystemExit("no error")
            """
        )


def test_use_after_cuda_was_initialized_raises(over_cuda):
    over_cuda(
        """
        import torch, trtalloc
        torch.empty(1, device="cuda")
        try:
            trtalloc.use_for_torch()
        except RuntimeError as error:
            assert "before" in str(error)
        else:
            raise SystemExit("no error")
        """
    )


def test_a_mem_pool_uses_the_pool(over_cuda):
    over_cuda(
        """
        import torch, trtalloc
        pool = trtalloc.torch_mem_pool()
        with torch.cuda.use_mem_pool(pool):
            inside = torch.empty(1 << 20, device="cuda")
        segment = trtalloc.stats()["allocated"]
        assert segment >= 4 << 20
        outside = torch.empty(1 << 20, device="cuda")
        assert trtalloc.stats()["allocated"] == segment
        # PyTorch keeps what an existing MemPool has cached, and does not use it where a request in the MemPool fails.
        del inside
        torch.cuda.empty_cache()
        assert trtalloc.stats()["allocated"] == segment, "given back: this test and docs/frameworks.md are out of date"
        trtalloc.set_limit(32 << 20)
        try:
            with torch.cuda.use_mem_pool(pool):
                torch.empty(64 << 20, device="cuda")
        except torch.OutOfMemoryError:
            pass
        else:
            raise SystemExit("no error")
        del pool
        assert trtalloc.stats()["allocated"] == 0
        """
    )


def test_a_mem_pool_takes_pytorchs_options(over_cuda):
    over_cuda(
        """
        import inspect, torch, trtalloc
        known = inspect.signature(torch.cuda.MemPool.__init__).parameters
        options = {name: True for name in ("use_on_oom", "no_split") if name in known}
        pool = trtalloc.torch_mem_pool(**options)
        with torch.cuda.use_mem_pool(pool):
            kept = [torch.empty(4 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
        if "no_split" in options:
            assert [len(segment["blocks"]) for segment in pool.snapshot()] == [1, 1]
        assert trtalloc.stats()["allocated"] >= 8 << 20
        del kept, pool
        for option in {"other", "use_on_oom", "no_split"} - options.keys():
            try:
                trtalloc.torch_mem_pool(**{option: True})
            except RuntimeError as error:
                assert f"no option {option}" in str(error), error
            else:
                raise SystemExit("no error")
        """
    )


def test_tensors_outlive_their_mem_pool(over_cuda):
    over_cuda(
        """
        import torch, trtalloc
        if hasattr(torch.cuda.memory, "MemPoolContext"):
            raise SystemExit(0)  # PyTorch 2.6 and 2.7 give such memory to cudaFree: docs/frameworks.md says so
        pool = trtalloc.torch_mem_pool()
        with torch.cuda.use_mem_pool(pool):
            inside, cached = torch.arange(1 << 18, device="cpu").cuda(), torch.empty(8 << 20, device="cuda")
        del cached
        held = trtalloc.stats()["allocated"]
        del pool
        kept = trtalloc.stats()["allocated"]
        assert 2 << 20 <= kept <= held - (32 << 20), (kept, held)
        assert (inside.cpu() == torch.arange(1 << 18)).all()
        del inside
        torch.cuda.empty_cache()
        assert trtalloc.stats()["allocated"] == 0
        """
    )


def test_results_equal_those_of_pytorchs_allocator(gpu):
    """Prints a table; see gpu_torch.py."""
    import sys
    from pathlib import Path

    done = gpu([sys.executable, str(Path(__file__).with_name("gpu_torch.py"))])
    print(done.stdout)


BLOCKS = """
    import gc, torch, trtalloc
    torch.empty(1, device="cuda")

    def held():
        gc.collect()
        return trtalloc.stats(0)["allocated"]
"""


def test_a_block_is_taken_without_copying(over_cuda):
    over_cuda(
        textwrap.dedent(BLOCKS)
        + textwrap.dedent(
            """
        for stream in (torch.cuda.Stream(), torch.cuda.current_stream(), 0, 1, None):
            block = trtalloc.allocate(1 << 20, stream)
            address = block.address
            tensor = torch.from_dlpack(block)
            other = torch.as_tensor(block.view((256, 256), "int32"), device="cuda")
            assert tensor.data_ptr() == other.data_ptr() == address
            assert tensor.dtype == torch.uint8 and tensor.shape == (1 << 20,) and tensor.device == torch.device("cuda:0")
            assert other.dtype == torch.int32 and other.shape == (256, 256)
            numbers = torch.arange(1 << 16, dtype=torch.int32).view(256, 256)
            other.copy_(numbers)
            assert (tensor[: 1 << 18].view(torch.int32).view(256, 256).cpu() == numbers).all()
            block.close()
            del block, other
            assert held() == 1 << 20
            del tensor
            assert held() == 0
        for dtype in (torch.bool, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64):
            tensor = torch.from_dlpack(trtalloc.allocate(1000, 0).view((3, 2), dtype))
            assert tensor.dtype == dtype and tensor.shape == (3, 2) and tensor.is_contiguous(), dtype
        del tensor
        # A capsule is taken once.
        capsule = trtalloc.allocate(1000, 0).__dlpack__()
        tensor = torch.utils.dlpack.from_dlpack(capsule)
        try:
            torch.utils.dlpack.from_dlpack(capsule)
        except RuntimeError as error:
            assert "once" in str(error)
        else:
            raise SystemExit("no error")
        del tensor
        assert held() == 0
        """
        )
    )


def test_a_block_serves_beside_the_pool_as_pytorchs_allocator(over_cuda):
    over_cuda(
        """
        import torch, trtalloc
        trtalloc.use_for_torch()
        tensor = torch.from_dlpack(trtalloc.allocate(1 << 20, 0))
        more = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 2 << 20
        more.copy_(tensor)
        del tensor, more
        assert torch.cuda.memory_allocated() == 0
        """
    )
