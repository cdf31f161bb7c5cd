"""The one seam to the private interfaces of the JavaScript engine: calls of wasmtime-py, and exports of the guest.

Asynchronous calls, which let a program wait for a gate without a thread, have no public interface in wasmtime-py. And
the guest's exports belong to quickjs-rs, whose own host layer this package does not use. pyproject.toml pins both.

Importing this file compares all that it uses of wasmtime with what it was written for, and `check_guest` does that for
the guest. A difference raises InvalidCantrip, which names the interface that has changed, when the first cantrip with
JavaScript needs the engine: nothing is called with wrong arguments.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import wasmtime
from wasmtime import _ffi as ffi

from cantrip_actors.terms.errors import InvalidCantrip

PARAMETERS: Final[Mapping[str, int]] = {
    "wasmtime_call_future_delete": 1,
    "wasmtime_call_future_poll": 1,
    "wasmtime_config_async_stack_size_set": 2,
    "wasmtime_error_new": 1,
    "wasmtime_func_async_callback_t": 8,
    "wasmtime_func_async_continuation_callback_t": 1,
    "wasmtime_func_call_async": 8,
    "wasmtime_linker_define_async_func": 9,
    "wasmtime_store_epoch_deadline_callback": 4,
}
"""The functions, and the types of callbacks, of `wasmtime._ffi`, with the numbers of their parameters."""

TYPES: Final = ("wasm_trap_t", "wasmtime_context_t", "wasmtime_error_t", "wasmtime_val_t")
"""Other types of `wasmtime._ffi`."""

MEMBERS: Final[Mapping[str, Sequence[str]]] = {
    "Config": ("ptr",),
    "Func": ("_func",),
    "FuncType": ("ptr",),
    "Linker": ("ptr",),
    "Store": ("_context", "ptr"),
    "Trap": ("_from_ptr",),
    "WasmtimeError": ("_from_ptr",),
}
"""The members of wasmtime's classes that it does not document. `_func` is an attribute of instances."""

GUEST: Final = "647ab11ae29cc6d39a6d17d3aa1e7a6a0b5fb9c44b4864475a18bc644f926050"
"""The digest of the guest of quickjs-rs 0.2.6, for whose exports `engine.py` was written."""


def check_host() -> None:
    """Raise InvalidCantrip for the first part of wasmtime that differs from what this file was written for."""
    for name, count in PARAMETERS.items():
        part = getattr(ffi, name, None)
        code, types = getattr(part, "__code__", None), getattr(part, "_argtypes_", None)
        parameters = code.co_argcount if code is not None else len(types or ())
        _compare("wasmtime", name, f"{count} parameters", f"{parameters} parameters" if parameters else None)
    for name in TYPES:
        _compare("wasmtime", name, "a type", "a type" if hasattr(ffi, name) else None)
    fields = [name for name, *_ in getattr(ffi.wasmtime_val_t, "_fields_", ())]
    _compare("wasmtime", "wasmtime_val_t", "the fields kind, of", f"the fields {', '.join(fields)}")
    for kind, names in MEMBERS.items():
        owner = getattr(wasmtime, kind, object)
        members = {*dir(owner), *getattr(owner, "__annotations__", ())}
        for name in names:
            _compare("wasmtime", f"{kind}.{name}", "a member", "a member" if name in members else None)


def check_guest(wasm: bytes) -> None:
    """Raise InvalidCantrip for another guest than the one that this package was written for."""
    digest = hashlib.sha256(wasm).hexdigest()
    _compare("quickjs-rs", "_guest.wasm", f"the digest {GUEST[:16]}", f"the digest {digest[:16]}")


def _compare(package: str, name: str, expected: str, came: str | None) -> None:
    if came != expected:
        raise InvalidCantrip(
            f'medium "javascript": {package} {version(package)} has changed its private interface "{name}": expected '
            f"{expected}, got {came or 'nothing'}; install the version that this package names: "
            'pip install "cantrip-actors[js]"'
        )


check_host()

# ------------------------------------------------------------------------------------------------------------- the host

_CONTINUE: Final = 0
_I32: Final = 0

_Deadline: Final = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.POINTER(ffi.wasmtime_context_t),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint8),
)
_KEEP: Final = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))


def make_deadline(must_stop: Callable[[], bool]) -> Any:
    """Return a callback for `set_deadline`, which stops the guest if `must_stop()`. The caller that sets it has to keep
    a reference to it.
    """

    def check(_context: Any, _data: Any, delta: Any, kind: Any) -> int:
        if must_stop():
            error = ffi.wasmtime_error_new(ctypes.create_string_buffer(b"halted"))
            return ctypes.cast(error, ctypes.c_void_p).value or 0
        delta[0] = 1
        kind[0] = _CONTINUE
        return 0

    return _Deadline(check)


