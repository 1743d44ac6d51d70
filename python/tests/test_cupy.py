"""Real CuPy. It accepts the functions everywhere, but allocates only with a GPU, since its CUDA runtime is linked statically."""

from conftest import needs

pytestmark = needs("cupy")


def test_cupy_accepts_the_functions(simulated):
    simulated(
        """
        import cupy, trtalloc
        allocator = trtalloc.use_for_cupy()
        assert isinstance(allocator, cupy.cuda.memory.CFunctionAllocator)
        assert cupy.cuda.get_allocator() == allocator.malloc
        assert trtalloc.use_for_cupy() is allocator
        """
    )


def test_arrays_come_from_the_pool(gpu):
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
