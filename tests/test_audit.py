"""`make audit`: advisories about the locked versions are found and fail it; what cannot be checked is said."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tools import audit

pytestmark = [pytest.mark.rule("Z-23"), pytest.mark.real_time]


@contextmanager
def database(known: Mapping[str, list[str]]) -> Iterator[str]:
    """Serve OSV's two routes with these advisories, by package; a package's come one a page."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def answer(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
            results = []
            for query in queries:
                assert query["package"]["ecosystem"] == "PyPI"
                assert query["version"]
                ids, page = known.get(query["package"]["name"], []), int(query.get("page_token", 0))
                result: dict[str, Any] = {"vulns": [{"id": ids[page]}]} if page < len(ids) else {}
                if page + 1 < len(ids):
                    result["next_page_token"] = str(page + 1)
                results.append(result)
            self.answer({"results": results})

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            self.answer({"id": name, "summary": f"what {name} is", "aliases": [f"CVE-{name}"]})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_audit_fails_for_each_advisory_that_is_not_accepted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with database({"starlette": ["PYSEC-1", "PYSEC-2"], "httpx": ["GHSA-3"]}) as url:
        assert audit.main(["--no-pins", "--database", url]) == 1
        printed = capsys.readouterr().out
        for name in ("PYSEC-1", "PYSEC-2", "GHSA-3"):
            assert f"{name}, CVE-{name}: what {name} is" in printed
        assert "3 advisories, 3 to act on" in printed
        monkeypatch.setattr(audit, "ACCEPTED", {"PYSEC-1": "a", "CVE-PYSEC-2": "b", "GHSA-3": "c"})
        assert audit.main(["--no-pins", "--database", url]) == 0
        assert "accepted: b" in capsys.readouterr().out
    with database({"another-package": ["PYSEC-1"]}) as url:
        assert audit.main(["--no-pins", "--database", url]) == 0
    assert f"{len(audit.list_locked())} packages checked, 0 advisories" in capsys.readouterr().out


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
def test_the_audit_says_that_it_did_not_run_without_a_database(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--no-pins", "--database", url]) == 0
    assert "NOT CHECKED" in capsys.readouterr().out


def test_each_upper_bound_of_a_version_has_a_reason() -> None:
    bounded = audit.list_bounded()
    assert {"pydantic-monty", "mcp", "wasmtime"} <= set(bounded)
    assert bounded == sorted(audit.HELD)
