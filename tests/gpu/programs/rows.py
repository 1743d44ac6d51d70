"""What the questions in Python share: rows as the probe prints them, child processes, CUDA's driver through ctypes."""

import ctypes
import json
import os
import subprocess
import sys
import traceback


class NotAsked(Exception):
    """The question cannot be put here; the reason goes into the row."""


def header():
    print(f"{'question':<84} | {'answer':<34} | evidence", flush=True)


def row(question, answer, evidence):
    evidence = " ".join(str(evidence).split()) or "-"
    print(f"{question:<84} | {answer:<34} | {evidence[:400]}", flush=True)


def ask(question, put):
    """Prints the row of a question. `put` returns the answer and its evidence."""
    try:
        row(question, *put())
    except NotAsked as reason:
        row(question, "not asked", reason)
    except Exception as error:
        traceback.print_exc()
        row(question, "fails", f"{type(error).__name__}: {error}")


class Cuda:
    """Device 0's primary context, current to this thread."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NotAsked(error)
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} gave {code}")

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return stream.value

    def write(self, address, bytes, stream):
        self.call("cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_ubyte(1), ctypes.c_size_t(bytes), ctypes.c_void_p(stream))

    def synchronize(self):
        self.call("cuCtxSynchronize")

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


class Child:
    """This program again, as a process that does what it is asked in lines of JSON."""

    def __init__(self, **variables):
        self.process = subprocess.Popen(
            [sys.executable, sys.argv[0], "child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )

    def ask(self, what, *arguments):
        print(json.dumps([what, *arguments]), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self.process.wait()}")
        return json.loads(line)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            return "killed after 20 s"


def serve():
    """What a child does: holds blocks of the process's allocator, on a stream of its own."""
    import trtalloc

    cuda = Cuda()
    stream, blocks = cuda.stream(), []
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        answer = True
        if what == "allocate":  # count, bytes, whether on the stream: how many there were
            count, size, on_stream = arguments
            answer = 0
            for _ in range(count):
                try:
                    block = trtalloc.allocate(size, stream if on_stream else None)
                except trtalloc.Error:
                    break
                cuda.write(block.address, size, stream)
                blocks.append(block)
                answer += 1
        elif what == "free":  # how many
            if arguments[0]:
                cuda.synchronize()
                for block in blocks[-arguments[0] :]:
                    block.close()
                del blocks[-arguments[0] :]
        elif what == "stats":
            answer = trtalloc.stats(0)
        elif what == "device":
            cuda.synchronize()
            answer = cuda.free()
        print(json.dumps(answer), flush=True)
    for block in blocks:
        block.close()
