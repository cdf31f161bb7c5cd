"""Gates as values: definitions from annotations, arguments checked against them, dependencies injected."""

import dataclasses
import datetime as dt
import functools
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, Required, TypedDict, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, PlainSerializer
from typing_extensions import TypeAliasType

from cantrip_actors.terms import gate as gates
from cantrip_actors.terms.answer import make_typed_done
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import BoundArguments, Gate, Refused, standard
from cantrip_actors.terms.gate_function import Injected, gate
from cantrip_actors.terms.messages import ToolCall
from cantrip_actors.terms.own_gates import CALL_AGENT, CALL_AGENT_BATCH, AgentRequest
from cantrip_actors.terms.wrapper import Fence, GateCall


def bound(one: Gate, **args: Any) -> dict[str, Any]:
    result = one.check(ToolCall("c", one.name, args))
    assert isinstance(result, BoundArguments), result
    return dict(result.args)


def refused(one: Gate, args: Any = None, **more: Any) -> str:
    result = one.check(ToolCall("c", one.name, more if args is None else args))
    assert isinstance(result, Refused), result
    return result.reason


class Place(BaseModel):
    city: str
    zip: int | None = None


class Order(TypedDict):
    count: int
    note: NotRequired[str]


class PartialOrder(TypedDict, total=False):
    count: Required[int]
    note: str


@gate
async def search(query: str, limit: int = 5, kind: Literal["note", "page"] = "note") -> list[str]:
    """Search the notes.

    By words.
    """
    return [query] * limit + [kind]


