"""Parts that need an extra: where it is not installed, the error names it."""

import importlib
import sys
from typing import Any

import pytest

from cantrip_actors import InvalidCantrip
from cantrip_actors.mcp import http, stdio

pytestmark = pytest.mark.rule("L-13")


@pytest.fixture
def uninstall(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after which a library is as if it were not installed, and a package of ours not imported."""

    def uninstall(library: str, package: str = "") -> None:
        for name in list(sys.modules):
            if name.startswith(f"{library}.") or (package and f"{name}.".startswith(f"{package}.")):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)

    return uninstall


@pytest.mark.parametrize(
    ("package", "library", "extra"),
    [("cantrip_actors.http", "starlette", "serve"), ("cantrip_actors.mcp_server", "mcp", "mcp")],
)
def test_importing_a_package_without_its_extra_names_the_extra(
    uninstall: Any, package: str, library: str, extra: str
) -> None:
    uninstall(library, package)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {library}\S*: pip install 'cantrip-actors\[{extra}\]'"):
        importlib.import_module(package)


def test_a_server_of_tools_without_the_extra_names_the_extra(uninstall: Any) -> None:
    uninstall("mcp")
    for make, address in ((stdio, "server"), (http, "https://a.example/mcp")):
        with pytest.raises(
            InvalidCantrip, match=r"server a: needs the SDK of MCP: pip install 'cantrip-actors\[mcp\]'"
        ):
            make("a", address)
