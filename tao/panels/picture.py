"""The static picture of a chart: what a notebook shows before anything runs."""

from __future__ import annotations

import io

import altair as alt

LIMIT_BYTES = 40 * 1024  # per picture, so that committed notebooks stay small


def png(chart: alt.TopLevelMixin) -> bytes | None:
    """The chart as a small PNG (scale 1, at most `LIMIT_BYTES`); None without vl-convert or Pillow.

    None also when even 8 colors do not bring it under the limit.
    """
    try:
        import vl_convert  # noqa: F401
        from PIL import Image
    except ImportError:
        return None
    full = io.BytesIO()
    chart.save(full, format="png", scale_factor=1, ppi=72)
    image = Image.open(full).convert("RGB")
    for colors in (48, 16, 8):
        small = io.BytesIO()
        # not the median cut: it merges colors of which the legend has a few pixels
        few = image.quantize(colors, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(small, format="png", optimize=True)
        if small.tell() <= LIMIT_BYTES:
            return small.getvalue()
    return None
