"""Run a benchmark and put its table, its command and the machine's facts into a page, under a heading.

    python benchmarks/page.py docs/performance.md "Merging, small" benchmarks/merging.py --repeats 3

A section with the same heading is replaced, others are kept: the page holds nothing typed in.
"""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from fedforget.files import atomic_path
from fedforget.runs import git_state

TITLE = """# Speed and memory, measured

Each section was written by the command that stands in it, through `benchmarks/page.py`; `make bench` runs the
small one. CPU seconds count all threads. How each number is taken is in the script's own text (`--help`).
"""


def main() -> None:
    """Run the command and write its section."""
    page, heading, *command = sys.argv[1:]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    print(done.stdout)
    output = done.stdout.strip()
    if "| --- |" not in output:  # no table of this page's kind: as it was printed
        output = f"```text\n{output}\n```"
    text = f"## {heading}\n\n`python {shlex.join(command)}`\n\n{facts()}\n\n{output}\n"
    path = Path(page)
    old = path.read_text(encoding="utf-8") if path.is_file() else TITLE
    section = re.compile(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    new = section.sub(lambda _: f"{text}\n", old) if section.search(old) else f"{old.rstrip()}\n\n{text}"
    with atomic_path(path) as temporary:
        temporary.write_text(f"{new.rstrip()}\n", encoding="utf-8")


def facts() -> str:
    """Return what the numbers depend on: processor, cores, memory, versions, commit."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    model = re.search(r"model name\s*: (.*)", cpu)
    flags = re.search(r"flags\s*: (.*)", cpu)
    kinds = [one for one in ("avx2", "avx512f", "avx512_bf16") if flags and one in flags[1].split()]
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    state = git_state(Path(__file__).resolve().parents[1])
    words = [
        f"{model[1] if model else platform.processor()} ({', '.join(kinds)})",
        f"{cpu.count('processor	:')} cores",
        f"{int(memory[1]) / 1e6:.0f} GB" if memory else "",
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in ("torch", "numpy", "peft")),
        f"commit {str(state.get('commit', 'unknown'))[:10]}{', changed' if state.get('dirty') else ''}",
    ]
    return ", ".join(word for word in words if word)


if __name__ == "__main__":
    main()
