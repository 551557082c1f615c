"""A stand-in for the Hugging Face hub: a folder behind its interface, on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@dataclass
class Hub:
    """One repository, whatever the name that it is asked for.

    Attributes:
        folder: its files.
        cache: the folder of the hub's own cache.
        got: names of the files that were downloaded, as they came.
        revisions: those that were asked for.
    """

    folder: Path
    cache: Path
    got: list[str] = field(default_factory=list)
    revisions: list[str] = field(default_factory=list)

    def files(self) -> list[str]:
        return sorted(
            p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file()
        )

    def lay_in_cache(self, *names: str, repository: str = "someone/tiny") -> None:
        """As fetching these files one by one leaves them."""
        place = self.cache / f"models--{repository.replace('/', '--')}"
        for name in names:
            file = place / "snapshots" / COMMIT / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes((self.folder / name).read_bytes())
        (place / "refs").mkdir(parents=True, exist_ok=True)
        (place / "refs/main").write_text(COMMIT)


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]

    def do_HEAD(self) -> None:
        self._answer(whole=False)

    def do_GET(self) -> None:
        self._answer(whole=True)

    def _answer(self, *, whole: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            _, _, revision = path.partition("/revision/")
            if revision and revision != COMMIT:
                self.hub.revisions.append(revision)
            about = {
                "id": "someone/tiny",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in self.hub.files()],
            }
            if "/tree/" in path:
                sizes = {n: (self.hub.folder / n).stat().st_size for n in self.hub.files()}
                tree = [
                    {"type": "file", "path": n, "oid": "0" * 40, "size": s}
                    for n, s in sizes.items()
                ]
                return self._send(json.dumps(tree).encode(), whole)
            return self._send(json.dumps(about).encode(), whole)
        _, _, rest = path.partition("/resolve/")
        name = rest.partition("/")[2]
        if name not in self.hub.files():
            return self.send_error(404)
        if whole:
            self.hub.got.append(name)
        self._send((self.hub.folder / name).read_bytes(), whole)

    def _send(self, content: bytes, whole: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if whole:
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def stand_in_hub(folder: Path, cache: Path, *, offline: bool = False) -> Iterator[Hub]:
    """Put the files of a folder in the hub's place."""
    import huggingface_hub.constants as constants

    hub = Hub(folder, cache)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_OFFLINE", offline)
        patch.setenv("NO_PROXY", "127.0.0.1")
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
