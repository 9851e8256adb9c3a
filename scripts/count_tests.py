#!/usr/bin/env python3
"""Counts the tests of a ctest run: "N passed, N failed, N skipped".

    count_tests.py FOLDER

FOLDER/test-results.xml is ctest's own report, one entry per program; FOLDER/results/NAME.xml what the
GoogleTest program behind entry NAME wrote, one entry per test. A program that left no such file counts
as one test: it is no GoogleTest program, or it crashed, which ctest reports as failed.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def outcome(case):
    """Of one <testcase>, in ctest's spelling or in GoogleTest's."""
    if case.find("failure") is not None or case.get("status") == "fail":
        return "failed"
    if (case.find("skipped") is not None or case.get("result") in ("skipped", "suppressed")
            or case.get("status") in ("notrun", "disabled")):
        return "skipped"
    return "passed"


def count(folder):
    total = Counter()
    for program in ElementTree.parse(folder / "test-results.xml").iter("testcase"):
        own = folder / "results" / f"{program.get('name')}.xml"
        if not own.exists():
            total[outcome(program)] += 1
            continue
        outcomes = Counter(map(outcome, ElementTree.parse(own).iter("testcase")))
        if outcome(program) != "passed" and not outcomes["failed"]:
            outcomes["failed" if outcome(program) == "failed" else "skipped"] += 1
        total += outcomes
    return total


def main():
    total = count(Path(sys.argv[1]))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


if __name__ == "__main__":
    main()
