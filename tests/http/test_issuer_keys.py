"""The keys of an authorization server that answers slowly or not at all: which tokens wait for them. Virtual time."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from cantrip_actors.http import Token, issuers
from cantrip_actors.http.issuers import FRESH, PATIENCE, PAUSE, IssuerUnreachable, make_issuer

KEY = {"kid": "known"}


class SlowServer:
    """An authorization server that takes as long as the service waits; then it has one key, or is out of reach."""

    def __init__(self) -> None:
        self.fetches = 0
        self.is_up = True

    async def fetch(self, _issuer: object) -> list[Mapping[str, Any]]:
        self.fetches += 1
        await anyio.sleep(PATIENCE)
        if not self.is_up:
            raise IssuerUnreachable("it does not answer")
        return [KEY]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> SlowServer:
    server = SlowServer()
    monkeypatch.setattr(issuers, "_fetch_keys", server.fetch)
    return server


async def find(keys: Any, key_id: str) -> float:
    """Return the seconds for which a token with a key waits."""
    began = anyio.current_time()
    await keys.find(key_id)
    return anyio.current_time() - began


def make_keys() -> Any:
    return issuers._Keys(make_issuer(Token("people"), "https://login.example", "https://service.example"))


async def test_a_token_with_a_known_key_waits_for_no_fetch_that_another_token_causes(server: SlowServer) -> None:
    keys = make_keys()
    await keys.find("known")
    server.is_up = False
    await anyio.sleep(PAUSE)
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(find, keys, f"made up {number}")
        await anyio.sleep(1)
        assert await find(keys, "known") == 0
    assert server.fetches == 2, "tokens with unknown keys that came meanwhile cause no further fetches"


async def test_old_keys_count_while_their_server_cannot_be_reached(server: SlowServer) -> None:
    keys = make_keys()
    await keys.find("known")
    server.is_up = False
    await anyio.sleep(FRESH)
    waits = [await find(keys, "known") for _ in range(5)]
    assert waits == [PATIENCE, 0, 0, 0, 0]
