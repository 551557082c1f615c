"""python tests/installed.py: is the package that is installed whole, and does it answer?

It needs no network and no package for tests: the drafter that comes along is target and drafter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

PROMPT = "Once upon a time there was a small library that"


def main() -> None:
    package = distribution("omnidraft")
    files = {str(file): Path(str(file.locate())) for file in package.files or ()}
    for licence in ("LICENSE", "NOTICE"):
        assert any(f.endswith(f"licenses/{licence}") for f in files), f"the wheel lacks {licence}"
    folders = {name.split("/")[0] for name in files} - {"..", "__pycache__"}
    own = {name for name in folders if name.startswith("omnidraft")}
    assert folders <= own, f"the wheel leaves {sorted(folders - own)} beside its package"

    for page in ("index.html", "page.css", "page.js"):
        assert f"omnidraft/serve/page/{page}" in files, f"the wheel lacks the page's {page}"

    import omnidraft

    home = Path(omnidraft.__file__).parent
    version = [sys.executable, "-m", "omnidraft", "--version"]
    said = subprocess.run(version, capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"omnidraft {package.version}", said
    drafter = home / "drafter"
    with omnidraft.load(str(drafter), drafter=None) as model:
        plain = model.generate(PROMPT, raw=True, max_new_tokens=24)
    with omnidraft.load(str(drafter)) as model:
        answer = model.generate(PROMPT, raw=True, max_new_tokens=24)
    assert answer.token_ids == plain.token_ids, (answer.text, plain.text)
    assert answer.stats.rounds < plain.stats.rounds, answer.stats
    print(f"{said.strip()} in {home}: {PROMPT}{answer.text}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["OMNIDRAFT_CACHE"] = cache
        main()
