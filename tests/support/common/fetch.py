"""PyTorch's _memory_viz.py out of a wheel, without the rest of it: fetch.py VERSION FILE

A wheel is a zip archive; its table of contents and the one file are asked for by range, about 1 MB of 70."""

import os
import re
import struct
import sys
import urllib.request
import zlib
from urllib.parse import urljoin

NAME = "torch/cuda/_memory_viz.py"


def get(url, part=None):
    request = urllib.request.Request(url, headers={"Range": f"bytes={part}"} if part else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        if part and answer.status != 206:
            raise SystemExit(f"{url}: no ranges here")
        return answer.read(), answer.headers.get("Content-Range", "")


def main(version, path):
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/torch/"
    page = get(index)[0].decode()
    links = re.findall(r'href="([^"#]+)[^"]*"[^>]*>\s*([^<\s]+\.whl)\s*<', page)
    wheels = [link for link, name in links if name.startswith(f"torch-{version}-cp312-") and "macosx" in name]
    url = urljoin(index, wheels[0])
    tail, _ = get(url, "-65557")
    end = tail.rindex(b"PK\x05\x06")
    size, start = struct.unpack("<II", tail[end + 12 : end + 20])
    table, _ = get(url, f"{start}-{start + size - 1}")
    at = 0
    while at < len(table):
        fields = struct.unpack("<IHHHHHHIIIHHHHHII", table[at : at + 46])
        method, packed, (name, extra, comment), offset = fields[4], fields[8], fields[10:13], fields[16]
        if table[at + 46 : at + 46 + name].decode() == NAME:
            head, _ = get(url, f"{offset}-{offset + 30 + name + 4096 + packed}")
            first = 30 + sum(struct.unpack("<HH", head[26:30]))
            data = head[first : first + packed]
            with open(path, "wb") as file:
                file.write(zlib.decompress(data, -15) if method == 8 else data)
            return
        at += 46 + name + extra + comment
    raise SystemExit(f"{url}: no {NAME}")


main(*sys.argv[1:])
