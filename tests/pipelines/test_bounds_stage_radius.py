"""The search of certified radii, with hand-made answers of which balls are proven."""

from __future__ import annotations

import torch

from evalsuite import Metric
from pipelines.bounds.radius import search

GRID = (0.125, 0.25, 0.5)


Grid = dict[float, tuple[torch.Tensor, torch.Tensor]]


def in_time(holds: dict[float, torch.Tensor]) -> Grid:
    return {eps: (each, torch.zeros_like(each)) for eps, each in holds.items()}


def of_limits(limits: list[float], grid: tuple[float, ...] = GRID) -> Grid:
    return in_time({eps: torch.tensor([eps <= each for each in limits]) for eps in grid})


def test_each_sample_has_a_bracket_of_its_own() -> None:
    limits = [0.0, 0.1, 0.13, 0.3, 0.49, 0.5, 0.7]
    asked: list[tuple[int, float]] = []

    def certified(which: list[int], eps: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        asked.extend(zip(which, eps, strict=True))
        return torch.tensor([each <= limits[i] for i, each in zip(which, eps, strict=True)]), torch.zeros(
            len(which), dtype=torch.bool
        )

    correct = torch.tensor([False, *[True] * 6])
    radii = search(correct, of_limits(limits), 5, certified)
    brackets = [0.0, 0.125, 0.125, 0.25, 0.25, 0.0, 0.0]
    for found, limit, bracket in zip(radii.proven.tolist(), limits, brackets, strict=True):
        least = limit - bracket / 2**5
        assert least <= found <= limit or (found == 0.5 and limit >= 0.5)
    assert radii.proven[0] == 0
    assert radii.beyond.tolist() == [False] * 5 + [True, True]
    assert not radii.late.any()
    assert {which for which, _ in asked} == {1, 2, 3, 4}
    assert len(asked) == 4 * 5


def test_a_proof_that_is_not_monotone_never_counts_what_was_not_certified() -> None:
    proven = {0.125: False, 0.25: True, 0.375: False, 0.3125: True, 0.34375: False, 0.328125: True, 0.5: False}

    def certified(which: list[int], eps: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([proven[eps[0]]]), torch.tensor([False])

    radii = search(torch.tensor([True]), in_time({eps: torch.tensor([proven[eps]]) for eps in GRID}), 4, certified)
    assert radii.proven.tolist() == [0.328125]


def test_a_search_without_time_keeps_the_grid() -> None:
    def certified(which: list[int], eps: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(which), dtype=torch.bool), torch.ones(len(which), dtype=torch.bool)

    radii = search(torch.tensor([True, True]), of_limits([0.3, 0.9]), 6, certified)
    assert radii.proven.tolist() == [0.25, 0.5]
    assert radii.late.tolist() == [True, False]
    rows: list[Metric] = radii.metrics({"method": "crown"})
    assert [each.value for each in rows] == [0.375, 0.375, 0.25, 0.5]
    assert [each.sample for each in rows] == [None, None, 0, 1]
    assert "1 of 2 samples not searched to the end" in rows[0].reason
    assert "1 of 2 samples hold at the greatest eps" in rows[0].reason


def test_a_radius_of_zero_is_a_radius_too() -> None:
    grid = in_time({0.0: torch.tensor([True, False]), 0.5: torch.tensor([False, False])})

    def certified(which: list[int], eps: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([each <= 0.25 for each in eps]), torch.zeros(len(which), dtype=torch.bool)

    radii = search(torch.tensor([True, False]), grid, 1, certified)
    assert radii.proven.tolist() == [0.25, 0.0]


def test_a_radius_that_was_not_tried_is_told_and_the_greatest_only_where_it_holds() -> None:
    def certified(which: list[int], eps: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(len(which), dtype=torch.bool), torch.zeros(len(which), dtype=torch.bool)

    both = torch.tensor([True, True])
    alone = search(both, in_time({0.0: torch.tensor([False, True])}), 2, certified)
    assert alone.beyond.tolist() == [False, True]
    grid = of_limits([0.3, 0.3])
    grid[0.5] = (grid[0.5][0], torch.tensor([True, False]))
    assert search(both, grid, 2, certified).late.tolist() == [True, False]
