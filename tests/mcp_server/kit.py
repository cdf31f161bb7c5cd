"""Cantrips by the names that the conformance kit looks for."""

from cantrip_actors import Cantrip, Circle, scripted
from cantrip_actors.wards import max_turns
from tests.mcp_server.clients import answer


def called(name: str) -> Cantrip:
    return Cantrip(scripted(answer), circle=Circle(["done"], [max_turns(3)]), name=name)


streaming = called("test_streaming_elicitation")
logging = called("test_logging_tool")
