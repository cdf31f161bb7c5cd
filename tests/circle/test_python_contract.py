"""The Python medium keeps the contract of the mediums."""

from tests.circle.medium_contract import MediumContract  # its assertions explain themselves from here on
from tests.circle.python_language import PYTHON


class TestPython(MediumContract):
    language = PYTHON
