"""What browser journeys have in common: the keyboard, patience, and findings of axe."""

from __future__ import annotations

from typing import Any

PANEL = ".tao-panel"


def press(page: Any, name: str) -> None:
    """Press a button of the panel with the keyboard."""
    page.locator(PANEL).get_by_role("button", name=name, exact=True).focus()
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
    """Serious and critical findings of axe inside the panel."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, context=PANEL).response["violations"]
    return [
        f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found if v["impact"] in ("serious", "critical")
    ]
