"""What browser journeys have in common: the keyboard, patience, and findings of axe."""

from __future__ import annotations

from typing import Any

PANEL = ".tao-panel"


def press(page: Any, name: str, panel: str = PANEL) -> None:
    """Press a button of the panel with the keyboard."""
    page.locator(panel).get_by_role("button", name=name, exact=True).focus()
    page.keyboard.press("Enter")


def settle(page: Any) -> None:
    """Wait until the panel has not changed for a fifth of a second."""
    page.evaluate(
        """() => new Promise(done => {
            let timer = setTimeout(done, 200);
            const watch = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, 200); });
            watch.observe(document.querySelector('.tao-panel'),
                          {subtree: true, childList: true, attributes: true, characterData: true});
        })"""
    )


def violations(page: Any) -> list[str]:
    """Serious and critical findings of axe inside the panels."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, context=".tao-frame").response["violations"]
    return [
        f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found if v["impact"] in ("serious", "critical")
    ]


def choose_theme(page: Any, name: str) -> None:
    """Through the menu, as a user does."""
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.locator(".lm-Menu-item[data-type=submenu]").get_by_text("Theme", exact=True).hover()
    page.locator(".lm-Menu-item").get_by_text(name, exact=True).click()
    page.locator(f"body[data-jp-theme-name='{name}']").wait_for(state="attached")
    settle(page)


def violations_in_the_dark(page: Any) -> list[str]:
    """The same in the dark theme; the light one comes back."""
    choose_theme(page, "JupyterLab Dark")
    found = violations(page)
    choose_theme(page, "JupyterLab Light")
    return found
