"""The fetch gate: answers of a real server, and refused addresses."""

import gzip
import ipaddress
import socket
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar

import anyio
import httpx
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.circle.gate_call import run_gate
from cantrip_actors.circle.gates import fetch_request
from cantrip_actors.circle.gates.fetch_request import is_public
from cantrip_actors.gates import fetch as fetch_gate
from cantrip_actors.records.records import Observation
from cantrip_actors.terms.gate import BoundArguments, Gate
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import ToolCall
from tests.circle.gates.iana_registries import LOCAL_SERVICES, REGISTRY
from tests.pictures import png

pytestmark = pytest.mark.real_time


class Site(BaseHTTPRequestHandler):
    """What the local server says to each path."""

    pages: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {
        "/text": (200, {"content-type": "text/plain"}, b"hello"),
        "/latin": (200, {"content-type": "text/html; charset=latin-1"}, "café".encode("latin-1")),
        "/odd": (200, {"content-type": "text/plain; charset=nonsense"}, "café".encode()),
        "/slow-charset": (200, {"content-type": "text/plain; charset=punycode"}, "ab-ü9z".encode()),
        "/no-charset": (200, {"content-type": "text/plain; charset=undefined"}, b"ab"),
        "/half": (200, {"content-type": "text/plain; charset=unicode_escape"}, rb"\ud83d"),
        "/members": (
            200,
            {"content-type": "text/plain", "content-encoding": "gzip"},
            gzip.compress(b"first ") + gzip.compress(b"second") + bytes(20),
        ),
        "/cut": (
            200,
            {"content-type": "text/plain", "content-encoding": "gzip"},
            gzip.compress(b"".join(b"%d " % number for number in range(500)))[:-20],
        ),
        "/json": (200, {"content-type": "application/problem+json"}, b"{}"),
        "/packed": (200, {"content-type": "text/plain", "content-encoding": "gzip"}, gzip.compress(b"x" * 100_000)),
        "/broken": (200, {"content-type": "text/plain", "content-encoding": "gzip"}, b"no gzip"),
        "/image": (200, {"content-type": "image/png"}, b"\x89PNG"),
        "/picture": (200, {"content-type": "image/png"}, png() + bytes(300_000)),
        "/no-picture": (200, {"content-type": "image/x-icon"}, b"\0\0\1\0"),
        "/untyped": (200, {}, b"\x00\x01"),
        "/missing": (404, {"content-type": "text/plain"}, b"no such page"),
        "/error": (500, {"content-type": "text/plain"}, b""),
        "/hop": (302, {"location": "/text"}, b""),
        "/loop": (301, {"location": "/loop"}, b""),
        "/to-file": (302, {"location": "file:///etc/passwd"}, b""),
        "/to-nowhere": (302, {"location": "http://example.org:port/"}, b""),
    }

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["host"]))
        if self.path == "/slow":
            time.sleep(1)
            return
        if self.path.startswith("/hops/"):
            left = int(self.path[6:])
            page = (302, {"location": f"/hops/{left - 1}" if left else "/text"}, b"")
        else:
            page = self.pages[self.path]
        status, headers, body = page
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server():
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    serving.daemon_threads = True
    serving.asked = []
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield serving
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture
def site(server):
    server.asked.clear()
    return f"http://127.0.0.1:{server.server_port}"


async def get(url: str, gate: Gate = fetch_gate, **dependencies: Any) -> Observation:
    gate = gate.with_(**dependencies)
    call = ToolCall("c1", "fetch", {"url": url})
    bound = gate.check(call)
    assert isinstance(bound, BoundArguments)
    return await run_gate(gate, call, bound.args)


async def text(url: str, **dependencies: Any) -> str:
    observation = await get(url, allow_private=True, **dependencies)
    assert not observation.is_error, observation.result
    return observation.result


async def refusal(url: str, **dependencies: Any) -> str:
    observation = await get(url, **dependencies)
    assert observation.is_error, observation.result
    return observation.result


@pytest.mark.rule("CIRCLE-10")
def test_the_url_is_the_only_argument_of_the_entity():
    assert list(fetch_gate.parameters["properties"]) == ["url"]
    assert fetch_gate.idempotent
    assert not fetch_gate.ephemeral


