"""Many runs at once: the same results whatever carries them out, here, in threads or in other processes."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from tao import checks
from tao.checks import InputError, shown
from tao.jobs import Job, Outcome, carry_out

CHUNK = 8  # ours: runs that a worker takes at a time, half a second or so
LARGE_CHUNK = 32  # ours: where there are many draws, so that hardly one is drawn by two workers
POOLS = 3  # ours: so many pools in a row may break without finishing anything

Chunks = Sequence[Sequence[int]]
Report = Callable[..., None]


def run_all(
    jobs: Sequence[Job],
    executor: Executor | int | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[Outcome]:
    """Play all runs, in any order; their outcomes in the order of `jobs`.

    See `tao.sweep` for `executor` and `progress`. The first `InputError` ends it all.
    """
    chunks, done = _chunks(jobs), dict[int, Outcome]()

    def report(within: float = 0.0) -> None:
        if progress is not None:
            progress((len(done) + within) / len(jobs))

    if executor is None:
        _one_by_one(jobs, chunks, done, report)
    elif isinstance(executor, int):
        _own_processes(checks.whole(executor, "executor", 1), jobs, chunks, done, report)
    elif hasattr(executor, "submit"):
        lost = _spread(executor, jobs, chunks, done, report)
        _one_by_one(jobs, lost, done, report)
    else:
        raise InputError(
            f"executor is {shown(executor)}; it must be a concurrent.futures.Executor, a number of "
            "processes, or None"
        )
    return [done[k] for k in range(len(jobs))]


def _chunks(jobs: Sequence[Job]) -> list[list[int]]:
    """All runs in groups that one worker takes; runs of the same sessions are next to each other."""
    draws: dict[object, dict[object, list[int]]] = {}
    for k, job in enumerate(jobs):
        draws.setdefault(job.draw, {}).setdefault(job.fit, []).append(k)
    alike = [[k for fit in fits.values() for k in fit] for fits in draws.values()]
    size = LARGE_CHUNK if len(alike) >= CHUNK else CHUNK
    return [group[k : k + size] for group in alike for k in range(0, len(group), size)]


def _one_by_one(jobs: Sequence[Job], chunks: Chunks, done: dict[int, Outcome], report: Report) -> None:
    for chunk in chunks:
        for k in chunk:
            done[k] = carry_out(jobs[k], report)
            report()


def _own_processes(
    count: int, jobs: Sequence[Job], chunks: Chunks, done: dict[int, Outcome], report: Report
) -> None:
    """Spread over `count` new processes; where one dies, the rest over new ones."""
    idle = 0
    while chunks and idle < POOLS:
        before = len(done)
        # Spawned, not forked: a kernel of Jupyter has threads, which a fork does not survive.
        pool = ProcessPoolExecutor(count, get_context("spawn"), initializer=_die_when_interrupted)
        finished = False
        try:
            chunks = _spread(pool, jobs, chunks, done, report)
            finished = True
        finally:
            pool.shutdown(wait=finished, cancel_futures=True)
        idle = idle + 1 if len(done) == before else 0
    if chunks:
        raise InputError(
            f"{POOLS} pools of {count} processes in a row died before finishing any run (the next one: "
            f"{jobs[chunks[0][0]].where or 'the first'}); use fewer processes if memory is short, and in a "
            "script call this below `if __name__ == '__main__':`"
        )


def _die_when_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C in a terminal reaches the workers too


def _spread(
    executor: Executor, jobs: Sequence[Job], chunks: Chunks, done: dict[int, Outcome], report: Report
) -> list[Sequence[int]]:
    """Let an executor play the chunks; returns those that were lost with a worker."""
    pickled = isinstance(executor, ProcessPoolExecutor)  # others have their own ways to send code
    futures: dict[Any, Sequence[int]] = {}
    lost: list[Sequence[int]] = []
    try:
        for chunk in chunks:
            these = [jobs[k] for k in chunk]
            try:
                futures[executor.submit(_play, _packed(these) if pickled else these)] = chunk
            except BrokenExecutor:
                lost.append(chunk)
        for future in as_completed(list(futures)):
            try:
                outcomes = future.result()
            except Exception as e:
                if not _worker_died(e):
                    raise
                lost.append(futures[future])
            else:
                done.update(zip(futures[future], outcomes, strict=True))
                report()
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return lost


def _worker_died(e: Exception) -> bool:
    """True if a run was lost with its worker, and did not fail by itself; Dask names it by its own class."""
    return isinstance(e, BrokenExecutor | CancelledError) or type(e).__name__ == "KilledWorker"


def _packed(jobs: list[Job]) -> bytes:
    try:
        return pickle.dumps(jobs)
    except Exception as e:  # whatever a class of somebody's raises
        raise InputError(_unsendable(jobs, e)) from None


def _play(jobs: list[Job] | bytes) -> list[Outcome]:
    """Play some runs one after the other, in whichever process this is."""
    if isinstance(jobs, bytes):
        try:
            jobs = pickle.loads(jobs)
        except Exception as e:  # the class is not known here, or whatever its module raises
            raise InputError(_unsendable([], e)) from None
    assert not isinstance(jobs, bytes)
    return [carry_out(job) for job in jobs]


def _unsendable(jobs: list[Job], e: Exception) -> str:
    own = {job.arm.name: None for job in jobs if not isinstance(job.arm.policy, str)}
    return (
        f"{'policy ' + ', '.join(own) if own else 'a policy'} cannot be sent to another process ({e}); "
        "define it in a file and import it, or use threads or no executor"
    )
