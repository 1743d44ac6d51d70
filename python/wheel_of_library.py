"""The PEP 517 backend: a wheel of the package and of libtrtalloc.so as cargo built it. It needs nothing but Python.

The library is TRTALLOC_LIBRARY, or target/release/libtrtalloc.so of the checkout.
"""

import base64
import hashlib
import os
import platform
import re
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _version():
    manifest = (HERE.parent / "Cargo.toml").read_text()
    return re.search(r'^version = "([^"]+)"', manifest, re.MULTILINE).group(1)


def _library():
    named = os.environ.get("TRTALLOC_LIBRARY")
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    path = Path(named) if named else target / "release" / "libtrtalloc.so"
    if not path.is_file():
        raise SystemExit(f"{path} is not there: cargo build --release, or TRTALLOC_LIBRARY=PATH")
    return path


def _tag(library):
    # The library needs libc, libm and libgcc_s alone, so the newest glibc it names says where it runs.
    names = re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", library)
    newest = max(17, *(int(name) for name in names))
    return f"py3-none-manylinux_2_{newest}_{platform.machine()}"


def _metadata():
    return (
        "Metadata-Version: 2.1\nName: trtalloc\n"
        f"Version: {_version()}\n"
        "Summary: A GPU memory allocator for TensorRT, and one pool for the frameworks beside it\n"
        "License: Apache-2.0\nRequires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n"
        + (HERE / "README.md").read_text()
    ).encode()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    library = _library().read_bytes()
    tag, info = _tag(library), f"trtalloc-{_version()}.dist-info"
    files = {f"trtalloc/{path.name}": path.read_bytes() for path in sorted((HERE / "trtalloc").glob("*.py"))}
    files["trtalloc/libtrtalloc.so"] = library
    files[f"{info}/METADATA"] = _metadata()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: trtalloc\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/licenses/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    record = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}\n")
    record.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = "".join(record).encode()
    wheel = f"trtalloc-{_version()}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("there is no source distribution: the wheel carries a library that cargo built")
