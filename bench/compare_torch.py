#!/usr/bin/env python3
"""Trains one Llama shape with PyTorch and with sluice in the same run and compares them.

    compare_torch.py                 the shape of the README's table, sequences of 512 and 2048
    compare_torch.py --quick         seconds: a tiny shape; checks that all losses agree
    compare_torch.py --output FILE   writes the report as markdown too (bench/results/...)

Run it with the Python whose torch sluice was built with. bench/README.md says what is measured.
"""

import argparse
import json
import math
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

from contestants import Task, run_sluice, run_torch
from llama_weights import write_model
from machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
SHAPE = {"vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1408,
         "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
         "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
QUICK_SHAPE = {**SHAPE, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176,
               "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
RUNS = ("eager", "compile", "pipeline", "sluice")
# Relative difference of the losses of two runs from the same weights, at any step of a quick run.
LOSS_TOLERANCE = 1e-5


def write_tokens(path, vocabulary, count):
    """Zipf-like tokens that repeat with small changes, so that a loss on them can fall."""
    random = numpy.random.default_rng(0)
    weights = 1.0 / numpy.arange(1, vocabulary + 1)
    tokens = random.choice(vocabulary, size=count, p=weights / weights.sum())
    tokens.astype(numpy.uint16).tofile(path)


def product_flops(model):
    """Matrix-product work of one trained token in the linear layers: 6 per weight."""
    hidden, head = model["hidden_size"], model["hidden_size"] // model["num_attention_heads"]
    layer = (2 * hidden * hidden + 2 * hidden * head * model["num_key_value_heads"] +
             3 * hidden * model["intermediate_size"])
    return 6 * (model["num_hidden_layers"] * layer + hidden * model["vocab_size"])


def attention_flops(model, length):
    """The products of causal attention, forward and twice that backward, without recompute."""
    return 3 * model["num_hidden_layers"] * 2 * length * model["hidden_size"]


def balanced_layers(model, length):
    """Layers of two ranks: the split whose busier rank has least work, output layer counted."""
    layers = model["num_hidden_layers"]
    head = 6 * model["hidden_size"] * model["vocab_size"]
    layer = (product_flops(model) - head + attention_flops(model, length)) / layers
    first = min(range(1, layers), key=lambda n: max(n * layer, (layers - n) * layer + head))
    return [first, layers - first]


def roofline(program, model, lengths, quick):
    """Tokens of a sequence -> weighted GF/s of two threads on the model's own products."""
    command = [str(program), "--format", "json", "--threads", "2",
               "--hidden", str(model["hidden_size"]),
               "--intermediate", str(model["intermediate_size"]),
               "--layers", str(model["num_hidden_layers"]),
               "--heads", str(model["num_attention_heads"]),
               "--kv-heads", str(model["num_key_value_heads"]),
               "--vocabulary", str(model["vocab_size"]),
               "--vocabulary-tile", str(min(2000, model["vocab_size"])),
               "--tokens", *map(str, lengths)]
    if quick:
        command += ["--rounds", "1", "--seconds", "0.01"]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {row["tokens"]: row["weighted_gigaflops"] for row in result["lengths"]}


def rates(result, task, warmup):
    """Tokens per second of each step after the warm-up."""
    return [task.step_tokens / s for s in result.step_seconds[warmup:]]


def table(results, task, warmup, roof):
    """Markdown rows of one sequence length."""
    lines = ["| run | tokens/s median | min | max | peak memory | share of GEMM rate | linear only |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    work = product_flops(task.model)
    for result in results:
        if result.failed:
            lines.append(f"| {result.name} | failed: {result.note} | | | | | |")
            continue
        speed = rates(result, task, warmup)
        median = statistics.median(speed)
        share = median * (work + attention_flops(task.model, task.sequence_length)) / roof / 1e9
        lines.append(
            f"| {result.name} | {median:.0f} | {min(speed):.0f} | {max(speed):.0f} | "
            f"{result.peak_bytes / 2**20:.0f} MiB | {share:.1%} | {median * work / roof / 1e9:.1%} |")
    return lines


def ratios(results, task, warmup, roof):
    """The comparisons that count, as (text, value, bound, met)."""
    good = [r for r in results if not r.failed]
    speed = {r.name: statistics.median(rates(r, task, warmup)) for r in good}
    ours = [r for r in good if r.name.startswith("sluice")]
    theirs = [r for r in good if not r.name.startswith("sluice")]
    pipelines = [r for r in theirs if r.name.startswith("distributed")]
    if not ours:
        return []
    best = max(ours, key=lambda r: speed[r.name])
    rows = []

    def compare(text, value, bound, at_least=True):
        met = value >= bound if at_least else value <= bound
        rows.append((text, value, bound, met, "at least" if at_least else "at most"))

    if theirs:
        compare("tokens/s against the best PyTorch run",
                speed[best.name] / max(speed[r.name] for r in theirs), 1.25)
    if pipelines:
        compare("tokens/s against distributed.pipelining",
                speed[best.name] / speed[pipelines[0].name], 2.0)
        compare("peak memory against distributed.pipelining",
                best.peak_bytes / pipelines[0].peak_bytes, 0.4, at_least=False)
    work = product_flops(task.model) + attention_flops(task.model, task.sequence_length)
    compare("share of the GEMM rate", speed[best.name] * work / roof / 1e9, 0.7)
    return [(f"{best.name}: {text}", *rest) for text, *rest in rows]


def loss_problems(results):
    """What is wrong with the losses of single runs."""
    problems = []
    for result in results:
        if not all(math.isfinite(x) for x in result.losses):
            problems.append(f"{result.name}: a loss is not finite: {result.losses}")
        elif result.losses[-1] >= result.losses[0]:
            problems.append(f"{result.name}: the loss does not fall: {result.losses}")
    return problems


def loss_agreement(results):
    """Largest relative difference of each run's losses from the first run's; and the problems."""
    lines, problems = [], []
    if len(results) < 2:
        return lines, problems
    first = results[0]
    for result in results[1:]:
        worst = max(abs(a - b) / abs(a) for a, b in zip(first.losses, result.losses))
        text = f"losses of {result.name} and {first.name} differ by at most {worst:.1e} of theirs"
        lines.append(f"- {text}")
        if len(result.losses) != len(first.losses) or not worst <= LOSS_TOLERANCE:
            problems.append(f"{text}, allowed {LOSS_TOLERANCE:.0e}")
    return lines, problems


def run_all(args, task):
    results = []
    for run in args.runs:
        if run == "sluice":
            for schedule in args.schedules:
                results.append(run_sluice(args.sluice, task, 2, schedule, args.set))
        elif run == "pipeline":
            split = balanced_layers(task.model, task.sequence_length)
            results.append(run_torch(task, run, split))
        else:
            results.append(run_torch(task, run))
        print(f"  {results[-1].name}: {results[-1].note or results[-1].step_seconds}",
              file=sys.stderr)
    return results


def compare(args, length, sequences, roof, work):
    """One sequence length; returns (report lines, problems, all bounds met)."""
    model = QUICK_SHAPE if args.quick else SHAPE
    tokens = work / f"tokens-{length}.bin"
    # One step's sequences make the whole file, so that every step trains on the same ones in
    # whatever order, and losses compare.
    write_tokens(tokens, model["vocab_size"], sequences * length + 1)
    task = Task(model=model, sequence_length=length, sequences=sequences,
                steps=args.warmup + args.steps, tokens=tokens, work=work,
                torch_microbatch=args.torch_microbatch)
    if args.quick:
        task.torch_threads = 1  # tiny products gain nothing from more, and wait for each other
        task.weights = work / f"weights-{length}"
        write_model(task.weights, model, length)
    print(f"sequence length {length}, {sequences} sequences per step", file=sys.stderr)
    results = run_all(args, task)
    lines = [f"## Sequence length {length}, {sequences} sequences per step", "",
             f"GEMM rate of two threads on the model's own products: {roof:.1f} GF/s.", "",
             *table(results, task, args.warmup, roof), ""]
    good = [r for r in results if not r.failed]
    problems = [f"{r.name} failed: {r.note}" for r in results
                if r.failed and r.name != "PyTorch compiled"] + loss_problems(good)
    if task.weights:
        agreement, more = loss_agreement(good)
        lines += agreement + ["", "The shape is too small for the times to mean anything.", ""]
        return lines, problems + more, True
    bounds = ratios(results, task, args.warmup, roof)
    for text, value, bound, met, word in bounds:
        lines.append(f"- {text}: **{value:.2f}** ({word} {bound}: {'met' if met else 'NOT met'})")
    return lines + [""], problems, all(row[3] for row in bounds)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny shape, check losses")
    parser.add_argument("--runs", nargs="+", choices=RUNS, help="default: all (quick: no compile)")
    parser.add_argument("--lengths", nargs="+", type=int, help="default: 512 2048")
    parser.add_argument("--sequences", nargs="+", type=int,
                        help="of one step, one per length; default: 16 8")
    parser.add_argument("--steps", type=int, default=3, help="measured steps")
    parser.add_argument("--warmup", type=int, default=1, help="steps before them")
    parser.add_argument("--schedules", nargs="+", default=["1f1b", "zb-1p"],
                        help="sluice runs each; the best one counts")
    parser.add_argument("--set", action="append", default=[], help="passed to sluice train")
    parser.add_argument("--torch-microbatch", type=int, default=1,
                        help="sequences of one forward in the one-process PyTorch runs")
    parser.add_argument("--sluice", type=Path, default=ROOT / "build/sluice")
    parser.add_argument("--roofline", type=Path, default=ROOT / "build/bench/gemm_roofline")
    parser.add_argument("--output", type=Path, help="markdown file of the report")
    parser.add_argument("--require", action="store_true", help="exit 1 where a bound is not met")
    args = parser.parse_args()
    args.lengths = args.lengths or ([64] if args.quick else [512, 2048])
    args.sequences = args.sequences or ([4] if args.quick else [16, 8])[:len(args.lengths)]
    args.runs = args.runs or [r for r in RUNS if not (args.quick and r == "compile")]
    if len(args.sequences) != len(args.lengths):
        parser.error("--sequences needs one number per length")
    return args


def main():
    args = parse_arguments()
    model = QUICK_SHAPE if args.quick else SHAPE
    roofs = roofline(args.roofline, model, args.lengths, args.quick)
    command = "python bench/compare_torch.py " + shlex.join(sys.argv[1:])
    report = ["# sluice and PyTorch, training the same model", "", *describe_machine(ROOT, command),
              f"- model: {', '.join(f'{key} {value}' for key, value in model.items())}; fp32, AdamW",
              f"- {args.warmup} warm-up steps, {args.steps} measured steps of each run", ""]
    problems, all_met = [], True
    with tempfile.TemporaryDirectory(prefix="compare-") as work:
        for length, sequences in zip(args.lengths, args.sequences):
            lines, new_problems, met = compare(args, length, sequences, roofs[length], Path(work))
            report += lines
            problems += new_problems
            all_met = all_met and met
    print("\n".join(report))
    if args.output:
        args.output.write_text("\n".join(report), encoding="utf-8")
    for problem in problems:
        print(f"PROBLEM {problem}", file=sys.stderr)
    return 1 if problems or (args.require and not all_met) else 0


if __name__ == "__main__":
    sys.exit(main())
