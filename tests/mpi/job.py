"""Starts `sluice train` as a job of processes, and finds, stops and kills single ranks of it.

Used by command_test.py and kill_ranks.py.
"""

import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
import small_run  # pylint: disable=wrong-import-position


class Setup:
    """A folder with a corpus and a config, and how the program is started in it."""

    def __init__(self, sluice, mpirun, root):
        self.sluice, self.mpirun, self.root = sluice, mpirun, pathlib.Path(root)
        corpus = self.root / "corpus"
        small_run.write_corpus(corpus)
        self.config = self.root / "config.toml"
        self.config.write_text(small_run.CONFIG)

    def arguments(self, run, *more):
        return ["train", str(self.config), "--set", f'data.paths=["{self.root / "corpus"}"]',
                "--set", f'run.dir="{self.root / run}"', "--set", "train.checkpoint_every=2", *more]

    def job(self, processes, run, *more):
        """The command line of a job."""
        return [self.mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(processes),
                self.sluice, *self.arguments(run, *more)]

    def logged_job(self, processes, run, *more):
        """A job whose ranks write their standard error into files: mpirun drops lines of processes
        that end while it ends the job."""
        for log in self.root.glob("rank.*"):
            log.unlink()
        command = self.job(processes, run, *more)
        words = f'exec "$@" 2>>{self.root}/rank.$OMPI_COMM_WORLD_RANK'
        place = command.index(self.sluice)
        return [*command[:place], "sh", "-c", words, "sh", *command[place:]]

    def log_of(self, rank):
        path = self.root / f"rank.{rank}"
        return path.read_text() if path.exists() else ""

    def run(self, command):
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def train(self, processes, run, *more):
        return self.run(self.job(processes, run, *more))

    def train_threads(self, run, *more):
        return self.run([self.sluice, *self.arguments(run, *more)])

    def weights(self, run, step):
        """Bytes of all tensors of a checkpoint, by name, from one file or several."""
        folder = self.root / run / "checkpoints" / f"step-{step}"
        tensors = {}
        for stem in ("model", "optimizer"):
            for path in sorted(folder.glob(f"{stem}*.safetensors")):
                tensors.update(read_safetensors(path))
        return tensors


def read_safetensors(path):
    import json
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    begin = 8 + size
    return {name: data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]]
            for name, entry in header.items()}


class RunningJob:
    """A job whose output is read on the way."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True)
        self.lines = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self.process.stderr:
            for line in self.process.stderr:
                self.lines.append(line)

    def wait_for_line(self, words, limit=60):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if any(words in line for line in list(self.lines)):
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.01)
        return False

    def rank_pids(self):
        """Process ids by rank, of the processes that mpirun started on this machine."""
        pids = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(status[1]) != self.process.pid:
                    continue
                environment = (entry / "environ").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue
            for variable in environment:
                if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                    pids[int(variable.split(b"=")[1])] = int(entry.name)
        return pids

    def signal_rank(self, rank, signal_number):
        os.kill(self.rank_pids()[rank], signal_number)

    def finish(self, limit):
        """Exit status of mpirun and everything on standard error."""
        try:
            status = self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            self._reader.join()
            raise
        self._reader.join()
        return status, "".join(self.lines)

    def reports(self):
        """The lines of the program itself, by the rank that they begin with."""
        result = {}
        for line in self.lines:
            words = line.split()
            if line.startswith("sluice: rank ") and words[2].isdigit():
                result.setdefault(int(words[2]), []).append(line.strip())
        return result
