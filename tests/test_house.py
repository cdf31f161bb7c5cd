"""The project rules that no other tool checks, and tests of the checks in tools/."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors.crystal.constructors import CommonSettings
from cantrip_actors.redact.patterns import COMMON
from tests import exhaustive
from tools import boundaries, circles, citations, expressions, layers, names, record_kinds, reference, rules

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def committed() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout, so nothing says which files are the project's")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


class TestCommittedFiles:
    """What is committed is true on every machine."""

    def test_committed_files_have_no_path_of_a_machine(self) -> None:
        place = re.compile(r"(?<![\w.$~-])/(?:work|root|home|Users|opt/(?:pypi|wheels))/[\w.-]+")
        for path in committed():
            if path.suffix in {".md", ".py", ".toml", ".sh", ".yaml", ".yml", ".lock", ""} and path != Path(__file__):
                found = place.findall(path.read_text(encoding="utf-8", errors="replace"))
                assert not found, f"{path.relative_to(ROOT)} names {found[0]}"

    @pytest.mark.rule("X-40")
    def test_the_lock_names_exact_versions_and_hashes_and_no_registry(self) -> None:
        text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
        for line in text.replace(" \\\n    --hash", " --hash").splitlines():
            pinned = r"[\w.-]+(\[[\w,-]+\])?==[\w.]+( ; [^:]+)?( --hash=sha256:[0-9a-f]{64})+"
            assert re.fullmatch(rf"{pinned}|\s+# .+", line), line

    def test_every_dependency_has_a_lower_bound_and_a_reason(self) -> None:
        project = PROJECT["project"]
        wanted = [*project["dependencies"], *PROJECT["dependency-groups"]["dev"]]
        wanted += [name for extra in project["optional-dependencies"].values() for name in extra]
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for requirement in wanted:
            if requirement.startswith("cantrip-"):  # of this repository: exactly its own version
                continue
            floor = (
                r"[\w-]+(\[[\w,-]+\])?(>=[\d.]+(,<[\d.]+)?|==[\d.]+)(; .*)?"  # or exactly one version, with a reason
            )
            assert re.fullmatch(floor, requirement), requirement
            beside = rf'"{re.escape(requirement)}"[],]*\s*# \S'
            above = rf'# .*\n[\w-]+ = \[[^\n]*"{re.escape(requirement)}"'
            assert re.search(f"{beside}|{above}", text), f"{requirement} has no reason beside it"

    def test_every_package_says_that_it_is_typed(self) -> None:
        for package in ("supervisors", *PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]):
            assert (ROOT / package / "py.typed").is_file(), package

    def test_every_dependency_is_locked(self) -> None:
        locked = set(re.findall(r"^([\w.-]+)", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE))
        for requirement in [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]:
            own = requirement.startswith("cantrip-")
            assert own or re.match(r"[\w-]+", requirement)[0] in locked, f"{requirement}: run `make lock`"


def is_documented_here(value: Any) -> bool:
    """Return whether an object is the project's own, or a constant, whose module Python does not know."""
    return not inspect.ismodule(value) and getattr(value, "__module__", "cantrip_actors").startswith(names.PRODUCT)


def is_public_method(name: str, method: Any) -> bool:
    """Return whether it is a documented method, under the name that it was defined with."""
    return inspect.isfunction(method) and method.__name__ == name[:1].strip("_") + name[1:] and bool(method.__doc__)


