#!/usr/bin/env python3
"""Kills or stops a random rank of a job under torchrun's environment at a random moment, many times,
with the stand-in for NCCL (fake_nccl.cc).

Every run must end within the time limit with one line and exit code 3 on every other rank, and the
run that resumes must end with the bits of one that was never broken.

Usage: kill_ranks.py PATH_OF_SLUICE PATH_OF_FAKE_NCCL [--runs N] [--seed N]
"""

import argparse
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

import command_test
from command_test import Job
from job import Setup

RANKS = 4
STEPS = 40
SETTINGS = ["--set", f"pipeline.ranks={RANKS}", "--set", f"train.steps={STEPS}", "--set",
            "run.timeout_seconds=2", "--set", "train.eval_every=0"]


def start(setup, run, *more):
    return Job(setup.root, [[command_test.SLUICE, *setup.arguments(run, *SETTINGS, *more)]] * RANKS)


def break_once(setup, choose):
    """Runs, breaks and resumes; returns what was wrong, or nothing."""
    shutil.rmtree(setup.root / "job", ignore_errors=True)
    job = start(setup, "job")
    if not job.wait_for_line(f" {choose.randrange(1, STEPS - 10)}/{STEPS} "):
        return f"the run ended by itself: {job.all_text()}"
    time.sleep(choose.random() * 0.05)
    lost = choose.randrange(RANKS)
    action = choose.choice([signal.SIGKILL, signal.SIGSTOP])
    begin = time.monotonic()
    job.processes[lost].send_signal(action)
    others = [rank for rank in range(RANKS) if rank != lost]
    while any(job.processes[rank].poll() is None for rank in others):
        if time.monotonic() > begin + 30:
            job.kill()
            return f"rank {lost}, {action.name}: a rank hangs\n{job.all_text()}"
        time.sleep(0.01)
    what = f"rank {lost}, {action.name}, ended after {time.monotonic() - begin:.1f} s"
    print(what, flush=True)
    job.kill()
    for rank in others:
        lines = [line for line in job.text(rank).splitlines() if line.startswith("sluice: ")]
        if (len(lines) != 1 or not lines[0].startswith(f"sluice: rank {rank} ")
                or job.processes[rank].returncode != 3 or "fake nccl" in job.text(rank)):
            return f"{what}: rank {rank} ended with {job.processes[rank].returncode}\n{job.all_text()}"
    job = start(setup, "job", "--resume")
    if job.finish(120) != [0] * RANKS:
        return f"{what}: could not resume\n{job.all_text()}"
    if setup.weights("job", STEPS) != setup.weights("unbroken", STEPS):
        return f"{what}: the resumed run has other bits"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("sluice")
    parser.add_argument("fake_nccl")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    command_test.SLUICE, command_test.FAKE_NCCL = args.sluice, args.fake_nccl
    choose = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(args.sluice, "", folder)
        job = Job(pathlib.Path(folder), [[args.sluice, *setup.arguments("unbroken", *SETTINGS)]] * RANKS)
        if job.finish(120) != [0] * RANKS:
            sys.exit(job.all_text())
        problems = [problem for _ in range(args.runs) if (problem := break_once(setup, choose))]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{args.runs} runs, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
