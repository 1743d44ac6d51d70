"""Real Numba. Its as_cuda_array runs over the simulated libcuda.so.1 too; kernels need a GPU."""

import os
import shutil
import subprocess

import pytest
from conftest import needs

pytestmark = needs("numba")


@pytest.fixture
def over_driver(over_cuda, tmp_path):
    """As over_cuda. Numba looks for one function at its start that the simulated driver lacks; a library over it has that one."""
    standin = os.environ.get("TRTALLOC_TEST_STANDIN")
    if not standin:
        return over_cuda
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "driver.c", tmp_path / "libdriver.so"
    source.write_text("int cuIpcOpenMemHandle_v2(void) { return 801; }\n")
    folders = [f"-L{folder}" for folder in standin.split(":")]
    driver = ["-Wl,--no-as-needed", *folders, "-l:libcuda.so.1"]
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), *driver], check=True)
    return lambda program: over_cuda(program, NUMBA_CUDA_DRIVER=str(library))


def test_a_block_is_taken_without_copying(over_driver):
    over_driver(
        """
        import gc
        import numpy, trtalloc
        from numba import cuda

        def held():
            gc.collect()
            return trtalloc.stats(0)["allocated"]

        cuda.select_device(0)
        # Numba waits for the block's stream, which it must be able to find.
        for stream in (cuda.stream(), cuda.default_stream(), 0, None):
            block = trtalloc.allocate(1 << 20, stream)
            bytes_, floats = cuda.as_cuda_array(block), cuda.as_cuda_array(block.view((16, 32), numpy.float32))
            assert bytes_.device_ctypes_pointer.value == floats.device_ctypes_pointer.value == block.address
            assert bytes_.shape == (1 << 20,) and bytes_.dtype == "uint8"
            assert floats.shape == (16, 32) and floats.dtype == "float32" and floats.is_c_contiguous()
            assert cuda.is_cuda_array(block)
            block.close()
            del block, bytes_
            assert held() == 1 << 20
            del floats
            assert held() == 0
        """
    )
