"""Real vLLM servers, and simulated ones that look the same from outside (extra `live`)."""

try:
    from tao.live.client import Client as Client
    from tao.live.client import watch as watch
    from tao.live.faults import Failed as Failed
    from tao.live.faults import LiveError as LiveError
    from tao.live.faults import Retryable as Retryable
    from tao.live.nodes import doctor as doctor
    from tao.live.nodes import probe as probe
    from tao.live.stream import Reply as Reply
except ModuleNotFoundError as error:
    raise ImportError(f"{error}; tao.live needs: pip install 'tao-scheduler[live]'") from None
