#!/usr/bin/env python3
"""Runs `sluice train`, `generate` and `verify` as a user does: files, exit codes, signals, errors.

Usage: train_command_test.py PATH_OF_SLUICE
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from small_run import CONFIG, write_corpus

SLUICE = ""


class Train(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        corpus = self.root / "corpus"
        write_corpus(corpus)
        self.run_dir = self.root / "run"
        self.config = self.root / "config.toml"
        self.config.write_text(CONFIG)

    def command(self, verb, *arguments):
        settings = ["--set", f'data.paths=["{self.root / "corpus"}"]', "--set",
                    f'run.dir="{self.run_dir}"']
        return [SLUICE, verb, str(self.config), *settings, *arguments]

    def run_sluice(self, command):
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    def train(self, *arguments):
        return self.run_sluice(self.command("train", *arguments))

    def wait_for_line(self, process, words):
        for line in process.stderr:
            if words in line:
                return
        self.fail(f"the run ended without printing '{words}'")

    def metrics(self):
        lines = (self.run_dir / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def test_every_rank_logs_its_steps_when_asked(self):
        done = self.train("--set", "run.rank_logs=true", "--set", "pipeline.ranks=3")
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(3):
            text = (self.run_dir / "ranks" / f"rank-{rank}.jsonl").read_text()
            lines = [json.loads(line) for line in text.splitlines()]
            self.assertEqual([line["step"] for line in lines], list(range(1, 7)))
            for line in lines:
                self.assertEqual(line["rank"], rank)
                self.assertGreater(line["compute_seconds"], 0)
                self.assertGreater(line["step_seconds"], line["compute_seconds"])
                self.assertGreater(line["peak_bytes"], 0)
        self.assertFalse((self.run_dir / "ranks" / "rank-3.jsonl").exists())

    def test_writes_every_file_that_it_promises(self):
        done = self.train("--set", "run.trace_step=4", "--set", "run.tensorboard=true")
        self.assertEqual(done.returncode, 0, done.stderr)
        steps = [line for line in self.metrics() if "loss" in line]
        self.assertEqual([line["step"] for line in steps], list(range(1, 7)))
        for key in ("loss", "grad_norm", "lr", "tokens", "tokens_per_second", "step_seconds", "mfu"):
            self.assertIn(key, steps[0])
        memory = json.loads((self.run_dir / "memory.json").read_text())
        self.assertEqual(len(memory["ranks"]), 2)
        weights = memory["ranks"][0]["weights"]
        self.assertEqual(weights["predicted"], weights["measured"])
        trace = json.loads((self.run_dir / "trace.json").read_text())
        self.assertTrue(any(event.get("ph") == "X" for event in trace["traceEvents"]))
        self.assertTrue((self.run_dir / "config.toml").exists())
        self.assertTrue(list(self.run_dir.glob("events.out.tfevents.*")))
        names = sorted(path.name for path in (self.run_dir / "checkpoints").iterdir())
        self.assertEqual(names, ["step-3", "step-6"])
        self.assertIn("predicted", done.stdout)
        self.assertIn("rank 0", done.stdout)

    def test_a_resolved_config_runs_again(self):
        self.assertEqual(self.train("--steps", "2").returncode, 0)
        again = self.run_sluice([SLUICE, "train", str(self.run_dir / "config.toml"), "--set",
                                 f'run.dir="{self.root / "again"}"'])
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_interrupt_finishes_the_step_saves_and_resumes(self):
        with subprocess.Popen(self.command("train", "--set", "train.steps=100000"),
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as process:
            self.wait_for_line(process, " 2/100000 ")
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            self.assertEqual(process.wait(timeout=120), 0)
        last = self.metrics()[-1]["step"]
        self.assertTrue((self.run_dir / "checkpoints" / f"step-{last}").is_dir())
        done = self.train("--resume", "--set", f"train.steps={last + 2}")
        self.assertEqual(done.returncode, 0, done.stderr)
        steps = [line["step"] for line in self.metrics() if "loss" in line]
        self.assertEqual(steps, list(range(1, last + 3)))

    def test_killed_run_resumes_from_its_last_checkpoint(self):
        command = self.command("train", "--set", "train.steps=100000", "--set",
                               "train.checkpoint_every=2")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as process:
            self.wait_for_line(process, "saved ")
            time.sleep(0.05)
            process.kill()
        checkpoints = (self.run_dir / "checkpoints").glob("step-*")
        last = max(int(path.name.split("-")[1]) for path in checkpoints if path.suffix != ".tmp")
        done = self.train("--resume", "--steps", str(last + 3))
        self.assertEqual(done.returncode, 0, done.stderr)
        steps = [line["step"] for line in self.metrics() if "loss" in line]
        self.assertEqual(steps, list(range(1, last + 4)))

    def test_killed_while_it_offloads_resumes_to_the_same_weights_and_leaves_no_file(self):
        away = self.root / "away"
        away.mkdir()
        settings = ["--set", "pipeline.schedule=po", "--set", "pipeline.microbatches=8", "--set",
                    "pipeline.offload=auto", "--set", "pipeline.offload_tier=disk", "--set",
                    f'pipeline.offload_dir="{away}"', "--set", "pipeline.offload_slowdown=1000",
                    "--set", "run.check_offload=true", "--set", "train.checkpoint_every=2"]
        whole = self.train(*settings, "--set", "train.steps=12", "--set",
                           f'run.dir="{self.root / "whole"}"')
        self.assertEqual(whole.returncode, 0, whole.stderr)
        self.assertIn("offload: k = ", whole.stdout)
        memory = json.loads((self.root / "whole" / "memory.json").read_text())
        self.assertGreater(memory["ranks"][0]["offloaded_disk"]["measured"], 0)
        with subprocess.Popen(self.command("train", *settings, "--set", "train.steps=12"),
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as process:
            self.wait_for_line(process, " 5/12 ")
            process.kill()
            process.wait(timeout=120)
        self.assertEqual(list(away.iterdir()), [])
        resumed = self.train(*settings, "--set", "train.steps=12", "--resume")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        name = "checkpoints/step-12"
        for path in sorted((self.root / "whole" / name).rglob("*.safetensors")):
            other = self.run_dir / name / path.relative_to(self.root / "whole" / name)
            self.assertEqual(path.read_bytes(), other.read_bytes(), path.name)
        self.assertEqual(list(away.iterdir()), [])

    def test_a_fresh_run_never_writes_over_another_one(self):
        self.assertEqual(self.train("--steps", "1").returncode, 0)
        again = self.train("--steps", "1")
        self.assertEqual(again.returncode, 2)
        self.assertIn("--resume", again.stderr)

    def test_bad_input_is_one_line_that_names_value_and_rule(self):
        for setting, words in {
                "model.hiden_size=32": ["hiden_size", "hidden_size"],
                "model.num_attention_heads=5": ["5", "hidden_size"],
                "pipeline.schedule=zb-3p": ["zb-3p", "zb-2p"],
                "pipeline.layers=3,3": ["3,3", "4"],
                "pipeline.slices=3": ["slices", "33"],
                "pipeline.offload=most": ["offload", "half"],
                "pipeline.vocab=everywhere": ["vocab", "last"],
                "train.learning_rate=fast": ["learning_rate"],
                "data.sequence_length=100000000": ["sequence"],
                "run.device=tpu": ["tpu", "cpu"],
        }.items():
            with self.subTest(setting):
                done = self.train("--set", setting)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                for word in words:
                    self.assertIn(word, done.stderr)
                self.assertFalse((self.run_dir / "config.toml").exists())

    def test_missing_data_and_damaged_checkpoints_are_named(self):
        done = self.run_sluice([SLUICE, "train", str(self.config), "--set",
                                f'data.paths=["{self.root / "nowhere"}"]'])
        self.assertIn(done.returncode, (1, 2))
        self.assertIn("nowhere", done.stderr)
        self.assertEqual(self.train("--steps", "3").returncode, 0)
        weights = self.run_dir / "checkpoints" / "step-3" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-5] ^= 1
        weights.write_bytes(content)
        done = self.train("--resume")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("model.safetensors", done.stderr)

    def test_slices_shards_and_offload_in_one_schedule_give_the_bits_of_1f1b(self):
        config = pathlib.Path(__file__).parent.parent / "configs" / "long_context.toml"
        settings = [f'data.paths=["{self.root / "corpus"}"]', 'data.include=["*.txt"]',
                    f'run.dir="{self.run_dir}"', "data.sequence_length=64",
                    "pipeline.microbatches=2", "pipeline.offload=full"]
        arguments = [word for setting in settings for word in ("--set", setting)]
        done = self.run_sluice([SLUICE, "verify", str(config), *arguments])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1f1b on 8 ranks gives the same bits", done.stdout)

    def test_generates_the_same_text_twice(self):
        self.assertEqual(self.train().returncode, 0)
        command = [SLUICE, "generate", str(self.run_dir), "--prompt", "file", "--tokens", "20"]
        first = subprocess.run(command, capture_output=True, timeout=300, check=True).stdout
        self.assertTrue(first.startswith(b"file"))
        self.assertGreaterEqual(len(first), 25)
        again = subprocess.run(command, capture_output=True, timeout=300, check=True).stdout
        self.assertEqual(first, again)

    def test_verify_prints_its_json(self):
        done = self.run_sluice(self.command("verify", "--format", "json", "--set",
                                            "model.dtype=float64"))
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertTrue(result["pass"])
        self.assertIs(result["bit_identical_to"], True)
        self.assertLess(result["max_relative_gradient_error"], 1e-12)
        for key in ("loss_pipeline", "loss_reference", "worst_parameter"):
            self.assertIn(key, result)


if __name__ == "__main__":
    SLUICE = sys.argv.pop(1)
    unittest.main()
