"""The public names, and the modules that define them."""

__version__: str
from .deployment import export_onnx as export_onnx
from .deployment import graph_digest as graph_digest
from .deployment import run_onnx as run_onnx
from .errors import OwnError as OwnError
from .errors import Unsupported as Unsupported
from .graph import Graph as Graph
from .graph import Node as Node
from .inputs import Inputs as Inputs
from .onnx_model import load_model as load_model
from .onnx_network import OnnxNetwork as OnnxNetwork
from .onnx_network import open_onnx as open_onnx
from .reading import read as read
from .reading import read_onnx as read_onnx