class TestReference:
    """docs/reference has what the public modules export."""

    @pytest.fixture
    def page(self, tmp_path: Path) -> str:
        face = 'from cantrip_actors.model import Turn, cast\nfrom os import path\n__all__ = ["Turn", "cast", "path"]\n'
        model = """
            class Turn:
                \"\"\"One cycle.\"\"\"
                def __init__(self, id: str) -> None: ...
                def thread(self, *, upto: int = 3) -> list[str]:
                    \"\"\"The path to it.

                    In full.
                    \"\"\"
                def bare(self): ...

            async def cast(intent: str, **more: int) -> Turn:
                \"\"\"Cast it.

                Args:
                    intent: what is
                        wanted.

                Raises:
                    ValueError: without one.
                \"\"\"
            """
        (tmp_path / "cantrip_actors").mkdir()
        (tmp_path / "cantrip_actors" / "__init__.py").write_text(f'"""The face."""\n{face}')
        (tmp_path / "cantrip_actors" / "model.py").write_text(textwrap.dedent(model))
        return reference.render(reference.public_modules(tmp_path))["cantrip_actors.md"]

    def test_exported_names_exist_with_signature_and_docstring(self, page: str) -> None:
        assert page.startswith(f"# cantrip_actors\n\n{reference.MADE}\n\nThe face.\n")
        assert "## class Turn\n\n```text\nclass Turn(id: str)\n```\n\nOne cycle.\n" in page
        assert "async cast(intent: str, **more: int) -> Turn" in page

    def test_types_are_links_to_where_they_are_described(self, page: str) -> None:
        assert "Types: [`Turn`](#class-turn).\n" in page

    def test_methods_have_an_entry_if_they_have_a_docstring(self, page: str) -> None:
        assert (
            "### Turn.thread\n\n```text\nthread(*, upto: int = 3) -> list[str]\n```\n\nThe path to it.\n\nIn full."
        ) in page
        assert "bare" not in page

    def test_sections_become_lists(self, page: str) -> None:
        assert "Parameters:\n\n- `intent`: what is wanted.\n" in page
        assert "Raises:\n\n- `ValueError`: without one.\n" in page

    def test_a_struct_shows_its_fields_as_parameters(self, tmp_path: Path) -> None:
        files = {
            "__init__.py": 'from cantrip_actors.spot import Spot\n__all__ = ["Spot"]\n',
            "terms/__init__.py": "",
            "terms/value.py": "class Value: ...\n",
            "spot.py": "from typing import ClassVar\nfrom cantrip_actors.terms.value import Value\n"
            "class Place(Value, frozen=True):\n    x: int\n"
            'class Spot(Place, frozen=True):\n    kind: ClassVar[str] = "spot"\n'
            "    y: int = 0\n    z: int = field(int)\n",
        }
        (tmp_path / "cantrip_actors" / "terms").mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / "cantrip_actors" / name).write_text(text)
        assert (
            "class Spot(x: int, y: int = 0, z: int = …)"
            in reference.render(reference.public_modules(tmp_path))["cantrip_actors.md"]
        )

    def test_names_of_libraries_are_not_checked(self, page: str) -> None:
        assert "## path" not in page

    def test_a_constructor_with_private_types_is_left_out_and_its_attributes_are_listed(self, tmp_path: Path) -> None:
        model = """
            class _Tree: ...

            class Entity:
                \"\"\"A handle.\"\"\"
                def __init__(self, tree: _Tree) -> None: ...

                @property
                def id(self) -> str:
                    \"\"\"Its id.\"\"\"
            """
        (tmp_path / "cantrip_actors").mkdir()
        (tmp_path / "cantrip_actors" / "__init__.py").write_text(
            'from cantrip_actors.model import Entity\n__all__ = ["Entity"]\n'
        )
        (tmp_path / "cantrip_actors" / "model.py").write_text(textwrap.dedent(model))
        page = reference.render(reference.public_modules(tmp_path))["cantrip_actors.md"]
        assert "class Entity\n```\n\nA handle.\n\nAttributes:\n\n- `id: str`: Its id.\n" in page

    @pytest.mark.rule("L-11")
    @pytest.mark.parametrize("name", reference.PUBLIC)
    def test_each_public_attribute_has_its_type(self, name: str) -> None:
        page = (reference.FOLDER / f"{name}.md").read_text(encoding="utf-8")
        listed = re.findall(r"^Attributes:\n\n((?:- .*\n)+)", page, re.MULTILINE)
        assert not re.findall(r"^- `\w+(?:: )?`.*$", "".join(listed), re.MULTILINE)

    @pytest.mark.rule("L-11")
    @pytest.mark.parametrize("name", reference.PUBLIC)
    def test_each_public_name_has_an_entry_and_each_of_its_public_members_too(self, name: str) -> None:
        module = importlib.import_module(name)
        page = (reference.FOLDER / f"{name}.md").read_text(encoding="utf-8")
        headings = set(re.findall("^##+ (?:class )?(.+)$", page, re.MULTILINE))
        exported = {key: value for key in module.__all__ if is_documented_here(value := getattr(module, key))}
        assert set(exported) <= headings
        for key, value in exported.items():
            if inspect.isclass(value) and value.__name__ == key:
                members = {own for own, method in vars(value).items() if is_public_method(own, method)}
                assert {f"{key}.{own}" for own in members} <= headings
                entry = page.partition(f"\n## class {key}\n")[2].partition("\n## ")[0]
                properties = {own for own, member in vars(value).items() if isinstance(member, property)}
                assert {own for own in properties if own[0] != "_" and f"- `{own}" not in entry} == set()


