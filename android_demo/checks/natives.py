"""Native libraries that stand in for those of the NDK, which is not on this machine."""

from __future__ import annotations

import zipfile
from pathlib import Path

from .commands import run

_PAGES = "-Wl,-z,max-page-size=16384"


def stand_ins(root: Path, jars: list[Path], folder: Path) -> dict[str, Path]:
    """Build our libraries for Linux, and take ONNX Runtime's for Linux out of its jar.

    Returns:
        The libraries by the names that they have in an APK.

    Raises:
        CheckError: they cannot be built.
    """
    libraries = _onnxruntime(jars, folder)
    if "OMNIDRAFT_OPS" in (root / "CMakeLists.txt").read_text("utf-8"):
        libraries |= _ours(root, "arm64-v8a", "aarch64-linux-gnu-g++", folder)
        libraries |= _ours(root, "x86_64", "g++", folder)
    return libraries


def _ours(root: Path, abi: str, compiler: str, folder: Path) -> dict[str, Path]:
    build = folder / abi
    # fmt: off
    run(["cmake", "-S", root, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
         "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_SHARED_LINKER_FLAGS={_PAGES}",
         f"-DCMAKE_MODULE_LINKER_FLAGS={_PAGES}",
         f"-DCMAKE_SYSTEM_PROCESSOR={'aarch64' if abi == 'arm64-v8a' else 'x86_64'}",
         "-DCMAKE_SYSTEM_NAME=Linux", "-DOMNIDRAFT_OPS=ON", "-DOMNIDRAFT_JNI=ON"],
        what=f"configuring for {abi}")
    # fmt: on
    run(["cmake", "--build", build, "-j2"], what=f"building for {abi}")
    return {f"lib/{abi}/{path.name}": path for path in build.glob("libomnidraft*.so")}


def _onnxruntime(jars: list[Path], folder: Path) -> dict[str, Path]:
    """ONNX Runtime for arm64 alone: its library for x86_64 has segments for pages of 4 KB."""
    found = {}
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.startswith("ai/onnxruntime/native/linux-aarch64/") and name.endswith(".so"):
                    path = Path(archive.extract(name, folder))
                    found[f"lib/arm64-v8a/{path.name}"] = path
    return found
