"""Builds and checks the Android demo where there is neither Gradle nor Android's SDK nor its NDK.

python3 android_demo/check.py: exit code 0 where every check passed, 1 where one failed, 2 where
something that it needs is missing here.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from checks import apk, inspection, natives
from checks.api import check_api
from checks.commands import CheckError, MissingError, require_tools
from checks.example import compare_example
from checks.maven import maven
from checks.resources import link_resources
from checks.versions import compare_poms, read_versions

HERE = Path(__file__).resolve().parent
APP = HERE / "app"
CLASSES = [
    "org.omnidraft.demo.DemoApplication",
    "org.omnidraft.demo.MainActivity",
    "org.omnidraft.demo.ModelsActivity",
    "org.omnidraft.android.PhoneHeat",
    "org.omnidraft.engine.Engine",
    "ai.onnxruntime.OrtSession",
]
"""Some classes of each part of the app."""
GUARDED = [
    "android.os.PowerManager$OnThermalStatusChangedListener",
    "android.os.PowerManager.addThermalStatusListener",
    "android.os.PowerManager.removeThermalStatusListener",
    "android.view.WindowInsets$Type",
    "android.view.WindowInsets.getInsets",
]
"""What the app only uses where Build.VERSION.SDK_INT says that it is there."""


def main() -> None:
    """Run all checks.

    Raises:
        MissingError, CheckError: see there.
    """
    require_tools()
    versions = read_versions(HERE / "gradle/libs.versions.toml")
    compare_poms(versions, list(HERE.glob("*/pom.xml")))
    compare_example(HERE / "README.md", APP / "src/main/kotlin/org/omnidraft/demo/engine/Embed.kt")
    target = APP / "target"
    _say("fetching the framework and D8")
    maven(HERE / "pom.xml", "--projects", "app", "initialize")
    framework = target / "framework"
    _say("resources")
    resources = link_resources(APP, framework / "android.jar", target / "resources", versions)
    _say("native libraries, for Linux")
    ours = natives.build(HERE.parent, "x86_64", target / "native")
    # By these the engine is tested.
    built = target / "native/x86_64"
    environment = {
        "OMNIDRAFT_OPS": str(built / "libomnidraft_ops.so"),
        "OMNIDRAFT_JNI": str(built / "libomnidraft_jni.so"),
        "LD_LIBRARY_PATH": str(built),
    }
    ours |= natives.build(HERE.parent, "arm64-v8a", target / "native")
    _say("sources and tests")
    # In old classes the compiler would find what the sources no longer have.
    for classes in [*HERE.glob("*/target/classes"), *HERE.glob("*/target/test-classes")]:
        shutil.rmtree(classes)
    maven(HERE / "pom.xml", "package", environment=environment)
    libraries = [Path(p) for p in (target / "libraries.txt").read_text().strip().split(":")]
    jars = [target / "app-0.1.0.jar", *libraries]
    android = Path((target / "android.txt").read_text().strip())
    _say(f"calls newer than API {versions['minSdk']}")
    own = [path for path in jars if HERE in path.parents]
    others = [path for path in jars if path not in own]
    check_api(
        framework / "r8.jar",
        android,
        framework / "oldest.jar",
        own,
        others,
        GUARDED,
        versions["minSdk"],
        target / "api",
    )
    _say("dex")
    dex = apk.make_dex(framework / "r8.jar", android, jars, versions["minSdk"], target / "dex")
    _say("APK")
    unsigned, signed = target / "unsigned.apk", target / "app-debug-not-for-phones.apk"
    stand_ins = ours | natives.from_jars(libraries, target / "native")
    apk.put_together(unsigned, resources, dex, stand_ins, apk.services(jars))
    apk.sign(unsigned, signed, target / "debug.keystore")
    inspection.inspect(signed, CLASSES, versions)
    if "OMNIDRAFT_TEST_MODELS" not in os.environ:
        print("\nNo real model has answered: OMNIDRAFT_TEST_MODELS names no folder.")
    print(
        f"\n{signed} passed every check. IT IS NOT FOR PHONES: its native libraries were built for "
        "Linux, in place of those that the NDK builds."
    )


def _say(what: str) -> None:
    print(f"\n== {what}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except MissingError as error:
        sys.exit(print(f"android-check cannot run here: {error}", file=sys.stderr) or 2)
    except CheckError as error:
        sys.exit(print(f"android-check failed: {error}", file=sys.stderr) or 1)