class TestRules:
    """tools/rules.py says which rules have proofs."""

    def test_every_id_is_listed_once(self) -> None:
        wanted = {"LOOP": 5, "CANTRIP": 3, "INTENT": 3, "ENTITY": 4, "CRYSTAL": 6, "CALL": 5, "CIRCLE": 10, "COMP": 8}
        wanted |= {"LOOM": 10, "PROD": 5}
        ids = [f"{family}-{number}" for family, count in wanted.items() for number in range(1, count + 1)]
        ids += [f"D-{number:03}" for number in range(1, 12)]
        ids += [
            f"{family}-{n:02}"
            for family, last in {"S": 52, "U": 63, "A": 47, "F": 48}.items()
            for n in range(1, last + 1)
            if (family, n) not in {("U", 2), ("U", 4)}  # no stream of another program is read
        ]
        spans = ((1, 7), (10, 20), (20, 26), (30, 33), (40, 43), (50, 55), (60, 72))
        ids += [f"C-{n:02}" for span in spans for n in range(*span)]
        ids += [
            f"X-{n:02}"
            for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 20, 21, 22, 23, 30, 31, 32, 33, 40, 41, 42, 43)
        ]
        ids += [f"R-{n:02}" for n in (*range(1, 13), *range(20, 27), 30, 31, 32, 33)]
        ids += [f"HTTP-{n:02}" for n in range(1, 21)]
        ids += [f"PAGE-{n:02}" for n in range(1, 15)]
        ids += [f"WIRE-{n:02}" for n in (1, 2, 3, 6)]
        ids += [f"OTEL-{n:02}" for n in range(1, 15)]
        ids += [f"METRIC-{n:02}" for n in range(1, 7)]
        ids += [f"LOG-{n:02}" for n in range(1, 8)]
        ids += [f"N-{n:02}" for n in range(1, 89) if n != 51]  # N-51 is reserved
        ids += [f"ACP-{n:02}" for n in range(1, 23)]
        ids += [f"MCP-{n:02}" for n in range(1, 22)]  # those from 18 on are our own
        ids += [f"K-{n:02}" for n in (*range(1, 10), *range(20, 26), *range(30, 37), *range(40, 46))]
        catalogue = rules.read_catalogue(rules.CATALOGUE.read_text(encoding="utf-8"))
        growing = ("B-", "L-", "V-", "W-", "Y-", "Z-")  # those of work that is under way
        settled = [rule for rule in catalogue.rules if not rule.startswith(growing)]
        assert sorted(settled) == sorted(ids)

    def test_a_rule_without_proof_is_a_fault_and_an_open_one_is_not(self) -> None:
        section = rules.Section("Loom", "SPEC", {"LOOM-1": "first", "LOOM-2": "second", "LOOM-3": "third"})
        catalogue = rules.Catalogue([section], frozenset({"LOOM-3"}))
        assert rules.find_faults(catalogue, {"LOOM-1": ["a::b"]}) == ["LOOM-2 has no proof: second"]
        assert "LOOM-2          0  second\n" in rules.render(catalogue, {"LOOM-1": ["a::b"]})

    def test_a_proof_of_an_open_or_unknown_rule_is_a_fault(self) -> None:
        catalogue = rules.Catalogue([rules.Section("Loom", "SPEC", {"LOOM-1": "first"})], frozenset({"LOOM-1", "X-1"}))
        assert rules.find_faults(catalogue, {"LOOM-1": ["a::b"], "LOOM-9": ["a::c"]}) == [
            "LOOM-1 has a proof, a::b, and is under `open`",
            "X-1 is under `open` and is no rule of tests/rules.toml",
            "LOOM-9 is not a rule of tests/rules.toml, but named by a::c",
        ]

    def test_marks_are_found_on_modules_classes_functions_and_parameters(self, pytester: pytest.Pytester) -> None:
        pytester.makeini("[pytest]\nmarkers = rule\n")
        pytester.makepyfile(
            test_it="""
            import pytest
            pytestmark = pytest.mark.rule("D-001")

            @pytest.mark.rule("D-002", "D-003")
            class TestClass:
                @pytest.mark.rule("D-004")
                def test_function(self): pass

            @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.rule("D-005"))])
            def test_parameter(x): pass
            """
        )
        script = (
            "import json; from tools.rules import collect_marked_tests; print(json.dumps(collect_marked_tests('.')))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": f"{ROOT}"}
        )
        in_class, alone = "test_it.py::TestClass::test_function", "test_it.py::test_parameter"
        assert json.loads(done.stdout) == {
            "D-001": [in_class, alone],
            "D-002": [in_class],
            "D-003": [in_class],
            "D-004": [in_class],
            "D-005": [alone],
        }

    def test_cases_without_rules_are_left_out(self) -> None:
        suite = """
        - {rule: LOOP-1, name: it runs, setup: {}, action: {cast: {}}}
        - {rule: LOOP-2, name: only words}
        - {rule: LOOP-3, name: for others, setup: {}, action: {cast: {}}, skip: true}
        """
        assert list(rules.suite_cases(suite, "s")) == [("LOOP-1", "s: it runs")]


