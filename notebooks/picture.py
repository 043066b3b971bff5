"""Take the README's picture anew: the first notebook's panel at session_177, in JupyterLab and Chromium.

python notebooks/picture.py        writes notebooks/panel.png
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from PIL import Image

from tao.bench import browser

TARGET = Path(__file__).with_name("panel.png")
COLORS = 128  # all of the palette, and smooth letters


def main() -> None:
    """Run the notebook, go one step forward, and keep the panel's pixels with few colors."""
    path = browser.chromium()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with browser.jupyterlab(home / "lab") as lab, browser.page_of(path, home / "browser") as page:
            browser.open_notebook(page, lab, "00_start_here.ipynb")
            page.set_viewport_size({"width": 1240, "height": 1100})
            browser.run_all(page)
            panel = page.locator(".tao-panel").first
            panel.get_by_role("button", name="Next", exact=True).press("Enter")
            panel.get_by_text("dp admits 7 of 8").wait_for()
            page.locator("body").press("Escape")  # leave the cell
            page.wait_for_timeout(1000)  # the figure follows the words
            pixels = panel.screenshot()
    image = Image.open(io.BytesIO(pixels)).convert("RGB")
    image.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(TARGET, optimize=True)
    print(f"{TARGET.name}: {image.width} x {image.height}, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
