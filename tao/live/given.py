"""What a user gives a client, checked; what may be secret in it is never quoted."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Any

from yarl import URL

from tao.checks import InputError, shown

BEARER = "Bearer "


class Secret(str):
    """A string that does not show in a repr, and so in no table of a traceback's variables.

    >>> Secret("sk-123")
    '***'
    """

    def __repr__(self) -> str:
        return "'***'"


def address(url: str) -> URL:
    """The address without /v1, which users copy from OpenAI clients."""
    try:
        parsed = URL(url)
        port = parsed.port
    except (TypeError, ValueError):
        raise InputError("an address could not be read; it must look like http://127.0.0.1:8000") from None
    if parsed.user is not None or parsed.password is not None or parsed.query_string or parsed.fragment:
        raise InputError(
            f"the address of {shown(parsed.host)} holds a user, a password, a query or a fragment; "
            "leave these out, and pass an API key as key_env"
        )
    if parsed.scheme not in ("http", "https") or not parsed.host or not port:
        raise InputError(
            f"the address is {shown(url)}; it must look like http://127.0.0.1:8000 or https://..."
        )
    path = parsed.raw_path.rstrip("/").removesuffix("/v1").rstrip("/")
    return parsed.with_path(path, encoded=True) if path else parsed.origin()


def key(key: str | None, key_env: str | None) -> Secret | None:
    """The header's value."""
    if key is not None and key_env is not None:
        raise InputError("both key and key_env are given; give one of them")
    if key_env is not None:
        key = Secret(os.environ.get(key_env, ""))
        if not key:
            raise InputError("the environment variable that key_env names is not set; set it to the API key")
    if key is None:
        return None
    if not (isinstance(key, str) and key and visible(key)):
        raise InputError("the API key is empty or holds other characters than visible ASCII; check it")
    return Secret(BEARER + key)


def tls(ca: str | Path | None) -> ssl.SSLContext | bool:
    """What to trust: the private authority in that file, or what the machine trusts."""
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise InputError(f"ca is {shown(str(ca))}, which cannot be used ({error}); give a PEM file") from None


def visible(text: str) -> bool:
    """Whether a text may stand in a header."""
    return text.isascii() and text.isprintable() and " " not in text


def json_of(body: Any) -> bytes:
    """A request's body."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the request cannot be written as JSON ({error}); use plain dicts and lists"
        ) from None
