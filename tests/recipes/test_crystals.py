"""Crystals as recipes write them: the objects that they become, and the message for each mistake."""

from pathlib import Path
from textwrap import dedent, indent

import pytest

from cantrip_actors import Runtime
from cantrip_actors.crystal.testing import FaultyServer, Reply, events
from cantrip_actors.crystals import Breaker, Fallback, Hedge, Limited, Limits, ProviderCrystal, Timeouts
from cantrip_actors.recipes import InvalidRecipe, load_recipe
from cantrip_actors.terms.errors import CrystalError

REST = "circle: {gates: [done], wards: [{max_turns: 5}]}\n"
KEY = "sk-operator-0123456789"


@pytest.fixture
def recipe(tmp_path):
    """Writes a recipe with this crystal and loads it."""

    def load(crystal: str, rest: str = REST):
        (tmp_path / "recipe.yaml").write_text(f"crystal:\n{indent(dedent(crystal), '  ')}\n{rest}", encoding="utf-8")
        return load_recipe(tmp_path / "recipe.yaml")

    return load


@pytest.fixture
def mistakes(recipe):
    """Return the mistakes of a wrong recipe, as (line, text)."""

    def load(crystal: str, rest: str = REST):
        with pytest.raises(InvalidRecipe) as refused:
            recipe(crystal, rest)
        return [(mistake.line, mistake.text) for mistake in refused.value.mistakes]

    return load


