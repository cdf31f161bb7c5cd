"""The JavaScript engine: QuickJS compiled to WebAssembly, one instance a sandbox, driven through wasmtime.

The wasm is the guest of the package quickjs-rs; this file takes the place of the package's own host layer, which can
stop no native loop, hides the text of a gate's error and crosses the border forty times a turn. A guest's whole world
is one linear memory, so a copy of it is a snapshot, and a fresh instance under an old copy is a rollback.

The rules of this file:

- A guest runs on a stack of its own, a fiber of wasmtime (its asynchronous calls). Where a program waits for the host,
  the fiber is left and the thread that polled it is free; any thread may poll it again. So a program that waits for a
  gate holds no thread, and `Guest.enter` is a generator.
- The imports are all that the guest has. Those that reach Python are `wait` and `take`, by which the host hears and
  answers (`_GLUE` does the rest of `host_call` in wasm), and the four of WASI that must write into memory; clock and
  randomness among those are constants, so a program that runs again computes the same. The others are wasm: they need
  no GIL, and the guest polls one in its hot loop.
- No import raises. wasmtime-py keeps the last exception of all threads in one place; the guest keeps what goes wrong in
  an import and is halted, and `Guest` raises it in the caller.
- A guest is stopped by the engine's epoch. Each store asks its own `_Halt` when the epoch moves, in its own thread:
  whether it was halted, and whether its time is over.
- After a stop, a trap or exhausted memory the heap is undefined. Discard the guest.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import struct
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, TypeVar

import wasmtime
from wasmtime import _ffi as ffi

from cantrip_actors.circle.javascript.cache import compiled
from cantrip_actors.circle.javascript.memory import Difference, difference
from cantrip_actors.circle.medium import Limit, LimitExceeded
from cantrip_actors.terms.bounds import BYTES

__all__ = ["PAGE", "Guest", "Pristine", "Waiting", "complete", "identity", "pristine"]

T = TypeVar("T")
Waiting = Generator[None, str, T]
"""Work in a guest: it yields where the program waits for the host, is sent the answer, and returns its result."""

STACK: Final = 2 * 1024 * 1024
"""Bytes of stack that a program may use: the most that wasmtime allows."""

FIBER: Final = 2 * STACK
"""Bytes of stack of a fiber: the program's, and room for the imports that it calls. Untouched ones take no memory."""

LONGEST: Final = BYTES + 1024
"""Bytes of a text of the program's that are read: more than may cross, with the name of a gate before it."""

PAGE: Final = 4096
"""Bytes of memory that are dirty together."""

_PAGE: Final = 65536
_CONTINUE: Final = 0
_I32: Final = 0
_EBADF: Final = 8

_HOST_FUNCTIONS: Final = """(module
  (func (export "host_interrupt") (result i32) i32.const 0)
  (func (export "host_module_normalize") (param i32 i32 i32 i32 i32) (result i32) i32.const 0)
  (func (export "host_module_load") (param i32 i32 i32) (result i32) i32.const 0)
  (func (export "fd_close") (param i32) (result i32) i32.const 8)
  (func (export "fd_fdstat_get") (param i32 i32) (result i32) i32.const 8)
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) i32.const 8)
  (func (export "fd_write") (param i32 i32 i32 i32) (result i32) i32.const 8)
  (func (export "proc_exit") (param i32) unreachable)
  (type $host_call (func (param i32 i32 i32 i32 i32) (result i32)))
  (table (export "host calls") 1 funcref)
  (func (export "host_call") (type $host_call)
    (call_indirect (type $host_call)
      (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4) (i32.const 0))))"""
"""Imports of the guest that never reach Python, by the names that it knows them by."""

