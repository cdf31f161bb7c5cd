"""SQL as a medium: an entity acts by SQL against a database of yours.

The entity's own tables are in memory, and are kept from turn to turn. Your database is attached to them as `db`, in a
transaction that only reads. A statement that would change it becomes a call of the gate `change`, so it is recorded,
runs at most once, and can be taken away by a ward or need a person's approval. The context is the table `C`.

`docs/mediums.md` explains what a medium consists of.
"""

import json
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio

from cantrip_actors import Cantrip, Circle, Injected, Runtime, ToolDefinition, gate, scripted
from cantrip_actors.mediums import (
    GateError,
    GeneratorSandbox,
    LimitExceeded,
    Medium,
    ProgramCall,
    ProgramError,
    ProgramLimits,
    ProgramRun,
)
from cantrip_actors.wards import Ward, max_turns, remove_gate

ROWS = 50
"""The most rows of a result that the entity is shown; a table that it makes of the result has all of them."""

LONGEST = 8 * 2**20
"""The most bytes of one value or statement."""

STEPS = 10_000
"""The instructions of SQLite between two looks at the clock."""

PAGE = 4096
CALL = re.compile(r"\s*call\s+(\w+)\s*\((.*)\)\s*;?\s*\Z", re.IGNORECASE | re.DOTALL)

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_FUNCTION}
REFUSED = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_TRANSACTION, 32}
"""Statements that no program may use; 32 is SAVEPOINT."""

UNREPEATABLE = {"random", "randomblob", "load_extension"}
"""Functions that no program may use: a program that runs again after a crash has to compute the same."""


