"""The attacks of `netverify.attacks` beside those of torchattacks, on two CNNs of digits: what
share of the samples each leaves standing, and how long it takes.

`pip install --no-deps --target FOLDER torchattacks==3.5.1`, then `PYTHONPATH=FOLDER python -m
benchmarks.attacks`; it takes some minutes. Less is stronger: each share is an upper limit of the
true one. Budgets are equal, 100 steps, 9 targets and 1,000 queries; the default budget of the
stage `bounds` stands beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module

import torch
from torch import nn

from benchmarks.subjects import Figure, trained
from evalsuite import Property
from netverify.attacks import ATTACKS, attack
from netverify.falsifier import falsify

_SAMPLES = 100
_RADII = {"linf": (1 / 16, 1 / 8, 3 / 16), "l2": (0.5, 1.0, 1.5)}
_EQUAL = {"steps": 100, "targets": 9, "queries": 1000}
_PEERS = {
    "apgd-ce": ("APGD", {"steps": 100, "n_restarts": 1, "loss": "ce"}),
    "apgd-dlr": ("APGDT", {"steps": 100, "n_restarts": 1, "n_classes": 10}),
    "square": ("Square", {"n_queries": 1000, "n_restarts": 1}),
}


def attacks() -> Iterator[Figure]:
    """Yield, for each network, ball and attack, the share of samples left and the seconds."""
    for variant in ("gelu", "relu"):
        network, data = trained("digits-cnn", variant)
        test = data.test
        samples, labels = test.inputs[:_SAMPLES], test.targets[:_SAMPLES]
        for norm, radii in _RADII.items():
            for eps in radii:
                asked = [
                    Property.robustness(
                        x, sample=i, label=int(y), eps=eps, domain=data.domain, norm=norm
                    )
                    for i, (x, y) in enumerate(zip(samples, labels, strict=True))
                ]
                told = f"digits-cnn {variant}, {norm}, eps {eps:g}"
                yield from _compared(told, network.module, asked, samples, labels, norm)


def _compared(
    told: str,
    module: nn.Module,
    asked: list[Property],
    samples: torch.Tensor,
    labels: torch.Tensor,
    norm: str,
) -> Iterator[Figure]:
    def left(points: list[torch.Tensor | None]) -> float:
        return sum(point is None for point in points) / len(points)

    yield from _timed(f"{told}: pgd", lambda: left(falsify(module, asked, seed=0)))
    peers = import_module("torchattacks")
    for name in ATTACKS:
        for budget, options in (("default", {}), ("equal", _EQUAL)):
            yield from _timed(
                f"{told}: {name}, {budget}",
                lambda name=name, options=options: left(
                    attack(module, asked, samples, name, seed=0, **options)
                ),
            )
        kind, more = _PEERS[name]
        peer = getattr(peers, kind)(
            module, norm={"linf": "Linf", "l2": "L2"}[norm], eps=asked[0].eps, seed=0, **more
        )

        def of_peer(peer: Callable[..., torch.Tensor] = peer) -> float:
            moved = peer(samples, labels)
            return float((module(moved).argmax(1) == labels).double().mean())

        yield from _timed(f"{told}: {name}, torchattacks", of_peer)


def _timed(told: str, work: Callable[[], float]) -> Iterator[Figure]:
    began = time.perf_counter()
    yield f"{told}, share left", work()
    yield f"{told}, seconds", time.perf_counter() - began


if __name__ == "__main__":
    torch.set_num_threads(1)
    shares: dict[str, list[float]] = {}
    for said, number in attacks():
        print(f"{number:8.3f}  {said}", flush=True)
        if said.endswith("left"):
            shares.setdefault(said.partition(": ")[2], []).append(number)
    for said, every in shares.items():
        print(f"{sum(every) / len(every):8.4f}  mean over {len(every)} balls: {said}")
