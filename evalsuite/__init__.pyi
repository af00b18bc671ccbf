"""The public names, and the modules that they are of, which `evalsuite` loads when they are first used."""

# A line for each name would take three screens more.
# fmt: off
from . import run as run
from .contract import (
    IGNORED as IGNORED, Bench as Bench, Capabilities as Capabilities, Data as Data, Direction as Direction, FineTune as FineTune, Metric as Metric,
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
    Activation as Activation, Answer as Answer, Attack as Attack, Box as Box,
    Branching as Branching, Call as Call, Carried as Carried, Case as Case, Dual as Dual,
    FileLayer as FileLayer, Found as Found, GELU as GELU, GELU_TANH as GELU_TANH,
    GatedUnit as GatedUnit, Graph as Graph, Hardenable as Hardenable, Hardening as Hardening,
    INTEGER_PROOF as INTEGER_PROOF, Inputs as Inputs, IntegerProofError as IntegerProofError,
    LAMBDA_GELU as LAMBDA_GELU, LambdaGELU as LambdaGELU, OnnxNetwork as OnnxNetwork,
    OwnError as OwnError, Parts as Parts, Pointwise as Pointwise, ProofError as ProofError,
    Propagation as Propagation, Question as Question, RELU as RELU, RELU6 as RELU6,
    Replay as Replay, SIGMOID as SIGMOID, SILU as SILU, SMOOTH_PROOF as SMOOTH_PROOF,
    SOFTPLUS as SOFTPLUS, Scalar as Scalar, SmoothBoundError as SmoothBoundError,
    SmoothProofError as SmoothProofError, Specification as Specification, SwapBounds as SwapBounds,
    SwapCertificate as SwapCertificate, Swish as Swish, TANH as TANH, UnitBounds as UnitBounds,
    Verification as Verification, Witness as Witness, Witnesses as Witnesses, census as census,
    census_of_run as census_of_run, certify_swap as certify_swap,
    check_integer_proof as check_integer_proof, check_proof as check_proof,
    check_smooth_proof as check_smooth_proof, clip as clip, copy_onnx as copy_onnx,
    decide as decide, distill_loss as distill_loss, dual_of_forms as dual_of_forms,
    envelope as envelope, export_onnx as export_onnx, expose as expose, falsify as falsify,
    feed as feed, float32_box as float32_box, fold_hardness as fold_hardness,
    from_onnx as from_onnx, gated as gated, graph_digest as graph_digest, harden as harden,
    in_layers as in_layers, in_modules as in_modules, input_names as input_names,
    interval as interval, layers_in_file as layers_in_file, leaves as leaves, mapped as mapped,
    margin as margin, matched_hidden as matched_hidden, open_onnx as open_onnx,
    parameter_groups as parameter_groups, preactivation_bounds as preactivation_bounds,
    product as product, read_onnx as read_onnx, read_smooth_network as read_smooth_network,
    read_vnnlib as read_vnnlib, recalibrate_batchnorm as recalibrate_batchnorm,
    recompute_smooth_proof as recompute_smooth_proof, redirect_calls as redirect_calls,
    refit as refit, refit_bias as refit_bias, relax as relax, replace as replace,
    run_onnx as run_onnx, specification_of as specification_of, swap as swap,
    swap_to_relu as swap_to_relu, target_for as target_for,
    target_for_certificate as target_for_certificate, unit_hardness as unit_hardness,
    verify as verify, violated as violated, with_difference as with_difference,
)
from .own.calling import assess as assess, workload as workload
from .own.reluizing import ReluIzed as ReluIzed, relu_ize as relu_ize
from .own.saving import load_own as load_own
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
from .results import parse_setting as parse_setting, read_results as read_results
from .samples import Samples as Samples, Several as Several, batch_of as batch_of, pieces as pieces
from .tasks import (
    Classification as Classification, Embedding as Embedding, LanguageModel as LanguageModel, MultiLabel as MultiLabel,
    Regression as Regression, Score as Score, Segmentation as Segmentation, TokenClassification as TokenClassification,
    score as score,
)
from .tasks.score import changes as changes, mean_loss as mean_loss, scores as scores, worsening as worsening
from .variants.swapped import Swapped as Swapped
from .variants.trained import Trained as Trained
from .variants.variant import Made as Made, Setup as Setup, Variant as Variant, train as train
from .verification.report.counterexamples import counterexample_pictures as counterexample_pictures
from .verification.report.radii import (
    is_geometric as is_geometric, radius_axis as radius_axis, radius_text as radius_text,
    shifted_radius as shifted_radius,
)
from .verification.subjects import (
    Subject as Subject, graph_of_network as graph_of_network, subjects as subjects, zonotopes_of as zonotopes_of,
)
from .workloads.layers import convolution as convolution, mlp as mlp
from .workloads.options import Budget as Budget
from .workloads.workload import (
    Workload as Workload, data_folder as data_folder, labelled as labelled, packaged_file as packaged_file,
    partition as partition, sha256 as sha256, split as split,
)
from .yardstick import (
    TIMED_BATCHES as TIMED_BATCHES, check_yardstick as check_yardstick, no_relative_latency as no_relative_latency,
    relative_latency as relative_latency, timing_inputs as timing_inputs, untimed_batches as untimed_batches, with_yardstick as with_yardstick,
    yardstick_graph as yardstick_graph, yardstick_reason as yardstick_reason,
)
# fmt: on

__version__: str
