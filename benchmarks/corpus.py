"""The labelled corpus: small problems whose truth is known, and what is said of each.

    python benchmarks/corpus.py run --out words.json [--share 0.1] [--seed 0] [--jobs 2]
    python benchmarks/corpus.py compare old.json new.json
    python benchmarks/corpus.py show KEY

`run` asks for the solution of every problem in every way (`tests/adversarial/corpus.py`), and
writes the word of each case, the truth, and whether the answer is right. `compare` prints which
words changed from one run to another: a word may change only towards the truth. `show` asks one
case again, and prints its record. `run` and `show` exit with 1 if a word is false, `compare` if a
word moved away from the truth or an answer that is called the only one (RECOVERED, CERTIFIED) is
wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from adversarial.corpus import groups, run, words_of
from adversarial.corpus_words import (
    ASSERTING_UNIQUE,
    Records,
    false_words,
    moves,
    table_of_moves,
    table_of_words,
)


def run_command(options: argparse.Namespace) -> int:
    begin, total = time.perf_counter(), len(groups(options.share, options.seed))
    records: Records = {}
    for done, found in enumerate(run(options.share, options.seed, options.jobs), 1):
        records |= found
        if done % 50 == 0 or done == total:
            spent = time.perf_counter() - begin
            print(f"{done}/{total} groups, {len(records)} cases, {spent:.0f} s", flush=True)
    options.out.write_text(json.dumps(records, indent=0) + "\n", encoding="utf-8")
    print(table_of_words(records))
    return _count("false words", list(false_words(records)))


def compare_command(options: argparse.Namespace) -> int:
    old, new = (json.loads(path.read_text("utf-8")) for path in (options.old, options.new))
    found = moves(old, new)
    print(table_of_moves(found))
    print(f"{len(old.keys() & new.keys())} cases compared")
    for name, one, other in (("gone", old, new), ("new", new, old)):
        if one.keys() - other.keys():
            print(f"{len(one.keys() - other.keys())} cases are {name}, and are not compared")
    away = [f"{move.old} -> {move.new}, {key}" for move in found if move.away for key in move.keys]
    moved = _count("words moved away from the truth", away)
    wrong, before = (
        {line.partition(": ")[0]: line for line in false_words(_asserting(records))}
        for records in (new, old)
    )
    both = [line for key, line in wrong.items() if key in before]
    known = _count("wrong answers are called the only one in both runs", both)
    only = [line for key, line in wrong.items() if key not in before]
    here = _count("wrong answers are called the only one in the new run alone", only)
    return moved or here or (known and not options.allow_known)


def _asserting(records: Records) -> Records:
    return {key: told for key, told in records.items() if told["word"] in ASSERTING_UNIQUE}


def show_command(options: argparse.Namespace) -> int:
    family, seed, _, way = options.key.split(" / ")
    records = {options.key: words_of(family, int(seed), [way])[options.key]}
    print(json.dumps(records, indent=2))
    return _count("false words", list(false_words(records)))


def _count(what: str, lines: list[str], most: int = 50) -> int:
    """Print how many there are, and the first of them; return the exit status."""
    print(f"{len(lines)} {what}")
    for line in lines[:most]:
        print(f"  {line}")
    return int(bool(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="ask all problems, and write what is said")
    one.add_argument("--out", type=Path, required=True, help="JSON file that is written")
    one.add_argument("--share", type=float, default=1.0, help="share of the full number of groups")
    one.add_argument("--seed", type=int, default=0, help="first seed of every family")
    one.add_argument("--jobs", type=int, default=1, help="number of processes, of one thread each")
    one.set_defaults(command=run_command)
    two = commands.add_parser("compare", help="compare two runs, of an old and a new version")
    two.add_argument("old", type=Path)
    two.add_argument("new", type=Path)
    two.add_argument(
        "--allow-known",
        action="store_true",
        help="exit with 0 although wrong answers of both runs are called the only one",
    )
    two.set_defaults(command=compare_command)
    three = commands.add_parser("show", help="ask one case again")
    three.add_argument("key", help='as printed: "twin, copies / 3 / 0 / alone"')
    three.set_defaults(command=show_command)
    options = parser.parse_args()
    sys.exit(options.command(options))


if __name__ == "__main__":
    main()
