"""Fetches files of a hub repository into the hub's own cache, going on where an interrupted transfer stopped.

The hub's client starts a file anew after an interruption. Here what has arrived stays beside the cache's blobs until
the file is whole and its checksum is right; only then does it get the name under which the client looks for it.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Protocol

from huggingface_hub import hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import WeakFileLock, build_hf_headers, get_session, hf_raise_for_status

from mtp_weights.errors import UserError

WORKERS = 4  # files at a time: enough to fill a line, few enough that an interruption leaves few parts
TRIES = 5  # connections in a row that bring nothing
WAIT_SECONDS = 1.0  # between them
_PART = ".part"


class Hash(Protocol):
    """What `hashlib` gives."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class RemoteFile:
    """One file of a repository at a commit.

    Attributes:
        blob: the checksum by which the cache names it: SHA-256 of a large file, git's SHA-1 of any other.
    """

    path: str
    size: int
    blob: str


class Transfer:
    """Fetches files of one repository at one commit.

    Args:
        endpoint: the hub's address; None for huggingface_hub's own setting.
        storage: the repository's folder in the cache.
        progress: called with (path, bytes that are here, size of the file), from several threads.
    """

    def __init__(self, repo: str, commit: str, endpoint: str | None, storage: Path, progress: Progress | None = None):
        self.repo, self.commit, self.endpoint, self.storage = repo, commit, endpoint, storage
        self.progress = progress or (lambda path, done, size: None)
        self._stopped = Event()

    def missing_bytes(self, files: Sequence[RemoteFile]) -> int:
        """How much is still to be fetched, parts that are here already not counted."""
        return sum(file.size - self._here(file) for file in files)

    def fetch(self, files: Sequence[RemoteFile]) -> None:
        """Fetches what is not here, small files first.

        Raises:
            UserError: a file arrived with another checksum.
            HTTPError, OSError: of the hub's client; what arrived is kept.
        """
        files = sorted(files, key=lambda file: file.size)
        pool = ThreadPoolExecutor(WORKERS)
        try:
            for done in [pool.submit(self._fetch, file) for file in files]:
                done.result()
        finally:
            self._stopped.set()
            pool.shutdown(cancel_futures=True)

    def _blob(self, file: RemoteFile) -> Path:
        return self.storage / "blobs" / file.blob

    def _part(self, file: RemoteFile) -> Path:
        blob = self._blob(file)
        return blob.with_name(blob.name + _PART)

    def _here(self, file: RemoteFile) -> int:
        if self._blob(file).exists():
            return file.size
        part = self._part(file)
        return min(part.stat().st_size, file.size) if part.exists() else 0

    def _fetch(self, file: RemoteFile) -> None:
        # The lock that the hub's client takes for this file, so that no two programs write to one part.
        lock = self.storage.parent / ".locks" / self.storage.name / f"{file.blob}.lock"
        for folder in (lock.parent, self._blob(file).parent):
            folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if not self._blob(file).exists():
                self._complete(file)
        self.progress(file.path, file.size, file.size)

    def _complete(self, file: RemoteFile) -> None:
        part, checksum = self._part(file), _new_checksum(file)
        if part.exists() and part.stat().st_size > file.size:
            part.unlink()
        with part.open("a+b") as out:
            out.seek(0)
            while data := out.read(1 << 20):
                checksum.update(data)
            checksum = self._receive(file, out, checksum)
        if checksum.hexdigest() != file.blob:
            part.unlink()
            raise UserError(
                f"{file.path} arrived damaged: its checksum is not the hub's", given=self.repo, fix="run it again"
            )
        part.rename(self._blob(file))

    def _receive(self, file: RemoteFile, out, checksum: Hash) -> Hash:
        """Appends to `out` until the file is whole, over as many connections as it takes."""
        failures = 0
        while (here := out.tell()) < file.size:
            try:
                checksum = self._stream(file, out, checksum)
            except HTTPError as error:
                failures = failures + 1 if out.tell() == here else 1
                if isinstance(error, HfHubHTTPError) or failures == TRIES or self._stopped.is_set():
                    raise
                time.sleep(WAIT_SECONDS)
        return checksum

    def _stream(self, file: RemoteFile, out, checksum: Hash) -> Hash:
        """One connection: appends what it brings."""
        url = hf_hub_url(self.repo, file.path, revision=self.commit, endpoint=self.endpoint)
        headers = {**build_hf_headers(), "Accept-Encoding": "identity", "Range": f"bytes={out.tell()}-"}
        with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
            hf_raise_for_status(response)
            if response.status_code == 200 and out.tell():  # the server does not know ranges
                out.truncate(0)
                checksum = _new_checksum(file)
            for data in response.iter_raw():
                out.write(data)
                out.flush()
                checksum.update(data)
                self.progress(file.path, out.tell(), file.size)
                if self._stopped.is_set():
                    raise InterruptedError("stopped")
        return checksum


def checksum_of(path: Path, blob: str, progress: Callable[[int], None] = lambda count: None) -> str:
    """The checksum of a file, of the kind that `blob` is: to be compared with it."""
    checksum = _new_checksum(RemoteFile(path.name, path.stat().st_size, blob))
    with path.open("rb") as file:
        while data := file.read(1 << 22):
            checksum.update(data)
            progress(len(data))
    return checksum.hexdigest()


def _new_checksum(file: RemoteFile) -> Hash:
    if len(file.blob) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
