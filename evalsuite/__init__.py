"""evalsuite: what does replacing GELU by ReLU buy, and cost, downstream?

The public names, all that a plugin may import. They load on first use: `import evalsuite` itself
imports nothing heavy.
"""

import lazy_loader

__version__ = "0.1.0"
# of __init__.pyi, which declares them
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
