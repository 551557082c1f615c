"""Stands in for adb: a folder is the phone, and this machine's shell is its shell.

Environment: FAKE_ADB_ROOT, the folder; FAKE_ADB_DEVICES, lines of `adb devices`; FAKE_ADB_ABI;
FAKE_ADB_EMULATOR, what runs omnidraft_run; FAKE_ADB_FAIL, what goes wrong. Commands are noted in
FAKE_ADB_ROOT.log.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PLACE = "/data/local/tmp"
ROOT = Path(os.environ["FAKE_ADB_ROOT"])
FAIL = os.environ.get("FAKE_ADB_FAIL", "")
PROPERTIES = f"""
getprop() {{
  case $1 in
    ro.product.manufacturer) echo Acme;;
    ro.product.model) echo "Phone 3";;
    ro.build.version.release) echo 15;;
    ro.product.cpu.abi) echo {os.environ.get("FAKE_ADB_ABI", "arm64-v8a")};;
  esac
}}
nproc() {{ echo 8; }}
"""
NO_ROOM = 'df() { echo "Filesystem 1K-blocks Used Available Use% Mounted on\ndata 9 8 1 99% /"; }\n'


def push(source: Path, target: str) -> int:
    there = Path(target.replace(PLACE, str(ROOT)))
    content = source.read_bytes()
    if FAIL in ("cable", "full"):
        there.write_bytes(content[: len(content) // 2])
        error = "No space left on device" if FAIL == "full" else "device offline"
        print(f"adb: error: failed to copy '{source}' to '{target}': {error}", file=sys.stderr)
        return 1
    if FAIL == "damage":
        content = content[:-1] + bytes([content[-1] ^ 1])
    there.write_bytes(content)
    shutil.copymode(source, there)
    print(f"{source}: 1 file pushed")
    return 0


def shell(command: str) -> int:
    emulator = os.environ.get("FAKE_ADB_EMULATOR", "")
    runner = "kill -SEGV $$ #" if FAIL == "crash" else f"{emulator} "
    runner = "echo nonsense #" if FAIL == "nonsense" else runner
    command = re.sub(r"^(?=/\S*/omnidraft_run --)", runner, command)
    command = command.replace(PLACE, str(ROOT))
    prelude = PROPERTIES + (NO_ROOM if FAIL == "room" else "")
    status = subprocess.run(["sh", "-c", prelude + command], stdin=subprocess.DEVNULL).returncode
    return status if status >= 0 else 128 - status


def main(words: list[str]) -> int:
    with Path(f"{ROOT}.log").open("a") as log:
        log.write(" ".join(words) + "\n")
    if words == ["devices"]:
        print("* daemon started successfully\nList of devices attached")
        print(os.environ.get("FAKE_ADB_DEVICES", "PHONE1\tdevice"), "\n")
        return 0
    assert words[:2] == ["-s", "PHONE1"], words
    return shell(words[3]) if words[2] == "shell" else push(Path(words[3]), words[4])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