class TestLoading:
    def test_a_recipe_sets_every_setting_of_a_crystal(self, recipe, tmp_path, monkeypatch):
        monkeypatch.setenv("TEAM_KEY", KEY)
        monkeypatch.setenv("GATE_TOKEN", "token-9876543210")
        crystal = recipe(
            """\
            model: anthropic:claude-x
            base_url: https://gateway.example/v1
            api_key: {env: TEAM_KEY}
            headers:
              x-team: notes
              authorization: {env: GATE_TOKEN, prefix: "Bearer "}
            timeouts: {connect: 5, first: 900}
            prices: {claude-x: {input: 2, output: 10, window: 32000}}
            name: claude
            tools: native
            images: false
            cache: 1h
            record: heard/claude.chunks.txt
            limits: {concurrency: 20, requests_per_minute: 1000, tokens_per_minute: 400000, longest_pause: 30}
            breaker: {failures: 3, open_for: 10}
            deadline: 300
            hedge: {after: 20}
            """
        ).crystal
        assert isinstance(crystal, Limited)
        assert (crystal.limits, crystal.breaker) == (Limits(20, 1000, 400_000, 30), Breaker(failures=3, open_for=10))
        assert (crystal.deadline, crystal.hedge) == (300, Hedge(after=20))
        inner = crystal.crystal
        assert isinstance(inner, ProviderCrystal)
        assert (inner.name, inner.context_window, inner.family.name) == ("claude", 32_000, "anthropic:claude-x")
        assert not inner.family.should_send("images")
        client = inner._client
        assert (client.base_url, client.timeouts) == ("https://gateway.example/v1", Timeouts(connect=5, first=900))
        assert client._headers["authorization"] == "Bearer token-9876543210"
        assert client._headers["x-team"] == "notes"
        assert client._record == tmp_path / "heard" / "claude.chunks.txt"
        assert set(crystal.secrets.items()) == {("TEAM_KEY", KEY), ("authorization", "token-9876543210")}

    @pytest.mark.parametrize(
        ("model", "provider", "address"),
        [
            ("openai:gpt-5", "openai", "https://api.openai.com/v1"),
            ("openai-chat:gpt-4o", "openai-chat", "https://api.openai.com/v1"),
            ("google:gemini-2.5-pro", "google", "https://generativelanguage.googleapis.com/v1beta"),
            ("openrouter:a/b", "openrouter", "https://openrouter.ai/api/v1"),
            (
                "bedrock:m\nregion: eu-north-1\ncache: 1h",
                "bedrock",
                "https://bedrock-runtime.eu-north-1.amazonaws.com",
            ),
            (
                "vertex:gemini-x\nproject: p\nlocation: global",
                "vertex",
                "https://aiplatform.googleapis.com/v1/projects/p/locations/global",
            ),
            ("azure:d\nendpoint: https://a.openai.azure.com", "azure", "https://a.openai.azure.com/openai/v1"),
            ("local:llama3", "local", "http://localhost:11434/v1"),
            ("local:llama3@http://10.0.0.1:8080/v1", "local", "http://10.0.0.1:8080/v1"),
        ],
    )
    def test_a_recipe_can_name_every_family(self, recipe, model, provider, address):
        crystal = recipe(f"model: {model}\ncontext_window: 1000").crystal
        assert (crystal.family.provider, crystal._client.base_url) == (provider, address)
        assert crystal.context_window == 1000

    def test_a_local_model_is_queried_at_its_address(self, recipe):
        crystal = recipe("model: local:llama3\nbase_url: http://10.0.0.1:8080/v1\ntools: schema").crystal
        assert crystal._client.base_url == "http://10.0.0.1:8080/v1"

    def test_prices_are_read_from_a_file_beside_the_recipe(self, recipe, tmp_path):
        (tmp_path / "prices.toml").write_text('["llama3"]\ninput = 1\noutput = 2\nwindow = 77\n')
        assert recipe("model: local:llama3\nprices: prices.toml").crystal.context_window == 77

    def test_any_crystal_accepts_limits_and_breakers(self, recipe, tmp_path):
        (tmp_path / "said.yaml").write_text("- {content: five}\n")
        for said in ("scripted: [{content: five}]", "model: scripted:said.yaml"):
            crystal = recipe(f"{said}\nlimits: {{concurrency: 2}}\ndeadline: 9").crystal
            assert (crystal.limits, crystal.deadline) == (Limits(2), 9)

    def test_a_fallback_may_have_names_and_mappings(self, recipe):
        crystal = recipe(
            """\
            fallback:
              - {model: "openai:gpt-5", limits: {concurrency: 2}}
              - anthropic:claude-sonnet-4-5
            """
        ).crystal
        assert isinstance(crystal, Fallback)
        assert crystal.name == "fallback(openai:gpt-5, anthropic:claude-sonnet-4-5)"
        assert crystal.crystals[0].limits == Limits(2)

    def test_equal_mappings_are_one_crystal(self, recipe):
        rest = (
            f"{REST}child_crystal: {{model: 'openai:gpt-5', limits: {{concurrency: 2}}}}\n"
            "crystals: {small: {model: 'openai:gpt-5', limits: {concurrency: 3}}}\n"
        )
        cantrip = recipe("limits: {concurrency: 2}\nmodel: openai:gpt-5", rest)
        assert cantrip.child_crystal is cantrip.crystal
        assert cantrip.crystals["small"] is not cantrip.crystal

    def test_a_toml_recipe_equals_the_yaml_recipe(self, tmp_path):
        (tmp_path / "recipe.toml").write_text(
            '[crystal]\nmodel = "openai:gpt-5"\nlimits = {concurrency = 2}\n'
            '[circle]\ngates = ["done"]\nwards = {max_turns = 3}\n'
        )
        assert load_recipe(tmp_path / "recipe.toml").crystal.limits == Limits(2)

    @pytest.mark.real_time
    async def test_a_query_uses_the_current_key_of_the_environment(self, recipe, monkeypatch):
        said = events({"choices": [{"index": 0, "delta": {"content": "Four."}, "finish_reason": "stop"}]}, done=True)
        async with FaultyServer([Reply(said)]) as server, Runtime.open() as runtime:
            monkeypatch.delenv("TEAM_KEY", raising=False)
            cantrip = recipe(
                f"model: openai-chat:gpt-4o\nbase_url: {server.url}\n"
                "api_key: {env: TEAM_KEY}\nlimits: {concurrency: 1}"
            )
            monkeypatch.setenv("TEAM_KEY", KEY)
            assert (await runtime.cast(cantrip, "Two and two?")).result == "Four."
            assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"

    async def test_a_missing_key_is_an_error_that_names_the_variable(self, recipe, monkeypatch):
        monkeypatch.delenv("TEAM_KEY", raising=False)
        crystal = recipe("model: anthropic:claude-x\napi_key: {env: TEAM_KEY}").crystal
        with pytest.raises(CrystalError, match="no API key: set TEAM_KEY"):
            await crystal.invoke([])


