"""Altair, imported without what takes most of its time: the parsers of addresses in jsonschema.

They serve its check of the format `iri`, which nothing here asks for, and take two seconds to build. Charts
and panels import this module first.
"""

from __future__ import annotations

import sys

SLOW = "rfc3987_syntax"

_first = SLOW not in sys.modules
if _first:
    sys.modules[SLOW] = None  # type: ignore[assignment] # reads as "not installed", which jsonschema allows
try:
    import altair as altair
finally:
    if _first:
        del sys.modules[SLOW]
