#!/usr/bin/env python3
"""Draws the longest trained sequences of a max_context table: plot_context.py RESULTS.md OUTPUT.svg

Reads the rows "| schedule | slices | trained | ..." of a results file. Needs matplotlib.
"""

import argparse
import re

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROW = re.compile(r"^\| ([a-z0-9-]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|")


def read_rows(path):
    """(schedule, slices, tokens) of every row, shortest sequence first."""
    with open(path, encoding="utf-8") as file:
        rows = [ROW.match(line) for line in file]
    found = {row[1]: (row[1], int(row[2]), int(row[3])) for row in rows if row}
    if not found:
        raise SystemExit(f"{path}: no rows of max_context")
    return sorted(found.values(), key=lambda row: row[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results")
    parser.add_argument("output")
    arguments = parser.parse_args()
    rows = read_rows(arguments.results)
    plt.rcParams.update({"svg.hashsalt": "sluice", "svg.fonttype": "none", "font.size": 10,
                         "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(7.2, 0.27 * len(rows) + 0.9))
    colors = ["#2f6fb0" if slices > 1 else "#9aa5b1" for _, slices, _ in rows]
    bars = axes.barh([name for name, _, _ in rows], [tokens for *_, tokens in rows], color=colors)
    axes.bar_label(bars, padding=3)
    axes.set_xlabel("longest trained sequence, tokens (blue: in slices)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.1, y=0.01)
    figure.tight_layout()
    figure.savefig(arguments.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
