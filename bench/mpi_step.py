#!/usr/bin/env python3
"""Speed of a training step over two MPI processes beside that of two threads, in turn.

Usage: mpi_step.py PATH_OF_SLUICE PATH_OF_MPIRUN [--rounds N]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

CONFIG = """
[model]
vocab_size = 256
hidden_size = 256
intermediate_size = 704
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 4
[data]
sequence_length = 256
validation_fraction = 0.0
[pipeline]
schedule = "1f1b"
ranks = 2
microbatches = 8
microbatch_size = 1
[train]
steps = 12
warmup_steps = 2
eval_every = 0
"""
WARM_UP = 2  # steps left out


def step_seconds(root, command, run):
    words = [*command, "train", str(root / "config.toml"), "--set", f'run.dir="{root / run}"',
             "--set", f'data.paths=["{root / "text.txt"}"]']
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    lines = (root / run / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    return [step["step_seconds"] for step in steps if "step_seconds" in step][WARM_UP:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sluice")
    parser.add_argument("mpirun")
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    ways = {"threads": [args.sluice],
            "processes": [args.mpirun, "--allow-run-as-root", "-n", "2", args.sluice]}
    seconds = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "config.toml").write_text(CONFIG)
        (root / "text.txt").write_text("the same line of text again and again\n" * 4000)
        for i in range(args.rounds):
            for name in list(ways) if i % 2 == 0 else reversed(ways):
                seconds[name] += step_seconds(root, ways[name], f"{name}-{i}")
    for name, steps in seconds.items():
        print(f"{name:9}  {len(steps)} steps  median {statistics.median(steps):.4f} s  "
              f"fastest {min(steps):.4f} s")
    print("speed of processes against threads: median "
          f"{statistics.median(seconds['threads']) / statistics.median(seconds['processes']):.3f}, "
          f"fastest {min(seconds['threads']) / min(seconds['processes']):.3f}")


if __name__ == "__main__":
    main()
