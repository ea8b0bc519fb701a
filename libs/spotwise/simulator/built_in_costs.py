"""What iterations cost."""
from spotwise.core.cost_model import TableIterationCost
BUILT_IN: dict[tuple[str, str, str], TableIterationCost] = {}
