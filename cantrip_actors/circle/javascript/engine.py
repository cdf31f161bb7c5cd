"""The JavaScript engine: QuickJS compiled to WebAssembly, one instance per sandbox, driven through wasmtime.

The wasm is the guest of the package quickjs-rs. This file replaces the package's own host layer, which cannot stop a
native loop, hides the text of a gate's error, and calls between guest and host forty times a turn. A guest's state is
one linear memory: a copy of it is a snapshot, and a fresh instance with an old copy is a rollback.

The rules of this file:

- A guest runs on a stack of its own, a fiber of wasmtime (its asynchronous calls). While a program waits for the host,
  the fiber is suspended and the thread that polled it is free; any thread may poll it again. So a program that waits
  for a gate holds no thread, and `Guest.enter` is a generator.
- A guest can reach nothing but its imports. Only `wait` and `take` call Python: by them the host receives requests and
  answers them. The other imports are wasm: they need no GIL, and the guest polls one of them in its hot loop. Their
  clock and randomness are constants, so a replayed program computes the same.
- No import raises, because wasmtime-py keeps the last exception of all threads in one place. A guest whose import fails
  stores the failure and is halted, and `Guest` raises it in the caller.
- The engine's epoch stops a guest. When the epoch advances, each store asks its own `_Halt`, in its own thread, whether
  the guest was halted and whether its time is over.
- After a stop, a trap or exhausted memory the heap is undefined. Discard the guest.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, TypeVar

import wasmtime

from cantrip_actors.circle.javascript.cache import load_module
from cantrip_actors.circle.javascript.memory import Difference, compute_difference
from cantrip_actors.circle.javascript.private_interface import (
    GuestCall,
    GuestStore,
    check_guest,
    define_wait,
    make_deadline,
    make_i32,
    set_fiber_size,
)
from cantrip_actors.circle.step import Limit, LimitExceeded
from cantrip_actors.terms.bounds import BYTES

T = TypeVar("T")
GuestWork = Generator[None, str, T]
"""Work in a guest: a generator that yields when the program waits for the host, is sent the answer, and returns a
result."""

STACK: Final = 2 * 1024 * 1024
"""Bytes of stack that a program may use: the most that wasmtime allows."""

FIBER: Final = 2 * STACK
"""Bytes of a fiber's stack: the program's, and room for the imports that it calls. Untouched pages take no memory."""

LONGEST: Final = BYTES + 1024
"""The most bytes that are read of a program's text: the bound on values, and room for a gate's name."""

PAGE: Final = 4096
"""Bytes of a memory page: a change marks all of it as changed."""

_PAGE: Final = 65536

_HOST_FUNCTIONS: Final = """(module
  (func (export "host_interrupt") (result i32) i32.const 0)
  (func (export "host_module_normalize") (param i32 i32 i32 i32 i32) (result i32) i32.const 0)
  (func (export "host_module_load") (param i32 i32 i32) (result i32) i32.const 0)
  (func (export "environ_get") (param i32 i32) (result i32) i32.const 0)
  (func (export "fd_close") (param i32) (result i32) i32.const 8)
  (func (export "fd_fdstat_get") (param i32 i32) (result i32) i32.const 8)
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) i32.const 8)
  (func (export "fd_write") (param i32 i32 i32 i32) (result i32) i32.const 8)
  (func (export "proc_exit") (param i32) unreachable)
  (type $host_call (func (param i32 i32 i32 i32 i32) (result i32)))
  (type $fill (func (param i32 i32) (result i32)))
  (type $time (func (param i32 i64 i32) (result i32)))
  (table (export "calls") 4 funcref)
  (func (export "host_call") (type $host_call)
    (call_indirect (type $host_call)
      (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4) (i32.const 0)))
  (func (export "random_get") (type $fill)
    (call_indirect (type $fill) (local.get 0) (local.get 1) (i32.const 1)))
  (func (export "environ_sizes_get") (type $fill)
    (call_indirect (type $fill) (local.get 0) (local.get 1) (i32.const 2)))
  (func (export "clock_time_get") (type $time)
    (call_indirect (type $time) (local.get 0) (local.get 1) (local.get 2) (i32.const 3))))"""
"""The guest's imports, by their names. Those that use its memory, which does not exist yet, call `_GLUE`."""

