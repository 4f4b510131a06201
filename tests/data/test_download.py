"""What the download promises: resumed, checked, and never half there."""

import base64
import hashlib
import http.server
import lzma
import threading

import pytest

from stackoverflow.data.download import download

CONTENT = bytes(range(256)) * 20_000
PACKED = lzma.compress(CONTENT, lzma.FORMAT_ALONE)


class Server(http.server.ThreadingHTTPServer):
    """Serves PACKED with ranges; may break off, lie about the checksum, or restart."""

    break_after: int | None = None
    body = PACKED
    stated = PACKED
    ranges = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str | None] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        start = 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        md5 = base64.b64encode(hashlib.md5(self.server.stated).digest()).decode()
        body = self.server.body[start:]
        if start and not body:
            self.send_response(416)
            self.send_header("x-goog-hash", f"crc32c=AAAAAA==,md5={md5}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-goog-hash", "crc32c=AAAAAA==")
        self.send_header("x-goog-hash", f"md5={md5}")
        self.end_headers()
        self.wfile.write(body[: self.server.break_after])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def address(server):
    return f"http://127.0.0.1:{server.server_address[1]}/stackoverflow.sqlite.lzma"


def test_the_file_arrives_once(server, tmp_path):
    seen = []
    path = download(
        str(tmp_path), origin=address(server), progress=lambda *a: seen.append(a)
    )
    assert path == str(tmp_path / "stackoverflow.sqlite")
    assert (tmp_path / "stackoverflow.sqlite").read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["stackoverflow.sqlite"]
    assert seen[-2] == ("download", len(PACKED), len(PACKED))
    download(str(tmp_path), origin=address(server))
    assert len(server.requests) == 1


def test_a_broken_download_is_no_data_and_goes_on(server, tmp_path):
    server.break_after = 100
    with pytest.raises(ConnectionError, match="the 100 bytes"):
        download(str(tmp_path), origin=address(server))
    assert not (tmp_path / "stackoverflow.sqlite").exists()
    server.break_after = None
    download(str(tmp_path), origin=address(server))
    assert server.requests == [None, "bytes=100-"]
    assert (tmp_path / "stackoverflow.sqlite").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server, tmp_path):
    (tmp_path / "stackoverflow.sqlite.lzma.part").write_bytes(PACKED[:50])
    server.ranges = False
    download(str(tmp_path), origin=address(server))
    assert (tmp_path / "stackoverflow.sqlite").read_bytes() == CONTENT


def test_all_there_but_not_unpacked_is_unpacked(server, tmp_path):
    (tmp_path / "stackoverflow.sqlite.lzma.part").write_bytes(PACKED)
    download(str(tmp_path), origin=address(server))
    assert (tmp_path / "stackoverflow.sqlite").read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_thrown_away(server, tmp_path):
    server.body = PACKED[:200] + b"x" + PACKED[201:]
    with pytest.raises(ValueError, match="the checksum is wrong"):
        download(str(tmp_path), origin=address(server))
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_unpacked_is_refused_and_thrown_away(server, tmp_path):
    server.body = server.stated = b"not packed at all"
    with pytest.raises(ValueError, match="damaged"):
        download(str(tmp_path), origin=address(server))
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_message_says_what_to_do(server, tmp_path):
    server.server_close()
    origin = address(server)
    with pytest.raises(ConnectionError, match="another machine"):
        download(str(tmp_path), origin=origin)
    assert list(tmp_path.iterdir()) == []
