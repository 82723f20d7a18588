#!/usr/bin/env python3
"""Fetch files by HTTP: resumed where they broke off, checked, and whole or not there at all.

    python data/download.py --out corpora/raw URL [URL …]
    python data/download.py --out corpora/raw 'https://example.org/de-en.tgz#sha256=9f86…'

A file is kept in `--cache`, in a folder a host, path and query, and linked (or copied) into
`--out`, so that several runs share one download. While it grows it is called `.NAME.part`; `NAME`
appears when it is complete. A download that broke off goes on where it was (HTTP `Range`), if the
server still has the same file (`If-Range`); of a server without ranges it starts anew.

A checksum is checked where one is given: `#sha256=`, or `#md5=` where a publisher has no better
one. Where none is known the file is *unverified*: that is said. The SHA-256 of what came is written
to `NAME.sha256` beside it, and every later use is held to that one.
`--out` also gets `sources.json`: name, URL, bytes, SHA-256 and whether it was verified.

Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import string
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # not a POSIX system: two downloads of one file at once are not kept apart
    fcntl = None  # type: ignore[assignment]

__all__ = ["DownloadError", "cached_path", "download", "fetch_all", "split_checksum"]

CACHE = Path(__file__).resolve().parent / "cache" / "downloads"
_BLOCK = 1 << 18
_SECONDS_BETWEEN_LINES = 3.0
_LATER = {408, 425, 429, 500, 502, 503, 504}  # statuses that another attempt may not meet
_MAGIC = {
    ".gz": b"\x1f\x8b",
    ".tgz": b"\x1f\x8b",
    ".zip": b"PK",
    ".bz2": b"BZh",
    ".xz": b"\xfd7zXZ",
}
_PAGES = {".html", ".htm", ".xhtml"}  # files that may begin as a web page does
_PAGE_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html)\b", re.IGNORECASE)

Report = Callable[[str, int, "int | None"], None]  # name, bytes so far, bytes in all


class DownloadError(RuntimeError):
    """What could not be fetched, why, and how to get it otherwise."""


class _AgainError(Exception):
    """An attempt failed in a way that the next may not."""


def split_checksum(url: str) -> tuple[str, str]:
    """The URL, and the checksum behind it, as `sha256=HEX` or `md5=HEX`; empty where none is.

    Raises:
        DownloadError: neither http nor https, no file name, or a checksum that is none.
    """
    address, _, fragment = url.partition("#")
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise DownloadError(f"{url!r} is no http or https address")
    if not Path(urllib.parse.unquote(parts.path)).name:
        raise DownloadError(f"{url!r} names no file")
    if fragment and not re.fullmatch(r"sha256=[0-9a-fA-F]{64}|md5=[0-9a-fA-F]{32}", fragment):
        raise DownloadError(
            f"{url!r}: behind # is expected sha256= and 64 hexadecimal digits, or md5= and 32, or "
            "nothing where the checksum is not known"
        )
    return address, fragment.lower()


def cached_path(url: str, cache: Path) -> Path:
    """Where the file of a URL is kept: a folder a host, path and query, so that none clash."""
    parts = urllib.parse.urlsplit(split_checksum(url)[0])
    names = [parts.netloc, *urllib.parse.unquote(parts.path).split("/")]
    safe = [re.sub(r"[^\w.+-]", "_", name) for name in names if name not in ("", ".", "..")]
    if parts.query:  # file.php?id=1 and ?id=2
        safe.insert(-1, hashlib.sha256(parts.query.encode()).hexdigest()[:16])
    return cache.joinpath(*safe)


def download(
    url: str,
    path: Path,
    *,
    attempts: int = 5,
    timeout: float = 30.0,
    pause: float = 1.0,
    report: Report | None = None,
) -> dict[str, Any]:
    """Fetch one file, unless it is there already.

    Args:
        url: with `#sha256=HEX` or `#md5=HEX` behind it where the checksum is known.
        path: file to write.
        attempts: how often to try before giving up; each goes on where the last one broke off.
        timeout: seconds without a byte after which an attempt has failed.
        pause: seconds before the second attempt; doubled before every further one.
        report: called now and then with the name, bytes so far, and bytes in all (None: unknown).

    Returns:
        `name`, `url`, `bytes`, `sha256`, and `verified`: whether a given checksum agreed.

    Raises:
        DownloadError: what went wrong, and what to do.
    """
    address, checksum = split_checksum(url)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            if path.is_file():  # from an earlier run, or from the one that held the lock
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(part.stat(), os.fstat(file.fileno())):
                        part.unlink()
            else:
                _attempts(address, file, path, attempts, timeout, pause, report)
                file.flush()
                os.fsync(file.fileno())
                _check_kind(address, part, path)
                if checksum:
                    _check(address, part, checksum, path)
                part.replace(path)
                _validator(path).unlink(missing_ok=True)
        return _verify(address, path, checksum)
    except OSError as error:
        raise DownloadError(
            f"cannot write {error.filename or path}: {error.strerror or error}. Free space there, "
            "make the folder writable, or choose another with --cache"
        ) from error


def _attempts(
    url: str,
    file: IO[bytes],
    path: Path,
    attempts: int,
    timeout: float,
    pause: float,
    report: Report | None,
) -> None:
    for attempt in range(1, attempts + 1):
        try:
            _attempt(url, file, path, timeout, report)
            return
        except _AgainError as error:
            if attempt == attempts:
                raise DownloadError(
                    f"{url}: {error}, {attempts} attempts. {file.tell():,} bytes are kept: the "
                    f"same command goes on from there. {_by_hand(url)}"
                ) from error
            time.sleep(pause * 2 ** (attempt - 1))


def _attempt(url: str, file: IO[bytes], path: Path, timeout: float, report: Report | None) -> None:
    have = file.seek(0, os.SEEK_END)
    validator = _validator(path)
    known = validator.read_text(encoding="utf-8") if validator.is_file() else ""
    if have and not known:  # whether the server's file is still the same cannot be told
        have = 0
    headers = {"User-Agent": "fairseq-fixed-attention", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known}
    try:
        address = urllib.parse.quote(url, safe=string.punctuation)  # http.client takes ASCII alone
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            total = _place(answer, file, have)
            mark = answer.headers.get("ETag", "")
            # A weak ETag does not promise the same bytes.
            mark = "" if mark.startswith("W/") else mark
            validator.write_text(mark or answer.headers.get("Last-Modified", ""), encoding="utf-8")
            while block := _read(answer):
                file.write(block)
                if report is not None:
                    report(path.name, file.tell(), total)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing lies behind what is here
            if error.headers.get("Content-Range", "") == f"bytes */{have}":
                return  # killed between the last byte and the new name
            file.truncate(0)
            raise _AgainError("the server has another file than the one begun") from error
        if error.code in _LATER:
            raise _AgainError(f"the server answers {error.code} {error.reason}") from error
        gone = "is not there" if error.code in (404, 410) else "is refused"
        raise DownloadError(
            f"{url} {gone}: the server answers {error.code} {error.reason}. {_by_hand(url)}"
        ) from error
    except TimeoutError as error:
        raise _AgainError(f"nothing came for {timeout:g} seconds") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise _AgainError(f"nothing came for {timeout:g} seconds") from error
        raise _AgainError(f"the server cannot be reached ({error.reason})") from error
    except (http.client.HTTPException, ConnectionError) as error:
        raise _AgainError(f"the connection broke ({error or type(error).__name__})") from error
    if total is not None and file.tell() != total:
        raise _AgainError(f"broke off after {file.tell():,} of {total:,} bytes")


def _read(answer: Any) -> bytes:
    """Return the next bytes; what the network does meanwhile is no error of the disk."""
    try:
        return answer.read1(_BLOCK)
    except (TimeoutError, ConnectionError):
        raise
    except OSError as error:  # no route to the server any more, a broken encryption
        raise _AgainError(f"the connection broke ({error.strerror or error})") from error


def _place(answer: Any, file: IO[bytes], have: int) -> int | None:
    """Put the file where the answer's bytes belong, and return the bytes in all, where known."""
    if answer.status == 206:
        match = re.match(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if match and int(match[1]) == have:
            return int(match[2]) if match[2] != "*" else None
        file.truncate(0)
        raise _AgainError("the server sent another range than the one asked for")
    file.truncate(0)  # a whole file: no ranges there, or another file than the one begun
    file.seek(0)
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None


def _validator(path: Path) -> Path:
    """The file that remembers which version of the server's file the part is of."""
    return path.with_name(f".{path.name}.version")


def _check_kind(url: str, part: Path, path: Path) -> None:
    """Remove what cannot be the file that was asked for: an answer of 200 may be an error page."""
    with part.open("rb") as file:
        start = file.read(64)
    expected = _MAGIC.get(path.suffix)
    if expected is not None:
        fits, what = start.startswith(expected), f"no {path.suffix} file"
    else:
        fits, what = path.suffix in _PAGES or not _PAGE_START.match(start), "a web page"
    if not fits:
        part.unlink()
        raise DownloadError(
            f"{url}: what came is {what}; it begins {start[:24]!r}. A login page, or a proxy's? "
            f"{_by_hand(url)}"
        )


def _digest(path: Path, algorithm: str = "sha256") -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check(url: str, file: Path, checksum: str, path: Path) -> None:
    algorithm, _, expected = checksum.partition("=")
    found = _digest(file, algorithm)
    if found != expected:
        size = file.stat().st_size
        file.unlink()
        name = {"sha256": "SHA-256", "md5": "MD5"}[algorithm]
        raise DownloadError(
            f"{url}: wrong checksum, {name} {found} where {expected} is expected ({size:,} "
            f"bytes; removed from {path.parent}). Either it was damaged on the way: try again. Or "
            "its publisher has changed it: then see what changed before you change the checksum"
        )


def _verify(url: str, path: Path, checksum: str) -> dict[str, Any]:
    """Hold a file to the checksum given, else to the one recorded at its first download."""
    record = path.with_name(f"{path.name}.sha256")
    found = _digest(path)
    recorded = record.read_text(encoding="utf-8").split()[:1] if record.is_file() else []
    if checksum:
        _check(url, path, checksum, path)
    if not checksum and recorded and recorded[0] != found:
        raise DownloadError(
            f"{path} has changed since it was downloaded: SHA-256 {found}, recorded in "
            f"{record.name}: {recorded[0]}. Remove both files to fetch it again"
        )
    if recorded != [found]:
        record.write_text(f"{found}  {path.name}\n", encoding="utf-8")
    return {
        "name": path.name,
        "url": url,
        "bytes": path.stat().st_size,
        "sha256": found,
        "verified": bool(checksum),
    }


def _by_hand(url: str) -> str:
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name
    return (
        f"By hand: fetch {name} from there or from anyone who has it, put it in a folder DIR, and "
        "run the recipe with data.path=DIR"
    )


def fetch_all(
    urls: Sequence[str], out: Path, cache: Path = CACHE, **options: Any
) -> list[dict[str, Any]]:
    """Fetch files into a cache and link them into a folder, which gets `sources.json` last.

    Args:
        urls: as for :func:`download`.
        out: folder for the files.
        cache: folder where they stay.
        options: passed on to :func:`download`.

    Raises:
        DownloadError: of the first file that fails; or two URLs end in the same name.
    """
    names = [cached_path(url, cache).name for url in urls]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DownloadError(f"two addresses end in {twice[0]}: their files would clash in {out}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "sources.json").unlink(missing_ok=True)
    account = []
    for url in urls:
        kept = cached_path(url, cache)
        account.append(download(url, kept, **options))
        target = out / kept.name
        target.unlink(missing_ok=True)
        try:
            os.link(kept, target)
        except OSError:  # another file system
            shutil.copyfile(kept, target)
    text = json.dumps(account, indent=1) + "\n"
    draft = out / ".sources.json.part"
    draft.write_text(text, encoding="utf-8")
    draft.replace(out / "sources.json")
    return account


class Progress:
    """Bytes so far, on stderr: one line that is written over; a line now and then in a log."""

    def __init__(self, stream: IO[str] | None = None):
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.last = time.monotonic()

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Show a file's progress, if the last time is long enough ago or the file is complete."""
        now = time.monotonic()
        if done != total and now - self.last < (0.2 if self.terminal else _SECONDS_BETWEEN_LINES):
            return
        self.last = now
        text = f"{name}: {done / 1e6:.1f} MB"
        if total:
            text += f" of {total / 1e6:.1f} ({done / total:.0%})"
        end = "\n" if done == total or not self.terminal else ""
        print(f"\r\033[K{text}" if self.terminal else text, end=end, file=self.stream, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 on success, 1 with a message on stderr."""
    parser = argparse.ArgumentParser(description="Fetch files: resumed, checked, whole or not.")
    parser.add_argument("urls", nargs="+", metavar="URL[#sha256=HEX]", help="or URL#md5=HEX")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"kept there (default: {CACHE})")
    parser.add_argument("--attempts", type=int, default=5, help="before giving up (default: 5)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds of silence borne")
    options = parser.parse_args(arguments)
    try:
        account = fetch_all(
            options.urls, options.out, options.cache,
            attempts=options.attempts, timeout=options.timeout, report=Progress(),
        )  # fmt: skip
    except DownloadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for entry in account:
        word = "checksum agrees" if entry["verified"] else "unverified: no checksum is known; found"
        print(f"{entry['name']}: {entry['bytes']:,} bytes, {word} SHA-256 {entry['sha256']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
