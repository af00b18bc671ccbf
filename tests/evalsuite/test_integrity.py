"""What a run leaves is what it wrote, or it is refused; other people's runs are read, and can do
nothing else.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from report_workshop import sample_rows, write_run
from workshop import ONE, Workshop, call

from evalsuite import terminal
from evalsuite.data.tokenizers import tokenizer_of
from evalsuite.own import brought
from evalsuite.report.record import read_record
from evalsuite.results import DamagedResults, read_results, sealed
from evalsuite.run.record import read_record as read_run_record
from evalsuite.sums import FILE, changed, digest_of, read_sums, write_sums
from evalsuite.terminal import printable, say
from opgraph.errors import OwnError

RECORD = {
    "name": "demo",
    "baseline": "gelu",
    "workloads": ["digits-mlp", "digits-cnn"],
    "seeds": [0, 1, 2],
}


def finished(folder: Path) -> Path:
    """A run that has ended: its record knows the digest of its rows, and its own checksum."""
    write_run(folder, sample_rows(), {})
    entries = {**RECORD, "results": digest_of(folder / "results.parquet")}
    (folder / "run.json").write_text(json.dumps(sealed(entries), indent=1))
    return folder


def flip(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_every_flipped_bit_of_the_rows_and_of_the_record_is_noticed(tmp_path: Path) -> None:
    """Of 300 bits flipped in a file of rows 64 were read as other values: .2853 as .2833,
    neutral as higher.
    """
    draw = random.Random(0)
    folder = finished(tmp_path)
    assert len(read_results(folder)) > 100
    for name in ("results.parquet", "run.json"):
        path = folder / name
        whole = path.read_bytes()
        plain = json.loads(whole) if name == "run.json" else None
        for _ in range(60):
            flip(path, draw.randrange(len(whole)), draw.randrange(8))
            try:
                entries = json.loads(path.read_bytes())
                # White space says the same; so does a record whose checksum goes by another name.
                harmless = plain is not None and all(
                    entries.get(name) == plain[name] for name in RECORD
                )
            except ValueError:
                harmless = False
            assert harmless or refused(folder), (name, path.read_bytes())
            path.write_bytes(whole)


def refused(folder: Path) -> bool:
    try:
        read_results(folder)
    except DamagedResults as error:
        return "results.parquet" in str(error) or "run.json" in str(error)
    return False


def test_without_a_record_pages_have_checksums(tmp_path: Path) -> None:
    """A page that is damaged is no page; what says how to read the pages is another matter, see
    the record's digest.
    """
    folder = write_run(tmp_path, sample_rows())
    path = folder / "results.parquet"
    metadata = pq.read_metadata(path)
    column = metadata.row_group(0).column(metadata.schema.names.index("value"))
    flip(
        path,
        (column.dictionary_page_offset or column.data_page_offset)
        + column.total_compressed_size
        - 8,
        3,
    )
    with pytest.raises(DamagedResults, match="cannot be read"):
        read_results(folder)


@pytest.mark.parametrize(
    "command",
    [
        ("report", "{run}"),
        ("compare", "{run}", "{whole}"),
        ("compare", "{whole}", "{run}"),
        ("merge", "{out}", "{whole}", "{run}"),
        ("query", "SELECT count(*) FROM rows", "{run}"),
    ],
)
def test_no_command_reads_rows_that_are_others_than_the_run_wrote(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    whole, run = finished(tmp_path / "whole"), finished(tmp_path / "run")
    write_run(run, sample_rows()[:-5])  # a whole file, and not the run's
    places = {"run": run, "whole": whole, "out": tmp_path / "out"}
    done = call(*(word.format(**places) for word in command))
    assert done.exit_code == 2
    assert (
        "is not the file that the run wrote" in done.stderr or "no record of a run" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_record_that_was_changed_is_none(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"gelu"', '"relu"'))
    assert read_run_record(folder) is None
    with pytest.raises(DamagedResults, match="its entries do not have its checksum"):
        read_record(folder)


@pytest.mark.parametrize(
    "statement",
    [
        "COPY rows TO '{file}'",
        "ATTACH '{file}' AS other",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "FROM read_csv('/etc/hostname')",
        "SELECT * FROM glob('/*')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "EXPORT DATABASE '{file}'",
        "PRAGMA database_list",
        "CREATE TABLE t AS SELECT 1",
        "SELECT 1; COPY rows TO '{file}'",
        "SELECT * FROM table",
        "CREATE SECRET s (TYPE s3)",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "DROP VIEW rows",
        "",
    ],
)
def test_a_query_reads_the_table_and_does_nothing_else(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    run = finished(tmp_path / "run")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = call("query", statement.format(file=tmp_path / "here" / "file"), run)
    assert done.exit_code == 2
    assert "root:" not in done.stdout + done.stderr
    assert list((tmp_path / "here").iterdir()) == []


def test_a_query_of_the_table_is_answered(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    done = call(
        "query",
        "WITH t AS (FROM rows) SELECT count(*) AS n FROM t",
        finished(tmp_path),
        "--format",
        "csv",
    )
    assert (done.exit_code, done.stdout) == (0, f"n\n{len(sample_rows())}\n")


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\x08"


def test_values_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nb", HOSTILE, 3)
    assert capsys.readouterr().out == f"a\nb {printable(HOSTILE)} 3\n"
    assert not set(printable(HOSTILE)) & {"\x1b", "\x07", "\x9b", "\u202e", "\x08"}
    pytest.importorskip("duckdb")
    rows = [row for row in sample_rows() if row.metric == "accuracy"]
    rows[0] = type(rows[0])(
        **{**{name: getattr(rows[0], name) for name in row_names(rows[0])}, "reason": HOSTILE}
    )
    done = call("query", "SELECT reason FROM rows", write_run(tmp_path, rows))
    assert "\x1b" not in done.stdout
    assert "\\x1b]0;owned" in done.stdout


def row_names(row: object) -> list[str]:
    return list(row.__dataclass_fields__)  # type: ignore[attr-defined]


def test_a_file_of_a_query_has_the_exact_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    run, words = (
        write_run(tmp_path, sample_rows()),
        ("query", "SELECT chr(27) AS letter", "--format", "csv"),
    )
    assert call(*words[:2], run, *words[2:]).stdout == "letter\n\x1b\n"
    monkeypatch.setattr(terminal, "on_terminal", lambda: True)
    assert "\\x1b" in call(*words[:2], run, *words[2:]).stdout


def with_files(run: Path, text: str) -> Path:
    for name in (
        "artefacts/digits-mlp/gelu/0/export/model.onnx",
        "logs/digits-mlp/gelu/0/export.log",
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    return run


def runs(folder: Path) -> tuple[Path, Path]:
    """Two finished runs of one recipe with the same jobs, whose artefacts differ, as clocks and
    dates make them.
    """
    from test_studies import cut

    return with_files(cut(folder / "a", 0), "of the first"), with_files(
        cut(folder / "b", 0, 1), "of the last"
    )


def test_artefacts_travel_with_their_rows(tmp_path: Path) -> None:
    """The rows of a job that both have are the first run's, and so are its files; they were the
    last run's.
    """
    done = call("merge", tmp_path / "out", *runs(tmp_path))
    assert done.exit_code == 0, done.stderr
    for name in (
        "artefacts/digits-mlp/gelu/0/export/model.onnx",
        "logs/digits-mlp/gelu/0/export.log",
    ):
        assert (tmp_path / "out" / name).read_text() == "of the first"
    record = read_run_record(tmp_path / "out")
    assert record is not None
    assert record.results == digest_of(tmp_path / "out" / "results.parquet")


@pytest.mark.parametrize(
    "place",
    [
        "artefacts/digits-mlp/gelu/0/export/model.onnx",
        "artefacts/digits-mlp/gelu/0/export",
        "artefacts/digits-mlp",
        "artefacts",
        "logs/digits-mlp/gelu/0/export.log",
        "logs",
    ],
)
def test_links_are_not_followed(place: str, tmp_path: Path) -> None:
    """A link to a file of the system was copied into the result."""
    first, second = runs(tmp_path)
    target = first / place
    secret = tmp_path / "secret"
    target.rename(secret)
    target.symlink_to(secret)
    done = call("merge", tmp_path / "out", first, second)
    assert done.exit_code == 2
    assert f"{place}: is a link or no file" in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    first, second = runs(tmp_path)
    pipe = first / "artefacts/digits-mlp/gelu/0/export/model.onnx"
    pipe.unlink()
    os.mkfifo(pipe)
    assert "is a link or no file" in call("merge", tmp_path / "out", first, second).stderr


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"model_type": "mine"},
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}},
    ],
)
def test_the_code_of_a_tokenizers_folder_is_not_run(
    config: dict[str, object] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library asked "run the custom code? [y/N]"; somebody who says yes is given no choice
    here.
    """
    pytest.importorskip("transformers")
    written = tmp_path / "written"
    folder = tmp_path / f"model{len(str(config))}"
    folder.mkdir()
    (folder / "mine.py").write_text(f"open({str(written)!r}, 'w').close()\nclass Mine: pass\n")
    settings = {"auto_map": {"AutoTokenizer": ["mine.Mine", None]}, "tokenizer_class": "Mine"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(OwnError, match="there is none here"):
        tokenizer_of(str(folder), "the text")
    assert not written.exists()


@pytest.mark.parametrize("text", ["[1, 2]", "3", "{", "null", "[" * 100_000])
def test_settings_of_a_tokenizer_that_are_no_object_are_refused(text: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(
        str(tmp_path / "tokenizer.json")
    )
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(OwnError, match=r"tokenizer_config\.json: (cannot be read as JSON|holds)"):
        tokenizer_of(str(tmp_path), "the text")


def test_every_flipped_bit_of_any_file_of_a_run_is_told(tmp_path: Path) -> None:
    """2,000 flips over rows, record, artefacts, logs, page, Markdown and tables: what is not as
    written is named.
    """
    run = with_files(finished(tmp_path / "run"), "an artefact\n")
    write_sums(run)
    assert call("report", run).exit_code == 0
    files = [path for path in run.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in files}
    assert {".parquet", ".json", ".onnx", ".log", ".html", ".md", ".csv", ""} <= kinds
    assert set(read_sums(run)) == {
        path.relative_to(run).as_posix() for path in files if path.name != FILE
    }
    assert list(changed(run)) == []
    draw = random.Random(0)
    for _ in range(2000):
        path = draw.choice(files)
        whole = path.read_bytes()
        if whole:
            flip(path, draw.randrange(len(whole)), draw.randrange(8))
            # a line that is none says nothing of its file; any other names it
            if path.name == FILE:
                assert list(changed(run)) or len(read_sums(run)) < len(files) - 1
            else:
                assert digest_of(path) != read_sums(run)[path.relative_to(run).as_posix()]
            path.write_bytes(whole)
    flip(files[0], 0, 0)
    files[1].unlink()
    told = list(changed(run))
    assert f"{files[1]}: is missing" in told or files[1].name == FILE
    done = call("doctor", run)
    assert done.exit_code == 1
    assert "DAMAGED" in done.stdout


def test_a_run_leaves_the_sums_of_its_files(workshop: Workshop) -> None:
    assert workshop.run(workshop.recipe("  - files\n", ONE)).returncode == 0
    assert list(changed(workshop.out)) == []
    names = set(read_sums(workshop.out))
    assert {"results.parquet", "run.json", "journal.jsonl"} <= names
    assert any(name.startswith("artefacts/") for name in names)
    check = subprocess.run(
        ["sha256sum", "--check", "--quiet", FILE], cwd=workshop.out, capture_output=True, text=True
    )
    assert (check.returncode, check.stdout) == (0, "")


def test_outputs_that_are_kept_have_the_rights_that_the_umask_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were readable by their writer alone, so that a second user's job of the same model
    ended.
    """
    monkeypatch.setattr(brought, "originals_folder", lambda: tmp_path / "originals")
    before = os.umask(0o022)
    try:
        outputs = brought.Originals("key", lambda inputs: inputs)
        outputs(torch.ones(2, 3))
        outputs.keep()
    finally:
        os.umask(before)
    (file,) = (tmp_path / "originals").iterdir()
    assert file.stat().st_mode & 0o777 == 0o644
    assert torch.equal(
        brought.Originals("key", lambda inputs: 0 * inputs)(torch.ones(2, 3)), torch.ones(2, 3)
    )