_GLUE: Final = """(module
  (import "guest" "memory" (memory 1))
  (import "guest" "get_string" (func $get_string (param i32) (result i32)))
  (import "guest" "new_string" (func $new_string (param i32 i32) (result i32)))
  (import "guest" "qjs_last_ptr" (func $last_pointer (result i32)))
  (import "guest" "qjs_last_len" (func $last_length (result i32)))
  (import "guest" "qjs_result_free" (func $free_result))
  (import "guest" "qjs_alloc" (func $alloc (param i32) (result i32)))
  (import "guest" "qjs_free" (func $free (param i32 i32)))
  (import "native" "host calls" (table 1 funcref))
  (import "host" "wait" (func $wait (param i32 i32) (result i32)))
  (import "host" "take" (func $take (param i32)))
  (elem (i32.const 0) $host_call)
  (func $host_call (param i32 i32 i32) (param $count i32) (param $arguments i32) (result i32)
    (local $length i32) (local $pointer i32) (local $handle i32)
    (if (i32.lt_s (local.get $count) (i32.const 1)) (then (return (i32.const -1))))
    (if (call $get_string (i32.load (local.get $arguments))) (then (return (call $fail))))
    (local.set $length (call $wait (call $last_pointer) (call $last_length)))
    (call $free_result)
    (if (i32.lt_s (local.get $length) (i32.const 0)) (then (return (i32.const -1))))
    (local.set $pointer (call $alloc (select (local.get $length) (i32.const 1) (local.get $length))))
    (if (i32.eqz (local.get $pointer)) (then (return (call $fail))))
    (call $take (local.get $pointer))
    (local.set $handle (call $new_string (local.get $pointer) (local.get $length)))
    (call $free (local.get $pointer) (local.get $length))
    (if (i32.eqz (local.get $handle)) (then (return (call $fail))))
    (local.get $handle))
  (func $fail (result i32) (call $take (i32.const 0)) (i32.const -1)))"""
"""`host_call`: the text that the program asks with goes to `wait`, which answers with the length of a text (-1 to fail)
and may suspend; `take` writes that text where it is told to. `take(0)` says that there is no memory left."""

_WASI: Final = "wasi_snapshot_preview1"
_entered = threading.local()
"""`.guest` is the one that runs in this thread: the imports are shared, and have no other way of knowing."""


class _Halt:
    """Whether a guest has to stop, and why; checked in its thread whenever the engine's epoch moves."""

    def __init__(self) -> None:
        self.reason: Limit | None = None
        self.processor = self.clock = math.inf
        """When its time is over, by the processor time of the thread that it runs in, and by the clock."""
        self.callback = _DEADLINE(self._ask)

    def _ask(self, _context: Any, _data: Any, delta: Any, kind: Any) -> int:
        if time.thread_time() >= self.processor or time.monotonic() >= self.clock:
            self.reason = self.reason or "seconds"
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
    glue: wasmtime.Module
    results: Mapping[str, int]
    """How many results each export of the module has."""

    def instantiate(self, store: wasmtime.Store) -> Any:
        native = wasmtime.Instance(store, self.native, []).exports(store)
        imports: list[Any] = [
            native[name] if (name := one.name or "") in native else self.linker.get(store, one.module, name)
            for one in self.module.imports
        ]
        guest = wasmtime.Instance(store, self.module, imports).exports(store)
        of = {"native": native, "guest": guest}
        # the last one: a store with an asynchronous import takes none but asynchronous calls
        imports = [
            of[one.module][one.name or ""] if one.module in of else self.linker.get(store, one.module, one.name or "")
            for one in self.glue.imports
        ]
        wasmtime.Instance(store, self.glue, imports)
        return guest


