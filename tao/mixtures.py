"""Mixtures of lognormals for durations and counts: fitted by EM, the same every time, with a limit where
many values end (a timeout), and the distance between two samples."""

from __future__ import annotations

from math import erfc, exp, log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tao.workload_params import Mixture

Values = npt.NDArray[Any]

NEAR = 1.025  # ours: clocks spread a timeout of 30 s over 29.4 to 30.2 s
BEYOND = 500  # ours: one value in so many may lie beyond the limit, as where a kill took long
CROWDED = 5.0  # ours: how much denser values must lie at a limit than below it
MANY = 10  # ours: fewer values at their end are no sign of a limit
ENOUGH_FOR_MORE = 50  # ours: fewer values get a single lognormal
LEAST_SIGMA = 0.05  # ours: below it one of several components would close in on one repeated value
NOTHING = -16.1  # exp(NOTHING) is 0 as seconds to the microsecond, and as tokens
MAX_STEPS, TRIAL_STEPS = 500, 25  # ours: of EM, and of each start before the best goes on
SETTLED = 1e-8  # ours: EM ends when the log-likelihood of a value rises by less


class Fit(NamedTuple):
    """A mixture (by median), and the log-likelihood after each step of EM, up to a constant."""

    mixture: Mixture
    likelihoods: tuple[float, ...]


class _Data(NamedTuple):
    z: Values  # distinct logarithms below the limit
    n: Values  # how often each
    end: float  # the logarithm of the limit
    ended: float  # how many values are at or above it


