"""Hardening, in a loop of one's own, and in real trainings by Lightning's and transformers'
Trainers.
"""

from __future__ import annotations

import copy
import io
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks_by_hand import Written
from own_networks import hugging
from scipy.integrate import quad
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lambda_gelu.activations import LambdaGELU, census
from lambda_gelu.harden_network import harden
from lambda_gelu.hardening import Hardening
from lambda_gelu.schedules import target_for, target_for_certificate

STARTS = (1.2, 3.0, 7.0)


def network(*hardness: float) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for each in hardness:
        layers += [nn.Linear(4, 4), LambdaGELU(hardness=each)]
    return nn.Sequential(*layers)


def lambdas(module: nn.Module) -> list[float]:
    return [each.hardness.item() for each in module.modules() if isinstance(each, LambdaGELU)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", lambda a, b, share: a + (b - a) * share),
        ("geometric", lambda a, b, share: a ** (1 - share) * b**share),
        ("reciprocal", lambda a, b, share: 1 / ((1 - share) / a + share / b)),
        (lambda share: share**2, lambda a, b, share: a + (b - a) * share**2),
    ],
    ids=["linear", "geometric", "reciprocal", "own"],
)
@pytest.mark.parametrize("learn", [False, True])
def test_each_schedule_follows_its_formula_also_from_lambdas_that_could_learn(
    schedule, expected: Callable[[float, float, float], float], learn: bool
) -> None:
    module = network(*STARTS)
    hardening = Hardening(module, start=0.2, target=160.0, schedule=schedule, learn=learn)
    for progress in (0.1, 0.2, 0.21, 0.4, 0.7, 0.99, 1.0):
        hardening(progress)
        share = max(0.0, progress - 0.2) / 0.8
        assert lambdas(module) == pytest.approx(
            [expected(each, 160.0, share) for each in STARTS], rel=3e-6
        )


def test_a_learning_lambda_moves_its_share_of_the_remaining_way() -> None:
    layer = LambdaGELU(hardness=2.0)
    hardening = Hardening(nn.Sequential(layer), start=0.0, target=100.0, learn=True)
    hardening(0.5)
    assert layer.hardness.item() == pytest.approx(51.0, rel=1e-5)
    layer.set_hardness(41.0)  # what an optimizer learnt between the calls
    hardening(0.75)
    assert layer.hardness.item() == pytest.approx(41 + (100 - 41) * 0.25 / 0.5, rel=1e-5)
    assert layer.s.requires_grad
    hardening(1.0)
    assert layer.hardness.item() == pytest.approx(100.0, rel=1e-6)
    assert not layer.s.requires_grad


def train(
    module: nn.Module, hardening: Hardening, steps: range, optimizer: torch.optim.Optimizer
) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        functional.mse_loss(module(inputs), inputs.sin()).backward()
        # between backward and step: the gradient of s must not survive the freezing
        hardening((step + 1) / 40)
        optimizer.step()


@pytest.mark.parametrize("learn", [False, True])
def test_training_ends_on_the_target_whatever_momentum_and_decay_do(learn: bool) -> None:
    module = network(*STARTS)
    hardening = Hardening(module, 0.25, 160.0, learn=learn)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05, weight_decay=0.5)
    train(module, hardening, range(20), optimizer)
    midway = lambdas(module)
    untrained = network(*STARTS)
    Hardening(untrained, 0.25, 160.0)(0.5)
    assert midway != pytest.approx(lambdas(untrained), rel=1e-3)
    train(module, hardening, range(20, 40), optimizer)
    assert lambdas(module) == pytest.approx([160.0] * 3, rel=1e-6)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("pause", [5, 22])
