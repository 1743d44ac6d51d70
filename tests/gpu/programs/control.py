"""`trtalloc ctl` with a process that holds memory of this driver. PACK_COMMAND names the command."""

import json
import os
import subprocess
import sys
import tempfile

import rows

MIB = 1 << 20


def ctl(*arguments):
    command = [os.environ["PACK_COMMAND"], "ctl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"ctl {arguments[1:]} gave {done.returncode}: {done.stderr}")
    return done.stdout


def main():
    rows.header()
    child = rows.Child(TRTALLOC_CONTROL="1", TRTALLOC_DECAY_MS="0")
    pid = child.process.pid

    def memory():
        had = child.ask("allocate", 8, 32 * MIB, True)
        return ("yes" if had == 8 else "no"), f"{had} of 8 blocks of 32 MiB, written on a stream"

    def listed():
        found = [line for line in ctl().splitlines() if str(pid) in line]
        return ("yes" if found else "no"), found or "not in the list"

    def stats():
        reserved = child.ask("stats")["reserved"]
        text = ctl(pid, "stats")
        return ("yes" if f"{reserved / MIB:.1f} MiB" in text else "no"), f"{reserved} bytes reserved, by the process itself"

    def metrics():
        text = ctl(pid, "metrics")
        return ("yes" if "trtalloc_" in text and text.rstrip().endswith("# EOF") else "no"), f"{len(text)} characters"

    def snapshot():
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.json")
            ctl(pid, "history", "all")
            child.ask("allocate", 1, MIB, True)
            child.ask("free", 1)
            ctl(pid, "snapshot", path)
            with open(path) as file:
                keys = sorted(json.load(file))
        return ("yes" if "segments" in keys else "no"), keys

    def trim():
        before = child.ask("device")
        child.ask("free", 8)
        child.ask("device")
        text = ctl(pid, "trim") + ctl(pid, "trim", "--confirm") + ctl(pid, "trim")
        given = child.ask("device") - before
        return ("yes" if given >= 256 * MIB else "no"), f"{given / MIB:.0f} MiB more are free on the device: {text}"

    def limit():
        ctl(pid, "limit", "64MiB")
        had = child.ask("allocate", 4, 32 * MIB, False)
        return ("yes" if had == 2 else "no"), f"{had} blocks of 32 MiB below 64 MiB"

    rows.ask("ctl: a process with memory of this driver", memory)
    rows.ask("ctl: the list has the process", listed)
    rows.ask("ctl: stats agree with the process's own", stats)
    rows.ask("ctl: metrics are whole", metrics)
    rows.ask("ctl: history is switched on, and a snapshot is written", snapshot)
    rows.ask("ctl: a trim gives the device its memory back", trim)
    rows.ask("ctl: a limit holds", limit)
    rows.ask("ctl: the process ends well", lambda: (lambda status: ("yes" if status == 0 else "no", f"status {status}"))(child.end()))


if __name__ == "__main__":
    rows.serve() if len(sys.argv) > 1 else main()