_GLUE: Final = """(module
  (import "guest" "memory" (memory 1))
  (import "guest" "get_string" (func $get_string (param i32) (result i32)))
  (import "guest" "new_string" (func $new_string (param i32 i32) (result i32)))
  (import "guest" "qjs_last_ptr" (func $last_pointer (result i32)))
  (import "guest" "qjs_last_len" (func $last_length (result i32)))
  (import "guest" "qjs_result_free" (func $free_result))
  (import "guest" "qjs_alloc" (func $alloc (param i32) (result i32)))
  (import "guest" "qjs_free" (func $free (param i32 i32)))
  (import "native" "calls" (table 4 funcref))
  (import "host" "wait" (func $wait (param i32 i32) (result i32)))
  (import "host" "take" (func $take (param i32)))
  (elem (i32.const 0) $host_call $random_get $environ_sizes_get $clock_time_get)
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
  (func $fail (result i32) (call $take (i32.const 0)) (i32.const -1))
  (func $random_get (param $pointer i32) (param $length i32) (result i32)
    (memory.fill (local.get $pointer) (i32.const 0x5a) (local.get $length)) (i32.const 0))
  (func $environ_sizes_get (param $count i32) (param $size i32) (result i32)
    (i32.store (local.get $count) (i32.const 0)) (i32.store (local.get $size) (i32.const 0)) (i32.const 0))
  (func $clock_time_get (param i32 i64) (param $pointer i32) (result i32)
    (i64.store (local.get $pointer) (i64.const 0)) (i32.const 0)))"""
"""`host_call` passes the program's request to `wait`, which returns the length of the answer (-1 for a failure) and may
suspend. `take` writes the answer to the given address. `take(0)` reports that no memory is left."""

_entered = threading.local()
"""`.guest` is the guest that runs in this thread; the imports, which all guests share, find it here."""


class _Halt:
    """Whether a guest must stop, and why; checked in its thread whenever the engine's epoch advances."""

    def __init__(self) -> None:
        self.reason: Limit | None = None
        self.processor = self.clock = math.inf
        """When the guest's time is over: by its thread's CPU time, and by the clock."""
        self.callback = make_deadline(self._must_stop)

    def _must_stop(self) -> bool:
        if time.thread_time() >= self.processor or time.monotonic() >= self.clock:
            self.reason = self.reason or "seconds"
        return self.reason is not None


@dataclass(frozen=True, slots=True)
class _Compiled:
    engine: wasmtime.Engine
    module: wasmtime.Module
    linker: wasmtime.Linker
    native: wasmtime.Module
    glue: wasmtime.Module
    results: Mapping[str, int]
    """The number of results of each exported function."""
    callbacks: Any
    """Held as long as the linker, which calls them."""

    def instantiate(self, store: wasmtime.Store) -> Any:
        native = wasmtime.Instance(store, self.native, []).exports(store)
        imports: list[Any] = [native[imported.name or ""] for imported in self.module.imports]
        guest = wasmtime.Instance(store, self.module, imports).exports(store)
        sources = {"native": native, "guest": guest}
        # instantiated last: a store with an asynchronous import accepts only asynchronous calls
        imports = [
            sources[imported.module][imported.name or ""]
            if imported.module in sources
            else self.linker.get(store, imported.module, imported.name or "")
            for imported in self.glue.imports
        ]
        wasmtime.Instance(store, self.glue, imports)
        return guest


