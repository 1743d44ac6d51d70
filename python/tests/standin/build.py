"""Builds stand-ins for NVIDIA's libraries, so that a framework can be loaded without them: the runtime of cudart.c, and for
every other library one with the names that the framework needs. Functions that create or destroy something do nothing, and any
other function ends the program.

    python build.py OUT LIBRARY...        the framework's own libraries
"""

import collections
import re
import subprocess
import sys
from pathlib import Path

# For each beginning of a soname: the names of that library's functions, where they have no version.
PREFIXES = {
    "libcurand": "curand",
    "libcusparseLt": "cusparseLt",
    "libnccl": "nccl",
    "libcufft": "cufft",
    "libnvrtc": "nvrtc",
    "libnvToolsExt": "nvtx",
    "libcublasLt": "cublasLt",
    "libcublas": "cublas",
    "libcudnn": "cudnn",
    "libcusolver": "cusolver",
    "libcusparse": "cusparse",
    "libcupti": "cupti",
    "libcudart": "cuda",
    "libcufile": "cuFile",
    "libnvshmem_host": "nvshmem",
}

REFUSE = """#include <stdio.h>
#include <stdlib.h>
static int refuse(const char *name) { fprintf(stderr, "stand-in: %s was called\\n", name); abort(); }
"""

# Functions that a framework calls at its start, which need to do nothing here.
QUIET = re.compile("Create|Destroy|SetStream|SetMathMode|GetVersion")


def function(name):
    return f"int {name}(void) {{ return {'0' if QUIET.search(name) else f'refuse({chr(34)}{name}{chr(34)})'}; }}\n"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(out, libraries):
    out.mkdir(parents=True, exist_ok=True)
    present = {Path(library).name for library in libraries}
    # The versions of each library's names. Most of NVIDIA's libraries use their soname.
    versions = {}
    wanted, sonames = collections.defaultdict(set), set()
    loose = set()
    for library in libraries:
        sonames |= set(re.findall(r"\(NEEDED\).*\[([^\]]+)\]", output("readelf", "-dW", library)))
        for section in output("readelf", "-VW", library).split("File: ")[1:]:
            for name in re.findall(r"Name: (\S+)", section):
                versions.setdefault(section.split()[0], name)
        for line in output("nm", "-D", "--undefined-only", "--with-symbol-versions", library).splitlines():
            name, _, version = line.split()[-1].partition("@")
            (wanted[version.lstrip("@")] if version else loose).add(name)
    sonames = {name for name in sonames - present if name.startswith(tuple(PREFIXES))}
    here = Path(__file__).parent
    for soname in sorted(sonames):
        stem = soname.split(".so")[0]
        version = versions.get(soname, soname)
        names = set(wanted.get(version, ()))
        # The longest beginning counts, since cublasLt is not cublas.
        for name in loose:
            owner = max((p for p in PREFIXES.values() if name.startswith(p)), key=len, default=None)
            if owner == PREFIXES[stem]:
                names.add(name)
        source = []
        if stem == "libcudart":
            source = [str(here / "cudart.c")]
            defined = set(re.findall(r"^[a-z][a-z *]*?\b\**(\w+)\(", (here / "cudart.c").read_text(), re.MULTILINE))
            names -= defined
        functions = out / f"{stem}.c"
        functions.write_text(REFUSE + "".join(function(name) for name in sorted(names)))
        script = out / f"{stem}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(out / soname), *source, str(functions)]
            + [f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}", "-ldl"],
            check=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
