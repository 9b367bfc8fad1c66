"""A small stand-in for the Hugging Face hub on a local port: listing, metadata and files of one repository."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """The server; change its attributes to change how it behaves.

    Attributes:
        repo: id of the only repository.
        files: name -> content.
        refusals: ("api" or "file") -> (status, X-Error-Code or None) to answer with.
        requested: the path of every request so far.
    """

    def __init__(self, repo: str, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.files = repo, files
        self.refusals: dict[str, tuple[int, str | None]] = {}
        self.requested: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requested.append(path)
        status, headers, body = self.respond(path)
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def respond(self, path: str) -> tuple[int, dict[str, object], bytes]:
        hub = self.server
        kind = "api" if path.startswith("/api/") else "file"
        if kind in hub.refusals:
            status, code = hub.refusals[kind]
            return status, {"X-Error-Code": code} if code else {}, b""
        if hub.repo not in path:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if path in (f"/api/models/{hub.repo}/revision/main", f"/api/models/{hub.repo}/revision/{COMMIT}"):
            return _json({"id": hub.repo, "sha": COMMIT, "siblings": []})
        if path == f"/api/models/{hub.repo}/tree/{COMMIT}":
            return _json([_entry(name, content) for name, content in hub.files.items()])
        content = hub.files.get(path.removeprefix(f"/{hub.repo}/resolve/{COMMIT}/"))
        if content is None:
            return 404, {"X-Error-Code": "RevisionNotFound" if kind == "api" else "EntryNotFound"}, b""
        return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{_oid(content)}"'}, content

    def log_message(self, *args: object) -> None:
        """Keeps the test output clean."""


def _json(value: object) -> tuple[int, dict[str, object], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _entry(name: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serving(repo: str, files: dict[str, bytes]) -> Iterator[Hub]:
    """Runs a hub with one repository while the context is open."""
    with Hub(repo, files) as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
