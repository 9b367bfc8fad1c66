"""A small stand-in for the Hugging Face hub on a local port: listing, metadata and files of repositories.

It knows ranges, can send to another host or break off in the middle of a file, and counts the bytes of files that it
sends.
"""

import hashlib
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """The server; change its attributes to change how it behaves.

    Attributes:
        repo: id of the first repository.
        files: name -> content of its files.
        others: further repositories, id -> files.
        knows_ranges: whether it answers a request for a part of a file with that part.
        redirects: whether it sends clients to another host for large files, as the hub does.
        has_xet: whether it offers large files by the protocol xet, too, which it does not speak.
        breaks_after: how many bytes of files to send before breaking off, once; None for never.
        sent: file name -> bytes of it that were sent.
        refusals: ("api" or "file") -> (status, X-Error-Code or None) to answer with.
        requested: the path of every request so far.
        tokens: beside that, the Authorization header of each, or None.
    """

    def __init__(self, repo: str, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.files = repo, files
        self.others: dict[str, dict[str, bytes]] = {}
        self.knows_ranges, self.redirects, self.has_xet = True, False, False
        self.breaks_after: int | None = None
        self.sent: Counter[str] = Counter()
        self.refusals: dict[str, tuple[int, str | None]] = {}
        self.requested: list[str] = []
        self.tokens: list[str | None] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle of a file is what these tests are about."""

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
        path = unquote(urlsplit(self.path).path).rstrip("/")
        self.server.requested.append(path)
        self.server.tokens.append(self.headers.get("Authorization"))
        status, headers, body = self.respond(path)
        wanted = self.headers.get("Range", "")
        if with_body and status == 200 and "ETag" in headers and wanted and self.server.knows_ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            status, body = 206, body[start:]
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if with_body:
            self.send(path, body, is_file="ETag" in headers)

    def send(self, path: str, body: bytes, is_file: bool) -> None:
        hub = self.server
        for start in range(0, len(body), 1000):
            piece = body[start : start + 1000]
            if is_file and hub.breaks_after is not None and (left := hub.breaks_after - sum(hub.sent.values())) < 1000:
                piece, hub.breaks_after, self.close_connection = piece[: max(0, left)], None, True
            self.wfile.write(piece)
            if is_file:
                hub.sent[path.rsplit("/", 1)[-1]] += len(piece)
            if self.close_connection:
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_WR)  # what was sent arrives, nothing more does
                return

    def respond(self, path: str) -> tuple[int, dict[str, object], bytes]:
        hub = self.server
        if path.startswith("/other-host/"):
            name = path.rsplit("/", 1)[-1]
            return 200, {"ETag": f'"{checksum(name, hub.files[name])}"'}, hub.files[name]
        kind = "api" if path.startswith("/api/") else "file"
        if kind in hub.refusals:
            status, code = hub.refusals[kind]
            return status, {"X-Error-Code": code} if code else {}, b""
        repo, files = next((r for r in [(hub.repo, hub.files), *hub.others.items()] if f"/{r[0]}/" in path), (None, {}))
        if repo is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if path in (f"/api/models/{repo}/revision/main", f"/api/models/{repo}/revision/{COMMIT}"):
            return _json({"id": repo, "sha": COMMIT, "siblings": []})
        if path == f"/api/models/{repo}/tree/{COMMIT}":
            return _json([_entry(name, content, hub.has_xet) for name, content in files.items()])
        name = re.sub(f"^/{re.escape(repo)}/resolve/(main|{COMMIT})/", "", path)
        content = files.get(name)
        if content is None:
            return 404, {"X-Error-Code": "RevisionNotFound" if kind == "api" else "EntryNotFound"}, b""
        headers: dict[str, object] = {"X-Repo-Commit": COMMIT, "ETag": f'"{checksum(name, content)}"'}
        if hub.redirects and name.endswith(".safetensors"):
            return 302, {**headers, **self._elsewhere(name, content)}, b""
        return 200, headers, content

    def _elsewhere(self, name: str, content: bytes) -> dict[str, object]:
        """What says where a large file is, and what it is."""
        hub = self.server
        xet = {"X-Xet-Hash": "0" * 64, "Link": f'<{hub.endpoint}/xet-token>; rel="xet-auth"'} if hub.has_xet else {}
        return {
            "Location": f"http://localhost:{hub.server_port}/other-host/{name}",
            "X-Linked-ETag": f'"{checksum(name, content)}"',
            "X-Linked-Size": len(content),
            **xet,
        }

    def log_message(self, *args: object) -> None:
        """Keeps the test output clean."""


def _json(value: object) -> tuple[int, dict[str, object], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _entry(name: str, content: bytes, has_xet: bool) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": _git_checksum(content)}
    if name.endswith(".safetensors"):  # large files are kept apart from git
        entry["lfs"] = {"oid": checksum(name, content), "size": len(content), "pointerSize": 130}
        if has_xet:
            entry["xetHash"] = "0" * 64
    return entry


def checksum(name: str, content: bytes) -> str:
    """By which the cache names the file: SHA-256 of a large one, git's checksum of any other."""
    return hashlib.sha256(content).hexdigest() if name.endswith(".safetensors") else _git_checksum(content)


def _git_checksum(content: bytes) -> str:
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
