"""tacit: federated recommendation over stacked clients.

>>> import tacit
>>> summary = tacit.run("fedmf", data="demo", rounds=5)  # doctest: +SKIP
"""

from tacit.errors import UserError
from tacit.runs.compare import compare
from tacit.runs.run import recommend, resume, run

__all__ = ["UserError", "compare", "recommend", "resume", "run"]
