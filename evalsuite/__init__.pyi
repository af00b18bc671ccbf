"""The public names, and the modules that they are of, which `evalsuite` loads when they are first used."""

from . import run as run
from .activations import (
    GATED as GATED,
)
from .activations import (
    GELU as GELU,
)
from .activations import (
    LAMBDA_GELU as LAMBDA_GELU,
)
from .activations import (
    RELU as RELU,
)
from .activations import (
    Activation as Activation,
)
from .activations import (
    Found as Found,
)
from .activations import (
    Gated as Gated,
)
from .activations import (
    GatedUnit as GatedUnit,
)
from .activations import (
    Hardenable as Hardenable,
)
from .activations import (
    LambdaGELU as LambdaGELU,
)
from .activations import (
    Swish as Swish,
)
from .activations import (
    census as census,
)
from .activations import (
    matched_hidden as matched_hidden,
)
from .activations import (
    replace as replace,
)
from .activations.gelu_tanh import GELU_TANH as GELU_TANH
from .activations.relu6 import RELU6 as RELU6
from .activations.relu6 import clip as clip
from .activations.runs import (
    Call as Call,
)
from .activations.runs import (
    Use as Use,
)
from .activations.runs import (
    census_of_operators as census_of_operators,
)
from .activations.runs import (
    census_of_run as census_of_run,
)
from .activations.silu import SILU as SILU
from .activations.traits import Scalar as Scalar
from .activations.traits import unit_hardness as unit_hardness
from .certificate import (
    SwapBounds as SwapBounds,
)
from .certificate import (
    SwapCertificate as SwapCertificate,
)
from .certificate import (
    UnitBounds as UnitBounds,
)
from .certificate import (
    certify_swap as certify_swap,
)
from .certificate import (
    preactivation_bounds as preactivation_bounds,
)
from .contract import (
    IGNORED as IGNORED,
)
from .contract import (
    Bench as Bench,
)
from .contract import (
    Data as Data,
)
from .contract import (
    Direction as Direction,
)
from .contract import (
    FineTune as FineTune,
)
from .contract import (
    Metric as Metric,
)
from .contract import (
    Network as Network,
)
from .contract import (
    Outcome as Outcome,
)
from .contract import (
    Property as Property,
)
from .contract import (
    Split as Split,
)
from .contract import (
    Stage as Stage,
)
from .contract import (
    Task as Task,
)
from .contract import (
    Timed as Timed,
)
from .contract import (
    Unsupported as Unsupported,
)
from .contract import (
    Verdict as Verdict,
)
from .counterexamples import write_counterexamples as write_counterexamples
from .deployment import (
    Latency as Latency,
)
from .deployment import (
    compare_latency as compare_latency,
)
from .deployment import (
    export_onnx as export_onnx,
)
from .deployment import (
    feed as feed,
)
from .deployment import (
    input_names as input_names,
)
from .deployment import (
    run_onnx as run_onnx,
)
from .exporting import export_network as export_network
from .graph.from_onnx import from_onnx as from_onnx
from .graph.layers import (
    FileLayer as FileLayer,
)
from .graph.layers import (
    in_layers as in_layers,
)
from .graph.layers import (
    layers_in_file as layers_in_file,
)
from .graph.modules import in_modules as in_modules
from .onnx_network import (
    OnnxNetwork as OnnxNetwork,
)
from .onnx_network import (
    copy_onnx as copy_onnx,
)
from .onnx_network import (
    is_file as is_file,
)
from .onnx_network import (
    open_onnx as open_onnx,
)
from .onnx_network import (
    output_of as output_of,
)
from .onnx_network import (
    parameters_of as parameters_of,
)
from .onnx_network import (
    running as running,
)
from .own.calling import Assessment as Assessment
from .own.calling import assess as assess
from .own.decorated import workload as workload
from .own.saving import load_own as load_own
from .references import OwnError as OwnError
from .relaxations import (
    MISH as MISH,
)
from .relaxations import (
    SIGMOID as SIGMOID,
)
from .relaxations import (
    SOFTPLUS as SOFTPLUS,
)
from .relaxations import (
    TANH as TANH,
)
from .relaxations import (
    Envelope as Envelope,
)
from .relaxations import (
    Lines as Lines,
)
from .relaxations import (
    Planes as Planes,
)
from .relaxations import (
    envelope as envelope,
)
from .relaxations import (
    gated as gated,
)
from .relaxations import (
    interval as interval,
)
from .relaxations import (
    product as product,
)
from .relaxations import (
    relax as relax,
)
from .reluize.folding import fold_hardness as fold_hardness
from .reluize.functional import redirect_calls as redirect_calls
from .reluize.harden import harden as harden
from .reluize.hardening import Hardening as Hardening
from .reluize.optimizer import parameter_groups as parameter_groups
from .reluize.profile import HardnessProfile as HardnessProfile
from .reluize.repair import (
    distill_loss as distill_loss,
)
from .reluize.repair import (
    recalibrate_batchnorm as recalibrate_batchnorm,
)
from .reluize.repair import (
    refit as refit,
)
from .reluize.repair import (
    refit_bias as refit_bias,
)
from .reluize.schedules import (
    target_for as target_for,
)
from .reluize.schedules import (
    target_for_certificate as target_for_certificate,
)
from .reluize.schedules import (
    target_for_distance as target_for_distance,
)
from .reluize.swap import (
    check_executes as check_executes,
)
from .reluize.swap import (
    check_swapped as check_swapped,
)
from .reluize.swap import (
    expose as expose,
)
from .reluize.swap import (
    swap as swap,
)
from .reluize.swap import (
    swap_to_relu as swap_to_relu,
)
from .report.areas import (
    AREA_SCALE as AREA_SCALE,
)
from .report.areas import (
    Area as Area,
)
from .report.areas import (
    Point as Point,
)
from .report.areas import (
    area_columns as area_columns,
)
from .report.areas import (
    area_text as area_text,
)
from .report.areas import (
    areas_sheet as areas_sheet,
)
from .report.areas import (
    holm_areas as holm_areas,
)
from .report.areas import (
    measured_area as measured_area,
)
from .report.canvas import (
    INK_COLOUR as INK_COLOUR,
)
from .report.canvas import (
    MUTED_COLOUR as MUTED_COLOUR,
)
from .report.canvas import (
    Drawing as Drawing,
)
from .report.canvas import (
    Layers as Layers,
)
from .report.canvas import (
    Look as Look,
)
from .report.canvas import (
    drawings_by_group as drawings_by_group,
)
from .report.canvas import (
    layer_marks as layer_marks,
)
from .report.canvas import (
    log_heights as log_heights,
)
from .report.canvas import (
    looks as looks,
)
from .report.canvas import (
    mean_marks as mean_marks,
)
from .report.canvas import (
    name_layers as name_layers,
)
from .report.canvas import (
    number_of as number_of,
)
from .report.canvas import (
    panels as panels,
)
from .report.canvas import (
    shifts as shifts,
)
from .report.grids import Grid as Grid
from .report.grids import GridCell as GridCell
from .report.grids import Sheet as Sheet
from .report.grids import estimate_columns as estimate_columns
from .report.measured import Measured as Measured
from .report.numerals import (
    Scale as Scale,
)
from .report.numerals import (
    labels as labels,
)
from .report.numerals import (
    listed as listed,
)
from .report.numerals import (
    p_text as p_text,
)
from .report.numerals import (
    percent_text as percent_text,
)
from .report.numerals import (
    power_text as power_text,
)
from .report.numerals import (
    ranges_text as ranges_text,
)
from .report.numerals import (
    scale_of as scale_of,
)
from .report.paired import (
    Compared as Compared,
)
from .report.paired import (
    StepTable as StepTable,
)
from .report.paired import (
    Values as Values,
)
from .report.paired import (
    common_scale as common_scale,
)
from .report.paired import (
    compared_cell as compared_cell,
)
from .report.paired import (
    compared_columns as compared_columns,
)
from .report.paired import (
    ends_text as ends_text,
)
from .report.paired import (
    interval_text as interval_text,
)
from .report.paired import (
    lacking as lacking,
)
from .report.paired import (
    resolved_text as resolved_text,
)
from .report.paired import (
    tally as tally,
)
from .report.paired import (
    where_text as where_text,
)
from .report.pictures import Picture as Picture
from .report.record import Record as Record
from .report.run import Run as Run
from .report.section import (
    Contrast as Contrast,
)
from .report.section import (
    Endpoint as Endpoint,
)
from .report.section import (
    Evidence as Evidence,
)
from .report.section import (
    Finding as Finding,
)
from .report.section import (
    Headline as Headline,
)
from .report.section import (
    Measure as Measure,
)
from .report.section import (
    Part as Part,
)
from .report.section import (
    Screen as Screen,
)
from .report.section import (
    Section as Section,
)
from .report.section import (
    first_step as first_step,
)
from .report.section import (
    mean_test as mean_test,
)
from .report.section import (
    paired_test as paired_test,
)
from .report.statistics import (
    SIGNIFICANT as SIGNIFICANT,
)
from .report.statistics import (
    Estimate as Estimate,
)
from .report.statistics import (
    after_holm as after_holm,
)
from .report.statistics import (
    between as between,
)
from .report.statistics import (
    holm as holm,
)
from .report.statistics import (
    mean_by_seed as mean_by_seed,
)
from .report.statistics import (
    mean_interval as mean_interval,
)
from .report.statistics import (
    seed_difference as seed_difference,
)
from .resizing import load_module as load_module
from .resizing import save_module as save_module
from .results import parse_setting as parse_setting
from .samples import (
    Inputs as Inputs,
)
from .samples import (
    Samples as Samples,
)
from .samples import (
    Several as Several,
)
from .samples import (
    batch_of as batch_of,
)
from .samples import (
    leaves as leaves,
)
from .samples import (
    mapped as mapped,
)
from .samples import (
    pieces as pieces,
)
from .tasks import (
    Classification as Classification,
)
from .tasks import (
    Embedding as Embedding,
)
from .tasks import (
    LanguageModel as LanguageModel,
)
from .tasks import (
    MultiLabel as MultiLabel,
)
from .tasks import (
    Regression as Regression,
)
from .tasks import (
    Score as Score,
)
from .tasks import (
    TokenClassification as TokenClassification,
)
from .tasks import (
    score as score,
)
from .tasks.score import changes as changes
from .tasks.score import mean_loss as mean_loss
from .tasks.score import scores as scores
from .tasks.score import worsening as worsening
from .variants.swapped import Swapped as Swapped
from .variants.trained import Trained as Trained
from .variants.variant import Made as Made
from .variants.variant import Setup as Setup
from .variants.variant import Variant as Variant
from .variants.variant import train as train
from .verification import (
    Answer as Answer,
)
from .verification import (
    Replay as Replay,
)
from .verification import (
    Verification as Verification,
)
from .verification import (
    falsify as falsify,
)
from .verification import (
    float32_box as float32_box,
)
from .verification import (
    margin as margin,
)
from .verification import (
    read_onnx as read_onnx,
)
from .verification import (
    read_vnnlib as read_vnnlib,
)
from .verification import (
    verify as verify,
)
from .verification.cascade import decide as decide
from .verification.difference import with_difference as with_difference
from .verification.dual import Carried as Carried
from .verification.dual import Dual as Dual
from .verification.dual import Parts as Parts
from .verification.dual import dual_of_forms as dual_of_forms
from .verification.falsifier import violated as violated
from .verification.graph import Graph as Graph
from .verification.graph import Pointwise as Pointwise
from .verification.integer_proofs import (
    INTEGER_PROOF as INTEGER_PROOF,
)
from .verification.integer_proofs import (
    IntegerProofError as IntegerProofError,
)
from .verification.integer_proofs import (
    check_integer_proof as check_integer_proof,
)
from .verification.of_network import graph_of_network as graph_of_network
from .verification.phases import Branching as Branching
from .verification.proofs import ProofError as ProofError
from .verification.proofs import Statement as Statement
from .verification.proofs import check_proof as check_proof
from .verification.propagation import Propagation as Propagation
from .verification.report.counterexamples import counterexample_pictures as counterexample_pictures
from .verification.report.radii import (
    is_geometric as is_geometric,
)
from .verification.report.radii import (
    radius_axis as radius_axis,
)
from .verification.report.radii import (
    radius_text as radius_text,
)
from .verification.report.radii import (
    shifted_radius as shifted_radius,
)
from .verification.smooth_proofs import (
    SMOOTH_PROOF as SMOOTH_PROOF,
)
from .verification.smooth_proofs import (
    SmoothBoundError as SmoothBoundError,
)
from .verification.smooth_proofs import (
    SmoothProofError as SmoothProofError,
)
from .verification.smooth_proofs import (
    check_smooth_proof as check_smooth_proof,
)
from .verification.smooth_proofs import (
    read_smooth_network as read_smooth_network,
)
from .verification.smooth_proofs import (
    recompute_smooth_proof as recompute_smooth_proof,
)
from .verification.specification import Specification as Specification
from .verification.specification import specification_of as specification_of
from .verification.subjects import Subject as Subject
from .verification.subjects import subjects as subjects
from .verification.witness import Witness as Witness
from .verification.witness import Witnesses as Witnesses
from .workloads.folders import data_folder as data_folder
from .workloads.layers import convolution as convolution
from .workloads.layers import mlp as mlp
from .workloads.options import Budget as Budget
from .workloads.workload import (
    Workload as Workload,
)
from .workloads.workload import (
    labelled as labelled,
)
from .workloads.workload import (
    packaged_file as packaged_file,
)
from .workloads.workload import (
    partition as partition,
)
from .workloads.workload import (
    sha256 as sha256,
)
from .workloads.workload import (
    split as split,
)
from .yardstick import (
    TIMED_BATCHES as TIMED_BATCHES,
)
from .yardstick import (
    check_yardstick as check_yardstick,
)
from .yardstick import (
    no_relative_latency as no_relative_latency,
)
from .yardstick import (
    relative_latency as relative_latency,
)
from .yardstick import (
    timing_inputs as timing_inputs,
)
from .yardstick import (
    with_yardstick as with_yardstick,
)
from .yardstick import (
    yardstick_graph as yardstick_graph,
)
from .yardstick import (
    yardstick_reason as yardstick_reason,
)

__version__: str
