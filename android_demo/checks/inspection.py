"""What a finished APK must be, asked of the tools that show it."""

from __future__ import annotations

import re
import struct
import tempfile
import zipfile
from pathlib import Path

from .apk import PAGE
from .commands import expect, run
from .resources import PACKAGE
from .versions import Versions

MACHINES = {"arm64-v8a": "AArch64", "x86_64": "Advanced Micro Devices X86-64"}


def inspect(apk: Path, classes: list[str], versions: Versions) -> None:
    """Check an APK.

    Raises:
        CheckError: it is not as it must be.
    """
    run(["apksigner", "verify", "--verbose", apk], what="apksigner verify")
    run(["zipalign", "-c", "4", apk], what="zipalign -c 4")
    _manifest(apk, versions)
    _classes(apk, classes)
    _native_libraries(apk)


def _manifest(apk: Path, versions: Versions) -> None:
    badging = run(["aapt", "dump", "badging", apk], what="aapt dump badging")
    permissions = re.findall(r"uses-permission: name='([^']*)'", badging)
    expect(
        {
            f"the package is {PACKAGE}": f"package: name='{PACKAGE}'" in badging,
            f"minSdk is {versions['minSdk']}": f"sdkVersion:'{versions['minSdk']}'" in badging,
            f"targetSdk is {versions['targetSdk']}": (
                f"targetSdkVersion:'{versions['targetSdk']}'" in badging
            ),
            f"no permission is asked for (found: {permissions})": not permissions,
            "one activity is in the launcher": badging.count("launchable-activity:") == 1,
        }
    )


def _classes(apk: Path, classes: list[str]) -> None:
    defined: set[str] = set()
    with zipfile.ZipFile(apk) as archive, tempfile.TemporaryDirectory() as folder:
        for name in archive.namelist():
            if re.fullmatch(r"classes\d*\.dex", name):
                dump = run(["dexdump", archive.extract(name, folder)], what=f"dexdump {name}")
                defined.update(re.findall(r"Class descriptor  : 'L([^;]*);'", dump))
    expect({f"{name} is in the dex": name.replace(".", "/") in defined for name in classes})


def _native_libraries(apk: Path) -> None:
    with zipfile.ZipFile(apk) as archive, tempfile.TemporaryDirectory() as folder:
        libraries = [entry for entry in archive.infolist() if entry.filename.startswith("lib/")]
        for entry in libraries:
            abi, name = entry.filename.split("/")[1:]
            path = archive.extract(entry, folder)
            header = run(["readelf", "--file-header", path], what=f"readelf of {name}")
            segments = run(["readelf", "--segments", "--wide", path], what=f"readelf of {name}")
            alignments = [
                int(line.split()[-1], 16)
                for line in segments.splitlines()
                if line.split()[:1] == ["LOAD"]
            ]
            where = f"{abi}/{name}"
            expect(
                {
                    f"{where} is of a known ABI": abi in MACHINES,
                    f"{where} is for {MACHINES.get(abi)}": MACHINES.get(abi, "?") in header,
                    f"{where} is stored": entry.compress_type == zipfile.ZIP_STORED,
                    f"{where} begins at a multiple of {PAGE}": _offset(apk, entry) % PAGE == 0,
                    f"{where} has segments for pages of {PAGE} bytes (has {alignments})": (
                        bool(alignments) and all(a % PAGE == 0 for a in alignments)
                    ),
                }
            )
            print(f"  {where}: {entry.file_size} bytes, segments aligned to {alignments}")
    expect({"there are native libraries": bool(libraries)})


def _offset(apk: Path, entry: zipfile.ZipInfo) -> int:
    """Where an entry's content begins, in bytes."""
    with apk.open("rb") as file:
        file.seek(entry.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
    return entry.header_offset + 30 + int(name) + int(extra)