class SqlMedium(Medium):
    """SQLite's SQL against the database in a file."""

    name = "sql"
    engine = f"sqlite {sqlite3.sqlite_version}"

    def __init__(self, database: Path | str) -> None:
        self.database = Path(database).absolute()

    def capability(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
        """Return the text for the entity, with the tables of the database."""
        with closing(attach(self.database, "ro")) as connection:
            tables = [sql for (sql,) in connection.execute("SELECT sql FROM db.sqlite_master WHERE sql IS NOT NULL")]
        calls = [f"{gate.name}({', '.join(gate.parameters.get('properties', ()))})" for gate in gates]
        return "\n".join(
            [
                "You act by SQL (SQLite), in a database of your own, which is kept. A result is a table.",
                "The user's database is attached as db; make tables of your own without that name before them.",
                *tables,
                "The context of your task, if there is one, is the table C.",
                "A statement may call a gate: CALL name(expression, …); its result is then the table result.",
                f"Gates: {'; '.join(calls)}. CALL done(answer) ends your work.",
                f"A program may take {limits.seconds:g} s and {limits.memory / 2**20:.4g} MiB.",
            ]
        )

    def open(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> "SqlSandbox":
        """Return a new sandbox."""
        return SqlSandbox(self.database, gates, limits)


class SqlSandbox(GeneratorSandbox):
    """The tables of one entity."""

    def __init__(self, database: Path, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> None:
        super().__init__(gates, limits)
        self._database = database
        self._is_own = True
        """Whether the statement that runs is the sandbox's."""
        self._changes_database = False
        """Whether the statement that was refused would have changed the database."""
        self._connection = self._connect(b"")

    def run(self, code: str, variables: Mapping[str, Any]) -> ProgramRun:
        """Run the statements of a program: those between two gate calls in one transaction."""
        try:
            for name, value in variables.items():
                make_table(self._connection, "C" if name == "context" else name, value)
            for statement in split_statements(code):
                self.check_limits()
                call = CALL.match(statement)
                if call is not None:
                    arguments = self._execute(f"SELECT {call[2]}")[1][0] if call[2].strip() else ()
                    self._end_transaction()  # a gate may take a week
                    result = yield ProgramCall(call[1], arguments)
                    make_table(self._connection, "result", result)
                    self._show(*self._execute("SELECT * FROM result"))
                else:
                    yield from self._follow(statement)
            self._end_transaction()
        except sqlite3.Error as problem:
            self.check_limits()
            if "full" in str(problem):
                raise LimitExceeded("memory") from problem
            self._end_transaction()
            raise ProgramError(f"{type(problem).__name__}: {problem}") from problem
        return None

    def _follow(self, statement: str) -> ProgramRun:
        """Run one statement; one that would change the database is a call of the gate `change`."""
        self._changes_database = False
        try:
            self._show(*self._execute(statement))
        except sqlite3.DatabaseError:
            if not self._changes_database:
                raise
            self._end_transaction()
            try:
                self.print(f"{(yield ProgramCall('change', [statement]))}\n")
            except GateError as refused:
                raise ProgramError(f"the database is read-only here: {refused}") from refused

    def _execute(self, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the columns and the first rows of a program's statement."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN")
        self._is_own = False
        try:
            with closing(self._connection.execute(statement)) as cursor:
                return [column[0] for column in cursor.description or ()], cursor.fetchmany(ROWS + 1)
        finally:
            self._is_own = True

    def _end_transaction(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def _show(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        if columns:
            self.print(render_table(columns, rows))

    def _authorize(
        self, action: int, _first: str | None, second: str | None, schema: str | None, _by: str | None
    ) -> int:
        if self._is_own:
            return sqlite3.SQLITE_OK
        if action in REFUSED or (action == sqlite3.SQLITE_FUNCTION and second in UNREPEATABLE):
            return sqlite3.SQLITE_DENY
        if schema == "temp" and action not in READS:  # it has no bound
            return sqlite3.SQLITE_DENY
        if schema == "db" and action not in READS:
            self._changes_database = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _connect(self, tables: bytes) -> sqlite3.Connection:
        connection = attach(self._database, "ro", tables)
        connection.execute(f"PRAGMA main.max_page_count = {self.limits.memory // PAGE}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(LONGEST, self.limits.memory // 4))
        connection.set_progress_handler(lambda: self.seconds_left == 0, STEPS)
        connection.set_authorizer(self._authorize)
        return connection

    def save(self) -> bytes:
        """Return the entity's tables."""
        return self._connection.serialize()

    def restore(self, snapshot: bytes) -> None:
        """Replace the entity's tables. Raises ValueError for bytes that are no database."""
        try:
            restored = self._connect(snapshot)
        except sqlite3.DatabaseError as problem:
            raise ValueError(f"expected the tables of a SQL sandbox: {problem}") from problem
        self._connection.close()
        self._connection = restored

    def release(self) -> None:
        """Close the database."""
        self._connection.close()


def attach(database: Path, mode: str, tables: bytes = b"") -> sqlite3.Connection:
    """Return a database in memory with these tables, to which another one is attached as db."""
    connection = sqlite3.connect("file::memory:", uri=True, check_same_thread=False, isolation_level=None)
    try:
        if tables:
            connection.deserialize(tables)
            connection.execute("SELECT count(*) FROM main.sqlite_master").fetchall()
        connection.execute("PRAGMA main.user_version = 1")  # SQLite cannot save a database without any page
        connection.execute("ATTACH ? AS db", [f"file:{quote(str(database))}?mode={mode}"])
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def split_statements(code: str) -> Iterator[str]:
    """Yield the statements of a program; the last one may lack its semicolon."""
    statement = ""
    for part in re.split(r"(?<=;)", code):
        statement += part
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement


def make_table(connection: sqlite3.Connection, name: str, value: Any) -> None:
    """Make a table of a JSON value: a row for each item of a list, a column for each key of an object."""
    items = value if isinstance(value, list) else [value]
    rows = [item if isinstance(item, Mapping) else {"value": item} for item in items]
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["value"]
    table = quote_name(name)
    connection.execute(f"DROP TABLE IF EXISTS main.{table}")
    connection.execute(f"CREATE TABLE main.{table} ({', '.join(map(quote_name, columns))})")
    places = ", ".join("?" for _ in columns)
    connection.executemany(
        f"INSERT INTO main.{table} VALUES ({places})", [[write_cell(row.get(key)) for key in columns] for row in rows]
    )


def write_cell(value: Any) -> Any:
    """Return a JSON value as SQLite stores it: what has parts is its JSON."""
    return value if isinstance(value, str | int | float | None) else json.dumps(value)


def quote_name(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def render_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as lines, with a note for rows that are left out."""
    lines = [" | ".join(map(str, row)) for row in [columns, *rows[:ROWS]]]
    return "\n".join([*lines, *(["… more rows"] if len(rows) > ROWS else []), ""])


@gate(blocking=True)
def change(statement: str, database: Injected[Path]) -> str:
    """Change the database by one statement, in a transaction of its own."""
    with closing(attach(database, "rw")) as connection:
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action in REFUSED else sqlite3.SQLITE_OK)
        return f"{connection.execute(statement).rowcount} rows changed"


def make_shop(path: Path) -> None:
    """Make a database with something in it."""
    with closing(sqlite3.connect(path)) as shop:
        shop.executescript(
            "CREATE TABLE fruit (name TEXT, price INTEGER); INSERT INTO fruit VALUES ('apple', 2), ('pear', 3);"
        )


def make_cantrip(database: Path, programs: Sequence[str], *wards: Ward) -> Cantrip:
    """Return a cantrip that works on a database: `remove_gate("change")` among its wards makes it read-only."""
    crystal = scripted([{"code": program} for program in programs])
    circle = Circle(["done", change.with_(database=database)], [max_turns(9), *wards], medium=SqlMedium(database))
    return Cantrip(crystal, circle=circle)


async def main() -> None:
    """An entity raises the prices that its context names; another one may only read."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Path(folder) / "shop.db"
        make_shop(shop)
        programs = [
            "CREATE TABLE new AS SELECT name, price + more FROM db.fruit JOIN C USING (name); SELECT * FROM new;",
            "UPDATE db.fruit SET price = 5 WHERE name = 'pear';",
            "CALL done((SELECT sum(price) FROM db.fruit))",
        ]
        async with Runtime.open() as runtime:
            for wards in ([], [remove_gate("change")]):
                context = [{"name": "pear", "more": 2}]
                episode = await runtime.cast(make_cantrip(shop, programs, *wards), "Raise them.", context=context)
                for turn in runtime.loom.turns(episode.entity_id):
                    print(turn.observation)
                print("result:", episode.result)


if __name__ == "__main__":
    anyio.run(main)