class TestAnswers:
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("/text", "hello"),
            ("/latin", "café"),
            ("/odd", "café"),
            ("/slow-charset", "ab-ü9z"),
            ("/no-charset", "ab"),
            ("/half", r"\ud83d"),
            ("/members", "first second"),
            ("/json", "{}"),
            ("/hop", "hello"),
            ("/hops/4", "hello"),
        ],
    )
    async def test_the_text_of_a_url_is_returned(self, site, path, expected):
        assert await text(site + path) == expected

    async def test_too_much_text_is_cut_off_while_it_arrives(self, site):
        got = await text(f"{site}/packed", max_bytes=1000)
        assert got == "x" * 1000 + "\n[cut after 1,000 bytes; there is more]"

    async def test_an_image_is_made_in_a_worker_thread(self, site, monkeypatch):
        threads = []

        def make(data):
            threads.append(threading.current_thread())
            return Image(data)

        monkeypatch.setattr(fetch_request, "Image", make)
        assert not (await get(f"{site}/picture", allow_private=True, images=True)).is_error
        assert threading.main_thread() not in threads

    async def test_a_picture_is_fetched_as_an_image_when_images_are_wanted(self, site):
        observation = await get(f"{site}/picture", allow_private=True, images=True)
        assert observation.images == (Image(png() + bytes(300_000)),)
        assert observation.result == observation.images[0].handle
        assert await text(f"{site}/text", images=True) == "hello"
        assert "expected a PNG" in await refusal(f"{site}/no-picture", allow_private=True, images=True)
        told = await refusal(f"{site}/picture", allow_private=True)
        assert told.endswith(f"/picture is image/png ({len(png()) + 300_000} bytes): expected text")

    async def test_a_client_can_be_passed_in(self, site):
        async with httpx.AsyncClient(headers={"user-agent": "mine"}) as client:
            assert await text(f"{site}/text", client=client) == "hello"

    async def test_an_error_status_is_an_error_with_its_body(self, site):
        told = await refusal(f"{site}/missing", allow_private=True)
        assert told == f"status 404 Not Found from {site}/missing: no such page"
        assert "status 500" in await refusal(f"{site}/error", allow_private=True)

    async def test_a_response_that_is_not_text_is_refused(self, site):
        assert "is image/png (4 bytes): expected text" in await refusal(f"{site}/image", allow_private=True)
        assert "is binary" in await refusal(f"{site}/untyped", allow_private=True)

    async def test_an_answer_that_cannot_be_decompressed_is_an_error(self, site):
        assert "cannot be unpacked" in await refusal(f"{site}/broken", allow_private=True)

    async def test_a_packed_answer_that_ends_too_early_is_an_error(self, site):
        assert "cannot be unpacked: it ends too early" in await refusal(f"{site}/cut", allow_private=True)

    async def test_too_many_redirects_are_an_error(self, site, server):
        assert "more than 5 redirects" in await refusal(f"{site}/loop", allow_private=True)
        assert len(server.asked) == 6

    async def test_a_redirect_to_an_address_that_is_not_http_is_refused(self, site):
        assert "expected http or https, got file" in await refusal(f"{site}/to-file", allow_private=True)
        assert "Invalid URL in location header" in await refusal(f"{site}/to-nowhere", allow_private=True)

    async def test_an_unreachable_server_is_an_error(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        assert "cannot be reached" in await refusal(f"http://127.0.0.1:{port}/", allow_private=True)

    async def test_a_silent_server_is_an_error_after_the_timeout(self, site):
        assert await refusal(f"{site}/slow", allow_private=True, timeout=0.2) == "fetch timed out after 0.2 s"

    async def test_fetch_can_be_cancelled_while_it_waits(self, site):
        with anyio.move_on_after(0.2) as scope:
            await get(f"{site}/slow", allow_private=True)
        assert scope.cancelled_caught


PRIVATE = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://0/",
    "http://0.0.0.0/",
    "http://localhost/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://100.64.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[fe80::1]/",
    "http://[fc00::1]/",
    "http://[fec0::1]/",
    "http://[ff02::1]/",
    "http://①②⑦.0.0.1/",
]