@pytest.mark.rule("D-011")
class TestBoundaries:
    """Catch-alls stand at the named boundaries and nowhere else."""

    @pytest.mark.parametrize(
        "handler",
        [
            "except Exception: pass",
            "except BaseException as error: note(error)",
            "except: pass",
            "except (ValueError, Exception): pass",
            "except builtins.Exception: pass",
            "except* Exception: pass",
            "except Exception:\n  if odd: return\n  raise",
            "except Exception as error: raise Other from error",
        ],
    )
    def test_a_catch_all_is_found(self, handler: str) -> None:
        body = "\n".join(f"    {line}" for line in f"try: work()\n{handler}".splitlines())
        found = list(boundaries.catch_alls(f"class A:\n  def f(self):\n{body}\n", "a.py"))
        assert [(catch.file, catch.function, catch.line) for catch in found] == [("a.py", "A.f", 4)]

    def test_suppressing_everything_is_found(self) -> None:
        assert list(boundaries.catch_alls("with contextlib.suppress(Exception): work()", "a.py"))

    @pytest.mark.parametrize(
        "handler",
        [
            "except ValueError: pass",
            "except Exception:\n  tidy()\n  raise",
            "except BaseException as e:\n  tidy()\n  raise e",
        ],
    )
    def test_expected_handlers_and_handlers_that_raise_again_pass(self, handler: str) -> None:
        assert not list(boundaries.catch_alls(f"try: work()\n{handler}\n", "a.py"))

    def test_a_catch_all_without_a_row_is_a_fault(self) -> None:
        (fault,) = boundaries.faults([boundaries.CatchAll("a.py", "f", 3)], (), {"a.py"})
        assert fault.startswith("a.py:3: catches everything in f")

    def test_a_row_allows_its_function_only(self) -> None:
        table = (boundaries.Boundary("a.py", "f", "the gate's code is the user's"),)
        found = [boundaries.CatchAll("a.py", "f", 3), boundaries.CatchAll("a.py", "g", 9)]
        assert [fault.split(":")[1] for fault in boundaries.faults(found, table, {"a.py"})] == ["9"]

    @pytest.mark.parametrize(("files", "what"), [({"a.py"}, "no longer"), (set(), "is gone")])
    def test_a_row_for_a_missing_handler_is_a_fault(self, files: set[str], what: str) -> None:
        (fault,) = boundaries.faults([], (boundaries.Boundary("a.py", "f", "was needed"),), files)
        assert what in fault

    def test_a_row_needs_a_reason(self) -> None:
        table = (boundaries.Boundary("a.py", "f", " "),)
        assert "no reason" in next(boundaries.faults([boundaries.CatchAll("a.py", "f", 3)], table, {"a.py"}))


