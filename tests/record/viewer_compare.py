"""What PyTorch's _memory_viz.py says of two snapshots: viewer_compare.py BEFORE AFTER PYTORCHS FOLDER _memory_viz.py...

PYTORCHS is a snapshot as PyTorch writes it. The command `compare` is run too. It does for our files what it does for PyTorch's:
from PyTorch 2.0.1 to 2.15.0, it iterates over the keys of a snapshot's dictionary, and fails on every file. The function takes
lists of segments, as snapshots were until PyTorch 1.13."""

import importlib.util
import os
import pickle
import re
import subprocess
import sys


def read(path):
    with open(path, "rb") as file:
        return pickle.load(file)["segments"]


def expected(some, others):
    """Bytes of blocks in segments that only `some` has, as the function sums them up."""
    known = {(segment["address"], segment["total_size"]) for segment in others}
    only = [segment for segment in some if (segment["address"], segment["total_size"]) not in known]
    blocks = [block for segment in only for block in segment["blocks"]]
    return sum(block["requested_size"] if block["state"] != "inactive" else block["size"] for block in blocks)


def lines(text, prefix):
    return [line for line in text.splitlines() if line.startswith(prefix + ";stream_")]


def run(viewer, before, after, folder):
    """The last line of what the command says, and what it writes."""
    output = os.path.join(folder, "compare.svg")
    command = [sys.executable, viewer, "compare", before, after, "-o", output]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, (done.stderr.splitlines() or [""])[-1]


def main(before, after, pytorchs, folder, *viewers):
    old, new = read(before), read(after)
    for viewer in viewers:
        spec = importlib.util.spec_from_file_location("memory_viz", viewer)
        theirs = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(theirs)
        text = theirs.compare(old, new, str)
        for prefix, some, others in (("only_before", old, new), ("only_after", new, old)):
            found = sum(int(re.search(r" (\d+)$", line)[1]) for line in lines(text, prefix))
            assert found == expected(some, others), (viewer, prefix, found)
        assert lines(text, "only_after"), "the newer one has memory that the older one lacks"
        assert "a_model_that_came_later" in text, text
        assert theirs.compare(new, new, str) == ""
        status, said = run(viewer, pytorchs, pytorchs, folder)
        assert run(viewer, before, after, folder) == (status, said), (viewer, said)
        print(os.path.basename(viewer), status, said)


main(*sys.argv[1:])