class _Store(wasmtime.Store):
    """A store that ends the call in progress before it goes itself, also where the garbage collector takes both."""

    call: Any = None

    def end_call(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            ffi.wasmtime_call_future_delete(call)

    def close(self) -> None:
        self.end_call()
        super().close()


class Guest:
    """One instance of the engine. Not thread-safe, except `halt`; it may move from thread to thread between polls.

    `host` receives the texts that the program asks with (the prelude's `host(text)`), in the guest's thread, each as
    UTF-8 and cut at LONGEST, and returns the answer; or None: then `enter` yields, and is sent the answer.
    """

    def __init__(self, compiled: _Compiled, memory: int, host: Callable[[bytes], str | None]) -> None:
        self._host = host
        self._engine = compiled.engine
        self._halt = _Halt()
        self._failure: Exception | None = None
        self._answer: bytes | None = None
        self._result = 0
        """The address at which the result of `wait` is to stand."""
        self._store = _Store(compiled.engine)
        self._store.set_limits(memory_size=memory)
        ffi.wasmtime_store_epoch_deadline_callback(self._store.ptr(), self._halt.callback, None, _KEEP)
        self._store.set_epoch_deadline(1)
        exports = compiled.instantiate(self._store)
        # Asynchronous calls have no public interface in wasmtime-py. This uses its private one, and pyproject.toml
        # bounds its versions.
        self._context = self._store._context()  # noqa: SLF001
        self._functions: dict[str, tuple[Any, int]] = {}
        """The exports with the number of their results."""
        for name, export in exports.items():
            if isinstance(export, wasmtime.Func):
                self._functions[str(name)] = export._func, compiled.results[str(name)]  # noqa: SLF001
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

    def limit(self, processor: float, clock: float) -> None:
        """Halt it from now on when so many seconds of this thread's processor time or of the clock have passed.

        It looks at them whenever the engine's epoch moves (`tick`).
        """
        self._halt.processor, self._halt.clock = time.thread_time() + processor, time.monotonic() + clock

    def tick(self) -> None:
        """Move the engine's epoch: every guest that runs looks whether it has to stop."""
        self._engine.increment_epoch()

    def revive(self) -> None:
        """Undo a halt that arrived after the program had ended. No program may run in it."""
        self._halt.reason = None

    def close(self) -> None:
        """Release the instance. No program may run or wait in it."""
        self._store.close()

    # -------------------------------------------------------------------------------------------------------- calling

    def call(self, name: str, *args: int) -> int:
        """Call an export that does not wait for the host. Raises as `enter` does."""
        return complete(self.enter(name, *args))

    def enter(self, name: str, *args: int) -> Waiting[int]:
        """Call an export. To close it ends the call.

        Raises LimitExceeded for a trap or a halt, and whatever `host` raised.
        """
        function, count = self._functions[name]
        cells = (ffi.wasmtime_val_t * max(len(args), 1))()
        for index, value in enumerate(args):
            cells[index] = _i32(value)
        result = (ffi.wasmtime_val_t * 1)()
        trap, error = ctypes.POINTER(ffi.wasm_trap_t)(), ctypes.POINTER(ffi.wasmtime_error_t)()
        results = ctypes.byref(trap), ctypes.byref(error)
        self._store.call = ffi.wasmtime_func_call_async(
            self._context, ctypes.byref(function), cells, len(args), result, count, *results
        )
        try:
            while not self._poll():
                self._answer = (yield).encode("utf-8", "replace")
        finally:
            self._store.end_call()
        if error or trap:
            problem = _problem(error, trap)
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            raise LimitExceeded(self._halt.reason or _why(problem))
        return int(result[0].of.i32)

    def _poll(self) -> bool:
        before = getattr(_entered, "guest", None)
        _entered.guest = self
        try:
            return bool(ffi.wasmtime_call_future_poll(self._store.call))
        finally:
            _entered.guest = before

    def run(self, function: int, *args: int) -> Waiting[int]:
        """Call a function of the program's, given and giving handles."""
        argv = self._write(struct.pack(f"<{len(args)}i", *args)) if args else 0
        out = self._alloc(4)
        this = self.call("new_undefined")
        status = yield from self.enter("call_function", function, this, argv, len(args), out)
        if status:
            raise LimitExceeded("memory")  # that is the one exception which the prelude lets out
        (result,) = struct.unpack("<i", self._read(out, 4))
        self.free(this)
        self.call("qjs_free", out, 4)
        if argv:
            self.call("qjs_free", argv, 4 * len(args))
        return int(result)

    def apply(self, function: int, *texts: str) -> Waiting[None]:
        """Call a function of the program's with strings, for what it does."""
        handles = [self.string(text) for text in texts]
        self.free((yield from self.run(function, *handles)), *handles)

    def string(self, text: str) -> int:
        """A handle of a new string."""
        data = text.encode("utf-8", "replace")
        pointer = self._write(data)
        handle = self.call("new_string", pointer, len(data))
        self.call("qjs_free", pointer, len(data))
        if not handle:
            raise LimitExceeded("memory")
        return handle

    def text(self, handle: int) -> bytes:
        """The string behind a handle; the beginning of one that is over the bound on what may cross."""
        if self.call("get_string", handle):
            raise LimitExceeded("memory")
        length = self.call("qjs_last_len")
        data = self._read(self.call("qjs_last_ptr"), min(length & 0xFFFFFFFF, LONGEST)) if length else b""
        self.call("qjs_result_free")
        return data

    def used(self) -> int:
        """Bytes that the program's variables take, garbage included."""
        if self.call("compute_memory_usage"):
            raise LimitExceeded("crash")
        pointer = self.call("qjs_last_ptr")
        (size,) = struct.unpack("<q", self._read(pointer, 8))  # malloc_size, the first of its counters
        self.call("qjs_result_free")
        return int(size)

    def free(self, *handles: int) -> None:
        """Release handles."""
        for handle in handles:
            self.call("free_value", handle)

    def evaluate(self, code: str, how: str = "eval_code") -> Waiting[int | None]:
        """A handle of the value of a script; None if it does not compile."""
        data = code.encode("utf-8", "replace")
        pointer, out = self._write(data), self._alloc(4)
        status = yield from self.enter(how, pointer, len(data), out)
        (handle,) = struct.unpack("<i", self._read(out, 4))
        self.call("qjs_free", pointer, len(data))
        self.call("qjs_free", out, 4)
        return None if status else int(handle)

    def function(self, name: str) -> int:
        """A handle of a function that calls the host."""
        data = name.encode()
        return self.call("new_function", self._write(data), len(data))

    def item(self, array: int, index: int) -> int:
        """The handle of an element of an array."""
        out = self._alloc(4)
        if self.call("get_index", array, index, out):
            raise LimitExceeded("crash")
        return int(struct.unpack("<i", self._read(out, 4))[0])

    # --------------------------------------------------------------------------------------------------------- memory

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes can be allocated at once: small variables take more than is counted."""
        pointer = self.call("qjs_alloc", size)
        if pointer:
            self.call("qjs_free", pointer, size)
        return bool(pointer)

    def image(self) -> bytes:
        """Return its memory between two calls, from the end of the stack on, which is empty then."""
        base = ctypes.addressof(self._memory.data_ptr(self._store).contents) + self._base
        return ctypes.string_at(base, self.size)

    @property
    def size(self) -> int:
        """The bytes of its memory, an upper bound for its images and for its variables."""
        return self._memory.data_len(self._store) - self._base

    def patch(self, change: Difference) -> None:
        """Change its memory. Raises LimitExceeded where the memory limit is too small for that."""
        lacking = change.size - self.size
        if lacking > 0:
            try:
                self._memory.grow(self._store, -(-lacking // _PAGE))
            except wasmtime.WasmtimeError as problem:
                raise LimitExceeded("memory") from problem
        base = ctypes.addressof(self._memory.data_ptr(self._store).contents) + self._base
        for start, page in change.pages:
            ctypes.memmove(base + start, page, len(page))

    def _alloc(self, size: int) -> int:
        pointer = self.call("qjs_alloc", size)
        if not pointer:
            raise LimitExceeded("memory")
        return pointer

    def _write(self, data: bytes) -> int:
        pointer = self._alloc(len(data) or 1)
        if not self.write(data, pointer):
            raise LimitExceeded("crash")
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
            raise LimitExceeded("crash")
        return ctypes.string_at(ctypes.addressof(self._memory.data_ptr(self._store).contents) + pointer, length)

    # -------------------------------------------------------------------------------------------------------- imports

    def hear(self, pointer: int, length: int, result: int) -> None:
        """Pass the program's request to the host, which answers at once or later; the body of `wait`."""
        self._result = result
        self._answer = None
        try:
            answer = self._host(self._read(pointer, min(length & 0xFFFFFFFF, LONGEST)))
            self._answer = None if answer is None else answer.encode("utf-8", "replace")
        except LimitExceeded as problem:
            self._fail(problem.limit)
        except Exception as failure:  # the program stops here, and `enter` raises it
            self._failure = failure
            self._fail("crash")

    def _fail(self, limit: Limit) -> None:
        self.halt(limit)
        self._answer = b""

    def is_answered(self) -> bool:
        """Whether the call of `wait` can return: then its result is in place, -1 where the guest is halted."""
        if self._answer is None:
            return False
        answer = _i32(-1 if self._halt.reason else len(self._answer))
        ctypes.memmove(self._result, ctypes.byref(answer), ctypes.sizeof(answer))
        return True

    def take(self, pointer: int) -> None:
        """Write the answer into the guest's memory; the body of `take`."""
        if pointer and self._answer is not None:
            self.write(self._answer, pointer)
        else:
            self.halt("memory")


def _i32(number: int) -> Any:
    value: Any = ffi.wasmtime_val_t(kind=_I32)
    value.of.i32 = number
    return value


def complete(work: Waiting[T]) -> T:
    """Return the result of work that does not wait for the host."""
    try:
        next(work)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise LimitExceeded("crash")


@ffi.wasmtime_func_async_callback_t  # type: ignore[untyped-decorator]
def _wait(_env: Any, _caller: Any, args: Any, _count: int, results: Any, _one: int, _trap: Any, then: Any) -> None:
    guest: Guest = _entered.guest
    guest.hear(args[0].of.i32, args[1].of.i32, ctypes.addressof(results.contents))
    then[0].callback = _is_answered


@ffi.wasmtime_func_async_continuation_callback_t  # type: ignore[untyped-decorator]
def _is_answered(_env: Any) -> bool:
    guest: Guest = _entered.guest
    return guest.is_answered()


def _take(pointer: int) -> None:
    guest: Guest = _entered.guest
    guest.take(pointer)


def _fill(data: bytes, pointer: int) -> int:
    guest: Guest = _entered.guest
    return 0 if guest.write(data, pointer) else _EBADF


def _random(pointer: int, length: int) -> int:
    """Fill in random bytes that are the same in every run, so that a replayed program takes the same branches."""
    return _fill(b"\x5a" * min(length & 0xFFFFFFFF, _PAGE), pointer)


def _environment_sizes(count: int, size: int) -> int:
    return _fill(bytes(4), count) or _fill(bytes(4), size)


def _environment(_pointers: int, _buffer: int) -> int:
    return 0


def _clock(_which: int, _precision: int, pointer: int) -> int:
    """Return the time of a clock that stands still at 1970."""
    return _fill(bytes(8), pointer)


def _compile() -> _Compiled:
    settings = wasmtime.Config()
    settings.epoch_interruption = True
    settings.max_wasm_stack = STACK
    ffi.wasmtime_config_async_stack_size_set(settings.ptr(), FIBER)
    engine = wasmtime.Engine(settings)
    linker = wasmtime.Linker(engine)
    i32, i64 = wasmtime.ValType.i32, wasmtime.ValType.i64
    for module, name, parameters, function in (
        (_WASI, "random_get", [i32()] * 2, _random),
        (_WASI, "environ_get", [i32()] * 2, _environment),
        (_WASI, "environ_sizes_get", [i32()] * 2, _environment_sizes),
        (_WASI, "clock_time_get", [i32(), i64(), i32()], _clock),
    ):
        linker.define_func(module, name, wasmtime.FuncType(parameters, [i32()]), function)
    linker.define_func("host", "take", wasmtime.FuncType([i32()], []), _take)
    waits = wasmtime.FuncType([i32()] * 2, [i32()])
    error = ffi.wasmtime_linker_define_async_func(
        linker.ptr(), *_name("host"), *_name("wait"), waits.ptr(), _wait, None, _KEEP
    )
    if error:
        raise wasmtime.WasmtimeError._from_ptr(error)  # noqa: SLF001
    guest = compiled(engine, _wasm(), f"stack {STACK}")
    results = {one.name: len(one.type.results) for one in guest.exports if isinstance(one.type, wasmtime.FuncType)}
    native, glue = wasmtime.Module(engine, _HOST_FUNCTIONS), wasmtime.Module(engine, _GLUE)
    return _Compiled(engine, guest, linker, native, glue, results)


def _name(name: str) -> tuple[Any, int]:
    return ctypes.create_string_buffer(name.encode()), len(name)


def _problem(error: Any, trap: Any) -> str:
    """Return the text of an error or a trap, and free it."""
    problem = wasmtime.WasmtimeError._from_ptr(error) if error else wasmtime.Trap._from_ptr(trap)  # noqa: SLF001
    return str(problem)


def _why(trap: str) -> Limit:
    """Return the limit that caused a trap: the engine checks neither its stack nor each allocation."""
    if "call stack exhausted" in trap or "out of bounds" in trap:
        return "recursion"
    return "memory" if "unreachable" in trap else "crash"


@dataclass(frozen=True, slots=True)
class Pristine:
    """A guest that has run only the prelude: the state in which every new sandbox starts, made once per process.

    `functions` are handles, valid in every guest that has taken on this image or a later one of it: `run`, `await_`,
    `report`, `arm` and `assign` of the prelude.
    """

    compiled: _Compiled
    image: bytes
    prelude: Difference
    """The difference between a fresh instance and this one."""
    functions: tuple[int, ...]
    engine: str
    """`identity()`: the engine whose images fit."""

    def most(self, memory: int) -> int:
        """Bytes of linear memory in which a program has its `memory`, what is in transit has room, and no more fits."""
        return 2**20 + len(self.image) + memory + memory // 4 + 16 * _PAGE

    def guest(
        self, memory: int, host: Callable[[bytes], str | None], gates: str, change: Difference | None = None
    ) -> Guest:
        """Return a new guest, pristine or with a change, in which the program may use `memory` bytes.

        `gates` is what the prelude's `arm` takes. Raises LimitExceeded where the change needs more memory.
        """
        made = Guest(self.compiled, self.most(memory), host)
        try:
            made.patch(self.prelude)
            if change is not None:
                made.patch(change)
            made.call("set_memory_limit", min(memory, 0x7FFFFFFF))
            complete(made.apply(self.functions[3], gates))
        except LimitExceeded:
            made.close()
            raise
        return made


def identity() -> str:
    """The engine's name, with a digest of all that an image depends on: wasm and prelude. Compiles nothing."""
    return f"quickjs-{hashlib.sha256(_wasm() + _prelude().encode()).hexdigest()[:32]}"


def _wasm() -> bytes:
    return files("quickjs_rs").joinpath("_guest.wasm").read_bytes()


def _prelude() -> str:
    return files(__package__).joinpath("prelude.js").read_text(encoding="utf-8")


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
    make = complete(guest.evaluate(_prelude()))
    assert make is not None, "the prelude compiles"
    parts = complete(guest.run(make, guest.function("host")))
    functions = tuple(guest.item(parts, index) for index in range(5))
    image = guest.image()
    guest.close()
    return Pristine(engine, image, difference(fresh, image, PAGE), functions, identity())
