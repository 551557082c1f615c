"""The version catalogue, which Gradle reads, and the POMs, which must say the same."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .commands import CheckError

Versions = dict[str, str]


def read_versions(catalogue: Path) -> Versions:
    """Return the table ``versions`` of a catalogue."""
    versions: Versions = tomllib.loads(catalogue.read_text("utf-8"))["versions"]
    return versions


def compare_poms(versions: Versions, poms: list[Path]) -> None:
    """Compare what POMs call ``NAME.version`` with the catalogue's NAME, where that has one.

    Raises:
        CheckError: they differ.
    """
    namespace = "{http://maven.apache.org/POM/4.0.0}"
    by_name = {re.sub(r"[^a-z]", "", name.lower()): value for name, value in versions.items()}
    for pom in poms:
        properties = ElementTree.parse(pom).getroot().find(f"{namespace}properties")
        for element in properties if properties is not None else []:
            name = element.tag.removeprefix(namespace)
            key = re.sub(r"[^a-z]", "", name.removesuffix(".version").removeprefix("kotlinx-"))
            if name.endswith(".version") and by_name.get(key, element.text) != element.text:
                raise CheckError(
                    f"{pom} has {name} {element.text}, libs.versions.toml has {by_name[key]}"
                )
