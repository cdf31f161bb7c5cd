"""The Python medium keeps the contract of the mediums."""

import pytest

pytest.register_assert_rewrite("tests.circle.medium_contract")

from tests.circle.medium_contract import MediumContract  # noqa: E402  # its assertions explain themselves from here on
from tests.circle.python_language import PYTHON  # noqa: E402


class TestPython(MediumContract):
    language = PYTHON
