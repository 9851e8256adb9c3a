#!/usr/bin/env python3
"""Runs `mpirun sluice train` as a user does: same bits as threads, errors, signals, lost ranks.

Usage: command_test.py PATH_OF_SLUICE PATH_OF_MPIRUN
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from job import RunningJob, Setup

SLUICE = MPIRUN = ""
TIME_LIMIT = ["--set", "run.timeout_seconds=2"]


class Job(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.setup = Setup(SLUICE, MPIRUN, folder.name)

    def expect_same_weights(self, got, wanted):
        # assertEqual would write out what differs, for minutes.
        self.assertTrue(self.setup.weights(got, 6) == self.setup.weights(wanted, 6),
                        "other tensors, or other bits")

    def test_trains_to_the_bits_of_threads_and_resumes_in_either(self):
        done = self.setup.train_threads("threads")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.setup.train(2, "job")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count(" 6/6 "), 2, done.stderr)  # a step and a validation, once
        self.expect_same_weights("job", "threads")
        shutil.rmtree(self.setup.root / "job" / "checkpoints" / "step-6")
        done = self.setup.train(4, "job", "--resume", "--set", "pipeline.ranks=4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.expect_same_weights("job", "threads")
        memory = (self.setup.root / "job" / "memory.json").read_text()
        self.assertEqual(memory.count('"weights"'), 4)
        done = self.setup.train_threads("job", "--resume", "--steps", "8")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_data_parallel_jobs_have_the_bits_of_data_parallel_threads(self):
        parallel = ["--set", "parallel.data=2", "--set", "pipeline.vocab=parallel-1"]
        self.assertEqual(self.setup.train_threads("threads", *parallel).returncode, 0)
        done = self.setup.train(4, "job", *parallel)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.expect_same_weights("job", "threads")

    def test_offload_planned_again_by_all_processes_has_the_bits_of_threads_without(self):
        sizes = ["--set", "pipeline.schedule=po", "--set", "pipeline.microbatches=8"]
        self.assertEqual(self.setup.train_threads("threads", *sizes).returncode, 0)
        done = self.setup.train(2, "job", *sizes, "--set", "pipeline.offload=auto", "--set",
                                "pipeline.offload_replan=0", "--set", "run.check_offload=true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("planned again: k = "), 1, done.stderr)
        self.expect_same_weights("job", "threads")

    def expect_refusal(self, done, processes, *words):
        lines = [line for line in done.stderr.splitlines() if line.startswith("sluice: ")]
        self.assertEqual(len(lines), processes, done.stderr)
        self.assertEqual(done.returncode, 2, done.stderr)
        for line in lines:
            for word in words:
                self.assertIn(word, line)

    def test_wrong_number_of_processes_is_refused_by_all(self):
        self.expect_refusal(self.setup.train(3, "job"), 3, "3", "pipeline.ranks", "2 x 1")

    def test_different_settings_are_refused_by_all_and_the_key_is_named(self):
        first = self.setup.job(1, "job")
        second = [self.setup.sluice, *self.setup.arguments("job", "--set", "train.beta1=0.8")]
        done = self.setup.run([*first, ":", "-n", "1", *second])
        self.expect_refusal(done, 2, "train.beta1 = 0.8", "train.beta1 = 0.9", "rank 1")

    def test_checkpoints_in_the_background_hold_the_same(self):
        for name in ("false", "true"):
            done = self.setup.train(4, f"background-{name}", "--set", "parallel.data=2", "--set",
                                    "run.keep_checkpoints=0", "--set",
                                    f"run.background_checkpoints={name}")
            self.assertEqual(done.returncode, 0, done.stderr)
        for step in (2, 4, 6):
            wanted = self.setup.weights("background-false", step)
            self.assertTrue(wanted)
            self.assertEqual(self.setup.weights("background-true", step), wanted)

    @unittest.skipIf(pathlib.Path("/dev/nvidiactl").exists(), "a GPU is here")
    def test_device_memory_where_there_is_none_is_refused_by_all(self):
        done = self.setup.train(2, "job", "--set", "run.device=cuda")
        self.expect_refusal(done, 2, "run.device", "cuda")

    def test_processes_log_their_ranks(self):
        done = self.setup.train(2, "job", "--set", "run.rank_logs=true")
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(2):
            log = self.setup.root / "job" / "ranks" / f"rank-{rank}.jsonl"
            self.assertEqual(len(log.read_text().splitlines()), 6)

    def test_an_error_of_one_is_told_by_all(self):
        first = self.setup.job(1, "job")
        second = [self.setup.sluice, *self.setup.arguments("job", "--set", "pipeline.ranks=x")]
        self.expect_refusal(self.setup.run([*first, ":", "-n", "1", *second]), 2, "pipeline.ranks")

    def test_processes_of_srun_that_mpi_does_not_know_are_refused(self):
        variables = {**os.environ, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
        done = subprocess.run([SLUICE, *self.setup.arguments("job")], env=variables,
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("srun started 2 processes, and MPI finds 1", done.stderr)
        self.assertIn("--mpi=pmix", done.stderr)

    def test_termination_saves_and_the_run_continues(self):
        job = RunningJob(self.setup.job(2, "job", "--set", "train.steps=100000"))
        self.assertTrue(job.wait_for_line(" 3/100000 "), job.lines)
        job.signal_rank(1, signal.SIGTERM)
        status, text = job.finish(60)
        self.assertEqual(status, 0, text)
        last = max(int(path.name.split("-")[1])
                   for path in (self.setup.root / "job" / "checkpoints").iterdir())
        done = self.setup.train(2, "job", "--resume", "--steps", str(last + 1))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"continuing after step {last} ", done.stderr)

    def lose(self, signal_number, lost):
        job = RunningJob(self.setup.job(4, "job", "--set", "train.steps=100000", "--set",
                                        "pipeline.ranks=4", *TIME_LIMIT))
        self.assertTrue(job.wait_for_line("saved "), job.lines)
        job.signal_rank(lost, signal_number)
        status, text = job.finish(30)
        self.assertNotEqual(status, 0)
        reports = job.reports()
        for rank in {0, 1, 2, 3} - {lost}:
            self.assertEqual(len(reports.get(rank, [])), 1, text)
            self.assertIn("last done", reports[rank][0])
        return status, text

    def test_a_killed_rank_is_named_by_every_other_one(self):
        _, text = self.lose(signal.SIGKILL, 2)
        self.assertIn("rank 2 is gone", text)

    def test_a_stopped_rank_is_reported_within_the_time_limit(self):
        status, text = self.lose(signal.SIGSTOP, 1)
        self.assertEqual(status, 3, text)
        self.assertIn("run.timeout_seconds", text)


if __name__ == "__main__":
    MPIRUN = sys.argv.pop()
    SLUICE = sys.argv.pop()
    unittest.main()
