"""`cantrip demo browser`: an entity orders in a small shop on this machine, in a real Chromium.

The shop has a list of products, a form and a login. The crystal is a script that reads refs from the pages, as a
model would do. The entity writes the password by its name, and the loom does not have it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from cantrip_actors import Call, Cantrip, Circle, Invocation
from cantrip_actors.gates import browser
from cantrip_actors.wards import max_turns
from cantrip_demos.script import scripted_demo

__all__ = ["INTENT", "PASSWORD", "Shop", "browser_cantrip", "open_shop"]

INTENT: Final = "Order two bags of the cheapest tea."
PASSWORD: Final = "correct horse battery staple"
PRICES: Final = {"Assam": 7, "Mint": 4, "Sencha": 9}

_LINES: Final = re.compile(r"^[ +]*(?P<ref>(?:f\d+)?e\d+) (?P<words>.*)$", re.MULTILINE)


class Shop(ThreadingHTTPServer):
    """The shop, with the orders that came in."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.orders: list[str] = []

    @property
    def host(self) -> str:
        """The host and the port at which it listens."""
        return f"127.0.0.1:{self.server_address[1]}"


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith("/tea/"):
            self._show(
                f"{path[5:]} tea",
                _form(
                    "/order",
                    f"<input type=hidden name=tea value={path[5:]}>"
                    "<input name=bags placeholder='How many'><button>Order</button>",
                ),
            )
        elif path == "/":
            rows = (f"<tr><td><a href=/tea/{tea}>{tea}</a><td>{price} EUR" for tea, price in PRICES.items())
            self._show("Teas", f"<table>{''.join(rows)}</table>")
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        fields = {name: values[0] for name, values in parse_qs(body).items()}
        if self.path == "/order" and "key=" not in (self.headers.get("cookie") or ""):
            hidden = "".join(f"<input type=hidden name={name} value='{text}'>" for name, text in fields.items())
            self._show(
                "Log in",
                _form("/in", f"{hidden}<input type=password name=word placeholder=Password><button>Log in</button>"),
            )
        elif self.path == "/order" or fields.get("word") == PASSWORD:
            shop: Any = self.server
            shop.orders.append(f"{fields['bags']} x {fields['tea']}")
            total = int(fields["bags"]) * PRICES[fields["tea"]]
            self._show("Thank you", f"<p>{fields['bags']} bags of {fields['tea']}: {total} EUR", "key=1; path=/")
        else:
            self._show("Wrong password", "<a href=/>Teas</a>")

    def _show(self, title: str, body: str, cookie: str | None = None) -> None:
        page = f"<!doctype html><title>{title}</title><h1>{title}</h1>{body}".encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(page)))
        if cookie is not None:
            self.send_header("set-cookie", cookie)
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *line: object) -> None:
        """Print nothing."""


def _form(action: str, fields: str) -> str:
    return f"<form method=post action={action}>{fields}</form>"


@contextmanager
def open_shop() -> Iterator[Shop]:
    """Serve the shop in a thread until the block ends."""
    with Shop() as shop:
        thread = threading.Thread(target=shop.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield shop
        finally:
            shop.shutdown()
            thread.join()


def browser_cantrip(shop: Shop, pace: float) -> Cantrip:
    """Return the cantrip of an entity that orders in the shop."""

    def policy(context: Invocation) -> dict[str, Any]:
        return choose_call(context, f"http://{shop.host}/")

    return Cantrip(
        crystal=scripted_demo(policy, pace),
        call=Call(system_prompt="You order what you are asked for.", require_done_tool=True),
        circle=Circle(
            ["done", *browser([shop.host], allow_private=True, secrets={"shop": PASSWORD})],
            [max_turns(12)],
        ),
        name="shopper",
    )


def choose_call(context: Invocation, url: str) -> dict[str, Any]:
    """Return what the crystal does next, as it sees the page."""
    last = context[-1]
    page = "" if last.role == "user" else last.content or ""
    fields = {found["words"]: found["ref"] for found in _LINES.finditer(page)}

    def find(words: str) -> str:
        return next((ref for shown, ref in fields.items() if shown.startswith(words)), words)

    if not page:
        return _call("I open the shop.", "goto", url=url)
    if '"Teas"' in page:
        prices = re.findall(r'link "(\w+)"(?:.*\n)*?.*?cell "(\d+) EUR"', page)
        tea, price = min(prices, key=lambda pair: int(pair[1]))
        return _call(f"{tea} costs {price} EUR, and is the cheapest.", "click", target=find(f'link "{tea}"'))
    if "active = " in page or "[secret" in page:
        return _call("It is filled in.", "click", target="form button")
    if 'textbox "How many"' in page:
        return _call("Two bags.", "fill", target=find('textbox "How many"'), text="2")
    if 'textbox "Password"' in page:
        return _call("The shop wants a password.", "fill", target=find('textbox "Password"'), secret="shop")
    bought = re.search(r'"(\d+ bags of .*)"', page)
    answer = f"Ordered: {bought[1]}." if bought else f"That did not work: {page[:500]}"
    return _call("That is done.", "done", answer=answer)


def _call(content: str, gate: str, **args: Any) -> dict[str, Any]:
    return {"content": content, "tool_calls": [{"gate": gate, "args": args}]}