def test_a_resumed_training_continues_identically(learn: bool, pause: int) -> None:
    def start() -> tuple[nn.Module, Hardening, torch.optim.Optimizer]:
        module = network(*STARTS)
        hardening = Hardening(module, 0.25, 160.0, "geometric", learn=learn, order="forward")
        return module, hardening, torch.optim.AdamW(module.parameters(), lr=0.02)

    module, hardening, optimizer = start()
    train(module, hardening, range(pause), optimizer)
    file = io.BytesIO()
    torch.save([module.state_dict(), hardening.state_dict(), optimizer.state_dict()], file)
    train(module, hardening, range(pause, 40), optimizer)

    resumed, again, fresh = start()
    file.seek(0)
    for target, state in zip(
        (resumed, again, fresh), torch.load(file, weights_only=True), strict=True
    ):
        target.load_state_dict(state)
    train(resumed, again, range(pause, 40), fresh)
    assert again.progress == hardening.progress
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_a_state_from_before_hardening_lets_s_learn_again() -> None:
    module = nn.Sequential(nn.GELU(), nn.SiLU())
    hardening = harden(module, steps=4, start=0.5)
    module[1].s.requires_grad_(False)  # the user's own choice stays
    saved, weights = copy.deepcopy(hardening.state_dict()), copy.deepcopy(module.state_dict())
    for _ in range(4):
        hardening.step()
    assert not module[0].s.requires_grad
    hardening.load_state_dict(saved)
    module.load_state_dict(weights)
    assert [each.s.requires_grad for each in module] == [True, False]
    for _ in range(4):
        hardening.step()
    assert isinstance(hardening.swap()[0], nn.ReLU)


def test_a_saved_state_is_a_copy_and_must_fit_the_network() -> None:
    module = network(2.0, 2.0)
    hardening = Hardening(module, start=0.0)
    hardening(0.5)
    state = hardening.state_dict()
    hardening(1.0)
    assert state["layers"]["1"]["share"] == 0.5
    with pytest.raises(ValueError, match="of another network: no layer '3'; known: 1"):
        Hardening(network(2.0)).load_state_dict(state)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize(("order", "first", "last"), [("forward", 0, 2), ("backward", 2, 0)])
def test_layer_by_layer_one_window_each(order: str, first: int, last: int, learn: bool) -> None:
    module = network(2.0, 2.0, 2.0)
    hardening = Hardening(module, start=0.1, target=50.0, order=order, learn=learn)
    hardening(0.25)
    assert lambdas(module)[first] == pytest.approx(26.0, rel=1e-5)
    assert [lambdas(module)[1], lambdas(module)[last]] == pytest.approx([2.0, 2.0])
    raw = [each.s.requires_grad for each in module if isinstance(each, LambdaGELU)]
    assert (raw[first], raw[1], raw[last]) == (learn, True, True)
    hardening(0.4)
    assert lambdas(module)[first] == pytest.approx(50.0, rel=1e-5)
    hardening(0.55)
    assert lambdas(module)[1] == pytest.approx(26.0, rel=1e-5)
    assert lambdas(module)[last] == pytest.approx(2.0)
    hardening(1.0)
    assert lambdas(module) == pytest.approx([50.0] * 3, rel=1e-5)


def test_each_layer_and_each_channel_goes_its_own_way() -> None:
    module = network(2.0, 2.0)
    Hardening(module, target={"1": 20.0, "3": 80.0})(1.0)
    assert lambdas(module) == pytest.approx([20.0, 80.0], rel=1e-5)
    channels = LambdaGELU(channels=3)
    channels.set_hardness(torch.tensor([1.5, 2.0, 10.0]))
    hardening = Hardening(nn.Sequential(channels), start=0.0, target=20.0)
    hardening(0.5)
    torch.testing.assert_close(channels.hardness.detach(), torch.tensor([10.75, 11.0, 15.0]))
    torch.testing.assert_close(
        hardening.hardness["0"], torch.tensor([10.75, 11.0, 15.0], dtype=torch.float64)
    )


def falls(share: float) -> float:
    return 1.0 if share == 1 else 0.5 - 0.4 * (share > 0.6)


def ended(*progress: float, lambdas: tuple[float, ...] = (2.0,), **options: Any) -> None:
    """Hardening of a network with these hardnesses by these calls."""
    hardening = Hardening(network(*lambdas), **options)
    for each in progress:
        hardening(each)


def two(**options: Any) -> Callable[[], object]:
    return lambda: Hardening(network(2.0, 2.0), **options)