class TestPrivateAddresses:
    @pytest.mark.parametrize("url", PRIVATE)
    async def test_a_private_address_is_refused_in_every_spelling(self, url):
        told = await refusal(url)
        assert "is refused" in told or "cannot be resolved" in told or "is not a URL" in told

    async def test_a_refused_server_receives_no_request(self, site, server):
        assert "is refused" in await refusal(f"{site}/text")
        assert server.asked == []

    async def test_a_name_with_one_private_address_among_others_is_refused(self, monkeypatch):
        resolve_to(monkeypatch, "93.184.216.34", "10.0.0.1")
        assert "is refused" in await refusal("http://two.example/")

    async def test_a_redirect_to_a_private_address_is_refused(self, monkeypatch, server):
        sent: list[httpx.Request] = []

        def answer(request: httpx.Request) -> httpx.Response:
            sent.append(request)
            return httpx.Response(302, headers={"location": f"http://127.0.0.1:{server.server_port}/text"})

        resolve_to(monkeypatch, "93.184.216.34", only="public.example")
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            assert "127.0.0.1 is refused" in await refusal("http://public.example/", client=client)
        assert len(sent) == 1

    async def test_the_connection_goes_to_the_address_that_was_checked(self, monkeypatch):
        sent: list[httpx.Request] = []

        def answer(request: httpx.Request) -> httpx.Response:
            sent.append(request)
            return httpx.Response(200, headers={"content-type": "text/plain"}, text="ok")

        resolve_to(monkeypatch, "93.184.216.34")
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            assert (await get("https://public.example:8443/a?b", client=client)).result == "ok"
        assert str(sent[0].url) == "https://93.184.216.34:8443/a?b"
        assert sent[0].headers["host"] == "public.example:8443"
        assert sent[0].extensions["sni_hostname"] == "public.example"

    @pytest.mark.rule("L-21")
    @pytest.mark.parametrize("library", [httpx, httpx2])
    async def test_the_next_address_is_tried_when_one_cannot_be_reached(self, monkeypatch, library):
        def answer(request):
            if request.url.host == "93.184.216.34":
                raise library.ConnectError("down")
            return library.Response(200, headers={"content-type": "text/plain"}, text=request.url.host)

        resolve_to(monkeypatch, "93.184.216.34", "2606:2800:220:1::1")
        async with library.AsyncClient(transport=library.MockTransport(answer)) as client:
            assert (await get("http://public.example/", client=client)).result == "2606:2800:220:1::1"

    async def test_the_host_is_sent_on_a_real_connection(self, site, server, monkeypatch):
        module = sys.modules[is_public.__module__]  # by name it is the gate that is found
        monkeypatch.setattr(module, "is_public", lambda address: address == "127.0.0.1")
        resolve_to(monkeypatch, "127.0.0.1")
        observation = await get(f"http://public.example:{server.server_port}/hop")
        assert observation.result == "hello"
        assert server.asked == [(path, f"public.example:{server.server_port}") for path in ("/hop", "/text")]

    @given(st.ip_addresses(v=4))
    def test_is_public_rejects_every_spelling_of_a_private_address(self, address):
        if not address.is_global or address.is_multicast:
            for spelling in (f"::ffff:{address}", f"64:ff9b::{address}", f"::{address}"):
                assert not is_public(str(ipaddress.ip_address(spelling)))
            assert not is_public(str(address))


