"""python docs/page_picture.py: docs/page.png anew, from a real answer on the page of a server.

Take it on a quiet machine: it shows speeds. It needs the package playwright, a Chromium, and the
default target, 93 MB at first use.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

COMMAND = ("serve", "--target", "smollm2-135m", "--temperature", "0", "--port", "0", "--quiet")
# The first ones show the machine what drafting brings.
PROMPTS = (
    "Tell me about the ocean.",
    "Explain photosynthesis.",
    "What is gravity?",
    "Write a Python function that adds two numbers.",
)
# The round in which most was taken and refused.
TELLING = """() => {
  const { rounds } = JSON.parse(sessionStorage["omnidraft.conversation"]).at(-1).answer;
  const worth = ({ tokens, accepted }) =>
    2 * Math.min(accepted.length, 3) + Math.min(tokens.length - accepted.length, 4);
  return rounds.reduce((best, round, i) => (worth(round) > worth(rounds[best]) ? i : best), 0);
}"""


def take(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("#model:enabled").wait_for()
    page.locator("#open-settings").click()
    page.locator("#max-tokens").fill("90")
    page.keyboard.press("Escape")
    for prompt in PROMPTS:
        page.locator("#new").click()
        page.locator("#entry").fill(prompt)
        page.keyboard.press("Enter")
        page.locator(".foot").wait_for(timeout=120_000)
    page.locator(f".t[data-round='{page.evaluate(TELLING)}']").first.click()
    page.mouse.move(0, 0)
    page.screenshot(path=Path(__file__).parent / "page.png")


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    words = [sys.executable, "-m", "omnidraft", *COMMAND]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            said = next(
                filter(None, (re.search(r"page at (\S+);", line) for line in server.stderr))
            )
            with sync_playwright() as playwright:
                # As root Chromium has no sandbox; it opens the server's page alone.
                opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
                shown = opened.new_page(
                    viewport={"width": 900, "height": 700}, device_scale_factor=1.5
                )
                take(shown, said[1])
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
