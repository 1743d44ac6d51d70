"""Real CuPy: it takes the functions; memory it gets only where its own CUDA runtime, which is linked in, finds a GPU."""

from conftest import needs

pytestmark = needs("cupy")


def test_the_functions_are_taken(simulated):
    simulated(
        """
        import cupy, trtalloc
        allocator = trtalloc.use_for_cupy()
        assert isinstance(allocator, cupy.cuda.memory.CFunctionAllocator)
        assert cupy.cuda.get_allocator() == allocator.malloc
        assert trtalloc.use_for_cupy() is allocator
        """
    )


def test_arrays_are_the_pools(gpu):
    gpu(
        """
        import cupy, trtalloc
        trtalloc.use_for_cupy()
        array = cupy.arange(1 << 20)
        assert int(array.sum()) == (1 << 19) * ((1 << 20) - 1)
        assert trtalloc.stats()["allocated"] >= 8 << 20
        del array
        cupy.cuda.Device().synchronize()
        assert trtalloc.stats()["allocated"] == 0
        """
    )
