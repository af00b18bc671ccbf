"""The public names, and the modules that define them."""

__version__: str
from .execution import Executor as Executor
from .grids import INPUT as INPUT
from .grids import Dyadic as Dyadic
from .grids import Grid as Grid
from .grids import Rounding as Rounding
from .network import IntegerNetwork as IntegerNetwork
from .network import count_operations as count_operations
from .network import prove_ranges as prove_ranges
from .network import write_integer_onnx as write_integer_onnx
from .parts import in_integers as in_integers
