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


def test_a_capsule_is_taken_without_copying(simulated):
    """from_dlpack calls CUDA's runtime; this older function takes the capsule alone."""
    simulated(
        """
        import gc, warnings
        import cupy, trtalloc
        warnings.simplefilter("ignore")
        block = trtalloc.allocate(1 << 20, 0).view((16, 32), "float16")
        array = cupy.fromDlpack(block.__dlpack__())
        assert array.data.ptr == block.address and array.shape == (16, 32) and array.dtype == "float16"
        assert array.flags.c_contiguous
        del block
        gc.collect()
        assert trtalloc.stats(0)["allocated"] == 1 << 20
        del array
        assert trtalloc.stats(0)["allocated"] == 0
        """
    )


def test_blocks_are_taken_without_copying(gpu):
    gpu(
        """
        import cupy, trtalloc
        stream = cupy.cuda.Stream()
        for consumer in (cupy.from_dlpack, cupy.asarray):
            block = trtalloc.allocate(4 << 20, stream)
            array = consumer(block.view(1 << 20, "float32"))
            assert array.data.ptr == block.address
            array.fill(1.5)
            assert float(array.sum()) == 1.5 * (1 << 20)
            del block, array
            assert trtalloc.stats()["allocated"] == 0
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
