"""Downloads against a server on loopback that breaks off, lies, dawdles and refuses."""

import hashlib
import importlib.util
import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "data" / "download.py"


def _load():
    spec = importlib.util.spec_from_file_location("download_under_test", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


download = _load()
CONTENT = random.Random(5).randbytes(700_001)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `misbehave` maps a request's number (from 0) to what goes wrong with it."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag = '"one"'
        self.ranges = True
        self.misbehave = {}
        self.requests = []  # the Range of each, or None

    def url(self, name="file.bin"):
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server = self.server
        number = len(server.requests)
        asked = self.headers.get("Range")
        server.requests.append(asked)
        fault = server.misbehave.get(number, server.misbehave.get("all"))
        if isinstance(fault, int):
            self.send_error(fault)
            return
        start = 0
        if asked and server.ranges and self.headers.get("If-Range") in (None, server.etag):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        body = server.content[start:]
        if start and not body:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if server.etag:
            self.send_header("ETag", server.etag)
        if start:
            total = len(server.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.end_headers()
        if fault == "truncate":
            body = body[: len(body) // 2]
        if fault == "stall":
            self.wfile.write(body[:1000])
            self.wfile.flush()
            time.sleep(1.0)
            return
        self.wfile.write(body)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(timeout=5)


def fetch(server, path, name="file.bin", checksum="", **options):
    options = {"pause": 0.01, "timeout": 5.0, **options}
    return download.download(
        server.url(name) + (f"#sha256={checksum}" if checksum else ""), path, **options
    )


def test_a_whole_file_is_verified_and_not_fetched_twice(server, tmp_path):
    path = tmp_path / "deep" / "file.bin"
    entry = fetch(server, path, checksum=SHA256)
    assert path.read_bytes() == CONTENT
    assert entry["verified"] and entry["sha256"] == SHA256 and entry["bytes"] == len(CONTENT)
    assert fetch(server, path, checksum=SHA256.upper()) == entry
    assert len(server.requests) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["file.bin", "file.bin.sha256"]


def test_an_unknown_checksum_is_recorded_and_held_to(server, tmp_path):
    path = tmp_path / "file.bin"
    assert not fetch(server, path)["verified"]
    assert (tmp_path / "file.bin.sha256").read_text() == f"{SHA256}  file.bin\n"
    path.write_bytes(b"changed")
    with pytest.raises(download.DownloadError, match=r"has changed since.*Remove both"):
        fetch(server, path)


def test_a_truncated_download_is_resumed(server, tmp_path):
    server.misbehave = {0: "truncate", 1: "truncate"}
    seen = []
    fetch(
        server, tmp_path / "file.bin", checksum=SHA256, report=lambda n, done, t: seen.append(done)
    )
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    half = len(CONTENT) // 2
    quarter = half + (len(CONTENT) - half) // 2
    assert server.requests == [None, f"bytes={half}-", f"bytes={quarter}-"]
    assert seen == sorted(seen) and seen[-1] == len(CONTENT)


def test_a_killed_download_is_resumed_by_the_next_run(server, tmp_path):
    server.misbehave = {0: "truncate"}
    path = tmp_path / "file.bin"
    with pytest.raises(download.DownloadError, match=r"broke off after 350,000 of 700,001 bytes"):
        fetch(server, path, attempts=1)
    assert not path.exists() and (tmp_path / ".file.bin.part").stat().st_size == 350_000
    fetch(server, path, checksum=SHA256)
    assert server.requests == [None, "bytes=350000-"]


@pytest.mark.parametrize("more", [b"", b"more"])
def test_a_complete_part_is_taken_and_a_longer_one_is_not(server, tmp_path, more):
    (tmp_path / ".file.bin.part").write_bytes(CONTENT + more)
    (tmp_path / ".file.bin.version").write_text('"one"')
    fetch(server, tmp_path / "file.bin", checksum=SHA256)
    assert server.requests == [f"bytes={len(CONTENT + more)}-"] + [None] * bool(more)


def test_a_network_that_goes_away_is_no_full_disk(server, tmp_path, monkeypatch):
    import errno
    import http.client

    read = http.client.HTTPResponse.read1
    calls = []

    def fail_once(self, *args):
        calls.append(self)
        if len(calls) == 2:
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        return read(self, *args)

    monkeypatch.setattr(http.client.HTTPResponse, "read1", fail_once)
    fetch(server, tmp_path / "file.bin", checksum=SHA256)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT and len(server.requests) == 2


def test_a_server_without_ranges_starts_anew(server, tmp_path):
    server.misbehave, server.ranges = {0: "truncate"}, False
    fetch(server, tmp_path / "file.bin", checksum=SHA256)
    assert server.requests == [None, "bytes=350000-"]


def test_a_file_changed_meanwhile_starts_anew(server, tmp_path):
    server.misbehave = {0: "truncate"}
    path = tmp_path / "file.bin"
    with pytest.raises(download.DownloadError):
        fetch(server, path, attempts=1)
    server.content, server.etag = CONTENT[::-1], '"two"'
    fetch(server, path)
    assert path.read_bytes() == CONTENT[::-1]


def test_without_a_version_nothing_is_resumed(server, tmp_path):
    server.misbehave, server.etag = {0: "truncate"}, ""
    fetch(server, tmp_path / "file.bin", checksum=SHA256)
    assert server.requests == [None, None]


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(download.DownloadError, match=rf"wrong checksum, SHA-256 {SHA256} where 00"):
        fetch(server, tmp_path / "file.bin", checksum="0" * 64)
    assert not (tmp_path / "file.bin").exists() and not (tmp_path / ".file.bin.part").exists()
    fetch(server, tmp_path / "file.bin", checksum=SHA256)


def test_an_md5_is_checked_and_the_sha256_recorded_all_the_same(server, tmp_path):
    path, md5 = tmp_path / "file.bin", hashlib.md5(CONTENT).hexdigest()
    entry = download.download(f"{server.url()}#md5={md5}", path, pause=0.01)
    assert entry["verified"] and entry["sha256"] == SHA256
    assert (tmp_path / "file.bin.sha256").read_text() == f"{SHA256}  file.bin\n"
    with pytest.raises(download.DownloadError, match=rf"wrong checksum, MD5 {md5} where 00"):
        download.download(f"{server.url()}#md5={'0' * 32}", path, pause=0.01)
    assert not path.exists()


def test_a_missing_file_is_said_at_once(server, tmp_path):
    server.misbehave = {"all": 404}
    with pytest.raises(download.DownloadError, match=r"is not there: .*404.*data\.path=DIR"):
        fetch(server, tmp_path / "file.bin")
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.misbehave = {0: 503, 1: 500}
    fetch(server, tmp_path / "file.bin", checksum=SHA256)
    server.misbehave = {"all": 503}
    with pytest.raises(download.DownloadError, match=r"503 .*3 attempts.*data\.path"):
        fetch(server, tmp_path / "other.bin", attempts=3)


def test_a_server_that_falls_silent_is_asked_again(server, tmp_path):
    server.misbehave = {0: "stall"}
    fetch(server, tmp_path / "file.bin", checksum=SHA256, timeout=0.3)
    # On loopback the thousand bytes have come; the silence after them is what failed.
    assert server.requests == [None, "bytes=1000-"]


def test_no_network(tmp_path):
    with Server() as gone:
        url = gone.url()
    with pytest.raises(download.DownloadError, match=r"cannot be reached.*data\.path=DIR"):
        download.download(url, tmp_path / "file.bin", attempts=2, pause=0.01, timeout=2.0)


def test_a_web_page_is_no_archive(server, tmp_path):
    server.content = b"<html>please log in</html>"
    with pytest.raises(download.DownloadError, match=r"no \.gz file; it begins b'<html>"):
        fetch(server, tmp_path / "train.de.gz", "train.de.gz")
    assert not list(tmp_path.glob("train*"))


@pytest.mark.parametrize(
    "start", [b"<html>", b"\xef\xbb\xbf\r\n<!DOCTYPE HTML PUBLIC", b" <HTML lang"]
)
def test_a_web_page_is_no_text(server, tmp_path, start):
    server.content = start + b" please log in"
    with pytest.raises(download.DownloadError, match=r"what came is a web page; it begins"):
        fetch(server, tmp_path / "train.de", "train.de")
    assert not list(tmp_path.glob("train*"))


@pytest.mark.parametrize(
    ("name", "content"),
    [("train.de", b"<html5> is a tag\n"), ("train.de", b""), ("page.html", b"<html>\n")],
)
def test_what_may_look_like_a_web_page(server, tmp_path, name, content):
    server.content = content
    download.download(server.url(name), tmp_path / name)
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://example.org/file", "no http or https address"),
        ("file:///etc/passwd", "no http or https address"),
        ("https://example.org/", "names no file"),
        ("https://example.org/file#sha256=12", "64 hexadecimal digits"),
        ("https://example.org/file#md5=" + "0" * 64, "or md5= and 32"),
    ],
)
def test_addresses_that_cannot_be(url, message):
    with pytest.raises(download.DownloadError, match=message):
        download.split_checksum(url)


def test_the_script_fills_a_folder_from_the_cache(server, tmp_path, capsys):
    out, cache = tmp_path / "out", tmp_path / "cache"
    urls = [server.url("a/one.bin"), server.url("b/two.bin") + f"#sha256={SHA256}"]
    arguments = [*urls, "--out", str(out), "--cache", str(cache)]
    assert download.main(arguments) == 0
    printed = capsys.readouterr()
    assert "one.bin: 700,001 bytes, unverified" in printed.out
    assert "two.bin: 700,001 bytes, checksum agrees" in printed.out
    assert "one.bin: 0.7 MB of 0.7 (100%)" in printed.err
    account = json.loads((out / "sources.json").read_text())
    assert [(e["name"], e["verified"]) for e in account] == [("one.bin", False), ("two.bin", True)]
    assert (out / "one.bin").read_bytes() == CONTENT
    assert download.main(arguments) == 0 and len(server.requests) == 2
    server.misbehave = {"all": 404}
    assert download.main([server.url("c/none.bin"), "--out", str(out), "--cache", str(cache)]) == 1
    assert "error: " in capsys.readouterr().err
    assert not (out / "sources.json").exists()


def test_a_query_tells_files_apart(server, tmp_path):
    first, second = (server.url(f"file.bin?id={number}") for number in (1, 2))
    cache = tmp_path / "cache"
    download.fetch_all([first], tmp_path / "one", cache)
    server.content = b"another"
    download.fetch_all([second], tmp_path / "two", cache)
    assert (tmp_path / "one/file.bin").read_bytes() == CONTENT
    assert (tmp_path / "two/file.bin").read_bytes() == b"another"


def test_an_address_with_letters_and_spaces(server, tmp_path):
    download.download(server.url("für alle.bin"), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_two_files_of_one_name_would_clash(tmp_path):
    urls = ["http://127.0.0.1/a/train.en", "http://127.0.0.1/b/train.en"]
    with pytest.raises(download.DownloadError, match=r"two addresses end in train\.en"):
        download.fetch_all(urls, tmp_path)