class TestMistakes:
    def test_all_mistakes_are_reported_at_once_with_lines(self, mistakes, monkeypatch):
        monkeypatch.delenv("NOWHERE", raising=False)
        found = mistakes(
            """\
            model: anthropic:claude-x
            base_url: gateway.example
            api_key: sk-operator-0123456789
            headers:
              x-api-key: sk-operator-0123456789
              x-team: 7
              x-other: {env: NOWHERE}
            timeouts: {conect: 5, first: soon}
            limits:
              concurrency: 0
              requests_per_minute: many
              tokens: 5
            breaker: {failures: 0}
            hedge: {quantile: 2}
            deadline: -1
            prices: {claude-x: {inptu: 2}}
            context_window: big
            tools: some
            cache: 2h
            images: some
            record: 5
            colour: blue
            """
        )
        lines = [line for line, _ in found]
        assert lines == sorted(lines)
        assert lines == [3, 4, 6, 7, 8, 9, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]
        text = "\n".join(text for _, text in found)
        assert KEY not in text
        for said in (
            'base_url: expected "http://…"',
            "api_key: a key has no place in a recipe: expected {env: VARIABLE}",
            "headers: x-api-key: a key has no place in a recipe",
            "headers: x-team: expected a text",
            "headers: x-other: the environment has no NOWHERE",
            'unknown key "conect" of timeouts: did you mean "connect"?',
            "limits: concurrency: expected a whole number >= 1",
            'unknown key "tokens" of limits',
            "timeouts: first: expected seconds > 0, got 'soon'",
            "breaker: failures",
            "hedge: quantile",
            "deadline: expected seconds > 0",
            "unknown key 'inptu'",
            "context_window: expected a whole number, got the text",
            "tools: expected one of 'native', 'schema'",
            "images: expected true or false",
            'cache: expected "5m", "1h" or None',
            "record: expected text, got the number 5",
            'unknown key "colour" of a crystal',
        ):
            assert said in text

    @pytest.mark.parametrize(
        ("crystal", "line", "problem"),
        [
            ("model: 5", 2, 'model: expected "family:model"'),
            ("model: antropic:claude", 1, 'did you mean "anthropic"?'),
            ("model: scripted:said.yaml\nbase_url: http://x.example", 3, "base_url is for models of providers"),
            ("model: openai:gpt-5\ncache: 1h", 3, "only anthropic, bedrock, openrouter, vertex"),
            ("model: local:a@http://x.example\nbase_url: http://y.example", 3, "names an address already"),
            ("model: openai:gpt-5\nbase_url: https://me:pass@x.example", 3, "a name and a password have no place"),
            ("model: openai:gpt-5\nheaders: {x-note: sk-abcdefghij123456}", 3, "a key has no place in a recipe"),
            ("model: openai:gpt-5\nlimits: 5", 3, "limits: expected a mapping"),
            ("model: openai:gpt-5\nprices: gone.toml", 3, "gone.toml"),
            ("model: openai:gpt-5\nprices: ~nobody-here/x.toml", 3, "home directory"),
            ("model: openai:gpt-5\nrecord: ~nobody-here/x", 3, "home directory"),
            ('model: openai:gpt-5\nprices: "a\\0b"', 3, "expected a path"),
            ("fallback: openai:gpt-5", 2, "at least two crystals"),
            ("fallback: [openai:gpt-5, 7]", 2, "a mapping with `model`"),
            ("fallback: [openai:gpt-5, {model: 'opena:x'}]", 2, 'did you mean "openai"?'),
            ("fallback: [openai:gpt-5, google:g]\nlimits: {concurrency: 1}", 3, 'unknown key "limits" of a fallback'),
            ("limits: {concurrency: 0}\nscripted: []", 2, "limits: concurrency"),
        ],
    )
    def test_a_mistake_is_reported_with_its_line(self, mistakes, crystal, line, problem):
        found = mistakes(crystal)
        assert [at for at, _ in found] == [line]
        assert problem in found[0][1]

    def test_a_key_in_a_recipe_is_refused_and_not_repeated(self, mistakes):
        for crystal in (
            f"model: openai:gpt-5\napi_key: {KEY}",
            f"model: openai:gpt-5\nheaders: {{authorization: Bearer {KEY}}}",
            f"model: openai:gpt-5\nheaders: {{x-note: {KEY}}}",
            f"model: openai:gpt-5\n{KEY}: 1",
            f"model: openai:gpt-5\ntools: {KEY}",
        ):
            assert KEY not in str(mistakes(crystal))

    def test_mistakes_of_crystals_are_reported_with_other_mistakes(self, mistakes):
        found = mistakes("model: openai:gpt-5\nlimits: {concurrency: 0}", f"{REST}call: {{temprature: 1}}\n")
        assert [line for line, _ in found] == [3, 5]


def test_a_recipe_without_provider_crystals_does_not_import_the_providers(tmp_path):
    import subprocess
    import sys

    file = tmp_path / "recipe.yaml"
    file.write_text(f"crystal: {{scripted: [{{content: five}}]}}\n{REST}")
    code = f"import sys; from cantrip_actors.recipes import load_recipe; load_recipe({str(file)!r}); "
    code += "sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
