"""Each test runs its program in a separate process, since the process's allocator reads its options once, and a framework
accepts an allocator once.
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest


def _run(program, variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRTALLOC_")}
    if "TRTALLOC_LIBRARY" in os.environ:
        environment["TRTALLOC_LIBRARY"] = os.environ["TRTALLOC_LIBRARY"]
    environment.update(variables)
    command = [sys.executable, "-c", textwrap.dedent(program)] if isinstance(program, str) else program
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    return done


def _passed(program, variables):
    done = _run(program, variables)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture
def simulated():
    """Runs a program over the simulated device of the library."""
    return lambda program, **variables: _passed(program, {"TRTALLOC_DRIVER": "sim", **variables})


@pytest.fixture
def anything():
    """Runs a program; the result has its status and output."""
    return lambda command, **variables: _run(command, variables)


def _real_gpu():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


@pytest.fixture
def over_cuda():
    """Runs a program over this machine's GPU, or over stand-ins for CUDA's libraries (TRTALLOC_TEST_STANDIN: folders)."""
    standin = os.environ.get("TRTALLOC_TEST_STANDIN")
    variables = {"TRTALLOC_DRIVER": "cuda"}
    if standin:
        variables["LD_LIBRARY_PATH"] = standin
    elif not _real_gpu():
        pytest.skip("no GPU, and no stand-in for one (TRTALLOC_TEST_STANDIN)")
    return lambda program, **more: _passed(program, {**variables, **more})


@pytest.fixture
def over_graphs():
    """Runs a program over this machine's GPU, or over a CUDA runtime with captures (TRTALLOC_TEST_RUNTIME: folders)."""
    runtime = os.environ.get("TRTALLOC_TEST_RUNTIME")
    variables = {"TRTALLOC_DRIVER": "cuda"}
    if runtime:
        variables["LD_LIBRARY_PATH"] = runtime
    elif os.environ.get("TRTALLOC_TEST_STANDIN") or not _real_gpu():
        pytest.skip("no GPU, and no CUDA runtime with captures (TRTALLOC_TEST_RUNTIME)")
    return lambda program, **more: _passed(program, {**variables, **more})


@pytest.fixture
def gpu():
    """Runs a program over this machine's GPU."""
    if os.environ.get("TRTALLOC_TEST_STANDIN") or not _real_gpu():
        pytest.skip("no GPU")
    return lambda program, **more: _passed(program, {"TRTALLOC_DRIVER": "cuda", **more})


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"no {module}")