def certified(
    bound: Callable[[float], float], wanted: float, **options: float
) -> Callable[[], object]:
    return lambda: target_for_certificate(bound, wanted, **options)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (two(start=1.0), r"start must be in \[0, 1\), got 1.0"),
        (two(start=math.nan), "start must be"),
        (two(start=-0.1), "start must be"),
        (two(target=1.0), r"target must be > 1 .*lambda must be > 1\), got 1.0"),
        (two(target=math.inf), "target must be"),
        (
            two(target={"1": 20.0, "3": 0.5}),
            "target of '3': lambda must be > 1 and finite, got 0.5",
        ),
        (two(target={"1": 20.0}), "no lambda for '3'; give one for every layer"),
        (
            two(target={"1": 20.0, "3": 20.0, "31": 20.0}),
            "names '31', which is no layer to harden; did you mean '3'",
        ),
        (two(schedule="lineer"), "unknown schedule 'lineer'; did you mean 'linear'"),
        (
            two(schedule=lambda share: share - 0.5),
            r"schedule must be in \[0, 1\], got -0.5 at progress 0 ",
        ),
        (
            two(schedule=falls),
            "schedule must not decrease: 0.1 at progress 0.601 of the hardening span, after 0.5",
        ),
        (two(schedule=lambda share: share / 2), r"schedule must end at 1 \(the target\), got 0.5"),
        (two(order="foreward"), "unknown order 'foreward'; did you mean 'forward'"),
        (two(steps=0), "steps must be at least 1, got 0"),
        (lambda: ended(0.5, 0.5, 0.4), "progress must not go back: 0.4 after 0.5"),
        (lambda: ended(1.1), r"progress must be in \[0, 1\], got 1.1"),
        (
            lambda: ended(1.0, lambdas=(2.0, 30.0), target=20.0),
            "3: its lambda, 30, is above the target 20 .*raise",
        ),
        (
            lambda: Hardening(nn.GELU()),
            r"no activation with a learnable hardness in GELU; call harden\(module\)",
        ),
        (lambda: harden(nn.Sequential(nn.ReLU())), "nothing to harden"),
        (
            lambda: harden(nn.Sequential(nn.GELU())).step(),
            r"step\(\) needs the number of optimizer steps",
        ),
        (lambda: harden(nn.GELU()), "GELU is itself the activation: use in_place=False"),
        (lambda: target_for(0.0), r"tolerance must be in \(0, 0.7979\).*got 0.0"),
        (lambda: target_for(-1.0), "tolerance must be in"),
        (lambda: target_for(0.9), "tolerance must be in"),
        (
            certified(lambda _: 1.0, 0.1, highest=1000),
            r"no lambda up to 1000 brings the bound to 0\.1: it is 1 there",
        ),
        (
            certified(lambda at: 1 / at + (500 < at < 5e5), 0.001),
            "bound must not increase with lambda",
        ),
        (certified(lambda at: 1 / at, 0.0), "wanted must be > 0"),
        (certified(lambda _: math.nan, 0.1), "no lambda up to"),
    ],
)
def test_what_is_impossible_is_refused_with_its_value(
    make: Callable[[], object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_a_target_from_a_tolerance() -> None:
    assert target_for() == pytest.approx(159.577, abs=1e-3)
    for tolerance in (0.5, 0.05, 0.005):
        hardness = target_for(tolerance)
        tail = quad(lambda x, a=hardness: 0.5 * math.erfc(a * x / math.sqrt(2)), 0, 20 / hardness)[
            0
        ]
        assert 2 * tail == pytest.approx(tolerance, rel=1e-6)


@given(wanted=st.floats(1e-4, 10.0), constant=st.floats(0.2, 50.0))
def test_the_target_from_a_certificate_keeps_it_and_is_nearly_least(
    wanted: float, constant: float
) -> None:
    found = target_for_certificate(lambda hardness: constant / hardness, wanted)
    assert constant / found <= wanted
    assert found == pytest.approx(max(1.01, constant / wanted), rel=0.011)


def test_harden_keeps_the_function_the_parameters_and_the_sharing() -> None:
    act = nn.GELU()
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(4, 4), act, nn.Sequential(nn.SiLU())) for _ in range(2)
    )

    def residual(net: Any, x: torch.Tensor) -> torch.Tensor:
        x = x + net.blocks[0](x)
        return x + net.blocks[1](x)

    module = Written(residual, blocks=blocks).double().eval()
    weights = list(module.parameters())
    x = torch.randn(64, 4, dtype=torch.float64)
    before = module(x)
    hardening = harden(module)
    assert hardening.module is module
    assert all(any(each is held for held in module.parameters()) for each in weights)
    assert module.blocks[0][1] is module.blocks[1][1]
    assert [type(each).__name__ for each in (module.blocks[0][1], module.blocks[1][2][0])] == [
        "LambdaGELU",
        "Swish",
    ]
    assert module.blocks[0][1].s.dtype == torch.float64
    assert not module.blocks[0][1].training
    assert 0 < (module(x) - before).abs().max().item() < 5e-3


