"""The app's manifest and resources, made as Gradle's plugin makes them: by aapt2."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .commands import CheckError, run
from .versions import Versions

ANDROID = "http://schemas.android.com/apk/res/android"
PACKAGE = "org.omnidraft.demo"


def complete_manifest(source: Path, target: Path, libraries: list[Path]) -> None:
    """Write the manifest with what Gradle adds: the package name, and that native libraries
    are mapped out of the APK.

    Raises:
        CheckError: a library's manifest would have to be merged into it.
    """
    for library in libraries:
        if len(ElementTree.parse(library).getroot()):
            raise CheckError(f"{library} says something, and these checks merge no manifests")
    ElementTree.register_namespace("android", ANDROID)
    tree = ElementTree.parse(source)
    tree.getroot().set("package", PACKAGE)
    application = tree.getroot().find("application")
    assert application is not None
    application.set(f"{{{ANDROID}}}extractNativeLibs", "false")
    tree.write(target, "utf-8", xml_declaration=True)


def link_resources(app: Path, framework: Path, folder: Path, versions: Versions) -> Path:
    """Compile and link the resources of ``app`` against the jar ``framework``.

    Writes into ``folder``: ``resources.apk``, ``java/`` with the class R, and ``robolectric/``, by
    which Robolectric finds the resources.

    Returns:
        The path of ``resources.apk``.

    Raises:
        CheckError: a resource is wrong.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "java").mkdir(parents=True)
    manifest = folder / "AndroidManifest.xml"
    complete_manifest(
        app / "src/main/AndroidManifest.xml",
        manifest,
        list(app.parent.glob("engine-android/src/main/AndroidManifest.xml")),
    )
    compiled, linked = folder / "compiled.zip", folder / "resources.apk"
    run(
        ["aapt2", "compile", "--dir", app / "src/main/res", "-o", compiled],
        what="compiling resources",
    )
    # fmt: off
    run(["aapt2", "link", "-I", framework, "--manifest", manifest, "-o", linked,
         "--java", folder / "java", "--debug-mode", "--auto-add-overlay",
         "--min-sdk-version", versions["minSdk"], "--target-sdk-version", versions["targetSdk"],
         "--version-code", versions["versionCode"], "--version-name", versions["versionName"],
         compiled], what="linking resources")
    # fmt: on
    settings = folder / "robolectric/com/android/tools/test_config.properties"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f"android_merged_manifest={manifest}\n"
        f"android_resource_apk={linked}\n"
        f"android_custom_package={PACKAGE}\n"
    )
    return linked
