#!/usr/bin/env python3
"""Runs `sluice train` under torchrun's environment, with a stand-in for NCCL (fake_nccl.cc): same bits
as threads, errors, signals, lost ranks. No GPU takes part: what is proved is rendezvous, order of
calls and what happens after failures.

Usage: command_test.py PATH_OF_SLUICE PATH_OF_FAKE_NCCL PYTHON_WITH_TORCH
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "mpi"))
from job import Setup  # pylint: disable=wrong-import-position

SLUICE = FAKE_NCCL = PYTHON = ""
TIME_LIMIT = ["--set", "run.timeout_seconds=3"]
FOR_EVER = ["--set", "train.steps=100000", "--set", "train.checkpoint_every=0", "--set",
            "train.eval_every=0"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def environment(**more):
    """This process's own without what a launcher would set."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC", "OMPI_", "PMI", "SLURM_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return {**plain, "SLUICE_NCCL_LIBRARY": FAKE_NCCL, "SLUICE_CUDART_LIBRARY": FAKE_NCCL,
            "OMP_NUM_THREADS": "1", **more}


class Job:
    """Processes with torchrun's variables, as torchrun starts them, but each by itself."""

    def __init__(self, root, commands, **more):
        port = str(free_port())
        self.processes, self.logs = [], []
        for rank, command in enumerate(commands):
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                         "WORLD_SIZE": str(len(commands)), "MASTER_PORT": port, **more}
            self.logs.append(root / f"log.{rank}")
            with open(self.logs[-1], "w", encoding="utf-8") as log:
                self.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                                       stderr=log, env=environment(**variables)))

    def text(self, rank):
        return self.logs[rank].read_text(encoding="utf-8")

    def all_text(self):
        return "".join(f"[{rank}] {self.text(rank)}" for rank in range(len(self.logs)))

    def wait_for_line(self, words, limit=60):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if words in self.text(0):
                return True
            if self.processes[0].poll() is not None:
                return False
            time.sleep(0.02)
        return False

    def finish(self, limit=60):
        """Exit codes by rank."""
        end = time.monotonic() + limit
        try:
            return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired as error:
            raise AssertionError("a rank hangs:\n" + self.all_text()) from error
        finally:
            self.kill()

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


