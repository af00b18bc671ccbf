"""The names to learn first: `__init__.py` loads them on first use."""

from . import run as run
from .contract import (
    Bench as Bench,
    Capabilities as Capabilities,
    Data as Data,
    Direction as Direction,
    Metric as Metric,
    Network as Network,
    Outcome as Outcome,
    Property as Property,
    Split as Split,
    Stage as Stage,
    Task as Task,
    Unsupported as Unsupported,
    Verdict as Verdict,
)
from .own.calling import (
    assess as assess,
    workload as workload,
)
from .own.reluizing import (
    relu_ize as relu_ize,
)
from .own.saving import (
    load_own as load_own,
)
from .report.section import (
    Section as Section,
)
from .results import (
    read_results as read_results,
)
from .tasks import (
    score as score,
)
from .variants.variant import (
    Variant as Variant,
)
from .workloads.workload import (
    Workload as Workload,
)
from lambda_gelu import (
    Activation as Activation,
    LambdaGELU as LambdaGELU,
    census as census,
    fold_hardness as fold_hardness,
    harden as harden,
    swap as swap,
    swap_to_relu as swap_to_relu,
)
from netverify import (
    Answer as Answer,
    certify_swap as certify_swap,
    verify as verify,
)
from netverify.proofs import (
    check_proof as check_proof,
)
from opgraph import (
    OwnError as OwnError,
    export_onnx as export_onnx,
    open_onnx as open_onnx,
)
from opgraph.from_onnx import (
    from_onnx as from_onnx,
)

__version__: str
