"""The JavaScript engine: QuickJS compiled to WebAssembly, one instance a sandbox, driven through wasmtime.

The wasm is the guest of the package quickjs-rs; this file takes the place of the package's own host layer, which can
stop no native loop, hides what a gate's error said and crosses the border forty times a turn. A guest's whole world is
one linear memory, so an image of it is a snapshot, and a fresh instance under an old image is a rollback.

What holds here:

- The imports are all that the guest has. Two of them reach Python: `host_call`, which is how gates and the console
  work, and the four of WASI that must write into memory; clock and chance among those are constants, so a program run
  again computes the same. The others are wasm themselves: they need no GIL, and the guest polls one in its hot loop.
- No import raises. wasmtime-py keeps the last exception of all threads in one place; what goes wrong in an import is
  kept in the guest, which is then halted, and `Guest` raises it where the guest was entered.
- A guest is stopped by the engine's epoch. Each store asks its own `Halt` when the epoch moves, in its own thread, so
  moving it for one guest disturbs no other. Nothing ticks: the epoch moves when somebody has to be stopped.
- After a stop, a trap or exhausted memory the heap is undefined. Throw the guest away.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import wasmtime
from wasmtime import _ffi as ffi

from cantrip_actors.circle.javascript_cache import compiled
from cantrip_actors.circle.javascript_memory import Difference, difference
from cantrip_actors.circle.medium import Limit

__all__ = ["PAGE", "Crash", "Guest", "Pristine", "identity", "pristine"]

STACK: Final = 2 * 1024 * 1024
"""Bytes of stack that a program may use: the most that wasmtime allows. The thread has to have more."""

PAGE: Final = 4096
"""Bytes of memory that are dirty together."""

_PAGE: Final = 65536
_CONTINUE: Final = 0
_EBADF: Final = 8

_HOST_FUNCTIONS: Final = """(module
  (func (export "stop?") (result i32) i32.const 0)
  (func (export "no module") (param i32 i32 i32 i32 i32) (result i32) i32.const 0)
  (func (export "no source") (param i32 i32 i32) (result i32) i32.const 0)
  (func (export "close") (param i32) (result i32) i32.const 8)
  (func (export "stat") (param i32 i32) (result i32) i32.const 8)
  (func (export "seek") (param i32 i64 i32 i32) (result i32) i32.const 8)
  (func (export "write") (param i32 i32 i32 i32) (result i32) i32.const 8)
  (func (export "exit") (param i32) unreachable))"""

_WASI: Final = "wasi_snapshot_preview1"
_NATIVE: Final = {  # what of the guest's imports is which of those functions
    ("env", "host_interrupt"): "stop?",
    ("env", "host_module_normalize"): "no module",
    ("env", "host_module_load"): "no source",
    (_WASI, "fd_close"): "close",
    (_WASI, "fd_fdstat_get"): "stat",
    (_WASI, "fd_seek"): "seek",
    (_WASI, "fd_write"): "write",
    (_WASI, "proc_exit"): "exit",
}

_entered = threading.local()
"""`.guest` is the one that runs in this thread: the imports are shared, and have no other way of knowing."""


class Crash(Exception):
    """The guest was halted or trapped: its heap is undefined from here on. `limit` says which limit that was."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.limit = limit


class _Halt:
    """Whether a guest has to stop, and why; asked in its thread whenever the engine's epoch moves."""

    def __init__(self) -> None:
        self.reason: Limit | None = None
        self.callback = _DEADLINE(self._ask)

    def _ask(self, _context: Any, _data: Any, delta: Any, kind: Any) -> int:
        if self.reason:
            error = ffi.wasmtime_error_new(ctypes.create_string_buffer(b"halted"))
            return ctypes.cast(error, ctypes.c_void_p).value or 0
        delta[0] = 1
        kind[0] = _CONTINUE
        return 0


_DEADLINE: Final = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.POINTER(ffi.wasmtime_context_t),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint8),
)
_KEEP: Final = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class _Compiled:
    engine: wasmtime.Engine
    module: wasmtime.Module
    linker: wasmtime.Linker
    native: wasmtime.Module

    def instantiate(self, store: wasmtime.Store) -> wasmtime.Instance:
        native = wasmtime.Instance(store, self.native, []).exports(store)
        imports: list[Any] = []
        for one in self.module.imports:
            key = (one.module, one.name or "")
            imports.append(native[_NATIVE[key]] if key in _NATIVE else self.linker.get(store, *key))
        return wasmtime.Instance(store, self.module, imports)


