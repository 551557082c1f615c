"""An APK put together as Gradle's plugin does it: dex, resources, native libraries, a signature."""

from __future__ import annotations

import shutil
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .commands import run

PAGE = 16384
"""Bytes. Phones with pages of 16 KB map native libraries where they lie in the APK."""

_ALIGNMENT = 0xD935
"""The extra field by which apksigner learns how an entry is aligned, and keeps it so."""


def make_dex(
    r8: Path,
    android: Path,
    jars: list[Path],
    min_sdk: str,
    folder: Path,
    classpath: Sequence[Path] = (),
) -> list[Path]:
    """Make ``classes*.dex`` of jars by D8; those of ``classpath`` are only referred to.

    Raises:
        CheckError: D8 refused something.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # fmt: off
    run(["java", "-Xmx3g", "-cp", r8, "com.android.tools.r8.D8", "--debug", "--lib", android,
         "--min-api", min_sdk, "--output", folder,
         *(part for library in classpath for part in ("--classpath", library)), *jars],
        what="D8")
    # fmt: on
    return sorted(folder.glob("*.dex"))


def services(jars: list[Path]) -> dict[str, bytes]:
    """The services that jars declare, by their names in the APK; nothing else of them is needed."""
    found: dict[str, bytes] = {}
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.startswith("META-INF/services/") and not name.endswith("/"):
                    found[name] = found.get(name, b"") + archive.read(name)
    return found


def put_together(
    apk: Path,
    resources: Path,
    dex: list[Path],
    natives: Mapping[str, Path],
    others: Mapping[str, bytes],
) -> None:
    """Write an unsigned APK.

    ``natives`` has native libraries by their names in the APK. They are stored, not compressed,
    and begin at a multiple of ``PAGE``; what else is stored begins at a multiple of 4.
    """
    with zipfile.ZipFile(apk, "w", zipfile.ZIP_DEFLATED) as archive:
        with zipfile.ZipFile(resources) as linked:
            for entry in linked.infolist():
                stored = entry.compress_type == zipfile.ZIP_STORED
                _add(archive, entry.filename, linked.read(entry), 4 if stored else None)
        for path in dex:
            _add(archive, path.name, path.read_bytes(), None)
        for name, content in others.items():
            _add(archive, name, content, None)
        for name, path in natives.items():
            _add(archive, name, path.read_bytes(), PAGE)


def _add(archive: zipfile.ZipFile, name: str, content: bytes, alignment: int | None) -> None:
    entry = zipfile.ZipInfo(name, (1981, 1, 1, 1, 1, 2))
    entry.compress_type = zipfile.ZIP_DEFLATED
    if alignment is not None:
        entry.compress_type = zipfile.ZIP_STORED
        start = archive.start_dir + 30 + len(name.encode())
        padding = -(start + 6) % alignment
        entry.extra = struct.pack("<HHH", _ALIGNMENT, 2 + padding, alignment) + bytes(padding)
    archive.writestr(entry, content)


def sign(apk: Path, signed: Path, keystore: Path) -> None:
    """Sign an APK with a debug key, which is made where there is none.

    Raises:
        CheckError: keytool or apksigner failed.
    """
    if not keystore.exists():
        # fmt: off
        run(["keytool", "-genkeypair", "-keystore", keystore, "-storetype", "PKCS12",
             "-storepass", "android", "-keypass", "android", "-alias", "androiddebugkey",
             "-keyalg", "RSA", "-keysize", "2048", "-validity", "10000",
             "-dname", "CN=Android Debug,O=Android,C=US"], what="keytool")
        # fmt: on
    # fmt: off
    run(["apksigner", "sign", "--ks", keystore, "--ks-pass", "pass:android",
         "--out", signed, apk], what="apksigner sign")
    # fmt: on
