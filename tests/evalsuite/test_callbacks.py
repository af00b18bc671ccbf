"""Real trainings with Lightning's and transformers' Trainers: lambda reaches its target, and a resumed one goes on."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from own_networks import hugging
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from evalsuite.activations import LambdaGELU, census
from evalsuite.reluize.harden import harden


def lambdas(module: nn.Module) -> list[float]:
    return [each.hardness.item() for each in module.modules() if isinstance(each, LambdaGELU)]


@pytest.mark.slow
def test_without_the_library_the_import_says_what_to_install() -> None:
    code = """
import importlib, sys
for module, library in (("lightning", "lightning"), ("huggingface", "transformers")):
    sys.modules[library] = None  # Python's own way to say: not installed
    try:
        importlib.import_module(f"evalsuite.integrations.{module}")
    except ModuleNotFoundError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()
    assert len(told) == 2
    for line, library in zip(told, ("lightning", "transformers"), strict=True):
        assert f"pip install 'evalsuite[{library}]'" in line


# --- Lightning


@pytest.fixture
def pl():
    pytest.importorskip("lightning", reason="the extra evalsuite[lightning] is not installed")
    import lightning.pytorch as pl

    return pl


def lightning_model(pl):
    class Regression(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
            self.hardening = harden(self.layers, target=60.0, hardness=1.7, learn=True)
            self.seen: list[float] = []

        def training_step(self, batch, _):
            self.seen.append(lambdas(self)[0])
            return functional.mse_loss(self.layers(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.hardening.parameter_groups(0.02), lr=0.02)

    return Regression()


def lightning_fit(pl, model, folder: Path, epochs: int, stop_after: int = -1, resume: Path | None = None, batches=1):
    from evalsuite.integrations.lightning import HardeningCallback

    class Stop(pl.Callback):
        def on_train_epoch_end(self, trainer, _):
            trainer.should_stop = trainer.current_epoch + 1 == stop_after

    inputs = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True).sin()), batch_size=8)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, accumulate_grad_batches=batches,
        callbacks=[HardeningCallback(model.hardening), Stop()],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers
        trainer.fit(model, loader, ckpt_path=resume, weights_only=True)
    return trainer


def test_lightning_hardens_to_the_target(pl, tmp_path: Path) -> None:
    model = lightning_model(pl)
    lightning_fit(pl, model, tmp_path, epochs=2)
    assert len(model.seen) == 12
    assert model.seen[0] == pytest.approx(1.7)
    assert all(1 < each < 3 for each in model.seen[:3])
    assert all(later > earlier for earlier, later in zip(model.seen[3:], model.seen[4:], strict=False))
    assert lambdas(model) == pytest.approx([60.0, 60.0], rel=1e-5)
    assert {found.traits.name for found in census(model.hardening.swap())} == {"relu"}


def test_lightning_counts_optimizer_steps_under_gradient_accumulation(pl, tmp_path: Path) -> None:
    model = lightning_model(pl)
    lightning_fit(pl, model, tmp_path, epochs=2, batches=3)
    assert lambdas(model) == pytest.approx([60.0, 60.0], rel=1e-5)
    assert len(set(model.seen[6:9])) == 1  # three batches of one step


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


def test_lightning_without_an_end_is_refused(pl, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give the Trainer max_epochs or max_steps"):
        lightning_fit(pl, lightning_model(pl), tmp_path, epochs=-1)


# --- Hugging Face transformers


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate: evalsuite[transformers]")
    return pytest.importorskip("transformers", reason="the extra evalsuite[transformers] is not installed")


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


def hf_train(hf, model: nn.Module, hardening, folder: Path, *, resume: str | None = None, stop_at: int = 0):
    from evalsuite.integrations.huggingface import HardeningCallback

    class Stop(hf.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            control.should_training_stop = state.global_step == stop_at

    arguments = hf.TrainingArguments(
        output_dir=str(folder), num_train_epochs=2, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=1e-3, report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="steps", save_steps=4,
        logging_strategy="no", seed=0,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(hardening.parameter_groups(1e-3))
    trainer = hf.Trainer(
        model, arguments, train_dataset=Tokens(), callbacks=[HardeningCallback(hardening), Stop()],
        optimizers=(optimizer, None),
    )  # fmt: skip
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
        torch.testing.assert_close(swapped(tokens).logits, whole.eval()(tokens).logits, rtol=0, atol=0.02)

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
    with pytest.raises(FileNotFoundError, match=r"hardening.pt is missing: to resume from another folder"):
        hf_train(hf, third, harden(third), tmp_path / "part", resume=str(checkpoint))
