"""Tables in the files that readers know."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq


def write_table(table: pd.DataFrame | pa.Table, path: Path) -> Path:
    """Write a table as the name of a file says: .parquet, .jsonl, .tsv or .csv, the last three perhaps packed (.gz)."""
    if isinstance(table, pa.Table):
        pq.write_table(table, path)
    elif path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    elif ".jsonl" in path.suffixes:
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, index=False, sep="\t" if ".tsv" in path.suffixes else ",")
    return path