class TestDefinition:
    """The name, the docstring and the annotations are the definition (CALL-3)."""

    @pytest.mark.rule("CALL-3")
    def test_a_definition_is_made_of_an_annotated_function(self):
        assert search.definition.name == "search"
        assert search.definition.description == "Search the notes.\n\nBy words."
        assert search.definition.parameters == {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer", "default": 5},
                "kind": {"type": "string", "enum": ["note", "page"], "default": "note"},
            },
            "required": ["query"],
            "additionalProperties": False,
        }

    def test_every_definition_is_a_json_schema(self):
        @gate
        def everything(
            a: list[Place],
            b: dict[str, float],
            c: Annotated[int, Field(ge=1, description="how many")],
            d: dt.date | None = None,
            e: Any = None,
            f: tuple[int, str] = (1, "x"),
            title: str = "t",
        ) -> None: ...

        for one in (everything, DONE, CALL_AGENT, CALL_AGENT_BATCH):
            Draft202012Validator.check_schema(one.parameters)
            assert json.loads(json.dumps(one.parameters)) == one.parameters

    def test_a_schema_has_no_titles_except_a_parameter_of_that_name(self):
        @gate
        def make(title: str, place: Place) -> None: ...

        assert make.parameters["properties"]["title"] == {"type": "string"}
        assert '"title": "' not in json.dumps(make.parameters)

    def test_a_gate_has_a_readable_signature(self):
        assert search.signature == 'search(query: string, limit: integer = 5, kind: "note" | "page" = "note")'

        @gate
        def more(a: list[int], b: int | None, c: Place, *, d: bool = False) -> None: ...

        assert more.signature == "more(a: array of integer, b: integer | null, c: Place, d: boolean = false)"

    def test_the_decorator_takes_settings(self):
        @gate(name="look-up", description="Look.", ephemeral=True, visible_for=2, idempotent=True, timeout=3)
        def whatever() -> None:
            """Not this."""

        assert (whatever.name, whatever.description) == ("look-up", "Look.")
        assert (whatever.ephemeral, whatever.visible_for, whatever.idempotent, whatever.timeout) == (True, 2, True, 3)

    def test_a_plain_function_is_blocking_unless_declared_otherwise(self):
        @gate
        def plain() -> None: ...

        @gate(blocking=False)
        def quick() -> None: ...

        class Called:
            async def __call__(self) -> None:
                """Do it."""

        assert plain.blocking
        assert not search.blocking
        assert not quick.blocking
        assert not gate(name="called")(Called()).blocking

    def test_bound_arguments_of_a_partial_are_not_parameters(self):
        def add(a: int, b: int, c: int = 0) -> int:
            """Add."""
            return a + b + c

        assert gate(functools.partial(add, b=2)).name == "add"
        made = gate(name="add_two")(functools.partial(add, b=2))
        assert list(made.parameters["properties"]) == ["a", "c"]
        assert made.description == "Add."
        assert made(a=1) == 3
        assert "unexpected" in refused(made, a=1, b=3)

    def test_a_method_and_a_callable_object_can_be_gates(self):
        class Shop:
            def buy(self, what: str) -> str:
                """Buy it."""
                return what

            def __call__(self, n: int) -> int:
                """Count."""
                return n

        shop = Shop()
        assert list(gate(shop.buy).parameters["properties"]) == ["what"]
        assert list(gate(name="count")(shop).parameters["properties"]) == ["n"]
        assert gate(name="count")(shop).description == "Count."

    @pytest.mark.parametrize("name", ["json", "copy", "schema", "dict", "model_name", "self_", "class_"])
    def test_parameters_may_have_names_that_pydantic_uses(self, name):
        space: dict[str, Any] = {}
        exec(f"def odd({name}: int, other: str = 'x') -> None: ...", space)  # a name a parameter may have
        assert bound(gate(space["odd"]), **{name: 7}) == {name: 7, "other": "x"}

    @pytest.mark.parametrize("name", ["_hidden", "model_fields", "model_dump"])
    def test_unsupported_parameters_are_refused(self, name):
        space: dict[str, Any] = {}
        exec(f"def odd({name}: int) -> None: ...", space)  # a name a parameter may not have
        with pytest.raises(InvalidCantrip, match=f"cannot be called {name}"):
            gate(space["odd"])

    def test_unsupported_functions_are_refused(self):
        def starred(*parts: str) -> None: ...

        def positional(a: int, /) -> None: ...

        def odd(a: object()) -> None: ...  # type: ignore[valid-type]

        def unresolved(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        for function, told in (
            (starred, "parts cannot be passed by name"),
            (positional, "a cannot be passed by name"),
            (odd, "no JSON Schema can be made"),
            (unresolved, "cannot be resolved"),
        ):
            with pytest.raises(InvalidCantrip, match=told):
                gate(function)

    @pytest.mark.parametrize("name", ["", "a b", "1st", "x" * 65, "a.b", "<lambda>"])
    def test_invalid_gate_names_are_refused(self, name):
        with pytest.raises(InvalidCantrip, match="gate name"):
            Gate.of(lambda: None, name=name)

    @pytest.mark.parametrize("timeout", [0, -1, True, "5", float("nan")])
    def test_invalid_timeouts_are_refused(self, timeout):
        def slow() -> None: ...

        for make in (
            lambda: gate(timeout=timeout)(slow),
            lambda: search.with_(timeout=timeout),
            lambda: Gate.of(None, name="x", timeout=timeout),
        ):
            with pytest.raises(InvalidCantrip, match="timeout: expected seconds > 0"):
                make()

    @pytest.mark.rule("D-010", "CIRCLE-1")
    @pytest.mark.parametrize("flag", ["ephemeral", "idempotent", "read_only", "blocking"])
    def test_flags_that_are_not_booleans_are_refused(self, flag):
        def look() -> None: ...

        for make in (
            lambda: gate(**{flag: "no"})(look),
            lambda: search.with_(**{flag: "no"}),
            lambda: Gate.of(None, name="x", **{flag: "no"}),
        ):
            with pytest.raises(InvalidCantrip, match=f"{flag}: expected True or False, got 'no'"):
                make()

    @pytest.mark.rule("D-010")
    @pytest.mark.parametrize("queries", [-1, 1.5, True, "2", None])
    def test_invalid_numbers_of_queries_are_refused(self, queries):
        def look() -> None: ...

        for make in (
            lambda: gate(ephemeral=True, visible_for=queries)(look),
            lambda: search.with_(visible_for=queries),
            lambda: Gate.of(None, name="x", visible_for=queries),
        ):
            with pytest.raises(InvalidCantrip, match="visible_for: expected a whole number"):
                make()

    @pytest.mark.rule("D-002")
    def test_the_old_names_of_the_delegation_gates_are_aliases(self):
        assert standard("call_entity") is CALL_AGENT
        assert standard("call_entity_batch") is CALL_AGENT_BATCH
        assert Gate.of(None, name="call_entity").name == "call_agent"


class Decorated:
    """A decorator that is a class, as many libraries have them."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class TestFunctionsAsTheyAre:
    """Functions of users are decorated, generic, and annotated for their type checkers."""

    @pytest.mark.rule("CALL-3")
    def test_a_function_in_an_object_that_decorates_it_keeps_its_docstring_and_its_annotations(self):
        def count(letter: Literal["a", "b"], most: int = 3) -> int:
            """Count a letter."""
            return most

        plain, decorated = gate(count), gate(Decorated(count))
        assert decorated.definition == plain.definition
        assert bound(decorated, letter="a", most="4") == {"letter": "a", "most": 4}

    @pytest.mark.rule("CALL-3")
    def test_the_annotation_of_a_result_may_name_what_only_type_checkers_import(self):
        def load(path: "str") -> "DataFrame":  # noqa: F821  # imported for type checkers
            return path

        assert gate(load).parameters["properties"] == {"path": {"type": "string"}}
        with pytest.raises(InvalidCantrip, match=r"Frame.*if TYPE_CHECKING"):

            @gate
            def save(table: "DataFrame") -> str:  # noqa: F821  # imported for type checkers
                return table

    @pytest.mark.rule("CALL-3")
    def test_a_text_in_an_annotation_describes_its_parameter(self):
        @gate
        def pay(
            amount: Annotated[int, "in cents"],
            to: Annotated[str, "a name", Field(description="who gets it")],
            note: Annotated[str, "why"] = Field("", description="for the books"),
        ) -> str:
            return to

        shown = {name: schema["description"] for name, schema in pay.parameters["properties"].items()}
        assert shown == {"amount": "in cents", "to": "who gets it", "note": "for the books"}

    @pytest.mark.rule("CALL-3")
    @pytest.mark.parametrize("number", [float("inf"), -float("inf"), float("nan")])
    def test_a_default_that_json_has_no_number_for_is_not_in_the_schema(self, number):
        class Range(BaseModel):
            least: float = 0.0
            most: float = number

        @gate
        def choose(within: Range, most: float = number, sizes: tuple[float, ...] = (1.0, number)) -> str:
            return repr(most)

        json.dumps(choose.parameters, allow_nan=False)
        assert choose.parameters["properties"]["most"] == {"type": "number"}
        assert choose.parameters["$defs"]["Range"]["properties"]["least"]["default"] == 0.0
        assert choose.parameters["required"] == ["within"]
        assert repr(bound(choose, within={})["most"]) == repr(number)

    @pytest.mark.rule("CIRCLE-10")
    def test_a_parameter_without_a_schema_is_named_with_advice(self):
        with pytest.raises(InvalidCantrip) as error:

            @gate
            def query(text: str, database: Decorated) -> str:
                return text

        assert str(error.value).startswith(
            "gate query: no JSON Schema can be made of its annotations: database: Unable to generate"
        )
        assert str(error.value).endswith("is annotated with Injected[…]")
        assert "\n" not in str(error.value)
        assert "arbitrary_types_allowed" not in str(error.value)

    def test_a_gate_is_not_made_a_gate_again(self):
        with pytest.raises(InvalidCantrip, match=r"search: it is a gate already.*search\.with_"):
            gate(name="find")(search)

    def test_a_class_method_is_made_a_gate_where_it_is_bound(self):
        class Service:
            @classmethod
            def ping(cls, host: str) -> str:
                return host

        assert bound(gate(Service.ping), host="a") == {"host": "a"}
        with pytest.raises(InvalidCantrip, match=r"gate\(Service\.ping\)"):
            gate(Service.__dict__["ping"])

    def test_an_empty_name_is_refused(self):
        with pytest.raises(InvalidCantrip, match="gate name ''"):
            gate(name="")(Decorated(search.function))

    @pytest.mark.rule("CALL-3")
    @pytest.mark.parametrize(
        ("hint", "why"),
        [
            (Annotated[str, Field(pattern="(")], r"word: regex parse error: \( \^ error: unclosed group"),
            (Annotated[str, Field(pattern="(?=a)b")], "word: .*look-ahead and look-behind, is not supported"),
            (Annotated[int, Field(gt="a")], "word: 'gt' must be coercible to an integer"),
        ],
    )
    def test_a_constraint_that_cannot_be_checked_is_refused_with_the_reason(self, hint, why):
        def find(limit: int, word: hint) -> str:
            return word

        with pytest.raises(InvalidCantrip, match=f"gate find: no JSON Schema can be made of its annotations: {why}"):
            gate(find)
        with pytest.raises(InvalidCantrip, match="answer: expected a type that pydantic can validate"):
            make_typed_done(hint)

    def test_a_parameter_that_no_call_can_name_is_refused_with_advice(self):
        with pytest.raises(InvalidCantrip, match=r"functools\.wraps"):

            @gate
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return args


class TestCheck:
    """Valid arguments of a call, and the error texts for invalid ones."""

    def test_defaults_are_filled_in(self):
        assert bound(search, query="x") == {"query": "x", "limit": 5, "kind": "note"}

    def test_arguments_are_converted_to_their_annotations(self):
        @gate
        def visit(place: Place, on: dt.date) -> None: ...

        assert bound(visit, place={"city": "Bern"}, on="2026-01-02") == {
            "place": Place(city="Bern"),
            "on": dt.date(2026, 1, 2),
        }

    def test_a_missing_argument_is_refused(self):
        assert refused(search) == f'search: missing required argument "query"; expected {search.signature}'

    def test_an_unexpected_argument_is_refused(self):
        assert refused(search, query="x", limits=3).startswith('search: unexpected argument "limits"; expected search(')

    def test_a_wrong_value_is_refused(self):
        told = refused(search, query="x", limit="many")
        assert 'argument "limit": input should be a valid integer' in told
        assert "got 'many'" in told

    def test_a_wrong_nested_value_is_refused_with_its_path(self):
        @gate
        def visit(places: list[Place]) -> None: ...

        assert 'missing required argument "places.1.city"' in refused(visit, places=[{"city": "x"}, {}])

    def test_a_list_that_is_too_short_for_its_tuple_misses_an_element_and_not_the_argument(self):
        @gate
        def visit(place: tuple[int, str]) -> None: ...

        assert 'missing required argument "place.1"' in refused(visit, place=[1])

    def test_all_mistakes_of_a_call_are_reported_at_once(self):
        told = refused(search, limit="many", colour="red")
        assert "query" in told
        assert "limit" in told
        assert "colour" in told

    def test_huge_values_are_shortened_in_errors(self):
        assert len(refused(search, query="x", limit="y" * 10_000)) < 400

    def test_arguments_that_are_not_an_object_are_refused(self):
        told = search.check(ToolCall("c", "search", None, "{query: 1}"))
        assert isinstance(told, Refused)
        assert told.reason.startswith("search: arguments are not a JSON object: got '{query: 1}'; expected search(")

    def test_a_gate_with_open_arguments_accepts_any_name(self):
        @gate
        def anything(a: int, **more: Any) -> None: ...

        assert bound(anything, a=1, b=2) == {"a": 1, "b": 2}

    def test_open_arguments_have_the_type_of_their_annotation(self):
        @gate
        def count(**numbers: int) -> None: ...

        assert count.parameters["additionalProperties"] == {"type": "integer"}
        assert bound(count, a="1") == {"a": 1}
        assert 'argument "b": input should be a valid integer' in refused(count, b="x")

    @pytest.mark.parametrize("kind", [Order, PartialOrder])
    def test_the_keys_of_an_unpacked_dictionary_are_arguments(self, kind):
        def buy(what: str, **order: Unpack[Order]) -> None: ...

        buy.__annotations__["order"] = Unpack[kind]
        buying = gate(buy)
        assert list(buying.parameters["properties"]) == ["what", "count", "note"]
        assert buying.parameters["required"] == ["what", "count"]
        assert bound(buying, what="tea", count=2) == {"what": "tea", "count": 2}, "what is left out is not passed"
        assert bound(buying, what="tea", count=2, note="!") == {"what": "tea", "count": 2, "note": "!"}
        assert 'unexpected argument "colour"' in refused(buying, what="tea", count=2, colour="red")

    def test_a_gate_without_a_schema_takes_an_object(self):
        assert bound(Gate.of(lambda **_: None, name="free"), a=1) == {"a": 1}

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )

    @given(st.dictionaries(st.sampled_from(["query", "limit", "kind", "x"]), json_values))
    def test_any_arguments_are_bound_or_refused(self, args):
        result = search.check(ToolCall("c", "search", args))
        if isinstance(result, BoundArguments):
            assert set(result.args) == {"query", "limit", "kind"}
        else:
            assert result.reason.startswith("search: ")
            assert "expected search(" in result.reason


class Page(BaseModel):
    size: int = 10
    after: str | None = "start"


@gate
def find(
    query: str, limit: int = 5, word: int | str = "a", page: Page | None = None, more: tuple[Page, ...] = ()
) -> str:
    """Find notes."""
    return query


class TestNulls:
    """Many models give null for an argument that they leave out."""

    @pytest.mark.rule("V-02")
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ({"limit": None}, {}),
            ({"limit": None, "word": None, "more": None}, {}),
            ({"page": {"size": None}}, {"page": {}}),
            ({"page": {"size": None, "after": None}}, {"page": {"after": None}}),
            ({"more": [{"size": None}, {"size": 3}]}, {"more": [{}, {"size": 3}]}),
        ],
    )
    def test_a_null_that_is_not_valid_means_the_default(self, given, meant):
        before = json.dumps(given)
        assert bound(find, query="a", **given) == bound(find, query="a", **meant)
        assert json.dumps(given) == before

    @pytest.mark.rule("V-02", "CIRCLE-5")
    @pytest.mark.parametrize(
        "given",
        [{"query": None}, {"query": "a", "x": None}, {"query": "a", "limit": "x", "word": None}, {"limit": None}],
    )
    def test_other_faults_are_refused_as_they_came(self, given):
        assert refused(find, given).startswith("find: ")
        assert "; expected find(" in refused(find, given)

    @pytest.mark.rule("V-02")
    def test_the_same_holds_for_a_json_schema_and_for_a_typed_answer(self):
        schema = {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["query"],
            "additionalProperties": False,
        }
        tool = Gate.of(lambda **args: args, name="find", parameters=schema)
        assert bound(tool, query="a", limit=None) == {"query": "a"}
        assert "limit" in refused(tool, query="a", limit="x")
        assert "query" in refused(tool, query=None)
        assert "other" in refused(tool, query="a", other=None)
        answer = make_typed_done(Page)
        assert bound(answer, answer={"size": None}) == {"answer": {"size": 10, "after": "start"}}


class TestSchemaGiven:
    """`Gate.of`: a JSON Schema as a recipe or a server of tools states it."""

    SCHEMA = {  # noqa: RUF012
        "properties": {"path": {"type": "string"}, "depth": {"type": "integer", "minimum": 0}},
        "required": ["path"],
        "additionalProperties": False,
    }

    def test_a_given_schema_is_the_definition(self):
        made = Gate.of(lambda **_: None, name="walk", parameters=self.SCHEMA, description="Walk.")
        assert made.definition.parameters == {"type": "object", **self.SCHEMA}
        assert made.signature == "walk(path: string, depth?: integer)"

    @pytest.mark.parametrize(
        ("args", "told"),
        [
            ({}, "missing required argument 'path'"),
            ({"path": 7}, "argument path: 7 is not of type 'string'"),
            ({"path": "x", "depth": -1}, "argument depth: -1 is less than the minimum"),
            ({"path": "x", "more": 1}, "'more' was unexpected"),
        ],
    )
    def test_arguments_that_do_not_fit_are_refused(self, args, told):
        made = Gate.of(lambda **_: None, name="walk", parameters=self.SCHEMA)
        assert told in refused(made, args)

    def test_arguments_of_a_given_schema_are_passed_unchanged(self):
        made = Gate.of(lambda **_: None, name="walk", parameters=self.SCHEMA)
        assert bound(made, path="x") == {"path": "x"}

    @pytest.mark.parametrize(
        "parameters",
        [{"type": "strin"}, {"type": "string"}, {"properties": 7}, {"required": "path"}, 7, "object", [[]]],
    )
    def test_invalid_schemas_are_refused(self, parameters):
        with pytest.raises(InvalidCantrip, match="gate walk: "):
            Gate.of(lambda: None, name="walk", parameters=parameters)

    def test_the_given_schema_is_not_changed(self):
        given_ = {"properties": {}}
        Gate.of(None, name="x", parameters=given_)
        assert given_ == {"properties": {}}


@gate
async def read_notes(path: str, root: Injected[Path], depth: Injected[int] = 3) -> str:
    """Read."""
    return f"{root}/{path}/{depth}"


class TestDependencies:
    """CIRCLE-10: given when the circle is made, never by a call."""

    @pytest.mark.rule("CIRCLE-10")
    def test_dependencies_are_not_arguments(self):
        assert list(read_notes.parameters["properties"]) == ["path"]
        assert 'unexpected argument "root"' in refused(read_notes, path="x", root="/")

    @pytest.mark.rule("CIRCLE-10")
    def test_a_circle_without_a_dependency_is_refused(self):
        with pytest.raises(InvalidCantrip, match=r"gate read_notes needs root: .*read_notes\.with_\(root=…\)"):
            Circle(gates=["done", read_notes])
        Circle(gates=["done", read_notes.with_(root=Path())])

    def test_with_makes_a_new_gate_with_the_dependencies(self):
        one, other = read_notes.with_(root=Path("a")), read_notes.with_(root=Path("b"))
        assert (one.dependencies["root"], other.dependencies["root"]) == (Path("a"), Path("b"))
        assert read_notes.dependencies == {}
        assert one.with_(depth=1).dependencies == {"root": Path("a"), "depth": 1}

    async def test_a_gate_can_be_called_as_a_function(self):
        assert await read_notes.with_(root=Path("a"))(path="x") == "a/x/3"
        with pytest.raises(TypeError, match="the runtime carries it out"):
            DONE(answer=1)

    def test_with_takes_settings_and_dependencies(self):
        made = read_notes.with_(root=Path(), timeout=5, ephemeral=True, description="Else.")
        assert (made.timeout, made.ephemeral, made.description) == (5, True, "Else.")

    def test_an_unknown_dependency_or_setting_is_refused(self):
        with pytest.raises(InvalidCantrip, match='no dependency "rot": did you mean "root"'):
            read_notes.with_(rot=1)

    def test_the_repr_does_not_show_dependencies(self):
        assert "secret" not in repr(read_notes.with_(root=Path("secret")))


Ledger = TypeAliasType("Ledger", Injected[str] | None)


class TestParametersOfTheProgram:
    """What the program gives is hidden from the crystal however it is annotated: the crystal could forge it."""

    @pytest.mark.rule("CIRCLE-10")
    @pytest.mark.parametrize(
        "hint",
        [
            Injected[str] | None,
            Optional[Injected[str]],  # noqa: UP045  # as older code has it
            Annotated[Injected[str] | None, "the ledger"],
            Ledger,
            Injected[str | None],
        ],
    )
    def test_a_dependency_that_may_be_missing_is_not_a_parameter_of_the_crystal(self, hint):
        def pay(amount: int, ledger: hint = None) -> str:
            return f"{amount} in {ledger}"

        paying = gate(pay)
        assert list(paying.parameters["properties"]) == ["amount"]
        assert "unexpected argument" in refused(paying, amount=1, ledger="forged")
        assert paying.with_(ledger="books")(amount=1) == "1 in books"

    @pytest.mark.rule("CIRCLE-10")
    @pytest.mark.parametrize("hint", [GateCall | None, Annotated[GateCall, "the call"], Fence, Injected[Fence] | None])
    def test_a_part_of_the_call_is_not_a_parameter_of_the_crystal(self, hint):
        def pay(amount: int, call: hint = None) -> str:
            return f"{amount} for {call}"

        paying = gate(pay)
        assert list(paying.parameters["properties"]) == ["amount"]
        assert [name for name, _ in paying.site] == ["call"]

    @pytest.mark.rule("CIRCLE-10")
    @pytest.mark.parametrize("hint", [list[GateCall], dict[str, Injected[str]], tuple[Fence, ...] | None])
    def test_a_dependency_inside_of_another_type_is_refused(self, hint):
        def pay(amount: int, calls: hint = None) -> str:
            return f"{amount} for {calls}"

        def pay_many(**amounts: hint) -> str:
            return str(amounts)

        for function in (pay, pay_many):
            with pytest.raises(InvalidCantrip, match=r"the crystal would give.*Injected\[…\], alone or with \| None"):
                gate(function)


class TestDone:
    @pytest.mark.rule("CIRCLE-8")
    def test_done_accepts_any_json_answer(self):
        for answer in ("x", 7, None, {"a": [1]}):
            assert DONE.answer(bound(DONE, answer=answer)) == answer

    @pytest.mark.rule("CIRCLE-8")
    def test_done_without_an_answer_is_refused(self):
        assert 'missing required argument "answer"' in refused(DONE)

    @pytest.mark.rule("CIRCLE-8")
    def test_a_custom_done_may_name_its_argument(self):
        mine = Gate.of(None, name="done", parameters={"properties": {"result": {}, "note": {}}, "required": ["result"]})
        assert mine.answer({"note": "n", "result": 7}) == 7
        assert mine.answer({"answer": 1, "result": 7}) == 1
        assert mine.answer({}) is None


class TestMethods:
    @pytest.mark.rule("CALL-3")
    def test_a_bound_method_is_a_gate(self):
        class Service:
            async def look(self, what: str) -> str:
                """Look."""
                return what

        assert list(gate(timeout=5)(Service().look).parameters["properties"]) == ["what"]

    @pytest.mark.rule("CALL-3")
    def test_an_unbound_method_is_refused(self):
        with pytest.raises(InvalidCantrip, match=r"make a gate of it where it is bound, .*\[service.look\]"):

            class Service:
                @gate
                async def look(self, what: str) -> str:
                    """Look."""
                    return what


class Shape(StrEnum):
    round = "round"


class Finding(BaseModel):
    when: dt.datetime
    sure: bool = Field(default=True, alias="certain")
    shape: Shape = Shape.round


@gate(name="done")
async def found(answer: Finding) -> None:
    """Finish with what was found."""


@gate(name="done")
async def finish(total: int, notes: tuple[str, ...] = ()) -> None:
    """Finish with both."""


class TestATypedDone:
    @pytest.mark.rule("CIRCLE-8", "D-005")
    def test_the_answer_of_done_is_json_of_the_checked_arguments(self):
        own = Circle([found]).gate("done")
        bound_to = bound(own, answer={"when": "2026-01-02T03:04:05Z"})
        assert own.answer(bound_to) == {"when": "2026-01-02T03:04:05Z", "certain": True, "shape": "round"}
        assert Finding.model_validate(own.answer(bound_to)).shape is Shape.round

    @pytest.mark.rule("CIRCLE-8")
    def test_arguments_that_do_not_fit_are_explained(self):
        own = Circle([found]).gate("done")
        assert 'argument "answer.when"' in refused(own, answer={"when": "soon"})

    @pytest.mark.rule("CIRCLE-8")
    def test_several_parameters_are_one_answer(self):
        own = Circle([finish]).gate("done")
        assert own.answer(bound(own, total="3")) == {"total": 3, "notes": []}

    @pytest.mark.rule("CIRCLE-8")
    def test_an_answer_without_a_json_form_is_refused(self):
        @gate(name="done")
        async def raw(answer: Annotated[Any, PlainSerializer(lambda value: object())]) -> None:
            """Finish."""

        assert "its answer cannot be written as JSON" in refused(Circle([raw]).gate("done"), answer=1)


class TestDelegation:
    def test_a_delegation_request_is_validated(self):
        assert "missing required" in refused(CALL_AGENT)
        assert 'unexpected argument "intend"' in refused(CALL_AGENT, intent="x", intend="y")
        assert "max_turns" in refused(CALL_AGENT, intent="x", max_turns=0)
        assert bound(CALL_AGENT, intent="x")["intent"] == "x"

    def test_a_batch_takes_intents_and_requests_by_either_name(self):
        for name in ("intents", "requests"):
            (first, second) = bound(CALL_AGENT_BATCH, **{name: ["x", {"intent": "y"}]})["intents"]
            assert first == "x"
            assert second == AgentRequest(intent="y")
        assert "intents" in refused(CALL_AGENT_BATCH, intents=[])
        assert list(CALL_AGENT_BATCH.parameters["properties"]) == ["intents"]


class TestStandard:
    def test_an_unknown_name_is_refused_with_the_nearest_one(self):
        with pytest.raises(InvalidCantrip, match='unknown gate "dne": did you mean "done"'):
            standard("dne")

    def test_a_gate_can_be_registered_under_a_name(self, monkeypatch):
        monkeypatch.setattr(gates, "_standard", dict(gates._standard))
        gates.provide(search)
        assert standard("search") is search


def test_a_gate_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        search.name = "other"  # type: ignore[misc]