class Nccl(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.setup = Setup(SLUICE, "", folder.name)

    def start(self, processes, run, *more, **variables):
        command = [SLUICE, *self.setup.arguments(run, *more)]
        return self.start_commands([command] * processes, **variables)

    def start_commands(self, commands, **variables):
        job = Job(self.root, commands, **variables)
        self.addCleanup(job.kill)
        self.addCleanup(lambda: self.assertNotIn("fake nccl:", job.all_text()))
        return job

    def train(self, processes, run, *more):
        job = self.start(processes, run, *more)
        self.assertEqual(job.finish(), [0] * processes, job.all_text())
        return job

    def expect_same_weights(self, got, wanted):
        # assertEqual would write out what differs, for minutes.
        self.assertTrue(self.setup.weights(got, 6) == self.setup.weights(wanted, 6),
                        "other tensors, or other bits")

    def test_trains_to_the_bits_of_threads_also_when_torchrun_starts_it(self):
        tied = ["--set", "model.tie_word_embeddings=true"]
        self.assertEqual(self.setup.train_threads("threads", *tied).returncode, 0)
        job = self.train(2, "job", *tied)
        self.assertEqual(job.text(0).count(" 6/6 "), 2, job.all_text())  # a step and a validation
        self.assertEqual(job.text(1), "")
        self.expect_same_weights("job", "threads")
        self.assertEqual((self.root / "job" / "memory.json").read_text().count('"weights"'), 2)
        done = self.torchrun("torchrun", *tied, "--set", "run.transport=nccl")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.expect_same_weights("torchrun", "threads")
        self.assertNotIn("fake nccl:", done.stderr)

    def test_all_techniques_at_once_have_the_bits_of_threads(self):
        everything = ["--set", "parallel.data=2", "--set", "pipeline.vocab=parallel-2", "--set",
                      "pipeline.schedule=slimpipe", "--set", "pipeline.slices=4", "--set",
                      "pipeline.exchange=balanced", "--set", "pipeline.offload=half", "--set",
                      "model.tie_word_embeddings=true"]
        done = self.setup.train_threads("threads", *everything)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.train(4, "job", *everything)
        self.expect_same_weights("job", "threads")

    def torchrun(self, run, *more):
        """One launcher for two processes; its output and exit code."""
        command = [PYTHON, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2",
                   "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}",
                   SLUICE, *self.setup.arguments(run, *more)]
        return subprocess.run(command, env=environment(), capture_output=True, text=True,
                              timeout=120, check=False)

    def test_torchrun_shows_the_line_of_every_rank(self):
        done = self.torchrun("job", "--set", "pipeline.ranks=4")
        lines = [line for line in done.stderr.splitlines() if line.startswith("sluice: ")]
        self.assertEqual(len(lines), 2, done.stderr)
        for line in lines:
            self.assertIn("torchrun started 2 processes", line)

    def expect_refusal(self, job, *words):
        self.assertEqual(job.finish(), [2] * len(job.processes), job.all_text())
        for rank in range(len(job.processes)):
            lines = job.text(rank).splitlines()
            self.assertEqual(len(lines), 1, job.all_text())
            for word in words:
                self.assertIn(word, lines[0])

    def test_wrong_number_of_processes_is_refused_by_all(self):
        self.expect_refusal(self.start(3, "job"), "torchrun started 3", "pipeline.ranks", "2 x 1")

    def test_two_ranks_on_one_gpu_are_refused_by_all(self):
        self.expect_refusal(self.start(2, "job", LOCAL_RANK="1"), "ranks 0 and 1", "fake:01:00.0")
        self.expect_refusal(self.start(2, "job", SLUICE_FAKE_GPUS="1"), "ranks 0 and 1")

    def test_missing_nccl_is_refused_by_all(self):
        job = self.start(2, "job", "--set", "run.device=cuda",
                         SLUICE_NCCL_LIBRARY="/nowhere/libnccl.so.2")
        self.expect_refusal(job, "/nowhere/libnccl.so.2", "SLUICE_NCCL_LIBRARY")

    def test_processes_without_gpus_are_refused_by_all(self):
        variables = environment()
        del variables["SLUICE_NCCL_LIBRARY"]
        port = str(free_port())
        processes = [subprocess.Popen([SLUICE, *self.setup.arguments("job")],
                                      stderr=subprocess.PIPE, text=True,
                                      env={**variables, "RANK": rank, "LOCAL_RANK": rank,
                                           "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                           "MASTER_PORT": port}) for rank in ("0", "1")]
        for process in processes:
            text = process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, 2, text)
            self.assertEqual(text.count("sluice: "), 1, text)
            self.assertIn('run.device = "cpu"', text)
            self.assertIn("mpirun -n 2", text)

    def test_different_settings_are_refused_by_all_and_the_key_is_named(self):
        first = [SLUICE, *self.setup.arguments("job")]
        self.expect_refusal(self.start_commands([first, [*first, "--set", "train.beta1=0.8"]]),
                            "train.beta1 = 0.8", "train.beta1 = 0.9", "rank 1")

    def test_a_process_by_itself_and_other_launchers_are_refused(self):
        done = subprocess.run([SLUICE, *self.setup.arguments("job", "--set", "run.transport=nccl")],
                              env=environment(), capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("torchrun --no-python --nproc-per-node 2", done.stderr)
        self.expect_refusal(self.start(2, "job", "--set", "run.transport=mpi"), "torchrun started")

    def test_termination_saves_and_all_end(self):
        job = self.start(2, "job", "--set", "train.steps=100000")
        self.assertTrue(job.wait_for_line(" 3/100000 "), job.all_text())
        job.processes[1].send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(), [0, 0], job.all_text())
        self.assertIn("saved ", job.text(0))

    def expect_reports(self, job, lost, *words):
        """One line on each rank that is left, and exit code 3."""
        codes = job.finish(30)
        for rank, code in enumerate(codes):
            if rank in lost:
                continue
            lines = [line for line in job.text(rank).splitlines() if line.startswith("sluice: ")]
            self.assertEqual(len(lines), 1, job.all_text())
            self.assertEqual(code, 3, job.all_text())
            self.assertTrue(lines[0].startswith(f"sluice: rank {rank} "), job.all_text())
            for word in words:
                self.assertIn(word, lines[0], job.all_text())

    def test_a_killed_rank_is_named_by_every_other_one(self):
        for lost in (2, 0):  # rank 0 serves the store
            job = self.start(3, f"job{lost}", "--set", "pipeline.ranks=3", *FOR_EVER, *TIME_LIMIT)
            self.assertTrue(job.wait_for_line(" 3/100000 "), job.all_text())
            job.processes[lost].send_signal(signal.SIGKILL)
            self.expect_reports(job, [lost], "last done", f"rank {lost} is gone" if lost else "gone")

    def test_a_stopped_rank_is_reported_within_the_time_limit(self):
        # Rank 0 serves the store: the others can neither ask nor tell each other anything.
        job = self.start(3, "job", "--set", "pipeline.ranks=3", *FOR_EVER, *TIME_LIMIT)
        self.assertTrue(job.wait_for_line(" 3/100000 "), job.all_text())
        job.processes[0].send_signal(signal.SIGSTOP)
        end = time.monotonic() + 20
        while any(process.poll() is None for process in job.processes[1:]):
            self.assertLess(time.monotonic(), end, job.all_text())
            time.sleep(0.05)
        job.processes[0].send_signal(signal.SIGKILL)
        self.expect_reports(job, [0], "run.timeout_seconds", "last done")

    def test_what_nccl_does_wrong_is_reported_by_all(self):
        job = self.start(2, "hang", *FOR_EVER, *TIME_LIMIT,
                         SLUICE_FAKE_NCCL="rank=1,after=300,do=hang")
        self.expect_reports(job, [], "run.timeout_seconds", "last done")
        job = self.start(2, "error", *FOR_EVER,
                         SLUICE_FAKE_NCCL="rank=0,after=300,do=error")
        self.expect_reports(job, [], "NCCL reports: remote process exited")

    def test_a_channel_that_does_not_open_is_reported_by_all(self):
        job = self.start(2, "hang", *TIME_LIMIT, SLUICE_FAKE_NCCL="rank=1,after=1,do=init-hang")
        self.expect_reports(job, [], "to open a channel", "run.timeout_seconds")
        job = self.start(2, "error", *TIME_LIMIT, SLUICE_FAKE_NCCL="rank=0,after=1,do=init-error")
        codes = job.finish(30)
        self.assertEqual(codes, [3, 3], job.all_text())
        self.assertIn("ncclCommInitRank failed: unhandled system error", job.text(0))
        self.assertIn("rank 1 waited for rank 0 to open a channel", job.text(1))


if __name__ == "__main__":
    PYTHON = sys.argv.pop()
    FAKE_NCCL = sys.argv.pop()
    SLUICE = sys.argv.pop()
    unittest.main()
