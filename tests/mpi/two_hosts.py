#!/usr/bin/env python3
"""Trains over TCP between two hosts: network namespaces of this machine with a cable between them.

The run gives the bits of threads; then the cable is pulled, and both ranks report it and end with
exit code 3 within the time limit; with the cable back the run resumes to the same bits.
Exits with 77 (skipped) where namespaces may not be made.

Usage: two_hosts.py PATH_OF_SLUICE PATH_OF_MPIRUN
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from job import RunningJob, Setup

SKIPPED = 77
ADDRESSES = ["10.213.77.1", "10.213.77.2"]
NETWORK = "10.213.77.0/24"
TIME_LIMIT = 3
STEPS = 200000
SETTINGS = ["--set", f"run.timeout_seconds={TIME_LIMIT}", "--set", "train.warmup_steps=2",
            "--set", "train.eval_every=0"]


class Hosts:
    """Two network namespaces with a cable between them; removed at exit of the with block."""

    def __init__(self):
        self.names = [f"sluice-{os.getpid()}-{side}" for side in "ab"]
        self.links = [f"sl{os.getpid() % 100000}{side}" for side in "ab"]

    def __enter__(self):
        for name in self.names:
            self._ip("netns", "add", name)
        self._ip("link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1])
        for name, link, address in zip(self.names, self.links, ADDRESSES):
            self._ip("link", "set", link, "netns", name)
            self._ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", name, "link", "set", link, "up")
        return self

    def kill_all(self):
        for name in self.names:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True,
                                  check=False).stdout.split()
            for pid in pids:
                subprocess.run(["kill", "-9", pid], check=False, stderr=subprocess.DEVNULL)

    def __exit__(self, *error):
        self.kill_all()
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)

    @staticmethod
    def _ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    def cable(self, state):
        self._ip("-n", self.names[1], "link", "set", self.links[1], state)

    def command(self, host, *words):
        """A command on one host, which has a name of its own."""
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c",
                f'hostname {self.names[host]}; exec "$@"', "sh", *words]


def job(hosts, setup, run, *more):
    """mpirun on the first host; the second one's daemon is started by an agent instead of ssh.

    Each rank writes its standard error into a file, since what the second host prints cannot come
    over a cable that is pulled.
    """
    agent = setup.root / "agent.sh"
    words = " ".join(f"'{word}'" for word in hosts.command(1))
    agent.write_text(f'#!/bin/sh\nshift\nexec {words} sh -c "$*"\n')
    agent.chmod(0o755)
    log = f"{setup.root}/rank.$OMPI_COMM_WORLD_RANK"
    rank = f'"$@" 2>>{log}; code=$?; echo "exit $code" >>{log}; exit $code'
    return hosts.command(
        0, setup.mpirun, "--allow-run-as-root", "-n", "2", "--host",
        ",".join(f"{address}:1" for address in ADDRESSES), "--mca", "plm_rsh_agent", str(agent),
        "--mca", "btl", "self,tcp", "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", NETWORK,
        "--mca", "oob_tcp_if_include", NETWORK, "sh", "-c", rank, "sh", setup.sluice,
        *setup.arguments(run, *SETTINGS, *more))


def log_of(setup, rank):
    path = setup.root / f"rank.{rank}"
    return path.read_text() if path.exists() else ""


def wait_for(condition, limit, what):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"waited for {what} for more than {limit} s")
        time.sleep(0.02)


def pull_the_cable(hosts, setup):
    """Returns the last step that was saved."""
    for rank in (0, 1):
        (setup.root / f"rank.{rank}").unlink(missing_ok=True)
    running = RunningJob(job(hosts, setup, "cut", "--set", f"train.steps={STEPS}"))
    wait_for(lambda: "saved " in log_of(setup, 0), 60, "the first checkpoint")
    hosts.cable("down")
    begin = time.monotonic()
    wait_for(lambda: all("exit 3" in log_of(setup, rank) for rank in (0, 1)), 2 * TIME_LIMIT + 5,
             "exit code 3 of both ranks")
    print(f"both ranks ended after {time.monotonic() - begin:.1f} s")
    for rank in (0, 1):
        lines = [line for line in log_of(setup, rank).splitlines() if line.startswith("sluice: ")]
        print("\n".join(lines))
        if len(lines) != 1 or "last done" not in lines[0]:
            sys.exit(f"rank {rank} printed {lines}")
    hosts.kill_all()  # mpirun waits for its daemon on the other side
    running.finish(10)
    hosts.cable("up")
    folder = setup.root / "cut" / "checkpoints"
    return max(int(path.name.split("-")[1]) for path in folder.iterdir()
               if not path.name.endswith(".tmp"))


def check_run(done, setup, what):
    if done.returncode != 0:
        sys.exit(f"{what}: exit {done.returncode}\n{done.stderr}{log_of(setup, 0)}{log_of(setup, 1)}")


def main():
    setup_words = sys.argv[1:]
    if os.geteuid() != 0:
        print("skipped: only root can make network namespaces")
        return SKIPPED
    if shutil.which("ip") is None:
        print("skipped: there is no `ip` here (iproute2)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(*setup_words, folder)
        hosts = Hosts()
        try:
            hosts.__enter__()
        except (OSError, subprocess.CalledProcessError) as error:
            hosts.__exit__()
            print(f"skipped: no network namespaces: {getattr(error, 'stderr', error)}")
            return SKIPPED
        try:
            check_run(setup.train_threads("threads", *SETTINGS), setup, "threads")
            check_run(setup.run(job(hosts, setup, "job")), setup, "two hosts")
            if setup.weights("job", 6) != setup.weights("threads", 6):
                sys.exit("the run over two hosts has other bits than that of threads")
            last = pull_the_cable(hosts, setup)
            more = ["--resume", "--steps", str(last + 2)]
            check_run(setup.run(job(hosts, setup, "cut", *more)), setup, "resumed")
        finally:
            hosts.__exit__()
    print("two hosts: trained, cut, reported, resumed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
