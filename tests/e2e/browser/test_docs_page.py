"""The page of the API in a browser: a user tries calls on it, and it reaches nothing else."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser.in_page import STEP_MILLISECONDS
from tests.e2e.running_stack import RunningStack


def test_calls_can_be_tried(browser: Browser, stack: RunningStack) -> None:
    context = browser.new_context()
    try:
        opened = context.new_page()
        opened.set_default_timeout(STEP_MILLISECONDS)
        faults: list[str] = []
        asked: list[str] = []
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on(
            "console", lambda said: faults.append(said.text) if said.type == "error" else None
        )
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(f"{stack.url.rstrip('/')}/docs")
        opened.fill("#key", (stack.state / "api-key").read_text().strip())
        assert '"state":"provisioned"' in tried(opened, "POST", "/v1/sandboxes", "201")
        assert '"host_id"' in tried(opened, "GET", "/v1/hosts", "200")
        assert faults == []
        places = {urlsplit(url).netloc for url in asked}
        assert places == {urlsplit(stack.url).netloc}
    finally:
        context.close()


def tried(page: Page, method: str, path: str, status: str) -> str:
    """Send what an operation's form has, and return what is shown once it is whole."""
    form = page.locator(f'form[data-method="{method}"][data-path="{path}"]')
    form.locator("xpath=..").locator("summary").click()
    form.locator("button").click()
    shown = form.locator("pre")
    expect(shown).to_contain_text("}", timeout=STEP_MILLISECONDS)
    text = shown.inner_text()
    assert text.startswith(status), text
    return text
