"""The runs that compare_torch.py compares: each trains the same model and returns a Result."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

BENCH = Path(__file__).resolve().parent


@dataclass
class Result:
    """What one training run measured. `step_seconds` and `losses` hold every step, in order."""

    name: str
    losses: list = field(default_factory=list)
    step_seconds: list = field(default_factory=list)
    peak_bytes: int = 0  # peak resident memory, summed over the run's processes
    note: str = ""  # why there is no result
    folder: Path = None

    @property
    def failed(self):
        return bool(self.note)


@dataclass
class Task:
    """One model and batch. `model` has Hugging Face's names."""

    model: dict
    sequence_length: int
    sequences: int  # of one step; a microbatch is one sequence
    steps: int
    tokens: Path  # token file, uint16
    work: Path  # folder for what the runs write
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    torch_microbatch: int = 1  # sequences of one forward in the one-process PyTorch runs
    torch_threads: int = 0  # of those runs; 0: all processors
    device: str = "cpu"  # cpu or cuda
    weights: Path = None  # Hugging Face folder that all start from; None: each its own random ones

    @property
    def step_tokens(self):
        return self.sequences * self.sequence_length


class PeakWatch:
    """Peak resident memory of a process, read while it runs (the kernel keeps the high mark)."""

    def __init__(self, pid):
        self.path, self.peak_bytes = Path(f"/proc/{pid}/status"), 0

    def read(self):
        try:
            lines = self.path.read_text().splitlines()
        except OSError:
            return
        for line in lines:
            if line.startswith("VmHWM:"):
                self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)


def wait_all(processes, limit_seconds=3600):
    """Waits for all; returns (peak bytes summed, problem or None). One failure ends the others."""
    watches = [PeakWatch(p.pid) for p in processes]
    end = time.monotonic() + limit_seconds
    problem = None
    while any(p.poll() is None for p in processes):
        for watch in watches:
            watch.read()
        failed = [p for p in processes if p.poll() not in (None, 0)]
        if failed or time.monotonic() > end:
            problem = f"exit code {failed[0].returncode}" if failed else "ran past its time limit"
            for p in processes:
                p.kill()
        time.sleep(0.02)
    for p in processes:
        if p.wait() != 0 and problem is None:
            problem = f"exit code {p.returncode}"
    return sum(w.peak_bytes for w in watches), problem


def torch_settings(task, mode):
    return {**task.model, "mode": mode, "sequence_length": task.sequence_length,
            "sequences": task.sequences, "steps": task.steps, "tokens": str(task.tokens),
            "learning_rate": task.learning_rate, "weight_decay": task.weight_decay,
            "grad_clip": task.grad_clip, "torch_microbatch": task.torch_microbatch,
            "device": task.device, "weights": str(task.weights) if task.weights else None}


def run_torch(task, mode, layers_of_ranks=(0,)):
    """PyTorch in one process (eager, compile) or, mode `pipeline`, one per entry of the list."""
    ranks = len(layers_of_ranks)
    name = {"eager": "PyTorch eager", "compile": "PyTorch compiled",
            "pipeline": f"distributed.pipelining, {ranks} processes"}[mode]
    folder = Path(tempfile.mkdtemp(dir=task.work, prefix=f"torch-{mode}-"))
    environment = dict(os.environ)
    threads = 1 if mode == "pipeline" else task.torch_threads
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    processes = []
    for rank in range(ranks):
        settings = {**torch_settings(task, mode), "rank": rank, "ranks": ranks,
                    "layers_of_ranks": list(layers_of_ranks), "rendezvous": str(folder / "store")}
        with open(folder / f"out-{rank}", "wb") as out, open(folder / f"err-{rank}", "wb") as err:
            processes.append(subprocess.Popen(
                [sys.executable, str(BENCH / "torch_llama.py"), json.dumps(settings)],
                stdout=out, stderr=err, env=environment))
    _, problem = wait_all(processes)
    if problem:
        last_lines = [(folder / f"err-{rank}").read_text().strip().splitlines()[-1:]
                      for rank in range(ranks)]
        return Result(name, note=f"{problem}: {last_lines}", folder=folder)
    outputs = [json.loads((folder / f"out-{rank}").read_text().splitlines()[-1])
               for rank in range(ranks)]
    return Result(name, losses=outputs[-1]["losses"], step_seconds=outputs[0]["step_seconds"],
                  peak_bytes=sum(o["peak_bytes"] for o in outputs), folder=folder)


def sluice_config(task, ranks, schedule, run_dir):
    """The TOML of the same training as the PyTorch runs."""
    sections = {
        "model": {**task.model, "dtype": "float32"},
        "data": {"paths": [str(task.tokens)], "sequence_length": task.sequence_length,
                 "validation_fraction": 0.0},
        "pipeline": {"schedule": schedule, "ranks": ranks, "microbatches": task.sequences,
                     "microbatch_size": 1},
        "train": {"steps": task.steps, "learning_rate": task.learning_rate,
                  "min_learning_rate": task.learning_rate, "warmup_steps": 0,
                  "weight_decay": task.weight_decay, "beta1": 0.9, "beta2": 0.95,
                  "grad_clip": task.grad_clip, "eval_every": 0, "checkpoint_every": 0},
        "run": {"dir": str(run_dir), "seed": 1, "device": task.device},
    }
    if task.weights:
        sections["model"]["weights"] = str(task.weights)
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def run_sluice(program, task, ranks, schedule, settings=()):
    """sluice with `ranks` rank threads. `settings` are passed on as --set."""
    name = f"sluice {schedule}, {ranks} ranks"
    folder = Path(tempfile.mkdtemp(dir=task.work, prefix="sluice-"))
    config = folder / "config.toml"
    config.write_text(sluice_config(task, ranks, schedule, folder / "run"))
    command = [str(program), "train", str(config)]
    for setting in settings:
        command += ["--set", setting]
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        peak, problem = wait_all([subprocess.Popen(command, stdout=out, stderr=err)])
    if problem:
        last_line = (folder / "err").read_text().strip().splitlines()[-1:]
        return Result(name, note=f"{problem}: {last_line}", folder=folder)
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "step_seconds" in row]
    return Result(name, losses=[row["loss"] for row in rows],
                  step_seconds=[row["step_seconds"] for row in rows], peak_bytes=peak,
                  folder=folder)
