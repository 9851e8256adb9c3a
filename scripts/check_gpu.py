#!/usr/bin/env python3
"""The checks of scripts/check_gpu.sh, on a build that is there. Exit 1 if one failed."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from compare_torch import rates, write_tokens  # noqa: E402
from contestants import Task, run_sluice, run_torch, sluice_config  # noqa: E402

SLUICE = ROOT / "build/sluice"
SCHEDULES = ["1f1b", "gpipe", "interleaved", "zb-1p", "zb-v", "dualpipe-v", "gis"]
GRADIENT_TOLERANCE = 1e-5  # fp32
# Of weights, gradients, optimizer, activations and boundary; and of the total.
CLASS_TOLERANCE, TOTAL_TOLERANCE = 0.01, 0.05
SPEED_RATIO = 0.9  # of PyTorch eager on the same GPU, one process
MODEL = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816,
         "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
         "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
SMALL_MODEL = {**MODEL, "vocab_size": 512, "hidden_size": 128, "intermediate_size": 352,
               "num_attention_heads": 4, "num_key_value_heads": 2}


class Skipped(Exception):
    """A check that cannot be made; says why."""


def make_task(work, model, length, sequences, steps):
    tokens = Path(work) / f"tokens-{length}-{model['vocab_size']}.bin"
    write_tokens(tokens, model["vocab_size"], sequences * length + 1)
    return Task(model=model, sequence_length=length, sequences=sequences, steps=steps,
                tokens=tokens, work=Path(work), device="cuda")


def check_tests(work, seconds):
    """The tests with the label gpu."""
    del work
    done = subprocess.run(["ctest", "--test-dir", str(ROOT / "build"), "-L", "gpu",
                           "--no-tests=error", "--output-on-failure"], timeout=seconds, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    summary = [line for line in done.stdout.splitlines() if "tests passed" in line]
    if done.returncode != 0:
        return [done.stdout[-2000:]], ""
    return [], summary[-1] if summary else ""


def check_parity(work, seconds):
    """One step through the pipeline on the GPU against autograd, for several schedules."""
    task = make_task(work, SMALL_MODEL, 128, 8, 1)
    config = Path(work) / "verify.toml"
    config.write_text(sluice_config(task, 2, "1f1b", Path(work) / "verify"), encoding="utf-8")
    problems, worst = [], 0.0
    for schedule in SCHEDULES:
        done = subprocess.run([SLUICE, "verify", config, "--set", f'pipeline.schedule="{schedule}"',
                               "--format", "json"], timeout=seconds, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if not done.stdout.strip():
            problems.append(f"{schedule}: exit code {done.returncode}: {done.stderr.strip()}")
            continue
        report = json.loads(done.stdout)
        worst = max(worst, report["max_relative_gradient_error"])
        if not report["pass"] or report["max_relative_gradient_error"] > GRADIENT_TOLERANCE:
            problems.append(f"{schedule}: {report}")
    return problems, f"{len(SCHEDULES)} schedules, worst relative gradient error {worst:.1e}"


def compare_memory(memory):
    """Problems of one memory.json, and the worst relative difference."""
    problems, worst = [], 0.0
    for rank, classes in enumerate(memory["ranks"]):
        for name, values in classes.items():
            predicted, measured = values["predicted"], values["measured"]
            difference = abs(predicted - measured) / max(measured, 1)
            exact = name in ("weights", "gradients", "optimizer", "activations", "boundary")
            limit = CLASS_TOLERANCE if exact else TOTAL_TOLERANCE if name == "total" else None
            if limit is None:
                continue
            worst = max(worst, difference)
            if difference > limit:
                problems.append(f"rank {rank} {name}: predicted {predicted}, measured {measured}")
    return problems, worst


def check_memory(work, seconds):
    """Predicted and measured peaks of a training run."""
    del seconds
    task = make_task(work, MODEL, 1024, 8, 3)
    problems, worst = [], 0.0
    for schedule in ("1f1b", "zb-1p"):
        result = run_sluice(SLUICE, task, 2, schedule)
        if result.failed:
            problems.append(f"{schedule}: {result.note}")
            continue
        report = result.folder / "run/memory.json"
        if not report.exists():
            raise Skipped("the run wrote no memory.json: memory of a GPU is not recorded")
        memory = json.loads(report.read_text(encoding="utf-8"))
        found, difference = compare_memory(memory)
        problems += [f"{schedule}: {text}" for text in found]
        worst = max(worst, difference)
    return problems, f"largest relative difference {worst:.2%}"


def check_speed(work, seconds):
    """Tokens per second beside PyTorch eager on the same GPU."""
    del seconds
    task = make_task(work, MODEL, 1024, 16, 8)
    ours, theirs = run_sluice(SLUICE, task, 2, "1f1b"), run_torch(task, "eager")
    for result in (ours, theirs):
        if result.failed:
            return [f"{result.name}: {result.note}"], ""
    fast, slow = (max(rates(r, task, warmup=3)) for r in (ours, theirs))
    text = f"sluice {fast:.0f} tokens/s, PyTorch eager {slow:.0f}, ratio {fast / slow:.2f}"
    return ([f"{text}, at least {SPEED_RATIO} wanted"] if fast < SPEED_RATIO * slow else []), text


def check_nccl(work, seconds):
    """A run over NCCL, a process per GPU, against the same ranks as threads on one."""
    count = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
                           text=True, stdout=subprocess.PIPE, check=False).stdout.strip()
    count = min(int(count or 0), 4)
    if count < 2:
        raise Skipped(f"{count} GPU: NCCL needs one for each of at least two ranks")
    task = make_task(work, SMALL_MODEL, 128, 2 * count, 4)
    losses = {}
    for name, launcher in (("threads", []), ("nccl", [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python",
            "--nproc-per-node", str(count)])):
        config = Path(work) / f"{name}.toml"
        config.write_text(sluice_config(task, count, "zb-1p", Path(work) / name), encoding="utf-8")
        done = subprocess.run([*launcher, SLUICE, "train", config], timeout=seconds, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            return [f"{name}: {done.stdout[-2000:]}"], ""
        metrics = (Path(work) / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses[name] = [json.loads(line)["loss"] for line in metrics]
    worst = max(abs(a / b - 1) for a, b in zip(losses["nccl"], losses["threads"], strict=True))
    problems = [f"losses differ: {losses}"] if worst > GRADIENT_TOLERANCE else []
    return problems, f"{count} GPUs, largest relative difference of a loss {worst:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=400, help="time for all checks together")
    end = time.monotonic() + parser.parse_args().seconds
    failed = False
    for name, check in (("tests", check_tests), ("parity", check_parity),
                        ("memory", check_memory), ("nccl", check_nccl),
                        ("speed", check_speed)):
        left = end - time.monotonic()
        if left < 20:
            print(f"SKIPPED {name}: no time left")
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="check-gpu-") as work:
                problems, text = check(work, left)
        except Skipped as reason:
            print(f"SKIPPED {name}: {reason}", flush=True)
            continue
        except Exception as error:  # one check that breaks must not hide the others
            problems, text = [f"{type(error).__name__}: {error}"], ""
        for problem in problems:
            print(f"FAIL {name}: {problem}")
        if not problems:
            print(f"PASS {name}: {text}", flush=True)
        failed = failed or bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
