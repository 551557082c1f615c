"""The page at / without a browser: what is sent, and what it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from omnidraft.serve import page
from omnidraft.serve.app import ServeOptions, application

FOLDER = Path(page.__file__).parent
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".html", ".css", ".js", ".svg"))
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(application({}, ServeOptions(key="secret")), "http://localhost") as opened:
        yield opened


@pytest.fixture(scope="module")
def index() -> Elements:
    return Elements((FOLDER / "index.html").read_text("utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_served_without_the_key(client: TestClient, path: Path) -> None:
    place = "/" if path.name == "index.html" else f"/page/{path.name}"
    answer = client.get(place)
    assert answer.status_code == 200
    assert answer.content == path.read_bytes()
    assert answer.headers["content-type"] == TYPES[path.suffix]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policies = answer.headers.get_list("content-security-policy")
    assert len(policies) == 1
    rules = dict(rule.split(" ", 1) for rule in policies[0].split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    for kind in ("script", "style", "img", "connect"):
        assert rules[f"{kind}-src"] == "'self'"
    assert client.post(place).status_code in (401, 405)


def test_nothing_else_is_open(client: TestClient) -> None:
    for path in ("/page", "/page/", "/page/__init__.py", "/page/../v1/models", "/v1/models"):
        assert client.get(path).status_code == 401
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/", headers={"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_asks_nobody_else_and_runs_nothing_of_a_text(path: Path) -> None:
    text = path.read_text("utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]|@import|url\(", text)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in text


def test_what_is_named_is_there(client: TestClient, index: Elements) -> None:
    named = {
        each[name] or ""
        for _, each in index.found
        for name in ("src", "href")
        if name in each and not (each[name] or "").startswith("#")
    }
    modules = [path for path in FILES if path.suffix == ".js"]
    for path in modules:
        for name in re.findall(r'from "\./([^"]+)"', path.read_text("utf-8")):
            named.add(f"/page/{name}")
    assert named == {f"/page/{path.name}" for path in FILES if path.name != "index.html"}
    assert all(client.get(place).status_code == 200 for place in named)
    ids = [each["id"] for _, each in index.found if "id" in each]
    assert len(ids) == len(set(ids))
    for path in modules:
        for name in re.findall(r'\$\("([^"]+)"\)', path.read_text("utf-8")):
            assert name in ids, f"{path.name} looks for #{name}"
    for _, each in index.found:
        for attribute in ("for", "aria-labelledby", "aria-describedby", "aria-controls"):
            assert each.get(attribute) in (*ids, None)


def test_nothing_is_inline(index: Elements) -> None:
    for tag, each in index.found:
        assert tag != "style" and "style" not in each
        assert not [name for name in each if name.startswith("on")]
        assert tag != "script" or each.get("src")


def _contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast(theme: int) -> None:
    css = (FOLDER / "page.css").read_text("utf-8")
    pairs = re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\)", css)
    colours = {name: pair[theme] for name, *pair in pairs}
    for ground in ("paper", "raised"):
        for name in ("ink", "soft", "accent", "wrong", "merged", "lookup", "corrected"):
            assert _contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        assert _contrast(colours["edge"], colours[ground]) >= 3
    for name in ("ink", "soft"):
        assert _contrast(colours[name], colours["sunk"]) >= 4.5
    assert _contrast(colours["on-accent"], colours["accent"]) >= 4.5
