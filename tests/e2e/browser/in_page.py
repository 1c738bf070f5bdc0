"""Functions that run in a page, in JavaScript, and what comes of them."""

from __future__ import annotations

from playwright.sync_api import Page

STEP_MILLISECONDS = 60_000


def run(page: Page, script: str, argument: object = None) -> object:
    """Run a function in the page and return what it returns; one that takes too long fails."""
    return page.evaluate(
        "([argument, patience]) => Promise.race([("
        + script
        + """)(argument), new Promise((_, reject) => setTimeout(
            () => reject(new Error("The page did not come to an end.")), patience))])""",
        [argument, STEP_MILLISECONDS],
    )


def outcome(page: Page, script: str, argument: object = None) -> dict[str, object]:
    """Run a function in the page that returns an object, and return its members."""
    members = run(page, script, argument)
    assert isinstance(members, dict)
    return members


def failure_of(page: Page, script: str, argument: object = None) -> tuple[str, str]:
    """Run what must fail in the page, and return name and reason of what it throws."""
    attempt = (
        f"async argument => {{ try {{ await ({script})(argument) }} "
        "catch (error) { return `${error.name} ${error.reason ?? error.message}` } return '' }"
    )
    name, _, reason = str(run(page, attempt, argument)).partition(" ")
    return name, reason
