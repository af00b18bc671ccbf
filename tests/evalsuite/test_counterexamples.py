"""Counterexamples as a file and as pictures: numbers by hand, and what is left out."""

from __future__ import annotations

import base64
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from evalsuite import Data, Property, Section, Split
from evalsuite.counterexamples import write_counterexamples
from evalsuite.report import explorer
from evalsuite.report.drawings import Picture
from evalsuite.report.explorer import shown_pictures
from evalsuite.results import DamagedResults
from evalsuite.verification.report.counterexamples import counterexample_pictures

CLEAN = torch.tensor([[0.0, 1.0], [0.5, 0.25]])
MOVED = torch.tensor([[0.125, 1.0], [0.5, 0.125]])


def data_of(inputs: torch.Tensor, label: int = 0, picture: tuple[int, ...] | None = None) -> Data:
    part = Split(inputs[None], torch.tensor([label]))
    return Data(part, part, part, part, (0.0, 1.0), 2, "by hand", picture=picture)


def corner(inputs: int) -> nn.Module:
    """Logits (the last input, the first one)."""
    layer = nn.Linear(inputs, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(inputs)[[-1, 0]])
    return nn.Sequential(nn.Flatten(), layer)


def written(
    folder: Path,
    clean: torch.Tensor,
    moved: torch.Tensor,
    *radii: float,
    label: int = 0,
    picture: tuple[int, ...] | None = None,
) -> list[dict[str, object]]:
    data, module = data_of(clean, label, picture), corner(clean.numel())
    asked = [
        Property.robustness(clean, sample=0, label=label, eps=each, domain=(0.0, 9.0))
        for each in radii
    ]
    found = json.loads(
        write_counterexamples(folder, data, module, [(each, moved) for each in asked]).read_text()
    )
    assert isinstance(found, list)
    return found


def test_the_file_has_both_inputs_and_their_classes_and_a_tie_is_of_the_other_class(
    tmp_path: Path,
) -> None:
    clean, moved = CLEAN[None], MOVED[None]
    (found,) = written(tmp_path, clean, moved, 0.125)
    assert found == {
        "sample": 0,
        "eps": 0.125,
        "label": 0,
        "input": moved.tolist(),
        "clean": clean.tolist(),
        "picture": [1, 2, 2],
        "logits": [0.125, 0.125],
        "class": 1,
        "clean_class": 0,
    }


def test_pixels_share_a_scale_and_the_difference_is_a_power_of_two_around_grey(
    tmp_path: Path,
) -> None:
    written(tmp_path, CLEAN[None] * 2 + 3, MOVED[None] * 2 + 3, 0.25)  # no scale of [0, 1]
    (picture,) = counterexample_pictures(tmp_path, ["accuracy"])
    clean, adversarial, difference = (pixels.tolist() for *_, pixels in picture.images)
    assert clean == [[0, 255], [128, 64]]
    assert adversarial == [[32, 255], [128, 32]]
    assert difference == [[255, 128], [128, 0]]  # An eighth of the scale, times 4.
    captions = [caption.replace("\N{NO-BREAK SPACE}", " ") for caption, *_ in picture.images]
    assert captions == ["clean: class 0", "adversarial: class 1", "difference × 4, grey is none"]
    assert "2 × 2 pixels" in picture.images[0][1]
    assert (picture.metrics, picture.setting) == (("accuracy",), {"eps": "0.25"})


def test_colours_and_flat_inputs_have_pictures_and_a_table_of_numbers_has_none(
    tmp_path: Path,
) -> None:
    written(tmp_path, CLEAN.expand(3, 2, 2), MOVED.expand(3, 2, 2), 0.125)
    assert [pixels.shape for *_, pixels in counterexample_pictures(tmp_path, [])[0].images] == [
        (2, 2, 3)
    ] * 3
    written(tmp_path, CLEAN.flatten(), MOVED.flatten(), 0.125, picture=(1, 2, 2))
    assert counterexample_pictures(tmp_path, [])[0].images[0][2].tolist() == [[0, 255], [128, 64]]
    assert written(tmp_path, CLEAN.flatten(), MOVED.flatten(), 0.125)
    assert counterexample_pictures(tmp_path, []) == []


def test_each_radius_has_one_picture_of_a_sample_that_was_right(tmp_path: Path) -> None:
    written(tmp_path, CLEAN[None], MOVED[None], 0.5, 0.125, 0.5)
    assert [each.setting["eps"] for each in counterexample_pictures(tmp_path, [])] == [
        "0.5",
        "0.125",
    ]
    written(tmp_path, CLEAN[None], CLEAN[None], 0.5, label=1)  # wrong without any perturbation
    assert counterexample_pictures(tmp_path, []) == []


def test_older_files_and_intervals_have_no_pictures_and_a_damaged_file_is_named(
    tmp_path: Path,
) -> None:
    assert counterexample_pictures(tmp_path, []) == []
    path = tmp_path / "counterexamples.json"
    path.write_text('[{"sample": 0, "eps": 0.5, "label": 1, "input": [[[0.5]]], "logits": [1, 0]}]')
    assert counterexample_pictures(tmp_path, []) == []
    ball = Property.interval(
        CLEAN[None],
        sample=0,
        target=torch.tensor([0.5, math.nan]),
        tolerance=0.25,
        eps=0.5,
        domain=(0.0, 1.0),
    )
    (found,) = json.loads(
        write_counterexamples(
            tmp_path, data_of(CLEAN[None]), corner(4), [(ball, MOVED[None])]
        ).read_text()
    )
    assert (found["lowest"], found["highest"]) == ([0.25, None], [0.75, None])
    assert counterexample_pictures(tmp_path, []) == []
    path.write_text("[{")
    with pytest.raises(DamagedResults, match=r"counterexamples\.json: not JSON"):
        counterexample_pictures(tmp_path, [])


def test_a_page_has_the_first_seeds_pictures_and_says_what_it_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shade = np.array([[0, 255], [7, 9]], dtype=np.uint8)

    def brought(folder: Path) -> list[Picture]:
        seed = folder.parent.name
        radii = {"0": ("1",), "1": ("1", "2")}[seed]
        return [
            Picture(("m",), {"eps": each}, f"ε = {each}.", (("it", "that", shade),))
            for each in radii
        ]

    frame = pd.DataFrame(
        {
            "workload": "w",
            "variant": ["a", "a", "b", "b"],
            "seed": [0, 1] * 2,
            "step": "s",
            "stage": "x",
        }
    )
    sections = {"x": Section("X", "?", ("x",), pictures=brought)}
    content = SimpleNamespace(frame=frame, folder=tmp_path, sections=sections)
    shown = shown_pictures(content)  # type: ignore[arg-type]
    assert [each["text"] for each in shown] == [
        "a, seed 0: ε = 1.",
        "b, seed 0: ε = 1.",
        "a, seed 1: ε = 2.",
        "b, seed 1: ε = 2.",
    ]
    ((_, _, address),) = shown[0]["images"]
    head, _, encoded = address.partition(",")
    assert head == "data:image/png;base64"
    assert np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded)))).tolist() == shade.tolist()
    monkeypatch.setattr(explorer, "MOST_CHARACTERS", 2 * len(address))
    few = shown_pictures(content)  # type: ignore[arg-type]
    assert [len(each["images"]) for each in few] == [1, 1, 0, 0]
    assert few[3]["text"].endswith("no room for it: its numbers are among the artefacts.")
    content.folder = None
    assert shown_pictures(content) == []  # type: ignore[arg-type]
