"""The thread that drives Chromium, and the browser processes that the entities of this process share.

Playwright runs on asyncio alone, so it has an event loop in a thread of its own; the runtime's loop may be trio's. All
of a browser's objects live in that loop: sessions, tabs and proxies (`proxy.py`). A caller waits in a worker thread.

The thread starts Playwright's driver, a process that starts Chromium. Each holds a pipe to the one before it and ends
when that breaks: so a `kill -9` of this process ends all of them. The processes end `LINGER` seconds after the last
session, because the next entity needs them again soon; a browser that crashed is replaced at the next use.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from anyio.lowlevel import RunVar

from cantrip_actors.circle.browser.settings import Launch
from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.user_code.threads import get_limiter, run_in_thread

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

T = TypeVar("T")

LINGER: Final = 5.0
"""Seconds that the processes stay after the last session has closed."""

WAITING: Final = 256
"""Calls of browsers that wait at the same time: each holds a thread."""

ENDING: Final = 10.0
"""Seconds that a call which was cancelled, and the end of the program, have to end."""

NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The names of browsers that are searched on PATH, before Playwright's own is used."""

NOWHERE: Final = "http://127.0.0.1:9"
"""The proxy of the browser itself: an address that no proxy answers, because only sessions may reach the network."""

MISSING: Final = (
    "no browser can be used here: it needs Playwright (pip install 'cantrip-actors[browser]') and Chromium (Debian: "
    "chromium-headless-shell; or playwright install chromium --only-shell)"
)

_FEATURES: Final = (
    "WebTransport",
    "WebBluetooth",
    "WebUSB",
    "FileSystemAccessAPI",
    "Translate",
    "MediaRouter",
    "OptimizationHints",
    "DnsOverHttps",
    "HttpsUpgrades",
)
"""Features of Chromium that are off."""

_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "TZ", "FONTCONFIG_PATH", "XDG_RUNTIME_DIR")
"""The variables that a browser gets: keys of providers are not among them."""


CloseSession = Callable[[], Coroutine[Any, Any, None]]


class BrowserProcess:
    """A Chromium that sessions share. Used in the driver's loop alone."""

    def __init__(self, driver: Driver, launch: Launch) -> None:
        self._driver = driver
        self._launch = launch
        self._starting = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._users: set[CloseSession] = set()
        self._end: asyncio.TimerHandle | None = None

    async def acquire(self, close: CloseSession) -> Browser:
        """Return the running browser for a session, which `close` ends. Raises GateError if it cannot be started."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        async with self._starting:
            browser = self._browser
            if browser is None or not browser.is_connected():
                await self.stop()
                browser = await self._start()
            self._users.add(close)
        return browser

    def release(self, close: CloseSession) -> None:
        """Note that a session has ended; the processes end a little after the last one."""
        self._users.discard(close)
        if not self._users:
            self._end = asyncio.get_running_loop().call_later(LINGER, self._driver.stop_unused, self)

    async def close(self) -> None:
        """End the sessions that are left, and the processes."""
        for close in list(self._users):
            await close()
        await self.stop()

    async def _start(self) -> Browser:
        from playwright.async_api import Error, async_playwright

        launch = self._launch
        self._playwright = playwright = await async_playwright().start()
        try:
            self._browser = await playwright.chromium.launch(
                executable_path=launch.executable or find_browser(),
                args=_build_arguments(launch),
                proxy={"server": NOWHERE, "bypass": "<-loopback>"},
                chromium_sandbox=launch.sandbox and os.geteuid() != 0,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Error as error:
            await self.stop()
            raise GateError(f"{MISSING}: {_shorten(str(error))}") from error
        except BaseException:
            await self.stop()
            raise
        return self._browser

    async def stop_unused(self) -> None:
        """End the processes, unless a session uses them by now."""
        async with self._starting:
            if not self._users:
                await self.stop()

    async def stop(self) -> None:
        """End the processes."""
        playwright, self._playwright, self._browser = self._playwright, None, None
        if playwright is not None:
            await playwright.stop()  # the driver ends its browsers before it ends itself


def _shorten(text: str) -> str:
    return " ".join(text.split())[:500]


def find_browser() -> str | None:
    """Return the path of a Chromium on PATH; None for the one that Playwright has downloaded."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def _build_arguments(launch: Launch) -> list[str]:
    """Return the arguments that close every way to the network but a session's proxy, and limit memory."""
    return [
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # a page's hints resolve no name either
        "--disable-quic",
        "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--dns-prefetch-disable",
        "--no-pings",
        "--deny-permission-prompts",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--disable-features={','.join(_FEATURES)}",
        "--renderer-process-limit=8",
        f"--js-flags=--max-old-space-size={launch.memory}",
    ]


class Driver:
    """The thread, its event loop, and the browser processes in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._browsers: dict[Launch, BrowserProcess] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cantrip_actors browser", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    @property
    def is_running(self) -> bool:
        """Whether its thread runs: not after `stop`, and not in a forked process."""
        return self._thread.is_alive()

    def get_process(self, launch: Launch) -> BrowserProcess:
        """Return the browser process with these settings, which may not run yet."""
        return self._browsers.setdefault(launch, BrowserProcess(self, launch))

    def stop_unused(self, browser: BrowserProcess) -> None:
        """End a browser process that no session uses."""
        task = self._loop.create_task(browser.stop_unused())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> tuple[Future[T], Callable[[], object]]:
        """Start `work` in the thread; return the future of its result, and a function that cancels it."""
        ended: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def end(task: asyncio.Task[T]) -> None:
            problem = asyncio.CancelledError() if task.cancelled() else task.exception()
            if problem is None:
                ended.set_result(task.result())
            else:
                ended.set_exception(problem)

        def start() -> None:
            tasks.append(self._loop.create_task(work()))
            tasks[0].add_done_callback(end)

        self._loop.call_soon_threadsafe(start, context=Context())  # the caller's says which backend it runs on

        def cancel() -> None:
            tasks[0].cancel()

        return ended, lambda: self._loop.call_soon_threadsafe(cancel)

    def stop(self) -> None:
        """End all browser processes, and the thread."""
        if not self.is_running:
            return
        atexit.unregister(self.stop)

        async def stop_all() -> None:
            for browser in self._browsers.values():
                await browser.close()
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        ended, _ = self.submit(stop_all)
        wait([ended], ENDING)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ENDING)
        if not self._thread.is_alive():
            self._loop.close()


_lock = threading.Lock()
_driver: Driver | None = None
_waiting: RunVar[anyio.CapacityLimiter] = RunVar("cantrip_actors.circle.browser waiting")


def get_driver() -> Driver:
    """Return the driver of this process; the first call starts its thread."""
    global _driver  # noqa: PLW0603  # the lock guards it
    with _lock:
        if _driver is None or not _driver.is_running:
            _driver = Driver()
        return _driver


def _renew_lock() -> None:
    """Give a forked process a lock that no thread of its parent holds."""
    global _lock  # noqa: PLW0603  # the new process has one thread
    _lock = threading.Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_renew_lock)


async def run_in_driver(work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Return the result of an async function that runs in the driver's loop. If the call is cancelled, the function has
    ended when this raises.
    """
    ended, cancel = get_driver().submit(partial(work, *args))
    return await run_in_thread(ended.result, get_limiter(_waiting, WAITING), interrupt=cancel, grace=ENDING)
