"""PyTorch's MemoryViz.js, and the d3 that it draws with: fetch_viewer.py FOLDER

Wheels do not have the viewer; Debian's copy of PyTorch's source does, near its beginning, so that little of it is read. The
viewer takes d3 from a server of its own choice; npm has the same version."""

import hashlib
import os
import sys
import tarfile
import urllib.request

SOURCES = {
    "MemoryViz.js": (
        "http://deb.debian.org/debian/pool/main/p/pytorch/pytorch_2.6.0+dfsg.orig.tar.xz",
        "/torch/utils/viz/MemoryViz.js",
        "313cf4c0e971055e37da051763f042ed149fc5e56ad4a598edadf03b2da71ee5",
    ),
    "d3.js": (
        os.environ.get("npm_config_registry", "https://registry.npmjs.org").rstrip("/") + "/d3/-/d3-5.16.0.tgz",
        "package/dist/d3.min.js",
        "5dbe924b3847df010f0b8572dd6ef42ea87d6370eeff72b13ea236247412a53c",
    ),
}


def member(url, name):
    with urllib.request.urlopen(url, timeout=60) as answer, tarfile.open(fileobj=answer, mode="r|*") as archive:
        for entry in archive:
            if entry.name.endswith(name):
                return archive.extractfile(entry).read()
    raise SystemExit(f"{url}: no {name}")


def main(folder):
    for name, (url, inside, digest) in SOURCES.items():
        data = member(url, inside)
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise SystemExit(f"{url}: {inside} is another: SHA-256 {found}")
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


main(*sys.argv[1:])