def test_the_documented_distance_of_lambda_1001_to_gelu() -> None:
    module = nn.Sequential(nn.GELU()).double()
    x = torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    before = module(x)
    harden(module)
    moved = (module(x) - before).abs().max().item()
    assert moved == pytest.approx(0.001 * 2 * math.exp(-1) / math.sqrt(2 * math.pi), rel=2e-3)


def test_harden_out_of_place_leaves_the_module_alone() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    state = copy.deepcopy(module.state_dict())
    hardening = harden(module, in_place=False)
    assert isinstance(module[1], nn.GELU)
    assert module.state_dict().keys() == state.keys()
    assert isinstance(hardening.module[1], LambdaGELU)
    assert isinstance(harden(nn.GELU(), in_place=False).module, LambdaGELU)


def test_a_refused_harden_changes_nothing() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    for options in ({"target": 0.5}, {"hardness": 1.0}, {"target": {"0": 20.0}}, {"start": 2.0}):
        with pytest.raises(ValueError, match=r"must be|no layer to harden"):
            harden(module, **options)  # type: ignore[arg-type]
        assert isinstance(module[1], nn.GELU)


def test_the_two_line_hook_in_a_loop_of_ones_own() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))
    x = torch.randn(32, 4)
    hardening = harden(module, steps=10, target=40.0)
    optimizer = torch.optim.AdamW(hardening.parameter_groups(1e-2))
    for step in range(10):
        if step == 9:
            with pytest.raises(
                ValueError, match=r"1: lambda is \d+\.\d+, not yet 40, at progress 0.9"
            ):
                hardening.swap()
        optimizer.zero_grad()
        functional.mse_loss(module(x), x.sin()).backward()
        hardening.step()
        optimizer.step()
    swapped = hardening.swap()
    assert isinstance(swapped[1], nn.ReLU)
    assert (swapped(x) - module(x)).abs().max().item() < 16 * 0.17 / 40
    with pytest.raises(ValueError, match="step 11 of 10: `steps` must count every optimizer step"):
        hardening.step()


def test_bfloat16_networks_reach_their_target_within_their_precision() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.GELU()).bfloat16()
    hardening = harden(module, steps=50, learn=True)
    shown = []
    for _ in range(50):
        hardening.step()
        shown.append(module[1].hardness.item())
    assert all(later >= earlier for earlier, later in pairwise(shown))
    assert shown[-1] == pytest.approx(160.0, rel=0.02)
    assert isinstance(hardening.swap()[1], nn.ReLU)


