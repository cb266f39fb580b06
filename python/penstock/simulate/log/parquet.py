"""Parquet files as blocks of CSV, so that one parser reads all tables."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

from penstock.simulate.log.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_ROWS: Final = 1 << 17


def parquet_columns(path: str) -> list[str]:
    """Return the names of a file's columns.

    Raises:
        LogError: pyarrow is not installed, or the file cannot be read.
    """
    return list(_open(path).schema_arrow.names)


def parquet_blocks(path: str, columns: Sequence[str]) -> Iterator[bytes]:
    """Yield the rows of some columns as lines of CSV, with an empty column at the end.

    Raises:
        LogError: The file is damaged, or a column's type has no text form.
    """
    # Without the empty column, a row of one missing value would be an empty line.
    from pyarrow import ArrowException, RecordBatch, csv, nulls  # noqa: PLC0415  an extra

    written = csv.WriteOptions(include_header=False)
    try:
        for batch in _open(path).iter_batches(_ROWS, columns=list(dict.fromkeys(columns))):
            plain = {name: _plain(batch.column(name)) for name in columns}
            plain[""] = nulls(len(batch))
            out = io.BytesIO()
            csv.write_csv(RecordBatch.from_pydict(plain), out, written)
            if text := out.getvalue():
                yield text
    except (ArrowException, OSError) as error:
        raise LogError(f"{path} cannot be read as Parquet: {error}", file=path) from error


def _plain(column: Any) -> Any:
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def _open(path: str) -> Any:
    try:
        from pyarrow import ArrowException  # noqa: PLC0415  an extra
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415  an extra
    except ImportError as error:
        raise LogError(
            f"{path} is a Parquet file, which needs pyarrow; run `pip install pyarrow`",
            file=path,
        ) from error
    try:
        return ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise LogError(f"{path} cannot be read as Parquet: {error}", file=path) from error