class Guest:
    """One instance of the engine. Not thread-safe, except `halt`; it may move from thread to thread between calls.

    `host` answers what the program asks through the prelude's `host(text)`. It runs in the guest's thread and may wait.
    """

    def __init__(self, compiled: _Compiled, memory: int, host: Callable[[str], str]) -> None:
        self._host = host
        self._engine = compiled.engine
        self._halt = _Halt()
        self._failure: Exception | None = None
        self._store = wasmtime.Store(compiled.engine)
        self._store.set_limits(memory_size=memory)
        ffi.wasmtime_store_epoch_deadline_callback(self._store.ptr(), self._halt.callback, None, _KEEP)
        self._store.set_epoch_deadline(1)
        exports = compiled.instantiate(self._store).exports(self._store)
        # The public Func.__call__ looks up the function's type each time, and takes six times as long. What stands in
        # its place is private to wasmtime-py, whose versions pyproject.toml bounds.
        self._context = self._store._context()  # noqa: SLF001
        self._functions: dict[str, Any] = {}
        for name, export in exports.items():
            if isinstance(export, wasmtime.Func):
                self._functions[str(name)] = export._func  # noqa: SLF001
        linear, pointer = exports["memory"], exports["__stack_pointer"]
        assert isinstance(linear, wasmtime.Memory)
        assert isinstance(pointer, wasmtime.Global)
        self._memory = linear
        self._base = int(pointer.value(self._store))
        """Where the stack begins, which grows downwards to 0."""

    # ------------------------------------------------------------------------------------------------------- stopping

    def halt(self, reason: Limit) -> None:
        """Stop what runs, from any thread; if nothing runs, the next call ends at once. The first reason stays."""
        self._halt.reason = self._halt.reason or reason
        self._engine.increment_epoch()

    @property
    def halted(self) -> Limit | None:
        """The reason of `halt`, if it came."""
        return self._halt.reason

    def revive(self) -> None:
        """Take back a halt that came when everything had run. Nothing may run in it."""
        self._halt.reason = None

    def close(self) -> None:
        """Give the instance back. Nothing may run in it."""
        self._store.close()

    # -------------------------------------------------------------------------------------------------------- calling

    def call(self, name: str, *args: int) -> int:
        """Call an export; raises Crash for a trap or a halt, and whatever went wrong in `host`."""
        count = max(len(args), 1)
        cells = (ffi.wasmtime_val_raw_t * count)()
        for index, value in enumerate(args):
            cells[index].i32 = value
        trap = ctypes.POINTER(ffi.wasm_trap_t)()
        before = getattr(_entered, "guest", None)
        _entered.guest = self
        try:
            error = ffi.wasmtime_func_call_unchecked(
                self._context, ctypes.byref(self._functions[name]), cells, count, ctypes.byref(trap)
            )
        finally:
            _entered.guest = before
        if error or trap:
            problem = _problem(error, trap)
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            raise Crash(self._halt.reason or _why(problem))
        return int(cells[0].i32)

    def run(self, function: int, *args: int) -> int:
        """Call a function of the program's, given and giving handles."""
        argv = self._put(struct.pack(f"<{len(args)}i", *args)) if args else 0
        out = self._alloc(4)
        this = self.call("new_undefined")
        status = self.call("call_function", function, this, argv, len(args), out)
        if status:
            raise Crash("memory")  # that is the one exception which the prelude lets out
        (result,) = struct.unpack("<i", self._read(out, 4))
        self.free(this)
        self.call("qjs_free", out, 4)
        if argv:
            self.call("qjs_free", argv, 4 * len(args))
        return int(result)

    def apply(self, function: int, *texts: str) -> None:
        """Call a function of the program's with strings, for what it does."""
        handles = [self.string(text) for text in texts]
        self.free(self.run(function, *handles), *handles)

    def string(self, text: str) -> int:
        """A handle of a new string."""
        data = text.encode("utf-8", "replace")
        pointer = self._put(data)
        handle = self.call("new_string", pointer, len(data))
        self.call("qjs_free", pointer, len(data))
        if not handle:
            raise Crash("memory")
        return handle

    def text(self, handle: int) -> str:
        """The string behind a handle."""
        if self.call("get_string", handle):
            raise Crash("memory")
        length = self.call("qjs_last_len")
        data = self._read(self.call("qjs_last_ptr"), length) if length else b""
        self.call("qjs_result_free")
        return data.decode("utf-8", "replace")

    def used(self) -> int:
        """Bytes that the program's variables take, garbage included."""
        if self.call("compute_memory_usage"):
            raise Crash("crash")
        pointer = self.call("qjs_last_ptr")
        (size,) = struct.unpack("<q", self._read(pointer, 8))  # malloc_size, the first of its counters
        self.call("qjs_result_free")
        return int(size)

    def free(self, *handles: int) -> None:
        """Let go of handles."""
        for handle in handles:
            self.call("free_value", handle)

    def evaluate(self, code: str, how: str = "eval_code") -> int | None:
        """The handle of what the script comes to; None where it does not compile."""
        data = code.encode("utf-8", "replace")
        pointer, out = self._put(data), self._alloc(4)
        status = self.call(how, pointer, len(data), out)
        (handle,) = struct.unpack("<i", self._read(out, 4))
        self.call("qjs_free", pointer, len(data))
        self.call("qjs_free", out, 4)
        return None if status else int(handle)

    def function(self, name: str) -> int:
        """A handle of a function that calls the host."""
        data = name.encode()
        return self.call("new_function", self._put(data), len(data))

    def item(self, array: int, index: int) -> int:
        """The handle of an element of an array."""
        out = self._alloc(4)
        if self.call("get_index", array, index, out):
            raise Crash("crash")
        return int(struct.unpack("<i", self._read(out, 4))[0])

    # --------------------------------------------------------------------------------------------------------- memory

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be had at once, counted or not: small variables take more than is counted."""
        pointer = self.call("qjs_alloc", size)
        if pointer:
            self.call("qjs_free", pointer, size)
        return bool(pointer)

    def image(self) -> bytes:
        """Its memory, between two calls: from the end of the stack on, which is empty then."""
        base = ctypes.addressof(self._memory.data_ptr(self._store).contents) + self._base
        return ctypes.string_at(base, self.size)

    @property
    def size(self) -> int:
        """Bytes of memory that it has, and that no image of it exceeds; never less than its variables take."""
        return self._memory.data_len(self._store) - self._base

    def patch(self, change: Difference) -> None:
        """Change its memory. Raises Crash where the memory limit is too small for that."""
        lacking = change.size - self.size
        if lacking > 0:
            try:
                self._memory.grow(self._store, -(-lacking // _PAGE))
            except wasmtime.WasmtimeError as problem:
                raise Crash("memory") from problem
        base = ctypes.addressof(self._memory.data_ptr(self._store).contents) + self._base
        for start, page in change.pages:
            ctypes.memmove(base + start, page, len(page))

    def _alloc(self, size: int) -> int:
        pointer = self.call("qjs_alloc", size)
        if not pointer:
            raise Crash("memory")
        return pointer

    def _put(self, data: bytes) -> int:
        pointer = self._alloc(len(data) or 1)
        if not self.write(data, pointer):
            raise Crash("crash")
        return pointer

    def write(self, data: bytes, pointer: int) -> bool:
        """Write into its memory; False where `pointer` leads out of it."""
        pointer &= 0xFFFFFFFF
        if pointer + len(data) > self._memory.data_len(self._store):
            return False
        ctypes.memmove(ctypes.addressof(self._memory.data_ptr(self._store).contents) + pointer, data, len(data))
        return True

    def _read(self, pointer: int, length: int) -> bytes:
        pointer, length = pointer & 0xFFFFFFFF, length & 0xFFFFFFFF
        if pointer + length > self._memory.data_len(self._store):
            raise Crash("crash")
        return ctypes.string_at(ctypes.addressof(self._memory.data_ptr(self._store).contents) + pointer, length)

    # -------------------------------------------------------------------------------------------------------- imports

    def host_call(self, argc: int, argv: int) -> int:
        """The body of `host_call`: a handle, or -1, which the program sees as an exception."""
        try:
            if argc < 1:
                return -1
            asked = self.text(struct.unpack("<i", self._read(argv, 4))[0])
            return self.string(self._host(asked))
        except Crash as crash:
            self.halt(crash.limit)
        except Exception as failure:  # the program goes no further, and `call` raises it
            self._failure = failure
            self.halt("crash")
        return -1


def _host_call(_name: int, _length: int, _this: int, argc: int, argv: int) -> int:
    guest: Guest = _entered.guest
    return guest.host_call(argc, argv)


def _fill(data: bytes, pointer: int) -> int:
    guest: Guest = _entered.guest
    return 0 if guest.write(data, pointer) else _EBADF


def _random(pointer: int, length: int) -> int:
    """Chance, the same in every run: a program that is replayed has to take the same ways."""
    return _fill(b"\x5a" * min(length & 0xFFFFFFFF, _PAGE), pointer)


def _environment_sizes(count: int, size: int) -> int:
    return _fill(bytes(4), count) or _fill(bytes(4), size)


def _environment(_pointers: int, _buffer: int) -> int:
    return 0


def _clock(_which: int, _precision: int, pointer: int) -> int:
    """A clock that stands still at 1970: nobody handed in another one."""
    return _fill(bytes(8), pointer)


def _compile() -> _Compiled:
    settings = wasmtime.Config()
    settings.epoch_interruption = True
    settings.max_wasm_stack = STACK
    engine = wasmtime.Engine(settings)
    linker = wasmtime.Linker(engine)
    i32, i64 = wasmtime.ValType.i32, wasmtime.ValType.i64
    for module, name, parameters, function in (
        ("env", "host_call", [i32()] * 5, _host_call),
        (_WASI, "random_get", [i32()] * 2, _random),
        (_WASI, "environ_get", [i32()] * 2, _environment),
        (_WASI, "environ_sizes_get", [i32()] * 2, _environment_sizes),
        (_WASI, "clock_time_get", [i32(), i64(), i32()], _clock),
    ):
        linker.define_func(module, name, wasmtime.FuncType(parameters, [i32()]), function)
    native = wasmtime.Module(engine, _HOST_FUNCTIONS)
    return _Compiled(engine, compiled(engine, _wasm(), f"stack {STACK}"), linker, native)


def _problem(error: Any, trap: Any) -> str:
    """What an error or a trap says; takes it over."""
    problem = wasmtime.WasmtimeError._from_ptr(error) if error else wasmtime.Trap._from_ptr(trap)  # noqa: SLF001
    return str(problem)


def _why(trap: str) -> Limit:
    """The limit that a trap comes from: the engine checks neither its stack nor each of its allocations."""
    if "call stack exhausted" in trap or "out of bounds" in trap:
        return "recursion"
    return "memory" if "unreachable" in trap else "crash"


@dataclass(frozen=True, slots=True)
class Pristine:
    """A guest that has run the prelude and nothing else: what every new sandbox starts as, made once a process.

    `functions` are handles, valid in every guest that has taken on this image or a later one of it: `run`, `await_`,
    `report`, `arm` and `assign` of the prelude.
    """

    compiled: _Compiled
    image: bytes
    prelude: Difference
    """What makes a fresh instance this one."""
    functions: tuple[int, ...]
    engine: str
    """`identity()`: whose images fit."""

    def most(self, memory: int) -> int:
        """Bytes of linear memory in which a program has its `memory`, what is in transit has room, and no more fits."""
        return 2**20 + len(self.image) + memory + memory // 4 + 16 * _PAGE

    def guest(self, memory: int, host: Callable[[str], str], gates: str, change: Difference | None = None) -> Guest:
        """A new guest, pristine or with a change, of which the program may use `memory` bytes.

        `gates` is what the prelude's `arm` takes. Raises Crash where the change needs more memory.
        """
        made = Guest(self.compiled, self.most(memory), host)
        try:
            made.patch(self.prelude)
            if change is not None:
                made.patch(change)
            made.call("set_memory_limit", min(memory, 0x7FFFFFFF))
            made.apply(self.functions[3], gates)
        except Crash:
            made.close()
            raise
        return made


def identity() -> str:
    """The engine's name, with a digest of all that an image depends on: wasm and prelude. Compiles nothing."""
    return f"quickjs-{hashlib.sha256(_wasm() + _prelude().encode()).hexdigest()[:32]}"


def _wasm() -> bytes:
    return files("quickjs_rs").joinpath("_guest.wasm").read_bytes()


def _prelude() -> str:
    return files(__package__).joinpath("javascript_prelude.js").read_text(encoding="utf-8")


_lock = threading.Lock()
_made: list[Pristine] = []


def pristine() -> Pristine:
    """The pristine guest of this process. The first call compiles the engine, unless an earlier process has."""
    with _lock:
        if not _made:
            _made.append(_prepare())
        return _made[0]


def _prepare() -> Pristine:
    engine = _compile()
    guest = Guest(engine, 256 * _PAGE, lambda _text: "")
    fresh = guest.image()
    make = guest.evaluate(_prelude())
    assert make is not None, "the prelude compiles"
    parts = guest.run(make, guest.function("host"))
    functions = tuple(guest.item(parts, index) for index in range(5))
    image = guest.image()
    guest.close()
    return Pristine(engine, image, difference(fresh, image, PAGE), functions, identity())
