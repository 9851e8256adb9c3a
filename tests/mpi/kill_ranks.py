#!/usr/bin/env python3
"""Kills or stops a random rank of a training job at a random moment, many times.

Every run must end within the time limit with one line from every other rank, and the run that
resumes must end with the bits of one that was never broken.

Usage: kill_ranks.py PATH_OF_SLUICE PATH_OF_MPIRUN [--runs N] [--seed N]
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time

from job import RunningJob, Setup

RANKS = 4
STEPS = 40
SETTINGS = ["--set", f"pipeline.ranks={RANKS}", "--set", f"train.steps={STEPS}", "--set",
            "run.timeout_seconds=2", "--set", "train.eval_every=0"]


def break_once(setup, choose):
    """Runs, breaks and resumes; returns what was wrong, or nothing."""
    shutil.rmtree(setup.root / "job", ignore_errors=True)
    job = RunningJob(setup.logged_job(RANKS, "job", *SETTINGS))
    step = f" {choose.randrange(1, STEPS - 10)}/{STEPS} "
    while step not in setup.log_of(0):
        if job.process.poll() is not None:
            return f"the run ended by itself: {setup.log_of(0)}"
        time.sleep(0.01)
    time.sleep(choose.random() * 0.05)
    rank = choose.randrange(RANKS)
    action = choose.choice([signal.SIGKILL, signal.SIGSTOP])
    begin = time.monotonic()
    job.signal_rank(rank, action)
    status, text = job.finish(30)
    seconds = time.monotonic() - begin
    what = f"rank {rank}, {action.name}, ended after {seconds:.1f} s with {status}"
    print(what, flush=True)
    if status == 0:
        return f"{what}: exit 0\n{text}"
    for other in set(range(RANKS)) - {rank}:
        lines = [line for line in setup.log_of(other).splitlines() if line.startswith("sluice: ")]
        if len(lines) != 1 or not lines[0].startswith(f"sluice: rank {other} "):
            problem = f"{what}: rank {other} printed {lines}"
            print(problem, flush=True)
            return f"{problem}\n{text}"
    done = setup.train(RANKS, "job", "--resume", *SETTINGS)
    if done.returncode != 0:
        return f"{what}: could not resume\n{done.stderr}"
    if setup.weights("job", STEPS) != setup.weights("unbroken", STEPS):
        return f"{what}: the resumed run has other bits"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sluice")
    parser.add_argument("mpirun")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    choose = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(args.sluice, args.mpirun, folder)
        done = setup.train(RANKS, "unbroken", *SETTINGS)
        if done.returncode != 0:
            sys.exit(done.stderr)
        problems = [problem for _ in range(args.runs) if (problem := break_once(setup, choose))]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{args.runs} runs, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
