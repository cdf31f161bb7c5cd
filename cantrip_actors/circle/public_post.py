"""Send data to a URL, but never into the host's own network: the addresses that `fetch` refuses are refused here, too.

Redirects are not followed, and no proxy of the environment is used.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import httpx

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.fetch_request import build_request, make_tls, parse_url, resolve_public
from cantrip_actors.user_code.threads import run_apart


async def post(url: str, body: bytes, headers: Mapping[str, str], *, allow_private: bool, seconds: float) -> int:
    """Post a body; return the status of the answer. Raises GateError if it is refused, or no answer comes in time."""
    target, problem = parse_url(url), "no address"
    tls = await run_apart(make_tls)
    try:
        with anyio.fail_after(seconds):
            addresses = [None] if allow_private else await resolve_public(target)
            async with httpx.AsyncClient(verify=tls, trust_env=False, timeout=seconds) as client:
                for address in addresses:
                    request = build_request(client, "POST", target, address, headers, body)
                    try:
                        response = await client.send(request, stream=True, follow_redirects=False)
                    except httpx.TransportError as error:
                        problem = f"{type(error).__name__}: {error}"
                        continue
                    await response.aclose()
                    return response.status_code
    except TimeoutError:
        problem = f"no answer in {seconds:g} seconds"
    raise GateError(problem)
