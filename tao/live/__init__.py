"""Real vLLM servers, and simulated ones that look the same from outside (extra `live`)."""

from importlib import import_module

_HOMES = dict.fromkeys(("Client", "watch"), "client")
_HOMES |= dict.fromkeys(("Connection", "connect"), "connection")
_HOMES |= dict.fromkeys(("Failed", "LiveError", "Retryable"), "faults")
_HOMES |= dict.fromkeys(("doctor", "probe"), "nodes")
_HOMES |= dict.fromkeys(("Run", "run"), "runs")
_HOMES |= dict.fromkeys(("Ask", "Function", "Program", "Sleep", "replay"), "agents")
_HOMES |= {"Reply": "stream", "Plan": "double.serve"}


def __getattr__(name: str) -> object:
    """Imported when first asked for: the simulated servers need nothing of the client."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tao.live' has no attribute {name!r}")
    try:
        return getattr(import_module(f"tao.live.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; tao.live needs: pip install 'tao-scheduler[live]'") from None
