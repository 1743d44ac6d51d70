"""Real PyTorch over the pool: as its allocator, and as a MemPool's."""

from conftest import needs

pytestmark = needs("torch")


def test_tensors_are_the_pools(over_cuda):
    over_cuda(
        """
        import torch, trtalloc
        assert trtalloc.use_for_torch() is trtalloc.use_for_torch()
        numbers = torch.arange(1 << 18)
        there = numbers.cuda()
        assert trtalloc.stats()["allocated"] == 2 << 20
        assert (there.cpu() == numbers).all()

        # What a stream freed is its own again, and no other stream's.
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


def test_out_of_memory_is_an_error(over_cuda):
    over_cuda(
        """
        import threading, torch, trtalloc
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
                except RuntimeError as error:
                    assert str(error).startswith("CUDA out of memory. trtalloc: out of memory: "), error
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


def test_what_pytorch_refuses_is_here(over_cuda):
    over_cuda(
        """
        import inspect, torch, trtalloc
        trtalloc.use_for_torch()
        kept = torch.empty(1 << 20, device="cuda")
        for refused in (torch.cuda.memory_stats, torch.cuda.memory._snapshot):
            try:
                refused()
            except RuntimeError as error:
                assert "does not yet support" in str(error), error
            else:
                raise SystemExit(f"{refused} works: this test and docs/frameworks.md are out of date")
        assert trtalloc.stats()["allocated"] == 4 << 20
        # PyTorch's parameters, in its order.
        theirs = list(inspect.signature(torch.cuda.memory._record_memory_history).parameters)
        ours = list(inspect.signature(trtalloc.memory._record_memory_history).parameters)
        assert ours == theirs, (ours, theirs)
        """
    )


def test_too_late(over_cuda):
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


def test_a_mem_pool(over_cuda):
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
        trtalloc.set_limit(32 << 20)
        try:
            with torch.cuda.use_mem_pool(pool):
                torch.empty(64 << 20, device="cuda")
        except torch.OutOfMemoryError:
            pass
        else:
            raise SystemExit("no error")
        del inside
        del pool
        torch.cuda.empty_cache()
        assert trtalloc.stats()["allocated"] == 0
        """
    )


def test_results_and_peak_beside_pytorchs_own(gpu):
    """Prints a table; see gpu_torch.py."""
    import sys
    from pathlib import Path

    done = gpu([sys.executable, str(Path(__file__).with_name("gpu_torch.py"))])
    print(done.stdout)
