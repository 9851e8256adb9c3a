#!/usr/bin/env python3
"""Proves that the folders of sluice/ use each other only in the allowed direction.

    check_layering.py [ROOT]      checks the tree; exit 1 and one line per problem if there are any
    check_layering.py --self-test makes small trees, each with one violation, and expects it found

The rules are the table below. Python's standard library only, so that it runs anywhere.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

# Folder -> the other folders it may include and link. Everything else is a violation.
ALLOWED = {
    "common": set(),
    "schedule": {"common"},
    "program": {"common", "schedule"},
    "trace": {"common", "schedule", "program"},
    "sim": {"common", "schedule", "program", "trace"},
    "plan": {"common", "schedule", "program", "trace", "sim"},
    "comm": {"common"},
    "model": {"common"},
    "runtime": {"common", "schedule", "program", "trace", "comm", "model"},
    "train": {"common", "schedule", "program", "trace", "comm", "model", "runtime", "sim"},
    "cli": {"common", "schedule", "program", "trace", "comm", "model", "runtime", "sim", "plan",
            "train"},
}
# Folders that may include ATen and c10. The other ones build and test where no torch is.
TORCH_FOLDERS = {"model", "runtime", "train", "cli"}
# Sources of a torch folder that may include torch/* (autograd is the oracle, never the engine).
ORACLE = re.compile(r"(_test$|reference|autograd|oracle)")
# Headers below torch/ that are not autograd: folder -> their beginning. Stores are for rendezvous.
C10D = {"runtime": "torch/csrc/distributed/c10d/"}
SOURCES = {".h", ".cc"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TORCH_INCLUDE = re.compile(r"^(ATen|c10|torch|caffe2)/")
LINK = re.compile(r"sluice_folder\(\s*(\w+)([^)]*)\)")


def strip_comments(text):
    """Blanks C++ comments, so that an include in a usage example is not one."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def check_source(path, root):
    """Yields one line per include of `path` that the rules do not allow."""
    folder = path.relative_to(root / "sluice").parts[0]
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(root)
    claims_no_torch = path.suffix == ".h" and re.search(r"free of torch", text[:400], re.IGNORECASE)
    for mark, target in INCLUDE.findall(strip_comments(text)):
        if target.startswith("sluice/"):
            other = target.split("/")[1]
            if other != folder and other not in ALLOWED[folder]:
                allowed = ", ".join(sorted(ALLOWED[folder])) or "no other folder"
                yield f"{name}: includes {target}, but {folder} may use {allowed}"
        elif TORCH_INCLUDE.match(target):
            if folder not in TORCH_FOLDERS:
                yield f"{name}: includes {target}, but {folder} must build without torch"
            elif claims_no_torch:
                yield f"{name}: includes {target}, but its first lines say that it is free of torch"
            elif folder in C10D and target.startswith(C10D[folder]):
                continue
            elif target.startswith("torch/") and not ORACLE.search(path.stem):
                yield (f"{name}: includes {target}; torch/* is for tests and the autograd "
                       "reference, the engine uses ATen")
        elif mark == '"':
            yield f'{name}: includes "{target}"; write "sluice/{folder}/{target}"'


def check_links(root):
    """Yields one line per CMake link that the rules do not allow."""
    path = root / "CMakeLists.txt"
    if not path.exists():
        return
    text = re.sub(r"#[^\n]*", "", path.read_text(encoding="utf-8"))
    for folder, arguments in LINK.findall(text):
        if folder not in ALLOWED:
            yield f"CMakeLists.txt: folder {folder} has no rule in check_layering.py"
            continue
        for other in re.findall(r"sluice_(\w+)", arguments):
            if other not in ALLOWED[folder]:
                yield f"CMakeLists.txt: links sluice_{other} into {folder}, which may not use it"
        if "torch_lite" in arguments and folder not in TORCH_FOLDERS:
            yield f"CMakeLists.txt: links torch into {folder}, which must build without it"
        if "torch_autograd" in arguments.partition("TEST_DEPENDS")[0]:
            yield f"CMakeLists.txt: links torch_autograd into {folder} itself, not into its tests"