def limit_of(values: Values) -> tuple[float, float] | None:
    """Where many values end, as at a timeout: (from where on they count as cut, the limit); None: nowhere.

    >>> limit_of(np.array([*range(1, 60), *[60.0] * 20]))
    (58.53658536585366, 60.0)
    """
    x = np.sort(values[values > 0])
    if len(x) < MANY:
        return None
    tops = np.unique(x[-1 - len(x) // BEYOND :])
    near = np.searchsorted(x, tops, "right") - np.searchsorted(x, tops / NEAR)
    top, least = float(tops[near.argmax()]), float(tops[near.argmax()]) / NEAR
    below = int(((x >= top / 1.25) & (x < least)).sum())  # ours: the stretch to compare with
    if (x == np.round(x)).all():
        ratio = (np.floor(top) - np.ceil(least) + 1) / max(np.ceil(least) - np.ceil(top / 1.25), 1)
    else:
        ratio = (top - least) / (least - top / 1.25)
    if near.max() < MANY or near.max() < CROWDED * ratio * below:
        return None
    return least, float(np.median(x[x >= least]))


def fit(values: Values, least_cut: float | None = None, components: int = 2) -> Fit:
    """The mixture of at most that many lognormals under which `values` (0 or more) are most likely.

    Values from `least_cut` on only tell that they are at least that. Zeros become a component of their own.
    More components must be worth their parameters (Schwarz's criterion).

    >>> [(round(w, 2), round(exp(mu))) for w, mu, _ in fit(np.array([1.0, 2, 3, 100, 200] * 20)).mixture]
    [(0.6, 2), (0.4, 141)]
    """
    positive = values[values > 0]
    zeros = 1 - len(positive) / len(values)
    found: list[tuple[float, float, float]] = [(zeros, NOTHING, 0.0)] if zeros else []
    likelihoods: tuple[float, ...] = ()
    if len(positive):
        end = log(least_cut) if least_cut else np.inf
        z, n = np.unique(np.log(positive), return_counts=True)
        data = _Data(z[z < end], n[z < end].astype(float), end, float(n[z >= end].sum()))
        if len(z) == 1 or not len(data.z):
            parts: Values = np.array([[1.0], [z[0]], [0.0]])
        else:
            most = components if len(positive) >= ENOUGH_FOR_MORE else 1
            tried = [_fitted(data, k) for k in range(1, most + 1)]
            price = log(len(positive)) / 2
            best = max(range(most), key=lambda k: tried[k][1][-1] - 3 * k * price)
            parts, likelihoods = tried[best]
        order = np.argsort(parts[1], kind="stable")
        found += [(w * (1 - zeros), mu, sigma) for w, mu, sigma in parts[:, order].T.tolist() if w > 0]
    return Fit(tuple(found), likelihoods)


def _fitted(data: _Data, components: int) -> tuple[Values, tuple[float, ...]]:
    tries = [_climb(data, start, TRIAL_STEPS) for start in _starts(data, components)]
    best = max(tries, key=lambda f: f[1][-1])
    parts, more = _climb(data, best[0], MAX_STEPS)
    return parts, best[1] + more


def _starts(data: _Data, components: int) -> list[Values]:
    """Rows (weight, mu, sigma) of the components: parts from low to high, or narrow ones within wide ones."""
    z = np.repeat(data.z, data.n.astype(int))
    spread = max(float(z.std()), LEAST_SIGMA)
    if components == 1:
        return [np.array([[1.0], [z.mean()], [spread]])]
    even = np.full(components, 1 / components)
    narrow = spread * np.array([1 / 3, 1.5, 0.1])[:components]
    starts = [np.array([even, np.full(components, np.median(z)), narrow])]
    for skew in (0.5, 1.0, 2.0):
        cuts = (len(z) * (np.arange(1, components) / components) ** skew).astype(int)
        parts = [part if len(part) else z for part in np.split(z, cuts)]
        spreads = [max(float(part.std()), LEAST_SIGMA) for part in parts]
        starts.append(np.array([even, [part.mean() for part in parts], spreads]))
    return starts


def _climb(data: _Data, parts: Values, steps: int) -> tuple[Values, tuple[float, ...]]:
    """EM from `parts`: the components after it, and the log-likelihood before each step."""
    likelihoods: list[float] = []
    least_gain = SETTLED * (data.n.sum() + data.ended)
    for _ in range(steps):
        likelihood, after = _step(data, parts)
        likelihoods.append(likelihood)
        if len(likelihoods) > 1 and likelihood - likelihoods[-2] < least_gain:
            break
        parts = after
    return parts, tuple(likelihoods)


def _step(data: _Data, parts: Values) -> tuple[float, Values]:
    """The log-likelihood of `parts`, and better ones; a value that was cut is taken at its moments."""
    weight, mu, sigma = parts
    with np.errstate(divide="ignore"):
        log_weight = np.log(weight)
    log_p = (log_weight - np.log(sigma * sqrt(2 * pi)))[:, None]
    log_p = log_p - 0.5 * ((data.z - mu[:, None]) / sigma[:, None]) ** 2
    most = log_p.max(axis=0)
    total = most + np.log(np.exp(log_p - most).sum(axis=0))
    mine = np.exp(log_p - total) * data.n
    likelihood = float((total * data.n).sum())
    tails = np.array([_tail((data.end - m) / s) for m, s in zip(mu, sigma, strict=True)])
    beyond, mean, variance = tails.T
    cut = np.zeros(len(mu))
    if data.ended:
        chance = max(float((weight * beyond).sum()), 1e-300)
        likelihood += data.ended * log(chance)
        cut = data.ended * weight * beyond / chance
    count = mine.sum(axis=1) + cut
    safe = np.maximum(count, 1e-300)
    expected = mu + sigma * mean
    new_mu = ((mine * data.z).sum(axis=1) + cut * expected) / safe
    squares = (mine * (data.z - new_mu[:, None]) ** 2).sum(axis=1)
    squares += cut * (sigma**2 * variance + (expected - new_mu) ** 2)
    new_sigma = np.maximum(np.sqrt(squares / safe), LEAST_SIGMA if len(mu) > 1 else 1e-9)
    gone = count < 1e-9
    return likelihood, np.array(
        [count / count.sum(), np.where(gone, mu, new_mu), np.where(gone, sigma, new_sigma)]
    )


def _tail(a: float) -> tuple[float, float, float]:
    """Of a standard normal above `a`: its weight, mean and variance there."""
    beyond = 0.5 * erfc(a / sqrt(2)) if a < 37 else 0.0  # ours: what float64 can hold
    if not beyond:
        return 0.0, 0.0, 0.0
    mean = exp(-0.5 * a * a) / sqrt(2 * pi) / beyond
    return beyond, mean, max(1 + a * mean - mean * mean, 0.0)


def ks_distance(a: Values, b: Values) -> float:
    """The largest difference between the shares of two samples up to any value (Kolmogorov, Smirnov).

    >>> ks_distance(np.array([1, 2]), np.array([2, 3]))
    0.5
    """
    at = np.concatenate([a, b])
    up_to = [np.searchsorted(np.sort(x), at, "right") / len(x) for x in (a, b)]
    return float(np.abs(up_to[0] - up_to[1]).max())
