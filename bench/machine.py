"""What a result file says about the machine and the versions it was measured with."""

import datetime
import os
import platform
import subprocess
from pathlib import Path


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def cpu_extensions():
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split())
    return ", ".join(f for f in ("avx2", "avx512f", "amx_tile") if f in flags) or "none"


def memory_gib():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def commit(root):
    def git(*arguments):
        done = subprocess.run(["git", "-C", str(root), *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False)
        return done.stdout.strip()

    changed = " with local changes" if git("status", "--porcelain", "-uno") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def describe_machine(root, command):
    """Markdown lines: machine, versions, commit, date, command."""
    import torch

    return [f"- machine: {cpu_name()}, {os.cpu_count()} processors ({cpu_extensions()}), "
            f"{memory_gib():.0f} GiB",
            f"- torch {torch.__version__}, Python {platform.python_version()}, "
            f"Linux {platform.release().split('-')[0]}",
            f"- commit {commit(root)}, {datetime.date.today().isoformat()}",
            f"- command: `{command}`"]
