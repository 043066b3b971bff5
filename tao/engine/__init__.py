"""The cluster, compiled: `play` goes on with a run until it stops for one of the reasons beside it."""

from tao.engine.layout import ENDLESS as ENDLESS
from tao.engine.layout import FINISHED as FINISHED
from tao.engine.layout import LAST_PS as LAST_PS
from tao.engine.layout import PAUSE as PAUSE
from tao.engine.layout import STUCK as STUCK
from tao.engine.layout import TABLE_FULL as TABLE_FULL
from tao.engine.layout import Engine as Engine
from tao.engine.layout import Machine as Machine
from tao.engine.layout import law_of as law_of
from tao.engine.loop import play as play
