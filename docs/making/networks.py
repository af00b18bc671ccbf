"""Writes the table of networks and stages in `docs/networks.md`, between `<!-- networks -->` and
`<!-- end -->`.

    python docs/making/networks.py [NETWORK ...]

makes the rows of these networks anew, of all without a name; the other rows stay. A slow test
compares.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

import torch
from torch import nn
from torch.nn import functional

from evalsuite import Bench, Data, Network, Outcome, Split, Unsupported, export_onnx
from evalsuite.contract import Stage
from evalsuite.run.child import check_takes
from evalsuite.samples import Several
from evalsuite.tasks import Classification, LanguageModel
from netverify.cascade import Answer, decide
from netverify.onnx_reader import compare, graph_of
from netverify.specification import specification_of
from opgraph import Inputs
from opgraph.onnx_model import load_model
from pipelines.bounds import Bounds
from pipelines.export_onnx import Export
from pipelines.prune import Prune
from pipelines.quantize import Quantize
from pipelines.smt import Smt
from pipelines.swap_certificate import Certificate

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [
    str(ROOT / folder)
    for folder in ("tests/evalsuite", "tests", "libs/opgraph/tests", "libs/lambda_gelu/tests")
]

from graph_networks import HandWritten, made  # noqa: E402  # what the graph is tested on

PAGE = ROOT / "docs" / "networks.md"
BLOCK = re.compile(r"(<!-- networks -->\n).*?(<!-- end -->)", re.S)
NETWORKS = {
    "vit": "ViT of Hugging Face",
    "bert": "BERT with a mask",
    "distilbert": "DistilBERT with a mask",
    "gpt2": "GPT-2",
    "llama": "Llama: RMSNorm, SwiGLU, grouped queries",
    "convnext": "ConvNeXt",
    "mobilenet": "MobileNetV3",
    "efficientnet": "EfficientNet",
    "mixer": "MLP-Mixer",
    "resnet": "ResNet with MaxPool",
    "unet": "U-Net",
    "hand-written": "a class with GELU as a function",
}
STAGES = (
    "export",
    "quantize",
    "integers",
    "prune",
    "bounds",
    "swap-certificate",
    "exact",
    "verify",
)
EPS, _SAMPLES, _SECONDS, _VOCABULARY = 2.0**-10, 2, 60.0, 50
_PARTS = (8, 24, 8, 32)  # samples to train on, to calibrate, to validate and to test
_LONGEST = 240  # letters of a reason
WORKS, PARTLY, NO = "works", "in part", "no"


def subject(name: str, folder: Path) -> tuple[Network, Bench]:
    """The network with weights drawn as large as its layers are wide, and data whose targets are
    its own classes.
    """
    module, example = made(name)
    if name == "hand-written":
        module = HandWritten(functional.gelu).eval()
    if name == "unet":
        module = nn.Sequential(module, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    for each in module.modules():
        weight = getattr(each, "weight", None)
        if (
            isinstance(weight, nn.Parameter)
            and weight.ndim > 1
            and not isinstance(each, nn.Embedding)
        ):
            nn.init.xavier_normal_(weight)
    parts = [_drawn(example, count) for count in _PARTS]
    with torch.no_grad():
        targets = [module(part).argmax(-1) for part in parts]
        classes, positions = module(example).shape[-1], module(example).ndim == 3
    task = LanguageModel() if positions else Classification()
    inputs = [Several(part) if isinstance(part, dict) else part for part in parts]
    splits = [Split(each, target, task) for each, target in zip(inputs, targets, strict=True)]  # type: ignore[arg-type]
    tokens = (
        None if isinstance(example, torch.Tensor) and example.is_floating_point() else _VOCABULARY
    )
    train, calibration, validation, test = splits
    data = Data(train, calibration, validation, test, (0.0, 1.0), classes, "drawn", tokens)
    given = parts[1] if isinstance(example, dict) else None
    network = Network(name, module, data.input_shape, classes, vocabulary=tokens, given=given)
    return network, Bench(data, 0, folder, _SECONDS, lambda *_, **__: None)


def _drawn(example: Inputs, count: int) -> Inputs:
    if isinstance(example, dict):
        tokens = example["input_ids"]
        lengths = torch.randint(3, tokens.shape[1] + 1, (count, 1))
        mask = (torch.arange(tokens.shape[1]) < lengths).long()
        return {
            "input_ids": torch.randint(1, _VOCABULARY, (count, tokens.shape[1])),
            "attention_mask": mask,
        }
    assert isinstance(example, torch.Tensor)
    shape = (count, *example.shape[1:])
    return (
        torch.rand(shape) if example.is_floating_point() else torch.randint(1, _VOCABULARY, shape)
    )


def row(name: str) -> list[str]:
    """The cells of one network, in the order of `STAGES`."""
    cells = []
    for make in (_export, _quantize, _prune, _bounds, _swap, _exact, _verify):
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            network, bench = subject(name, Path(folder))
            try:
                found = make(network, bench)
            except Unsupported as error:
                said = f"{NO}: {_line(error)}"
                found = [said, said] if make is _quantize else [said]
        cells += found
    return cells


def _line(error: object) -> str:
    return shorten(str(error), _LONGEST, placeholder=" ...")


def _run(stage: Stage, network: Network, bench: Bench) -> Outcome:
    check_takes(stage, network, bench.data, NETWORKS[network.name])
    return stage.run(network, bench)


def _value(outcome: Outcome, name: str, **setting: object) -> float:
    """Return what was measured. Raises Unsupported where a reason stands instead."""
    (found,) = [
        metric
        for metric in outcome.metrics
        if metric.name == name
        and metric.sample is None
        and setting.items() <= dict(metric.setting).items()
        and (setting or not metric.setting)
    ]
    if found.value is None:
        raise Unsupported(found.reason)
    return found.value


def _export(network: Network, bench: Bench) -> list[str]:
    found = _run(Export(), network, bench)
    return [f"{WORKS}: ONNX Runtime differs by {_value(found, 'max_abs_difference'):.0e}"]


def _quantize(network: Network, bench: Bench) -> list[str]:
    found = _run(Quantize(), network, bench)
    name = "bits_per_token" if isinstance(bench.data.task, LanguageModel) else "accuracy"
    whole = f"{WORKS}: {name.replace('_', ' ')} {_value(found, name):.2f}"
    try:
        accuracy = f"{name.replace('_', ' ')} {_value(found, f'integer_{name}'):.2f}"
        islands = next(metric for metric in found.metrics if metric.name == "integer_islands")
    except Unsupported as error:
        return [whole, f"{NO}: {_line(error)}"]
    if islands.value:
        return [whole, f"{PARTLY}: {accuracy}; in float {_line(islands.reason)}"]
    return [whole, f"{WORKS}: {accuracy}"]


def _prune(network: Network, bench: Bench) -> list[str]:
    found = _run(Prune(fine_tune_epochs=0), network, bench)
    return [f"{WORKS}: {_value(found, 'parameter_fraction'):.2f} of the parameters stay"]


def _bounds(network: Network, bench: Bench) -> list[str]:
    stage = Bounds(eps=(EPS,), samples=_SAMPLES, methods=("ibp", "crown"), restarts=1)
    found = _run(stage, network, bench)
    by_graph = any(metric.setting.get("method") == "graph-crown" for metric in found.metrics)
    method, how = ("graph-crown", " by its graph") if by_graph else ("crown", "")
    return [f"{WORKS}: {_value(found, 'certified_accuracy', method=method):.2f} certified{how}"]


def _swap(network: Network, bench: Bench) -> list[str]:
    found = _run(Certificate(eps=(EPS,), samples=_SAMPLES, hardness=()), network, bench)
    return [
        f"{WORKS}: {_value(found, 'certified_to_observed', eps=EPS):.1f} times what was observed"
    ]


def _exact(network: Network, bench: Bench) -> list[str]:
    stage = Smt(
        eps=(EPS,),
        samples=_SAMPLES,
        query_time_limit=3.0,
        max_inputs=4096,
        max_neurons=4096,
        proofs=False,
    )
    found = _run(stage, network, bench)
    decided = 1 - _value(found, "undecided_fraction", eps=EPS)
    if not decided:
        raise Unsupported("its bounds decide nothing")
    return [f"{WORKS}: {decided:.2f} decided"]


def _verify(network: Network, bench: Bench) -> list[str]:
    path = bench.folder / "model.onnx"
    try:
        export_onnx(network.module, network.input_shape, path, example=network.example(2))
    except Exception as error:  # torch's and onnx's errors share no base class
        raise Unsupported(f"{type(error).__name__}: {error}") from error
    model = load_model(path)
    graph = graph_of(model, "the file")
    compare(graph, model, "the file")
    (asked,) = bench.properties(EPS, 1)
    found = decide(model, graph, specification_of(asked, graph.outputs), timeout=10.0)
    if found.answer not in (Answer.SAT, Answer.UNSAT):
        raise Unsupported(f"{found.answer.value}: {found.reason}")
    return [f"{WORKS}: {found.answer.value} by {found.reason}"]


def rows(text: str) -> dict[str, list[str]]:
    """The cells that a page has, by the network's title."""
    found = BLOCK.search(text)
    lines = [line for line in found[0].splitlines() if line.startswith("| ")][2:] if found else []
    cells = (
        [
            each.strip().replace("\0", "|")
            for each in line.replace("\\|", "\0").strip("| ").split("|")
        ]
        for line in lines
    )
    return {first: rest for first, *rest in cells}


def block(found: dict[str, list[str]]) -> str:
    """The table, and how many of its cells say what."""
    head = ["network", *STAGES]
    lines = [head, ["---"] * len(head), *([name, *cells] for name, cells in found.items())]
    table = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    cells = [cell for each in found.values() for cell in each]
    counts = {
        word: sum(cell.startswith(f"{word}:") for cell in cells) for word in (WORKS, PARTLY, NO)
    }
    said = (
        f"Of {len(cells)} cells {counts[WORKS]} work, {counts[PARTLY]} work in part, and"
        f" {counts[NO]} are refused with a reason."
    )
    return "\n".join([said, "", *table, ""])


def written(text: str, made: dict[str, list[str]]) -> str:
    """The page with other cells of the networks that are `made`."""
    known = rows(text) | {NETWORKS[name]: cells for name, cells in made.items()}
    found = {title: known.get(title, ["not made"] * len(STAGES)) for title in NETWORKS.values()}
    return BLOCK.sub(lambda match: f"{match[1]}{block(found)}{match[2]}", text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:] or NETWORKS:
        cells = row(each)
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), {each: cells}), encoding="utf-8")
        print(each, flush=True)