@pytest.mark.rule("Z-02")
class TestExpressions:
    """Each foreign expression and schema is named with its bound, and no expression of ours can be stalled."""

    @pytest.mark.parametrize(
        "line",
        [
            "re.search(wanted, text)",
            "re.compile(f'{wanted}+')",
            "re.sub('a' + wanted, '', text)",
            "re.fullmatch(pattern=wanted, string=text)",
            "fnmatch.fnmatch(text, wanted)",
            "fnmatchcase(text, wanted)",
            "Field(pattern=wanted)",
            "StringConstraints(pattern=wanted)",
            "find_misfits(text, wanted)",
            "make_validator(wanted, foreign=False)",
            "from jsonschema import validate",
            "import referencing.jsonschema",
            "from re import compile",
            "import re as expressions",
            "run('import re; re.search(given, text)')",
        ],
    )
    def test_a_new_use_of_a_foreign_expression_or_schema_is_refused_by_name(self, line: str) -> None:
        source = f"import re, fnmatch\nclass A:\n  def f(self, wanted, text):\n    {line}\n"
        places = expressions.Module(source, "a.py").places
        assert [(place.file, place.function, place.line) for place in places] == [("a.py", "A.f", 4)]
        (fault,) = expressions.faults(places, (), {"a.py"})
        assert fault.startswith("a.py:4: ")
        assert "in A.f" in fault
        assert list(expressions.faults(places, (expressions.Use("a.py", "A.f", "bounded"),), {"a.py"})) == []

    @pytest.mark.parametrize(
        "line",
        [
            "re.search('a+', text)",
            "re.compile(f'{WORD}+', re.IGNORECASE)",
            "re.sub('|'.join(map(re.escape, WORDS)), '', text)",
            "re.compile(re.escape(wanted), re.IGNORECASE)",
            "fnmatch.fnmatch(text, '*.py')",
            "Field(pattern='^[a-z]+$')",
            "find_misfits(text, wanted, foreign=True)",
        ],
    )
    def test_expressions_written_in_the_file_and_bounded_schemas_pass(self, line: str) -> None:
        source = f"import re, fnmatch\nWORD, WORDS = 'a', ['b']\ndef f(wanted, text):\n  {line}\n"
        assert expressions.Module(source, "a.py").places == []

    @pytest.mark.parametrize(("files", "what"), [({"a.py"}, "no such use any more"), (set(), "is gone")])
    def test_a_row_without_a_use_is_a_fault(self, files: set[str], what: str) -> None:
        (fault,) = expressions.faults([], (expressions.Use("a.py", "f", "was needed"),), files)
        assert what in fault

    @pytest.mark.parametrize("source", [r"(a+)+$", r"(a|a)*$", r"\s+$", r"a*a*b", r"^(~{3,})[^\n]*\n"])
    def test_an_expression_that_backtracks_more_the_longer_its_text_is_found(self, source: str) -> None:
        assert expressions.find_growth(re.compile(source))

    @pytest.mark.parametrize("source", [r"a+", r"\s++x", r"^a*b", r"<!--[^>]*+", r"(?<!\s)\s+x", r"(?:a|b)*+c"])
    def test_an_expression_of_linear_time_passes(self, source: str) -> None:
        assert expressions.find_growth(re.compile(f"^(?:{source})")) is None

    def test_no_expression_of_the_product_can_be_stalled_by_a_text(self) -> None:
        for expression in (expression for module in expressions.read_modules() for expression in module.expressions):
            pattern = expressions.compile_expression(expression)
            bound = expressions.BOUNDED.get((expression.file, expression.name))
            if bound is None:
                attack = expressions.find_growth(pattern, is_anchored=expression.is_anchored)
            else:
                attack = expressions.find_slow_text(pattern, bound)
            assert attack is None, f"{expression.file}:{expression.line} takes long on {attack}"

    def test_no_expression_of_a_secret_can_be_stalled_by_a_text(self) -> None:
        for secret in exhaustive.part(COMMON, 16):
            attack = expressions.find_growth(secret.expression, is_anchored=secret.within == "places")
            assert attack is None, f"{secret.name} takes long on {attack}"


class TestLayers:
    """Each package imports what its row allows."""

    @pytest.mark.parametrize(
        ("module", "source"),
        [
            ("cantrip_actors.machine.loop", "import time"),
            ("cantrip_actors.machine.loop", "import anyio"),
            ("cantrip_actors.machine.loop", "from ..loom import store"),
            ("cantrip_actors.machine.loop", "from cantrip_actors import loom"),
            ("cantrip_actors.loom.memory.jsonl", "from cantrip_actors.circle import gates"),
            (
                "cantrip_actors.loom.memory.jsonl",
                "def f():\n    from cantrip_actors.runtime.entity.entity_actor import Entity",
            ),
            ("cantrip_actors.crystal.families.openai", "from cantrip_actors import Runtime"),
            ("supervisors.child", "from cantrip_actors.terms import errors"),
            ("supervisors.child", "import pydantic"),
            ("conformance.runner", "from cantrip_actors.runtime.entity.entity_actor import Entity"),
        ],
    )
    def test_a_kind_missing_from_the_row_is_a_fault(self, module: str, source: str) -> None:
        assert len(list(layers.faults(source, module, "a.py", package=False))) == 1

    @pytest.mark.parametrize(
        ("module", "source"),
        [
            ("cantrip_actors.terms.gate", "from .ward import Ward\nimport pydantic, enum, collections.abc"),
            ("cantrip_actors.loom.memory.jsonl", "from cantrip_actors.records.records import Turn\nimport os"),
            (
                "cantrip_actors.runtime.entity.entity_actor",
                "from supervisors import Actor\nfrom ..loom.store import Store",
            ),
            ("cantrip_actors.wards", "from .model.ward import max_turns"),
            ("conformance.runner", "from cantrip_actors import Runtime\nimport yaml"),
        ],
    )
    def test_a_kind_in_the_row_passes(self, module: str, source: str) -> None:
        assert not list(layers.faults(source, module, "a.py", package=False))

    def test_a_packages_own_init_counts_as_the_package(self) -> None:
        assert not list(layers.faults("from .records import Turn", "cantrip_actors.records", "a.py", package=True))