@pytest.mark.slow
def test_without_the_library_the_import_says_what_to_install() -> None:
    code = """
import importlib, sys
for module, library in (("lightning", "lightning"), ("huggingface", "transformers")):
    sys.modules[library] = None  # Python's own way to say: not installed
    try:
        importlib.import_module(f"lambda_gelu.callbacks.{module}")
    except ModuleNotFoundError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()
    assert len(told) == 2
    for line, library in zip(told, ("lightning", "transformers"), strict=True):
        assert f"pip install 'lambda-gelu[{library}]'" in line


# --- Lightning


@pytest.fixture
def pl():
    pytest.importorskip("lightning", reason="the extra lambda-gelu[lightning] is not installed")
    import lightning.pytorch as pl

    return pl


def lightning_model(pl):
    class Regression(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)
            )
            self.hardening = harden(self.layers, target=60.0, hardness=1.7, learn=True)
            self.seen: list[float] = []

        def training_step(self, batch, _):
            self.seen.append(lambdas(self)[0])
            return functional.mse_loss(self.layers(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.hardening.parameter_groups(0.02), lr=0.02)

    return Regression()


def lightning_fit(
    pl,
    model,
    folder: Path,
    epochs: int,
    stop_after: int = -1,
    resume: Path | None = None,
    batches=1,
):
    from lambda_gelu.callbacks.lightning import HardeningCallback

    class Stop(pl.Callback):
        def on_train_epoch_end(self, trainer, _):
            trainer.should_stop = trainer.current_epoch + 1 == stop_after

    inputs = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True).sin()), batch_size=8)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        accumulate_grad_batches=batches,
        callbacks=[HardeningCallback(model.hardening), Stop()],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers
        trainer.fit(model, loader, ckpt_path=resume, weights_only=True)
    return trainer


@pytest.mark.parametrize("batches", [1, 3])
def test_lightning_hardens_to_the_target_by_optimizer_steps(
    pl, tmp_path: Path, batches: int
) -> None:
    model = lightning_model(pl)
    lightning_fit(pl, model, tmp_path, epochs=2, batches=batches)
    assert len(model.seen) == 12
    assert model.seen[0] == pytest.approx(1.7)
    assert all(1 < each < 3 for each in model.seen[:3])
    # Three batches of one step.
    assert [later > earlier for earlier, later in pairwise(model.seen[3:])] == [
        batches == 1 or place % batches == 2 for place in range(8)
    ]
    assert lambdas(model) == pytest.approx([60.0, 60.0], rel=1e-5)
    assert {found.traits.name for found in census(model.hardening.swap())} == {"relu"}
    with pytest.raises(ValueError, match="give the Trainer max_epochs or max_steps"):
        lightning_fit(pl, lightning_model(pl), tmp_path, epochs=-1)


def test_lightning_resumes_where_it_stopped(pl, tmp_path: Path) -> None:
    whole = lightning_model(pl)
    lightning_fit(pl, whole, tmp_path / "whole", epochs=3)
    stopped = lightning_model(pl)
    trainer = lightning_fit(pl, stopped, tmp_path / "stopped", epochs=3, stop_after=2)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    resumed = lightning_model(pl)
    lightning_fit(pl, resumed, tmp_path / "resumed", epochs=3, resume=tmp_path / "last.ckpt")
    assert stopped.seen + resumed.seen == pytest.approx(whole.seen, rel=1e-6)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor)


# --- Hugging Face transformers


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip(
        "accelerate", reason="transformers' Trainer needs accelerate: lambda-gelu[transformers]"
    )
    return pytest.importorskip(
        "transformers", reason="the extra lambda-gelu[transformers] is not installed"
    )


class Tokens(Dataset):
    def __init__(self) -> None:
        self.ids = torch.randint(1, 30, (32, 6), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index].sum() % 2}


def bert() -> nn.Module:
    torch.manual_seed(0)
    dropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return hugging("bert", "BertForSequenceClassification", num_labels=2, **dropped)()


def hf_train(
    hf, model: nn.Module, hardening, folder: Path, *, resume: str | None = None, stop_at: int = 0
):
    from lambda_gelu.callbacks.huggingface import HardeningCallback

    class Stop(hf.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            control.should_training_stop = state.global_step == stop_at

    arguments = hf.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="steps",
        save_steps=4,
        logging_strategy="no",
        seed=0,
    )
    optimizer = torch.optim.AdamW(hardening.parameter_groups(1e-3))
    trainer = hf.Trainer(
        model,
        arguments,
        train_dataset=Tokens(),
        callbacks=[HardeningCallback(hardening), Stop()],
        optimizers=(optimizer, None),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.slow
def test_transformers_hardens_a_bert_to_the_target_and_resumes(hf, tmp_path: Path) -> None:
    whole = bert()
    hardening = harden(whole, target=80.0, hardness=1.7, learn=True)
    trainer = hf_train(hf, whole, hardening, tmp_path / "whole")
    assert trainer.state.global_step == 8
    assert lambdas(whole) == pytest.approx([80.0, 80.0], rel=1e-5)
    swapped = hardening.swap()
    tokens = Tokens().ids
    with torch.no_grad():
        torch.testing.assert_close(
            swapped(tokens).logits, whole.eval()(tokens).logits, rtol=0, atol=0.02
        )

    stopped = bert()
    first = harden(stopped, target=80.0, hardness=1.7, learn=True)
    hf_train(hf, stopped, first, tmp_path / "part", stop_at=4)
    assert first.progress == 0.5
    checkpoint = tmp_path / "part" / "checkpoint-4"
    assert (checkpoint / "hardening.pt").is_file()
    resumed = bert()
    second = harden(resumed, target=80.0, hardness=1.7, learn=True)
    hf_train(hf, resumed, second, tmp_path / "part", resume=str(checkpoint))
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor, msg=name)

    third = bert()
    (checkpoint / "hardening.pt").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"hardening.pt is missing: to resume from another folder"
    ):
        hf_train(hf, third, harden(third), tmp_path / "part", resume=str(checkpoint))
