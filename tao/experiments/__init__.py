"""The TAO paper's experiments as named, seeded presets: what it reports beside what our simulator says."""

from tao.experiments.figures import Figure as Figure
from tao.experiments.figures import reported as reported
from tao.experiments.presets import BASELINES as BASELINES
from tao.experiments.presets import GRID as GRID
from tao.experiments.presets import PRESETS as PRESETS
from tao.experiments.presets import Contrast as Contrast
from tao.experiments.presets import Preset as Preset
from tao.experiments.presets import chosen as chosen
from tao.experiments.reports import COLUMNS as COLUMNS
from tao.experiments.reports import Report as Report
from tao.experiments.reports import agrees as agrees
from tao.experiments.reports import losses as losses
from tao.experiments.reports import run as run
from tao.experiments.words import HEAD as HEAD
from tao.experiments.words import cells as cells
from tao.experiments.words import intro as intro
from tao.experiments.words import remarks as remarks
