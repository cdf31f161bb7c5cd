"""`cantrip demo browser`: an order in a shop, in a real Chromium."""

import pytest

from cantrip_demos.browser import PASSWORD
from tests.circle.browser.site import needs_browser

pytestmark = [pytest.mark.real_time, needs_browser]


@pytest.mark.rule("B-06")
def test_the_demo_orders_with_a_password_that_the_loom_does_not_have(process, place):
    said = process("demo", "browser", "--loom", "jsonl:loom.jsonl", "--json")
    assert said.code == 0, said.err
    assert said.json["result"] == "Ordered: 2 bags of Mint: 8 EUR."
    assert said.json["orders"] == ["2 x Mint"]
    written = (place / "loom.jsonl").read_text()
    assert "[secret shop]" in written
    assert PASSWORD not in written
    assert PASSWORD.replace(" ", "+") not in written