@pytest.mark.rule("X-13")
@pytest.mark.parametrize(("block", "reachable"), [(block, row[-1]) for block, *row in REGISTRY], ids=str)
def test_is_public_follows_the_iana_registries(block, reachable):
    if block in {ipaddress.ip_network("::ffff:0:0/96"), ipaddress.ip_network("64:ff9b::/96")}:
        return  # judged by the IPv4 address that they carry, below
    others = [other for other, *_ in REGISTRY if other != block]
    inner = [other for other in (*others, *LOCAL_SERVICES) if other.version == block.version and other.subnet_of(block)]
    for address in (block[0], block[-1], block[block.num_addresses // 2]):
        if any(address in other for other in inner):
            continue
        assert is_public(str(address)) is reachable
        if block.version == 4:
            assert is_public(f"::ffff:{address}") is reachable
            assert is_public(f"64:ff9b::{address}") is reachable


@pytest.mark.rule("X-13")
@pytest.mark.parametrize("block", LOCAL_SERVICES, ids=str)
def test_metadata_services_and_local_anycast_are_not_public(block):
    assert not is_public(str(block[0]))


@pytest.mark.rule("X-13")
@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("168.63.129.16", False),
        ("::ffff:168.63.129.16", False),
        ("64:ff9b::a83f:8110", False),
        ("192.0.0.1", False),
        ("192.0.0.9", False),
        ("192.88.99.1", False),
        ("224.0.0.1", False),
        ("3fff::1", False),
        ("2002:808:808::", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("4000::1", False),
        ("::8.8.8.8", False),
        ("fe80::1%eth0", False),
        ("example.org", False),
        ("8.8.8.8", True),
        ("168.63.129.17", True),
        ("192.31.196.1", True),
        ("64:ff9b::808:808", True),
        ("2606:4700:4700::1111", True),
    ],
)
def test_public_addresses_are_distinguished_from_others(address, public):
    assert is_public(address) is public


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str, only: str = "") -> None:
    """Have every name (or only one) resolve to `addresses`, as a name server of the attacker's would."""
    real = anyio.getaddrinfo

    async def resolve(host: str, port: int, **kwargs: Any) -> Any:
        if only and host != only:
            return await real(host, port, **kwargs)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(anyio, "getaddrinfo", resolve)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://example.org/", "expected http or https, got ftp"),
        ("file:///etc/passwd", "expected http or https, got file"),
        ("javascript:alert(1)", "expected http or https, got javascript"),
        ("example.org", "expected http or https, got no scheme"),
        ("", "got no scheme"),
        ("http://", "expected a host"),
        ("http:///path", "expected a host"),
        ("http://a\0b/", "is not a URL"),
        ("http://example.org:port/", "is not a URL"),
        ("http://example.org:99999/", "expected a port"),
        ("http://xn--a/", "its host is no name of the internet"),
        ("http://user:pass@example.org/", "user name or password is refused"),
        ("http://does-not-exist.invalid/", "cannot be resolved"),
        ("http://" + "a" * 100 + ".invalid/", "cannot be resolved"),
        ("http://example.org/" + "a" * 8000, "cannot be resolved"),
    ],
)
async def test_an_address_that_is_not_http_is_refused(url, told, monkeypatch):
    async def resolve(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror

    monkeypatch.setattr(anyio, "getaddrinfo", resolve)
    got = await refusal(url)
    assert told in got
    assert len(got) < 500


class Unpacking:
    """What zlib has, and how many bytes it made."""

    made = 0

    def __init__(self, wbits: int) -> None:
        self._zlib = zlib.decompressobj(wbits=wbits)

    def decompress(self, data: bytes, most: int) -> bytes:
        made = self._zlib.decompress(data, most)
        Unpacking.made += len(made)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._zlib, name)


@pytest.mark.rule("X-07")
async def test_a_compressed_answer_is_bounded_at_any_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that unpacks to one byte past the bound makes the next call's limit 0, which would be none."""
    packed, most = gzip.compress(b"x" * 3_000_000), 1_000
    monkeypatch.setattr(fetch_request, "zlib", SimpleNamespace(decompressobj=Unpacking, error=zlib.error))

    async def pieces(at: int) -> AsyncIterator[bytes]:
        for piece in (packed[:at], packed[at : at + 1], packed[at + 1 :]):
            yield piece

    for border in range(1, len(packed), max(1, len(packed) // 150)):
        Unpacking.made = 0
        response = httpx.Response(200, headers={"content-encoding": "gzip"}, content=pieces(border))
        data, is_whole = await fetch_request._read_body(response, httpx.URL("http://example.org"), most)
        assert (len(data), is_whole) == (most, False)
        assert Unpacking.made <= most + 1
