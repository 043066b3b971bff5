"""Timings on this machine, of warm calls beside a yardstick; never part of a test."""

from tao.bench import importing as importing
from tao.bench import notebooks as notebooks
from tao.bench import planner as planner
from tao.bench import simulator as simulator
from tao.bench import solvers as solvers
from tao.bench.planner import SCALING as SCALING
from tao.bench.planner import Size as Size
from tao.bench.planner import costs as costs
from tao.bench.planner import crowded as crowded
from tao.bench.timing import median_s as median_s

# name of a bench -> its module, which has a function of its own name, `cells` and NOTE
BENCHES = {"planner": "planner", "simulator": "simulator", "import": "importing", "notebooks": "notebooks"}
