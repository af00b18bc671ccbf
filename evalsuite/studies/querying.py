"""SQL over the rows of one or many runs, by DuckDB: the table is `rows`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.report.grids import csv_text
from evalsuite.results import as_table, read_results
from evalsuite.studies.pairing import Refused
from opgraph.limits import Share, within

if TYPE_CHECKING:
    import pandas as pd

TABLE = "rows"
# A statement may come from anybody: it reads the table and nothing else. No file is read or
# written, no extension is loaded or fetched, none of Python's variables is a table, and none of
# these settings can be changed.
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "temp_directory": "",
}


def answer(sql: str, folders: Sequence[Path], form: str) -> str:
    """Return what `sql` selects of the table `rows`, as text in one of FORMATS.

    The table is the rows of the runs, `run` being the folder's name. Options are structs:
    `options.sparsity`; one that a step does not have is null. A small statement can stand for an
    endless answer, so the command has a share of memory and time for it, as for a file of the
    results' size.

    Raises:
        DamagedResults: a folder has no results, or they cannot be read.
        Refused: DuckDB is not installed, refuses the statement, or it selects nothing.
    """
    try:
        import duckdb
    except ImportError as error:
        raise Refused("query needs DuckDB: pip install 'evalsuite[sql]'") from error
    # 1. The rows as a table, and a share of memory and time that goes by their size.
    table = as_table(read_results(*folders))
    share = Share.of(table.nbytes)
    # the answer, and its text, need room too
    settings = {**_SETTINGS, "memory_limit": f"{share.memory // 2}B"}
    with within(share, "the statement"), duckdb.connect(config=settings) as connection:
        # 2. One statement that selects: no statement may write files, load extensions or undo the
        # limits.
        connection.register(TABLE, table)
        connection.execute("SET lock_configuration = true")
        try:
            statements = connection.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise Refused(
                    f"query takes one statement that selects: write SELECT ... FROM {TABLE}"
                )
            frame: pd.DataFrame = connection.sql(sql).df()
        except duckdb.Error as error:
            said = str(error).strip()
            raise Refused(
                f"DuckDB: {said}\nThe table is {TABLE}: {', '.join(table.column_names)}"
            ) from error
        return FORMATS[form](frame)


def _text(frame: pd.DataFrame) -> str:
    import pandas as pd

    with pd.option_context("display.width", None, "display.max_colwidth", 80):
        return frame.to_string(index=False, na_rep="") + "\n" if len(frame) else "(no rows)\n"


FORMATS: dict[str, Callable[[pd.DataFrame], str]] = {
    "text": _text,
    "csv": csv_text,
    "json": lambda frame: (
        frame.to_json(orient="records", indent=1, force_ascii=False, double_precision=15) + "\n"
    ),
}


def runs_below(folder: Path) -> list[Path]:
    """Every run's folder at or below a folder, by name; hidden ones are left out.

    Raises:
        Refused: there is none.
    """
    places = sorted(path.parent for path in folder.rglob("results.parquet"))
    runs = [
        place
        for place in places
        if not any(part.startswith(".") for part in place.relative_to(folder).parts)
    ]
    if not runs:
        raise Refused(
            f"{folder}: no run's folder here; `evalsuite run RECIPE.yaml --out {folder / 'NAME'}`"
            " makes one"
        )
    return runs
