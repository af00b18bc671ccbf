"""The public names, and the modules that they are of, which `evalsuite` loads when they are first used."""

# A line for each name would take three screens more.
# fmt: off
from . import run as run
from .certificate import (
    SwapBounds as SwapBounds, SwapCertificate as SwapCertificate, UnitBounds as UnitBounds,
    certify_swap as certify_swap, preactivation_bounds as preactivation_bounds,
)
from .contract import (
    IGNORED as IGNORED, Bench as Bench, Data as Data, Direction as Direction, FineTune as FineTune, Metric as Metric,
    Network as Network, Outcome as Outcome, Property as Property, Reading as Reading,
    SampleScores as SampleScores, Split as Split,
    Stage as Stage, Task as Task, Timed as Timed, Unsupported as Unsupported, Verdict as Verdict,
)
from .counterexamples import write_counterexamples as write_counterexamples
from .deployed import (
    is_file as is_file, output_of as output_of, parameters_of as parameters_of, running as running,
)
from .exporting import export_network as export_network
from .latency import Latency as Latency, compare_latency as compare_latency, steady_latency as steady_latency
from .libraries import (
    Activation as Activation, Call as Call, FileLayer as FileLayer, Found as Found, GELU as GELU,
    GELU_TANH as GELU_TANH, GatedUnit as GatedUnit, Hardenable as Hardenable,
    Hardening as Hardening, Inputs as Inputs, LAMBDA_GELU as LAMBDA_GELU, LambdaGELU as LambdaGELU,
    OnnxNetwork as OnnxNetwork, OwnError as OwnError, RELU as RELU, RELU6 as RELU6, SILU as SILU,
    Scalar as Scalar, Swish as Swish, census as census, census_of_run as census_of_run,
    clip as clip, copy_onnx as copy_onnx, distill_loss as distill_loss, export_onnx as export_onnx,
    expose as expose, feed as feed, fold_hardness as fold_hardness, from_onnx as from_onnx,
    graph_digest as graph_digest, harden as harden, in_layers as in_layers,
    in_modules as in_modules, input_names as input_names, layers_in_file as layers_in_file,
    leaves as leaves, mapped as mapped, matched_hidden as matched_hidden, open_onnx as open_onnx,
    parameter_groups as parameter_groups, recalibrate_batchnorm as recalibrate_batchnorm,
    redirect_calls as redirect_calls, refit as refit, refit_bias as refit_bias, replace as replace,
    run_onnx as run_onnx, swap as swap, swap_to_relu as swap_to_relu, target_for as target_for,
    target_for_certificate as target_for_certificate, unit_hardness as unit_hardness,
)
from .own.calling import assess as assess, workload as workload
from .own.reluizing import ReluIzed as ReluIzed, relu_ize as relu_ize
from .own.saving import load_own as load_own
from .relaxations import (
    SIGMOID as SIGMOID, SOFTPLUS as SOFTPLUS, TANH as TANH, envelope as envelope, gated as gated, interval as interval,
    product as product, relax as relax,
)
from .report.areas import (
    AREA_SCALE as AREA_SCALE, Area as Area, Point as Point, area_columns as area_columns, area_text as area_text,
    areas_sheet as areas_sheet, holm_areas as holm_areas, measured_area as measured_area,
)
from .report.canvas import (
    INK_COLOUR as INK_COLOUR, MUTED_COLOUR as MUTED_COLOUR, Drawing as Drawing, Layers as Layers, Look as Look,
    drawings_by_group as drawings_by_group, layer_marks as layer_marks, log_heights as log_heights, looks as looks,
    mean_marks as mean_marks, name_layers as name_layers, number_of as number_of, panels as panels, shifts as shifts,
)
from .report.explorer import Picture as Picture
from .report.forms import Form as Form
from .report.grids import Grid as Grid, GridCell as GridCell, Sheet as Sheet, estimate_columns as estimate_columns
from .report.measured import Measured as Measured
from .report.numerals import (
    Scale as Scale, grouped as grouped, labels as labels, listed as listed, p_text as p_text,
    percent_text as percent_text, power_text as power_text, ranges_text as ranges_text, scale_of as scale_of,
    sentence as sentence,
)
from .report.paired import (
    Compared as Compared, StepTable as StepTable, Values as Values, common_scale as common_scale,
    compared_cell as compared_cell, compared_columns as compared_columns, ends_text as ends_text,
    interval_text as interval_text, lacking as lacking, resolved_text as resolved_text, tally as tally,
    where_text as where_text,
)
from .report.record import Record as Record
from .report.run import Run as Run
from .report.section import (
    Contrast as Contrast, Endpoint as Endpoint, Evidence as Evidence, Finding as Finding, Headline as Headline,
    Measure as Measure, Part as Part, Screen as Screen, Section as Section, first_step as first_step,
    mean_test as mean_test, notes as notes, paired_test as paired_test,
)
from .report.statistics import (
    SIGNIFICANT as SIGNIFICANT, Estimate as Estimate, after_holm as after_holm, between as between, holm as holm,
    mean_by_seed as mean_by_seed, mean_interval as mean_interval, seed_difference as seed_difference,
)
from .resizing import load_module as load_module, save_module as save_module
from .results import parse_setting as parse_setting
from .samples import Samples as Samples, Several as Several, batch_of as batch_of, pieces as pieces
from .tasks import (
    Classification as Classification, Embedding as Embedding, LanguageModel as LanguageModel, MultiLabel as MultiLabel,
    Regression as Regression, Score as Score, TokenClassification as TokenClassification, score as score,
)
from .tasks.score import changes as changes, mean_loss as mean_loss, scores as scores, worsening as worsening
from .variants.swapped import Swapped as Swapped
from .variants.trained import Trained as Trained
from .variants.variant import Made as Made, Setup as Setup, Variant as Variant, train as train
from .verification import (
    Answer as Answer, Replay as Replay, Verification as Verification, falsify as falsify, float32_box as float32_box,
    margin as margin, read_onnx as read_onnx, read_vnnlib as read_vnnlib, verify as verify,
)
from .verification.cascade import decide as decide
from .verification.difference import with_difference as with_difference
from .verification.dual import Carried as Carried, Dual as Dual, Parts as Parts, dual_of_forms as dual_of_forms
from .verification.falsifier import Attack as Attack, violated as violated
from .verification.graph import Graph as Graph, Pointwise as Pointwise
from .verification.integer_proofs import (
    INTEGER_PROOF as INTEGER_PROOF, IntegerProofError as IntegerProofError, check_integer_proof as check_integer_proof,
)
from .verification.phases import Branching as Branching
from .verification.proofs import ProofError as ProofError, check_proof as check_proof
from .verification.propagation import Propagation as Propagation
from .verification.question import Question as Question
from .verification.report.counterexamples import counterexample_pictures as counterexample_pictures
from .verification.report.radii import (
    is_geometric as is_geometric, radius_axis as radius_axis, radius_text as radius_text,
    shifted_radius as shifted_radius,
)
from .verification.smooth_proofs import (
    SMOOTH_PROOF as SMOOTH_PROOF, SmoothBoundError as SmoothBoundError, SmoothProofError as SmoothProofError,
    check_smooth_proof as check_smooth_proof, read_smooth_network as read_smooth_network,
    recompute_smooth_proof as recompute_smooth_proof,
)
from .verification.specification import (
    Box as Box, Case as Case, Specification as Specification, specification_of as specification_of,
)
from .verification.subjects import (
    Subject as Subject, graph_of_network as graph_of_network, subjects as subjects, zonotopes_of as zonotopes_of,
)
from .verification.witness import Witness as Witness, Witnesses as Witnesses
from .workloads.layers import convolution as convolution, mlp as mlp
from .workloads.options import Budget as Budget
from .workloads.workload import (
    Workload as Workload, data_folder as data_folder, labelled as labelled, packaged_file as packaged_file,
    partition as partition, sha256 as sha256, split as split,
)
from .yardstick import (
    TIMED_BATCHES as TIMED_BATCHES, check_yardstick as check_yardstick, no_relative_latency as no_relative_latency,
    relative_latency as relative_latency, timing_inputs as timing_inputs, with_yardstick as with_yardstick,
    yardstick_graph as yardstick_graph, yardstick_reason as yardstick_reason,
)
# fmt: on

__version__: str