class TestCircles:
    """No circle of imports between the files of one package."""

    @staticmethod
    def faults(known: dict[str, tuple[str, str]] | None = None, **sources: str) -> list[str]:
        modules = {"cantrip_actors": "", "cantrip_actors.a": "", "cantrip_actors.b": ""}
        modules |= {name.replace("__", "."): source for name, source in sources.items()}
        tree = {name: (source, name.count(".") < 2) for name, source in modules.items()}
        packages = {name: circles.package_of(name, tree) for name in tree}
        return list(circles.faults(circles.graph(tree), packages, known or {}))

    @pytest.mark.parametrize(
        "back",
        [
            "from cantrip_actors.a.one import A",
            "from cantrip_actors.a import one",
            "import cantrip_actors.a.one",
            "from .one import A",
            "def f():\n    from cantrip_actors.a.one import A",
            "if TYPE_CHECKING:\n    from cantrip_actors.a.one import A",
        ],
    )
    def test_two_files_that_import_each_other_are_a_fault(self, back: str) -> None:
        (fault,) = self.faults(cantrip_actors__a__one="from cantrip_actors.a.two import B", cantrip_actors__a__two=back)
        assert fault.startswith("cantrip_actors.a: a circle of imports: cantrip_actors.a.")

    def test_a_longer_circle_is_a_fault(self) -> None:
        (fault,) = self.faults(
            cantrip_actors__a__one="from cantrip_actors.a.two import B",
            cantrip_actors__a__two="from cantrip_actors.a.three import C",
            cantrip_actors__a__three="from cantrip_actors.a.one import A",
        )
        assert fault.count(" -> ") == 3

    def test_imports_in_one_direction_and_between_packages_are_fine(self) -> None:
        assert not self.faults(
            cantrip_actors__a__one="from cantrip_actors.a.two import B\nfrom cantrip_actors.b.one import D",
            cantrip_actors__a__two="import os",
            cantrip_actors__b__one="from cantrip_actors.a.one import A",
        )

    def test_a_row_with_a_reason_allows_the_circles_that_exist(self) -> None:
        circle = {
            "cantrip_actors__a__one": "from cantrip_actors.a.two import B",
            "cantrip_actors__a__two": "from cantrip_actors.a.one import A",
        }
        assert not self.faults({"cantrip_actors.a": ("one two", "rewritten")}, **circle)
        assert self.faults({"cantrip_actors.a": ("one two", " ")}, **circle)
        assert self.faults({"cantrip_actors.a": ("one three", "rewritten")}, **circle)
        (fault,) = self.faults({"cantrip_actors.b": ("one two", "rewritten")})
        assert "cantrip_actors.b have no circle any more" in fault


@pytest.mark.rule("C-03")
class TestRecordKinds:
    """Only the fold and the projections look at kinds of records."""

    @pytest.mark.parametrize(
        "look",
        [
            "isinstance(record, Header)",
            "isinstance(record, (str, Header))",
            "isinstance(record, str | records.Header)",
            "type(record) is H",
            "record.__class__ is not Header",
            "kind in (H, str)",
            "[one for one in log if isinstance(one, Header)]",
        ],
    )
    def test_a_check_of_a_record_kind_is_found(self, look: str) -> None:
        head = (
            "from cantrip_actors.records.records import Header, Header as H\nfrom cantrip_actors.records import records"
        )
        (found,) = record_kinds.looks(f"{head}\nclass A:\n  def f(self, record, log):\n    return {look}\n", "a.py")
        assert (found.function, found.line) == ("A.f", 5)

    def test_a_match_on_a_record_kind_is_found(self) -> None:
        source = "from cantrip_actors.records.records import Ended\nmatch record:\n  case Ended(reason): pass\n"
        (found,) = record_kinds.looks(source, "a.py")
        assert (found.function, found.line) == ("", 3)

    @pytest.mark.parametrize(
        "source",
        [
            "from cantrip_actors.records.records import Header\ndef f(header: Header): return Header(header.id)",
            "from cantrip_actors.records.records import Observation\nisinstance(seen, Observation)",
            "from somewhere import Header\nisinstance(record, Header)",
            "isinstance(record, str)",
        ],
    )
    def test_making_records_and_other_classes_are_fine(self, source: str) -> None:
        assert not list(record_kinds.looks(source, "a.py"))

    @pytest.mark.parametrize("file", ["machine/evolve.py", "machine/project/turns.py", "records/mail.py"])
    def test_only_named_modules_may_check_record_kinds(self, file: str) -> None:
        source = "from cantrip_actors.records.records import Header\ndef f(record): return isinstance(record, Header)\n"
        assert not list(record_kinds.faults(source, f"cantrip_actors/{file}"))
        (fault,) = record_kinds.faults(source, "cantrip_actors/machine/due.py")
        assert "due.py:2: f looks at kinds" in fault


