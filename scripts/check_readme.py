#!/usr/bin/env python3
"""Runs the commands of README.md, so that they cannot rot.

A fenced block whose info string is `sh run` is run by bash in the project's folder and must succeed:

    ```sh run
    make test
    ```

A block `text output` right after it is what the command prints on standard output. It is compared
line by line; a line `...` stands for any lines, and `...` inside a line for any text.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIME_LIMIT_SECONDS = 1200
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```\s*$", re.MULTILINE | re.DOTALL)


def blocks(text):
    """Yields (line number, commands, expected output or None) of each block to run."""
    fences = list(FENCE.finditer(text))
    for fence, following in zip(fences, fences[1:] + [None]):
        if fence["info"].split() != ["sh", "run"]:
            continue
        expected = None
        if following and following["info"].split() == ["text", "output"]:
            expected = following["body"]
        yield text.count("\n", 0, fence.start()) + 1, fence["body"], expected


def output_pattern(expected):
    """The regular expression of an output block."""
    pattern = ""
    for line in expected.rstrip("\n").split("\n"):
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n"
    return re.compile(pattern)


def run(commands, expected):
    """Runs one block; returns what is wrong with it, or None."""
    try:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=ROOT, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              timeout=TIME_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"ran past {TIME_LIMIT_SECONDS} seconds"
    if done.returncode != 0:
        return f"exit code {done.returncode}\n{done.stdout[-2000:]}"
    if expected is not None and not output_pattern(expected).fullmatch(done.stdout.rstrip("\n") + "\n"):
        return f"printed something else than the README says:\n{done.stdout}"
    return None


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "README.md"
    to_run = list(blocks(path.read_text(encoding="utf-8")))
    if not to_run:
        print(f"{path.name}: no block is marked `sh run`", file=sys.stderr)
        return 1
    for line, commands, expected in to_run:
        start = time.monotonic()
        print(f"{path.name}:{line}: {' && '.join(commands.strip().splitlines())}", flush=True)
        problem = run(commands, expected)
        if problem:
            print(f"{path.name}:{line}: {problem}", file=sys.stderr)
            return 1
        checked = "" if expected is None else ", output as printed"
        print(f"{path.name}:{line}: done in {time.monotonic() - start:.1f} s{checked}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
