"""Whether the oldest Android that the app runs on has all classes and methods that it calls."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from . import apk
from .commands import CheckError, MissingError

_PACKAGES = re.compile(
    r"java/(io|lang|math|net|nio|security|text|time|util)/(?!instrument/|management/)"
    r"|javax/(crypto|net|security|xml)/|org/(w3c|xml)/"
)
"""Packages of Java that Android has."""


def check_api(
    r8: Path,
    android: Path,
    oldest: Path,
    ours: Sequence[Path],
    libraries: Sequence[Path],
    guarded: Sequence[str],
    min_sdk: str,
    folder: Path,
) -> None:
    """Check that what the jars ``ours`` refer to is in ``libraries``, in ``oldest``, or in Java 8.

    The jars are made into dex first, as D8 puts others in the place of newer calls of Java, where
    it can. The framework jar ``oldest`` has no classes of Java. Android 9 has those of Java 8, of
    which the JDK keeps a list. ``guarded`` has the classes that are only used on newer versions.

    Raises:
        MissingError: the JDK has no list of Java 8.
        CheckError: something is not there; the message lists it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    dex = apk.make_dex(r8, android, list(ours), min_sdk, folder / "dex", classpath=list(libraries))
    java = _java8(folder / "java8.jar")
    command: list[str | Path] = ["java", "-cp", r8]
    command += ["com.android.tools.r8.tracereferences.TraceReferences", "--check"]
    command += ["--lib", java, "--lib", oldest]
    command += [part for library in libraries for part in ("--target", library)]
    command += [part for file in dex for part in ("--source", file)]
    done = subprocess.run(
        [str(part) for part in command], text=True, capture_output=True, check=False
    )
    said = (done.stdout + done.stderr).removeprefix("Error: ")
    # It says each several times: an exception and its causes are shown, too.
    lines = dict.fromkeys(line.rstrip("]") for line in said.splitlines())
    missing = [line for line in lines if line.startswith("Missing ")]
    if done.returncode and not missing:
        raise CheckError(f"TraceReferences failed ({done.returncode}):\n{said}")
    unused = [name for name in guarded if not any(name in line for line in missing)]
    if unused:
        raise CheckError(f"not called any more, or not new: {', '.join(unused)}")
    unknown = [line for line in missing if not any(name in line for name in guarded)]
    if unknown:
        raise CheckError(f"not in API {min_sdk}:\n" + "\n".join(unknown))


def _java8(jar: Path) -> Path:
    """Write the signatures of Java 8's classes, which ``javac --release 8`` uses, into a jar."""
    javac = shutil.which("javac")
    assert javac is not None
    table = Path(javac).resolve().parents[1] / "lib/ct.sym"
    if not table.exists():
        raise MissingError(f"{table} is missing: this JDK does not know Java 8")
    with zipfile.ZipFile(table) as symbols, zipfile.ZipFile(jar, "w") as classes:
        for name in symbols.namelist():
            # The releases that have it, the module, and the class: 89A/java.base/java/lang/Long.sig
            found = re.fullmatch(r"[0-9A-Z]*8[0-9A-Z]*/[^/]+/(.+)\.sig", name)
            if found is not None and _PACKAGES.match(found[1]):
                classes.writestr(f"{found[1]}.class", symbols.read(name))
    return jar
