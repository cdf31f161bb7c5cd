"""Each kind of store, fresh for each test."""

import pytest

from tests.loom.test_store import KINDS, Place


@pytest.fixture(params=KINDS)
def place(request, tmp_path):
    here = Place(request.param, tmp_path)
    yield here
    here.clear()


@pytest.fixture
def store(place):
    with place.open() as opened:
        yield opened