def set_fiber_size(settings: wasmtime.Config, size: int) -> None:
    """Set the bytes of the stacks on which asynchronous calls run."""
    ffi.wasmtime_config_async_stack_size_set(settings.ptr(), size)


class GuestStore(wasmtime.Store):
    """A store that ends its call in progress before it is closed, also when the garbage collector frees both."""

    call: Any = None

    def set_deadline(self, deadline: Any) -> None:
        """Have the callback of `make_deadline` decide whenever the engine's epoch advances."""
        ffi.wasmtime_store_epoch_deadline_callback(self.ptr(), deadline, None, _KEEP)
        self.set_epoch_deadline(1)

    def get_function(self, function: wasmtime.Func) -> Any:
        """Return what `GuestCall` calls."""
        return function._func  # noqa: SLF001  # that is what this file is for

    def end_call(self) -> None:
        """End the call in progress."""
        call, self.call = self.call, None
        if call is not None:
            ffi.wasmtime_call_future_delete(call)

    def close(self) -> None:
        """Release the store."""
        self.end_call()
        super().close()


class GuestCall:
    """A call of a guest's function on a stack of its own. The store holds it until `GuestStore.end_call`."""

    __slots__ = ("_error", "_held", "_result", "_trap", "future")

    def __init__(self, store: GuestStore, function: Any, count: int, args: Sequence[int]) -> None:
        cells = (ffi.wasmtime_val_t * max(len(args), 1))()
        for index, value in enumerate(args):
            cells[index] = make_i32(value)
        self._result = (ffi.wasmtime_val_t * 1)()
        self._trap, self._error = ctypes.POINTER(ffi.wasm_trap_t)(), ctypes.POINTER(ffi.wasmtime_error_t)()
        self._held = cells, ctypes.byref(self._trap), ctypes.byref(self._error)
        self.future = store.call = ffi.wasmtime_func_call_async(
            store._context(),  # noqa: SLF001
            ctypes.byref(function),
            cells,
            len(args),
            self._result,
            count,
            self._held[1],
            self._held[2],
        )

    def poll(self) -> bool:
        """Run the guest until it waits for the host or ends; return whether it has ended."""
        return bool(ffi.wasmtime_call_future_poll(self.future))

    def take_problem(self) -> str | None:
        """Return the text of the error or trap that ended the call, and free it; None if it ended well."""
        if self._error:
            return str(wasmtime.WasmtimeError._from_ptr(self._error))  # noqa: SLF001
        return str(wasmtime.Trap._from_ptr(self._trap)) if self._trap else None  # noqa: SLF001

    @property
    def result(self) -> int:
        """The function's result."""
        return int(self._result[0].of.i32)


def make_i32(number: int) -> Any:
    """Return a number as a value of the engine."""
    value: Any = ffi.wasmtime_val_t(kind=_I32)
    value.of.i32 = number
    return value


def define_wait(
    linker: wasmtime.Linker, receive: Callable[[int, int, int], None], is_answered: Callable[[], bool]
) -> Any:
    """Define the import `host.wait(pointer, length) -> length`, which suspends its guest until `is_answered()`.

    `receive` gets the arguments, and the address to which the result is written. The returned value has to be held.
    """

    @ffi.wasmtime_func_async_continuation_callback_t  # type: ignore[untyped-decorator]
    def proceed(_env: Any) -> bool:
        return is_answered()

    @ffi.wasmtime_func_async_callback_t  # type: ignore[untyped-decorator]
    def wait(
        _env: Any, _caller: Any, args: Any, _count: int, results: Any, _result_count: int, _trap: Any, then: Any
    ) -> None:
        receive(args[0].of.i32, args[1].of.i32, ctypes.addressof(results.contents))
        then[0].callback = proceed

    waits = wasmtime.FuncType([wasmtime.ValType.i32()] * 2, [wasmtime.ValType.i32()])
    error = ffi.wasmtime_linker_define_async_func(
        linker.ptr(), *_encode_name("host"), *_encode_name("wait"), waits.ptr(), wait, None, _KEEP
    )
    if error:
        raise wasmtime.WasmtimeError._from_ptr(error)  # noqa: SLF001
    return wait, proceed


def _encode_name(name: str) -> tuple[Any, int]:
    return ctypes.create_string_buffer(name.encode()), len(name)
