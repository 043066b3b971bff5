"""A node with vLLM's own prefix cache: whole blocks of tokens, known by the hash of all tokens up to them.

As in vLLM V1, a block is shared by all requests that begin alike, is found as soon as its tokens are
scheduled, and stays when nobody uses it any more until it is the one unused longest, a request's last
blocks before its first ones. Blocks without a hash (not full yet) are used again first.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from tao.node import Request, SimNode, _Batch
from tao.profiles import Profile


def block_hashes(tokens: Sequence[int], block: int, salt: str = "") -> list[int]:
    """One hash per full block, of all tokens from the start to its end; a salt keeps caches apart.

    >>> a, b = block_hashes([1, 2, 3, 4, 5], 2), block_hashes([1, 2, 3, 9], 2)
    >>> len(a), a[0] == b[0], a[1] == b[1], a == block_hashes([1, 2, 3, 4], 2, "other")
    (2, True, False, False)
    """
    raw, size, last = array("Q", tokens).tobytes(), 8 * block, salt.encode()
    hashes = []
    for end in range(size, len(raw) + 1, size):
        last = blake2b(last + raw[end - size : end], digest_size=8).digest()
        hashes.append(int.from_bytes(last, "big"))
    return hashes


@dataclass(slots=True, eq=False)
class BlockRequest(Request):
    """A request of which all tokens are known, those of the answer too; `hashes` from `block_hashes`."""

    hashes: list[int] = field(default_factory=list)
    priority: int = 0  # lower goes first
    reads: bool = True  # whether it uses what is cached
    reports: bool = False  # whether the cached blocks that it uses count as stored
    held: list[tuple[int | None, bool]] = field(default_factory=list)  # (hash, whether it is the only copy)


# ("stored", request, from block, to block), ("removed", hash, 0, 0) or ("cleared", 0, 0, 0)
Change = tuple[str, BlockRequest | int, int, int]


class Blocks:
    """The blocks of a node: free, idle (reusable), or used by so many requests.

    `log`, if it is a list, gets what enters and leaves the cache.

    >>> blocks, r = Blocks(4, 2), BlockRequest(0, 5, 1, 0, hashes=[7, 8])
    >>> blocks.allocate(r, 5), blocks.unused, blocks.release(r), blocks.match([7, 8, 9]), blocks.unused
    (True, 1, None, 4, 4)
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size, self.free = count, size, count
        self.idle: dict[int, None] = {}  # by hash, in order of last use
        self.users: dict[int, int] = {}
        self.log: list[Change] | None = None

    @property
    def unused(self) -> int:
        """Blocks that no request uses."""
        return self.free + len(self.idle)

    def match(self, hashes: Sequence[int]) -> int:
        """How many tokens at the start are cached."""
        known = 0
        while known < len(hashes) and (hashes[known] in self.users or hashes[known] in self.idle):
            known += 1
        return known * self.size

    def fits(self, r: BlockRequest, hit: int, tokens: int) -> bool:
        """Whether a request could have `tokens` tokens, of which the first `hit` are cached."""
        cached = hit // self.size
        resting = sum(h in self.idle for h in r.hashes[:cached])
        return -(-tokens // self.size) - cached <= self.unused - resting

    def take(self, r: BlockRequest, hit: int) -> None:
        """The request uses the cached blocks of its first `hit` tokens."""
        for h in r.hashes[: hit // self.size]:
            self.idle.pop(h, None)
            self.users[h] = self.users.get(h, 0) + 1
            r.held.append((h, True))
        if self.log is not None and r.reports and hit:
            self.log.append(("stored", r, 0, hit // self.size))

    def allocate(self, r: BlockRequest, tokens: int) -> bool:
        """Blocks for the first `tokens` tokens; False, and nothing changes, if there are too few."""
        need = -(-tokens // self.size) - len(r.held)
        if need > self.unused:
            return False
        evicted = max(need - self.free, 0)
        for _ in range(evicted):
            oldest = next(iter(self.idle))
            del self.idle[oldest]
            if self.log is not None:
                self.log.append(("removed", oldest, 0, 0))
        self.free -= need - evicted
        r.held += [(None, True)] * need
        start, stop = r.computed // self.size, min(tokens // self.size, len(r.hashes))
        if self.log is not None and start < stop:
            self.log.append(("stored", r, start, stop))
        for k in range(start, stop):
            only = r.hashes[k] not in self.users and r.hashes[k] not in self.idle
            r.held[k] = r.hashes[k], only
            if only:
                self.users[r.hashes[k]] = 1
        return True

    def reset(self) -> bool:
        """Forget all that is cached; False, and nothing changes, while a request uses a block."""
        if self.unused < self.count:
            return False
        self.free, self.idle = self.count, {}
        if self.log is not None:
            self.log.append(("cleared", 0, 0, 0))
        return True

    def release(self, r: BlockRequest) -> None:
        """Give back all blocks of a request, the last one as the first to be evicted."""
        for h, only in reversed(r.held):
            if h is not None and only:
                self.users[h] -= 1
                if not self.users[h]:
                    del self.users[h]
                    self.idle[h] = None
            elif h is None or h in self.users:
                self.free += 1
            else:  # a copy: it stands for the other one, which may be gone by now
                self.free += h in self.idle
                self.idle.pop(h, None)
                self.idle[h] = None
        r.held.clear()


class BlockNode(SimNode):
    """A `SimNode` over `Blocks`; like vLLM it keeps one block of `kv_tokens` for itself.

    >>> from tao.profiles import PROFILES
    >>> BlockNode(PROFILES["qwen3-32b-2xh100"], 1600).capacity_tokens
    1584
    """

    def __init__(self, profile: Profile, kv_tokens: int) -> None:
        count = kv_tokens // profile.block_tokens - 1
        super().__init__(profile, count * profile.block_tokens)
        self.blocks = Blocks(count, profile.block_tokens)

    @property
    def free_tokens(self) -> int:
        """Tokens in blocks that no request uses, reusable ones included."""
        return self.blocks.unused * self.blocks.size

    def _known(self, r: Request) -> int:
        assert isinstance(r, BlockRequest)
        return self.blocks.match(r.hashes) if r.reads else 0

    def _fits(self, r: Request, hit: int, chunk: int, batch: _Batch) -> bool:
        assert isinstance(r, BlockRequest)
        return self.blocks.fits(r, hit, hit + chunk)

    def _pin(self, r: Request, hit: int) -> None:
        assert isinstance(r, BlockRequest)
        self.blocks.take(r, hit)
        r.computed = hit
        self.pinned_tokens += hit

    def _make_room(self, r: Request, chunk: int, batch: _Batch) -> bool:
        assert isinstance(r, BlockRequest)
        return self.blocks.allocate(r, r.computed + chunk)

    def _release(self, r: Request) -> None:
        assert isinstance(r, BlockRequest)
        self.running.remove(r)
        self.pinned_tokens -= r.computed
        self.blocks.release(r)
