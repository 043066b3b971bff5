"""Policies: TAO and its rivals behind one interface, and your own.

A policy is any object with `route`, `on_finish` and `tick` and two settings (see `Policy`); it sees a
`View` and never a tool's true duration or an answer's length. The built-in ones are compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tao.model import Params
from tao.policies import joint, routers, scored, thunder
from tao.policies.base import Compiled as Compiled
from tao.policies.base import Decision as Decision
from tao.policies.base import Pointers as Pointers
from tao.policies.base import Policy as Policy
from tao.state import DONE as DONE
from tao.state import HOLD as HOLD
from tao.state import NEW as NEW
from tao.state import REASONING as REASONING
from tao.state import TOOL as TOOL
from tao.state import WAITING as WAITING
from tao.view import View as View


def tao(params: Params) -> Compiled:
    """TAO: joint placement of the whole pool, whenever somebody in it could be let in."""
    tick = joint.exact_tick if params.planner == "exact" else joint.tao_tick
    return Compiled(params, tick_kernel=tick, gap_s=params.replan_gap_s, plans=True)


def previous(params: Params) -> Compiled:
    """TAO without readiness, decay and shared-prefix accounting (TAO paper, E5)."""
    return tao(replace(params, readiness=False, decay=False, share_prefix=False))


def oracle(params: Params) -> Compiled:
    """TAO with the true return times of tools (TAO paper, E5)."""
    return replace(tao(params), sees_tools=True)


def thunderagent(params: Params) -> Compiled:
    """ThunderAgent as its code does it: shortest first, every 5 s, blind to cache and tools."""
    return _periodic(params, thunder.code_route, thunder.code_on_finish, thunder.code_tick)


def thunderagent_paper(params: Params) -> Compiled:
    """ThunderAgent as its paper describes it: running tools count less the longer they take."""
    return _periodic(params, thunder.paper_route, thunder.paper_on_finish, thunder.paper_tick)


def thunderagent_dynamo(params: Params) -> Compiled:
    """ThunderAgent as NVIDIA Dynamo has built it in: exact counts, hysteresis."""
    return _periodic(params, thunder.dynamo_route, thunder.dynamo_on_finish, thunder.dynamo_tick)


def _periodic(params: Params, route: Any, on_finish: Any, tick: Any) -> Compiled:
    return Compiled(params, route, on_finish, tick, period_s=thunder.PERIOD_S, counts_streamed=True)


def vllm_rr(params: Params) -> Compiled:
    """vLLM production-stack: each request to the next node."""
    return Compiled(params, routers.vllm_rr_route, routers.leave)


def vllm_dplb(params: Params) -> Compiled:
    """vLLM's internal balancer: each request to the shortest queue, as seen 100 ms ago."""
    return Compiled(params, routers.vllm_dplb_route, routers.leave, lag_ps=routers.DPLB_LAG_PS)


def vllm_cache_aware(params: Params) -> Compiled:
    """vLLM's router: to where the longest prefix was sent before, unless the load is very uneven."""
    return Compiled(params, routers.vllm_cache_aware_route, routers.leave)


def sglang_cache_aware(params: Params) -> Compiled:
    """SGLang's gateway: the same rule, with its own thresholds."""
    return Compiled(params, routers.sglang_cache_aware_route, routers.leave)


def dynamo_kv(params: Params) -> Compiled:
    """NVIDIA Dynamo's KV router: least prefill and decode blocks, cached ones taken off."""
    kernels = (scored.dynamo_kv_route, scored.dynamo_kv_on_finish, scored.dynamo_kv_tick)
    return Compiled(params, *kernels, sees_cache=True)


def llmd(params: Params) -> Compiled:
    """llm-d's default scorers: short queue, free KV cache, prefix sent there before."""
    return Compiled(params, scored.llmd_route, routers.leave, lag_ps=scored.LLMD_LAG_PS)


def sticky(params: Params) -> Compiled:
    """Each session stays on the node that had the fewest sessions when it came; nobody waits (ours)."""
    return Compiled(params, routers.sticky_route)


def session_hash(params: Params) -> Compiled:
    """Each session stays on the node that its id hashes to (TokenCake's consistent hashing)."""
    return Compiled(params, routers.session_hash_route)


POLICIES: dict[str, Callable[[Params], Policy]] = {
    policy.__name__: policy
    for policy in (
        *(tao, previous, oracle, thunderagent, thunderagent_paper, thunderagent_dynamo),
        *(vllm_rr, vllm_dplb, vllm_cache_aware, sglang_cache_aware, dynamo_kv, llmd),
        *(sticky, session_hash),
    )
}
