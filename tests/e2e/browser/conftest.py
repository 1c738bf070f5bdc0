"""A page in headless Chromium, at the front door's origin."""

from __future__ import annotations

import mimetypes
import shutil
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from tests.e2e.browser.in_page import STEP_MILLISECONDS
from tests.e2e.browser.inside import Inside, servers
from tests.e2e.running_stack import RunningStack

FILES = Path(__file__).parent
PREFIX = "/browser/"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_IP = (socket.AF_INET, socket.AF_INET6)
LOOPBACK_ONLY = (
    "--allow-loopback-in-peer-connection",
    # Names in place of addresses are announced by multicast, which a loopback interface has not.
    "--disable-features=WebRtcHideLocalIpsWithMdns",
)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser that all tests here share; it ends with them, whatever becomes of them."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        arguments = [] if _has_an_address() else list(LOOPBACK_ONLY)
        launched = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield launched
        finally:
            launched.close()


@pytest.fixture
def page(browser: Browser, stack: RunningStack) -> Iterator[Page]:
    """The test page, with a door to the front door in `door`; its own faults fail the test."""
    origin = stack.url.rstrip("/")
    faults: list[str] = []
    # What routing serves counts as from the open Internet, whose pages may not reach 127.0.0.1.
    context = browser.new_context(base_url=origin, permissions=["local-network-access"])
    try:
        opened = context.new_page()
        opened.set_default_timeout(STEP_MILLISECONDS)
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.route(f"{origin}{PREFIX}**", _serve)
        opened.goto(f"{PREFIX}page.html")
        opened.evaluate(
            "key => { window.door = new FrontDoor(location.origin, key) }", stack.api_key
        )
        yield opened
    finally:
        context.close()
    assert faults == []


@pytest.fixture(scope="module")
def inside(stack: RunningStack) -> Iterator[Inside]:
    """Servers in a sandbox."""
    with servers(stack) as started:
        yield started


def _has_an_address() -> bool:
    """Say whether this machine has an address that others can reach."""
    found = [each for addresses in psutil.net_if_addrs().values() for each in addresses]
    given = [ip_address(each.address.partition("%")[0]) for each in found if each.family in _IP]
    return any(not (each.is_loopback or each.is_link_local) for each in given)


def _serve(route: Route) -> None:
    """Answer with a file that lies beside this one, as if the front door had it."""
    name = urlsplit(route.request.url).path.removeprefix(PREFIX)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    route.fulfill(path=FILES / name, content_type=kind)