@pytest.mark.rule("K-43")
class TestNames:
    """A class has a name of its own, and a variable is named after its content."""

    @pytest.mark.parametrize("again", ["class Place: ...", "Place = NewType('Place', str)", "Place: TypeAlias = str"])
    def test_a_class_name_that_is_used_twice_is_a_fault(self, again: str) -> None:
        (fault,) = self.class_faults("class Place: ...", again)
        assert fault.startswith("0.py:1, 1.py:1: Place is the name of several classes")

    def test_inner_classes_constants_and_type_variables_may_share_a_name(self) -> None:
        other = "class A:\n    class Place: ...\nPLACE = 1\nT = TypeVar('T')\nItem = TypeVar('Item')"
        assert not self.class_faults("class Place: ...\nPLACE = 2\nItem = TypeVar('Item')", other)

    def test_a_listed_name_may_be_used_twice_and_a_row_that_nothing_needs_is_a_fault(self) -> None:
        assert not self.class_faults("class A: ...", "class A: ...", shared={"A": "public"})
        assert not self.class_faults("class A: ...", "class A: ...", pending=frozenset({"A"}))
        for lists in ({"shared": {"A": "public"}}, {"pending": frozenset({"A"})}):
            (fault,) = self.class_faults("class A: ...", **lists)
            assert "only one class is called A now" in fault

    @pytest.mark.parametrize(
        "source",
        [
            "one = 1",
            "for one in records: ...",
            "def f(one): ...",
            "[one for one in records]",
            "with f() as one: ...",
            "(one := 1)",
            "match record:\n    case one: ...",
            "try: ...\nexcept ValueError as one: ...",
            "class A:\n    one: int",
            "def one(): ...",
            "_one = 1",
        ],
    )
    def test_a_vague_name_counts_wherever_it_is_bound(self, source: str) -> None:
        bindings = {"cantrip_actors.a": Counter(names.list_bindings(ast.parse(source)))}
        (fault,) = names.binding_faults(bindings, {})
        assert fault.startswith("cantrip_actors.a: 1 bindings with a vague name, 0 are allowed: ")

    def test_a_package_may_have_one_vague_name_in_a_hundred_or_as_many_as_its_row_says(self) -> None:
        bindings = {"a": Counter({"one": 2, "record": 98})}
        assert not list(names.binding_faults({"a": Counter({"one": 1, "record": 99})}, {}))
        assert list(names.binding_faults(bindings, {}))
        assert not list(names.binding_faults(bindings, {"a": 2}))

    def test_a_row_of_a_package_within_the_limit_is_a_fault(self) -> None:
        (fault,) = names.binding_faults({"a": Counter({"record": 100})}, {"a": 2})
        assert "a is within the limit" in fault

    def class_faults(self, *sources: str, shared: dict[str, str] | None = None, pending: frozenset[str] = frozenset()):
        trees = [(ast.parse(source), f"{n}.py") for n, source in enumerate(sources)]
        classes = [named for tree, file in trees for named in names.list_classes(tree, file)]
        return list(names.class_faults(classes, shared or {}, pending))


