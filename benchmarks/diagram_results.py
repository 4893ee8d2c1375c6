"""Write the results of full runs of the diagrams to the files that the package keeps.

    posquad sweep run ellipsoid --out night
    python benchmarks/diagram_results.py ellipsoid night

Left out is what differs between two equal runs (time of day, host) and what follows from the
parameters (key, seed).
"""

from __future__ import annotations

import argparse

from posquad.io.tables.writing import write_columns
from posquad.sweep import read_table
from posquad.sweep.declaration import DIAGRAMS
from posquad.sweep.diagrams.results import results_file

LEFT_OUT = ("key", "seed", "host", "finished")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=DIAGRAMS)
    parser.add_argument("folder", help="folder of the full run")
    options = parser.parse_args()
    columns = dict(read_table(options.folder).columns)
    for name in LEFT_OUT:
        del columns[name]
    path = results_file(options.name)
    path.parent.mkdir(exist_ok=True)
    write_columns(path, columns)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