def check(root):
    """All problems of the tree at `root`, and the number of files read."""
    problems, num_files = [], 0
    for folder in sorted(p for p in (root / "sluice").iterdir() if p.is_dir()):
        if folder.name not in ALLOWED:
            problems.append(f"sluice/{folder.name}: a folder without a rule in check_layering.py")
            continue
        for path in sorted(p for p in folder.rglob("*") if p.suffix in SOURCES):
            num_files += 1
            problems.extend(check_source(path, root))
    problems.extend(check_links(root))
    return problems, num_files


# (files of a small tree, what the one expected problem must mention; None: no problem)
SELF_TESTS = [
    ({"sluice/program/a.h": '#include "sluice/schedule/pass.h"\n#include <vector>\n'}, None),
    ({"sluice/schedule/a.h": '#include "sluice/program/program.h"\n'}, "schedule may use common"),
    ({"sluice/runtime/a.cc": '#include "sluice/sim/simulate.h"\n'}, "sluice/sim/simulate.h"),
    ({"sluice/train/a.cc": '#include "sluice/sim/simulate.h"\n'}, None),
    ({"sluice/comm/a.cc": '#include "sluice/schedule/pass.h"\n'}, "comm may use common"),
    ({"sluice/sim/a.cc": "  #  include <ATen/core/Tensor.h>\n"}, "must build without torch"),
    ({"sluice/common/a_test.cc": "#include <torch/torch.h>\n"}, "must build without torch"),
    ({"sluice/model/a.cc": "#include <ATen/ops/mm.h>\n"}, None),
    ({"sluice/model/a.cc": "#include <torch/torch.h>\n"}, "the engine uses ATen"),
    ({"sluice/model/a_test.cc": "#include <torch/torch.h>\n"}, None),
    ({"sluice/runtime/a.cc": "#include <torch/csrc/distributed/c10d/TCPStore.hpp>\n"}, None),
    ({"sluice/runtime/a.cc": "#include <torch/csrc/autograd/variable.h>\n"}, "the engine uses ATen"),
    ({"sluice/train/a.cc": "#include <torch/csrc/distributed/c10d/TCPStore.hpp>\n"},
     "the engine uses ATen"),
    ({"sluice/comm/a.cc": "#include <torch/csrc/distributed/c10d/TCPStore.hpp>\n"},
     "must build without torch"),
    ({"sluice/train/autograd_step.cc": "#include <torch/torch.h>\n"}, None),
    ({"sluice/model/config.h": "// config.h - a shape. Free of torch.\n#include <c10/core/Device.h>\n"},
     "free of torch"),
    ({"sluice/sim/a.cc": '// #include <ATen/ATen.h>\n/* #include "sluice/cli/x.h" */\n'}, None),
    ({"sluice/trace/a.cc": '#include "timeline.h"\n'}, 'write "sluice/trace/timeline.h"'),
    ({"sluice/extra/a.cc": "\n"}, "a folder without a rule"),
    ({"CMakeLists.txt": "sluice_folder(runtime LABEL torch DEPENDS sluice_trace\n  sluice_sim)\n"},
     "links sluice_sim into runtime"),
    ({"CMakeLists.txt": "sluice_folder(sim LABEL fast DEPENDS sluice_trace torch_lite)\n"},
     "links torch into sim"),
    ({"CMakeLists.txt": "sluice_folder(model DEPENDS torch_autograd)\n"}, "not into its tests"),
    ({"CMakeLists.txt": "sluice_folder(model DEPENDS torch_lite TEST_DEPENDS torch_autograd)\n"},
     None),
]


def self_test():
    """Runs SELF_TESTS; returns the lines that say what went wrong."""
    failures = []
    for files, expected in SELF_TESTS:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "sluice").mkdir()
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            problems, _ = check(root)
        found = len(problems) == 1 and expected in problems[0] if expected else not problems
        if not found:
            failures.append(f"{files}: expected {expected or 'no problem'}, got {problems}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--self-test", action="store_true", help="check the checker")
    args = parser.parse_args()
    if args.self_test:
        problems = self_test()
        summary = f"{len(SELF_TESTS)} small trees"
    else:
        problems, num_files = check(args.root)
        summary = f"{num_files} files"
        if num_files == 0:
            problems.append(f"no sources under {args.root}/sluice")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"layering: {summary}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