@pytest.mark.rule("K-44")
class TestCitations:
    """Code and pages cite only what is in the repository."""

    STATED = citations.list_headings("# Page\n## SPEC 1: Words\n### SPEC 1.2\n#### LOOP-1\n### D-011\n")

    @pytest.mark.parametrize("text", ["LOOP-1", "D-011", "SPEC 1.2", "decision 0030", "decisions 0030 and A-0001"])
    def test_a_citation_of_what_exists_is_fine(self, text: str) -> None:
        assert not list(citations.unknown_citations(text, self.STATED, frozenset({"0030", "A-0001"})))

    @pytest.mark.parametrize("text", ["LOOP-2", "D-012", "SPEC 1.3", "decision 0031"])
    def test_a_citation_of_what_does_not_exist_is_found_with_its_line(self, text: str) -> None:
        ((line, citation),) = citations.unknown_citations(f"one\n({text})", self.STATED, frozenset({"0030"}))
        assert (line, citation) == (2, text)

    @pytest.mark.rule("L-05")
    @pytest.mark.parametrize(
        "text", ["S-01", "MCP-08", "trap 4.3.9", "traps 1 and 2", "section 4.6 of the landscape", "core.md 4"]
    )
    def test_a_citation_of_a_working_paper_is_found(self, text: str) -> None:
        assert [line for line, _ in citations.foreign_citations(f"one\ntwo ({text})")] == [2]

    @pytest.mark.parametrize("text", ["LOOP-1", "D-011", "UTF-8", "SHA-256", "snapshots-of-sandboxes.md", "A-0001"])
    def test_other_words_are_no_citations_of_working_papers(self, text: str) -> None:
        assert not list(citations.foreign_citations(text))

    @pytest.mark.rule("L-05")
    def test_a_test_that_is_named_after_a_trap_of_a_working_paper_is_found(self) -> None:
        text = "def test_a_trap_of_bash_is_kept(): ...\nasync def test_trap_4_6_it_waits(): ..."
        assert list(citations.coded_names(text)) == [(2, "test_trap_4_6_it_waits")]


def fields_of(cls: ast.ClassDef) -> set[str]:
    """Return the names of a class's fields: those that its body declares, and those that `__init__` sets."""
    names = {ast.unparse(part.target) for part in cls.body if isinstance(part, ast.AnnAssign)}
    for part in cls.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            for node in ast.walk(part):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                names.update(ast.unparse(one)[5:] for one in targets if one and ast.unparse(one).startswith("self."))
    return names


@pytest.mark.rule("C-70")
@pytest.mark.parametrize("package", ["machine", "runtime"])
def test_no_class_of_the_core_has_more_than_20_fields(package: str) -> None:
    for path in (ROOT / "cantrip_actors" / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                assert len(fields_of(node)) <= 20, f"{path.name} {node.name}: {sorted(fields_of(node))}"


@pytest.mark.rule("K-45")
def test_no_handler_of_a_group_of_exceptions_raises() -> None:
    """Up to Python 3.11.3, what `except*` raises arrives in a group, which callers do not catch."""
    for package in ("supervisors", "cantrip_actors"):
        for path in (ROOT / package).rglob("*.py"):
            if "except*" in (text := path.read_text(encoding="utf-8")):
                groups = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.TryStar)]
                handlers = [handler for node in groups for handler in node.handlers]
                raises = [
                    node.lineno for handler in handlers for node in ast.walk(handler) if isinstance(node, ast.Raise)
                ]
                assert raises == [], f"{path.name} {raises}"


@pytest.mark.rule("K-21")
def test_the_driver_of_an_entity_fits_on_a_few_screens() -> None:
    driver = ROOT / "cantrip_actors" / "runtime" / "entity" / "driver.py"
    assert len(driver.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.rule("K-41")
@pytest.mark.parametrize("package", ["loom", "runtime"])
def test_a_reader_who_opens_a_package_sees_at_most_a_dozen_entries(package: str) -> None:
    entries = {path.name for path in (ROOT / "cantrip_actors" / package).iterdir()} - {"__pycache__"}
    assert len(entries) <= 12, sorted(entries)


@pytest.mark.rule("K-04")
def test_only_the_mailbox_and_virtual_time_of_supervisors_know_a_backend() -> None:
    imports = re.compile(r"^ *(?:import|from) (?:asyncio|trio)\b", re.MULTILINE)
    files = {path.name for path in (ROOT / "supervisors").glob("*.py") if imports.search(path.read_text("utf-8"))}
    assert files == {"waiting.py", "testing.py"}


@pytest.mark.rule("Y-12")
def test_the_reference_has_every_setting_of_every_crystal() -> None:
    page = (reference.FOLDER / "cantrip_actors.crystals.md").read_text(encoding="utf-8")
    constructors = (
        "anthropic",
        "azure",
        "bedrock",
        "cohere",
        "google",
        "local",
        "mistral",
        "ollama",
        "openai",
        "openrouter",
    )
    for name in (*constructors, "vertex", "xai"):
        entry = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        settings = {*CommonSettings.__annotations__} | ({"base_url"} if name != "local" else set())
        assert {setting for setting in settings if f"- `{setting}: " not in entry} == set(), name
