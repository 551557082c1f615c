"""Native libraries that stand in for those of the NDK, which is not on this machine."""

from __future__ import annotations

import zipfile
from pathlib import Path

from .commands import run

_PAGES = "-Wl,-z,max-page-size=16384"
_COMPILERS = {"arm64-v8a": ("aarch64-linux-gnu-g++", "aarch64"), "x86_64": ("g++", "x86_64")}
_OTHERS = {
    "ai/onnxruntime/native/linux-aarch64/libonnxruntime.so": "libonnxruntime.so",
    "ai/onnxruntime/native/linux-aarch64/libonnxruntime4j_jni.so": "libonnxruntime4j_jni.so",
    "native/lib/linux-aarch64/cpu/libtokenizers.so": "libdjl_tokenizer.so",
}
"""Libraries for Linux in jars, and what they are called in an APK. Those for x86_64 are left out:
their segments are for pages of 4 KB."""


def build(root: Path, abi: str, folder: Path) -> dict[str, Path]:
    """Build our libraries for Linux on the processors of an ABI, into ``folder / abi``.

    Returns:
        The libraries by the names that they have in an APK.

    Raises:
        CheckError: they cannot be built.
    """
    compiler, processor = _COMPILERS[abi]
    target = folder / abi
    # fmt: off
    run(["cmake", "-S", root, "-B", target, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
         "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_SHARED_LINKER_FLAGS={_PAGES}",
         f"-DCMAKE_SYSTEM_PROCESSOR={processor}", "-DCMAKE_SYSTEM_NAME=Linux", "-DOMNIDRAFT_OPS=ON",
         "-DOMNIDRAFT_JNI=ON"],
        what=f"configuring for {abi}")
    run(["cmake", "--build", target, "-j2", "--target", "omnidraft_ops", "omnidraft_jni"],
        what=f"building for {abi}")
    # fmt: on
    return {f"lib/{abi}/{path.name}": path for path in target.glob("libomnidraft_*.so")}


def from_jars(jars: list[Path], folder: Path) -> dict[str, Path]:
    """Extract others' libraries for Linux from jars.

    Returns:
        The libraries by the names that they have in an APK.
    """
    found = {}
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for name in _OTHERS.keys() & set(archive.namelist()):
                path = Path(archive.extract(name, folder))
                found[f"lib/arm64-v8a/{_OTHERS[name]}"] = path
    return found