class Guest:
    """One instance of the engine. Not thread-safe, except `halt`; it may move between threads when it is not polled.

    `host` is called with each request of the program (the prelude's `host(text)`), in the guest's thread, as UTF-8 cut
    at LONGEST. It returns the answer, or None: then `enter` yields and is sent the answer.
    """

    def __init__(self, compiled: _Compiled, memory: int, host: Callable[[bytes], str | None]) -> None:
        self._host = host
        self._engine = compiled.engine
        self._halt = _Halt()
        self._failure: Exception | None = None
        self._answer: bytes | None = None
        self._result = 0
        """The address to which the result of `wait` is written."""
        self._store = GuestStore(compiled.engine)
        self._store.set_limits(memory_size=memory)
        self._store.set_deadline(self._halt.callback)
        exports = compiled.instantiate(self._store)
        self._functions: dict[str, tuple[Any, int]] = {}
        """The exported functions, each with its number of results."""
        for name, export in exports.items():
            if isinstance(export, wasmtime.Func):
                self._functions[str(name)] = self._store.get_function(export), compiled.results[str(name)]
        linear, pointer = exports["memory"], exports["__stack_pointer"]
        assert isinstance(linear, wasmtime.Memory)
        assert isinstance(pointer, wasmtime.Global)
        self._memory = linear
        self._base = int(pointer.value(self._store))
        """The upper end of the stack, which grows downwards to 0."""

    # ------------------------------------------------------------------------------------------------------- stopping

    def halt(self, reason: Limit) -> None:
        """Stop the guest, from any thread; if nothing runs, its next call stops. The first reason counts."""
        self._halt.reason = self._halt.reason or reason
        self._engine.increment_epoch()

    @property
    def halt_reason(self) -> Limit | None:
        """The reason that `halt` was called with, or None."""
        return self._halt.reason

    def limit(self, processor: float, clock: float) -> None:
        """Halt the guest after this many more seconds of the thread's CPU time or of the clock.

        They are checked whenever the engine's epoch advances (`tick`).
        """
        self._halt.processor, self._halt.clock = time.thread_time() + processor, time.monotonic() + clock

    def tick(self) -> None:
        """Advance the engine's epoch, at which every running guest checks whether it must stop."""
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

    def enter(self, name: str, *args: int) -> GuestWork[int]:
        """Call an export. Closing the generator ends the call.

        Raises LimitExceeded for a trap or a halt, and any exception of `host`.
        """
        function, count = self._functions[name]
        call = GuestCall(self._store, function, count, args)
        try:
            while not self._poll(call):
                self._answer = (yield).encode("utf-8", "replace")
        finally:
            self._store.end_call()
        problem = call.take_problem()
        if problem is not None:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            raise LimitExceeded(self._halt.reason or _find_limit(problem))
        return call.result

    def _poll(self, call: GuestCall) -> bool:
        before = getattr(_entered, "guest", None)
        _entered.guest = self
        try:
            return call.poll()
        finally:
            _entered.guest = before

    def run(self, function: int, *args: int) -> GuestWork[int]:
        """Call a function of the program; arguments and result are handles."""
        argv = self._write(struct.pack(f"<{len(args)}i", *args)) if args else 0
        out = self._alloc(4)
        this = self.call("new_undefined")
        status = yield from self.enter("call_function", function, this, argv, len(args), out)
        if status:
            raise LimitExceeded("memory")  # the prelude catches every exception but this one
        (result,) = struct.unpack("<i", self._read(out, 4))
        self.free(this)
        self.call("qjs_free", out, 4)
        if argv:
            self.call("qjs_free", argv, 4 * len(args))
        return int(result)

    def apply(self, function: int, *texts: str) -> GuestWork[None]:
        """Call a function of the program with strings, and ignore its result."""
        handles = [self.string(text) for text in texts]
        self.free((yield from self.run(function, *handles)), *handles)

    def string(self, text: str) -> int:
        """Return a handle of a new string."""
        data = text.encode("utf-8", "replace")
        pointer = self._write(data)
        handle = self.call("new_string", pointer, len(data))
        self.call("qjs_free", pointer, len(data))
        if not handle:
            raise LimitExceeded("memory")
        return handle

    def text(self, handle: int) -> bytes:
        """Return the string behind a handle, cut at LONGEST bytes."""
        if self.call("get_string", handle):
            raise LimitExceeded("memory")
        length = self.call("qjs_last_len")
        data = self._read(self.call("qjs_last_ptr"), min(length & 0xFFFFFFFF, LONGEST)) if length else b""
        self.call("qjs_result_free")
        return data

    def measure_memory(self) -> int:
        """Return the bytes that the program's variables take, garbage included."""
        if self.call("compute_memory_usage"):
            raise LimitExceeded("crash")
        pointer = self.call("qjs_last_ptr")
        (size,) = struct.unpack("<q", self._read(pointer, 8))  # malloc_size, the first of the counters
        self.call("qjs_result_free")
        return int(size)

    def free(self, *handles: int) -> None:
        """Release handles."""
        for handle in handles:
            self.call("free_value", handle)

    def evaluate(self, code: str, how: str = "eval_code") -> GuestWork[int | None]:
        """Return a handle of a script's value; None if the script does not compile."""
        data = code.encode("utf-8", "replace")
        pointer, out = self._write(data), self._alloc(4)
        status = yield from self.enter(how, pointer, len(data), out)
        (handle,) = struct.unpack("<i", self._read(out, 4))
        self.call("qjs_free", pointer, len(data))
        self.call("qjs_free", out, 4)
        return None if status else int(handle)

    def function(self, name: str) -> int:
        """Return a handle of a function that calls the host."""
        data = name.encode()
        return self.call("new_function", self._write(data), len(data))

    def item(self, array: int, index: int) -> int:
        """Return a handle of an array's element."""
        out = self._alloc(4)
        if self.call("get_index", array, index, out):
            raise LimitExceeded("crash")
        return int(struct.unpack("<i", self._read(out, 4))[0])

    # --------------------------------------------------------------------------------------------------------- memory

    def has_room(self, size: int) -> bool:
        """Return whether this many bytes can be allocated at once: small variables take more than the count says."""
        pointer = self.call("qjs_alloc", size)
        if pointer:
            self.call("qjs_free", pointer, size)
        return bool(pointer)

    def memory(self) -> Iterator[bytes]:
        """Yield the memory between two calls in pieces of 64 KiB, without the stack, which is then empty.

        A copy of the whole memory would stop all threads while it is made.
        """
        base = self._locate(self._base, self.size)
        for start in range(0, self.size, _PAGE):
            yield ctypes.string_at(base + start, min(_PAGE, self.size - start))

    @property
    def size(self) -> int:
        """The bytes of the memory, which bound its copies and its variables."""
        return self._memory.data_len(self._store) - self._base

    def patch(self, change: Difference) -> None:
        """Apply a difference to the memory. Raises LimitExceeded if the memory limit is too small for it."""
        lacking = change.size - self.size
        if lacking > 0:
            try:
                self._memory.grow(self._store, -(-lacking // _PAGE))
            except wasmtime.WasmtimeError as problem:
                raise LimitExceeded("memory") from problem
        base = self._locate(self._base, change.size)
        for start, page in change.pages:
            ctypes.memmove(base + start, page, len(page))

    def _alloc(self, size: int) -> int:
        pointer = self.call("qjs_alloc", size)
        if not pointer:
            raise LimitExceeded("memory")
        return pointer

    def _write(self, data: bytes) -> int:
        pointer = self._alloc(len(data) or 1)
        ctypes.memmove(self._locate(pointer, len(data)), data, len(data))
        return pointer

    def _read(self, pointer: int, length: int) -> bytes:
        length &= 0xFFFFFFFF
        return ctypes.string_at(self._locate(pointer, length), length)

    def _locate(self, pointer: int, length: int) -> int:
        """Return the address of this part of the memory. Raises LimitExceeded if the memory ends before."""
        pointer &= 0xFFFFFFFF
        if pointer + length > self._memory.data_len(self._store):
            raise LimitExceeded("crash")
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + pointer

    # -------------------------------------------------------------------------------------------------------- imports

    def receive(self, pointer: int, length: int, result: int) -> None:
        """Pass the program's request to the host, which answers at once or later; the body of `wait`."""
        self._result = result
        self._answer = None
        try:
            answer = self._host(self._read(pointer, min(length & 0xFFFFFFFF, LONGEST)))
            self._answer = None if answer is None else answer.encode("utf-8", "replace")
        except LimitExceeded as problem:
            self._fail(problem.limit)
        except Exception as failure:  # the program stops here, and `enter` raises the failure
            self._failure = failure
            self._fail("crash")

    def _fail(self, limit: Limit) -> None:
        self.halt(limit)
        self._answer = b""

    def is_answered(self) -> bool:
        """Return whether the call of `wait` can return. If so, writes its result, -1 for a halted guest."""
        if self._answer is None:
            return False
        answer = make_i32(-1 if self._halt.reason else len(self._answer))
        ctypes.memmove(self._result, ctypes.byref(answer), ctypes.sizeof(answer))
        return True

    def take(self, pointer: int) -> None:
        """Write the answer into the guest's memory; the body of `take`."""
        try:
            if not pointer or self._answer is None:
                raise LimitExceeded("memory")
            ctypes.memmove(self._locate(pointer, len(self._answer)), self._answer, len(self._answer))
        except LimitExceeded as problem:
            self.halt(problem.limit)


def complete(work: GuestWork[T]) -> T:
    """Return the result of work that does not wait for the host."""
    try:
        next(work)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise LimitExceeded("crash")


def _in_guest(method: Callable[..., T]) -> Callable[..., T]:
    """Return the method of the guest that runs in the calling thread."""
    return lambda *args: method(_entered.guest, *args)


def _compile() -> _Compiled:
    settings = wasmtime.Config()
    settings.epoch_interruption = True
    settings.max_wasm_stack = STACK
    set_fiber_size(settings, FIBER)
    engine = wasmtime.Engine(settings)
    linker = wasmtime.Linker(engine)
    linker.define_func("host", "take", wasmtime.FuncType([wasmtime.ValType.i32()], []), _in_guest(Guest.take))
    callbacks = define_wait(linker, _in_guest(Guest.receive), _in_guest(Guest.is_answered))
    guest = load_module(engine, _read_wasm(), f"stack {STACK}")
    results = {
        export.name: len(export.type.results) for export in guest.exports if isinstance(export.type, wasmtime.FuncType)
    }
    native, glue = wasmtime.Module(engine, _HOST_FUNCTIONS), wasmtime.Module(engine, _GLUE)
    return _Compiled(engine, guest, linker, native, glue, results, callbacks)


def _find_limit(trap: str) -> Limit:
    """Return the limit that caused a trap: the engine checks neither its stack nor each allocation."""
    if "call stack exhausted" in trap or "out of bounds" in trap:
        return "recursion"
    return "memory" if "unreachable" in trap else "crash"


@dataclass(frozen=True, slots=True)
class Pristine:
    """A guest that has run only the prelude: the initial state of every sandbox, made once per process.

    `functions` are handles of the prelude's `run`, `await_`, `report`, `arm` and `assign`. They are valid in every
    guest with this memory or a later state of it.
    """

    compiled: _Compiled
    memory: bytes
    prelude: Difference
    """The difference between a fresh instance and this state."""
    functions: tuple[int, ...]
    engine: str
    """`compute_identity()`: the engine whose snapshots fit."""

    def most(self, memory: int) -> int:
        """Return the bytes of linear memory for a program that may use `memory`: with room for values in transit."""
        return 2**20 + len(self.memory) + memory + memory // 4 + 16 * _PAGE

    def guest(
        self, memory: int, host: Callable[[bytes], str | None], gates: str, change: Difference | None = None
    ) -> Guest:
        """Return a new guest in the pristine state, or with a change, in which the program may use `memory` bytes.

        `gates` is the argument of the prelude's `arm`. Raises LimitExceeded if the change needs more memory.
        """
        guest = Guest(self.compiled, self.most(memory), host)
        try:
            guest.patch(self.prelude)
            if change is not None:
                guest.patch(change)
            guest.call("set_memory_limit", min(memory, 0x7FFFFFFF))
            complete(guest.apply(self.functions[3], gates))
        except LimitExceeded:
            guest.close()
            raise
        return guest


def compute_identity() -> str:
    """Return the engine's name, with a digest of all that a snapshot depends on: wasm and prelude.

    Raises InvalidCantrip if the guest has other exports than this package was written for.
    """
    wasm = _read_wasm()
    check_guest(wasm)
    return f"quickjs-{hashlib.sha256(wasm + _read_prelude().encode()).hexdigest()[:32]}"


def _read_wasm() -> bytes:
    return files("quickjs_rs").joinpath("_guest.wasm").read_bytes()


def _read_prelude() -> str:
    return files(__package__).joinpath("prelude.js").read_text(encoding="utf-8")


_lock = threading.Lock()
_prepared: list[Pristine] = []


def _renew_lock() -> None:
    """Give a forked process a lock that no thread of its parent holds."""
    global _lock  # noqa: PLW0603  # the new process has one thread
    _lock = threading.Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_renew_lock)


def get_pristine() -> Pristine:
    """Return this process's pristine guest. The first call compiles the engine, or loads it from the cache."""
    with _lock:
        if not _prepared:
            _prepared.append(_prepare())
        return _prepared[0]


def _prepare() -> Pristine:
    engine = _compile()
    guest = Guest(engine, 256 * _PAGE, lambda _text: "")
    fresh = b"".join(guest.memory())
    make = complete(guest.evaluate(_read_prelude()))
    assert make is not None, "the prelude compiles"
    parts = complete(guest.run(make, guest.function("host")))
    functions = tuple(guest.item(parts, index) for index in range(5))
    memory = b"".join(guest.memory())
    guest.close()
    return Pristine(engine, memory, compute_difference(fresh, [memory], PAGE), functions, compute_identity())
