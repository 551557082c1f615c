"""Native libraries that stand in for those of the NDK, which is not on this machine."""

from __future__ import annotations

import zipfile
from pathlib import Path

from .commands import run

_PAGES = "-Wl,-z,max-page-size=16384"
_OTHERS = {
    "ai/onnxruntime/native/linux-aarch64/libonnxruntime.so": "libonnxruntime.so",
    "ai/onnxruntime/native/linux-aarch64/libonnxruntime4j_jni.so": "libonnxruntime4j_jni.so",
    "native/lib/linux-aarch64/cpu/libtokenizers.so": "libdjl_tokenizer.so",
}
"""Libraries for Linux in jars, and what they are called in an APK. Those for x86_64 are left out:
their segments are for pages of 4 KB."""


def stand_ins(root: Path, jars: list[Path], folder: Path) -> dict[str, Path]:
    """Build our libraries for Linux, and take others' for Linux out of their jars.

    Returns:
        The libraries by the names that they have in an APK.

    Raises:
        CheckError: they cannot be built.
    """
    libraries = _ours(root, "arm64-v8a", "aarch64-linux-gnu-g++", folder)
    libraries |= _ours(root, "x86_64", "g++", folder)
    return libraries | _others(jars, folder)


def _ours(root: Path, abi: str, compiler: str, folder: Path) -> dict[str, Path]:
    build = folder / abi
    # fmt: off
    run(["cmake", "-S", root, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
         "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_SHARED_LINKER_FLAGS={_PAGES}",
         f"-DCMAKE_SYSTEM_PROCESSOR={'aarch64' if abi == 'arm64-v8a' else 'x86_64'}",
         "-DCMAKE_SYSTEM_NAME=Linux", "-DOMNIDRAFT_OPS=ON", "-DOMNIDRAFT_JNI=ON"],
        what=f"configuring for {abi}")
    run(["cmake", "--build", build, "-j2", "--target", "omnidraft_ops", "omnidraft_jni"],
        what=f"building for {abi}")
    # fmt: on
    return {f"lib/{abi}/{path.name}": path for path in build.glob("libomnidraft_*.so")}


def _others(jars: list[Path], folder: Path) -> dict[str, Path]:
    found = {}
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for name in _OTHERS.keys() & set(archive.namelist()):
                path = Path(archive.extract(name, folder))
                found[f"lib/arm64-v8a/{_OTHERS[name]}"] = path
    return found
