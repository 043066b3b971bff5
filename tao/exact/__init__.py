"""The exact planner: the best plan on true token sizes, and the proof that there is none better (ours).

The paper's DP rounds sizes to quanta so that it can look at every state; what rounding loses, nobody
tells. Here nothing is rounded, and most states are never looked at, because the parts of the value are
settled one after the other:

1. *Credit, node by node* (`knapsack`). Where every session has its cache on one node, the nodes do not
   compete: each fills its room with the sessions that keep most cache per token of room, a knapsack.
2. *Credit, where nodes compete* (`prices`). A session that two nodes want gets a price, so that the node
   with the better alternative lets it go. What the nodes earn at these prices, and the prices, are
   together more than any plan can have (Fisher, Jaikumar and Van Wassenhove 1986). Mostly the plan has
   just as much, which proves it; otherwise the search branches on a session (`search`).
3. *The rest* (`supports`, `deal`, `fill`, `pack`). Sessions without cache fill the room that is left: as
   many ready ones as possible, then as many tokens (Martello and Toth 1990, chapters 2 and 6).

Four sessions and two nodes of 10,000 tokens. Both nodes hold a prefix of `b` and want it; n1 loses more
without it, so n0 takes `a` instead, and `c` and `d`, which have no cache, share what is left:

>>> import numpy as np
>>> demand, free = np.array([6000, 7000, 4000, 3000]), np.array([10_000, 10_000])
>>> credit = np.array([[5000, 0], [6000, 6000], [0, 0], [0, 0]])
>>> ready, tokens = np.array([0, 0, 1, 0]), demand - 512
>>> prefer = np.array([[0, 1], [0, 1], [0, 1], [0, 1]])  # all fit on both nodes
>>> choice, bound, proven, steps = solve(demand, free, credit, ready, tokens, prefer, False, 1000)
>>> choice.tolist(), bound.tolist(), int(proven)  # nobody can keep more than 11,000
([0, 1, 0, 1], [11000, 1, 17952], 3)
"""

from tao.exact.fill import as_one_room as as_one_room
from tao.exact.fill import beside as beside
from tao.exact.pack import Problem as Problem
from tao.exact.search import root as root
from tao.exact.search import solve as solve
