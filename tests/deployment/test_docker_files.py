"""The files of docker/: compose files against their schema, the scripts' syntax, the presets they name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from federation import CERTIFICATES, ENTRYPOINT, ROOT

from fedforget.presets import load_any, presets

DOCKER = ROOT / "docker"


def test_the_compose_files_follow_the_specification() -> None:
    files = [str(path) for path in sorted(DOCKER.glob("compose*.yaml"))]
    assert len(files) == 3
    program = str(Path(sys.executable).parent / "check-jsonschema")
    done = subprocess.run(
        [program, "--builtin-schema", "vendor.compose-spec", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_are_posix_shell(path: Path) -> None:
    assert os.access(path, os.X_OK)
    commands = [["sh", "-n", str(path)]]
    if shutil.which("shellcheck"):
        commands.append(["shellcheck", "--shell", "sh", str(path)])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_files_and_the_page_name_is_there() -> None:
    said = "".join(path.read_text() for path in [*DOCKER.glob("compose*"), ROOT / "docs" / "deploy.md"])
    named = set(re.findall(r"federate ([\w-]+)", said))
    assert named == {"firm-deploy", "fedsgt-deploy"}
    assert named <= set(presets())
    expected = {(g.role, g.domain) for g in load_any("firm-deploy").clients}  # type: ignore[union-attr]
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    declared = [
        s["environment"]["NODE_CONFIG"] for s in services.values() if "NODE_CONFIG" in s["environment"]
    ]
    assert {
        (re.findall(r'role="(\w+)"', d)[0], re.findall(r'domain="(\w+)"', d)[0]) for d in declared
    } == expected
    names = {re.findall(r'client-id="([\w-]+)"', d)[0] for d in declared}
    assert names == set(load_any("fedsgt-deploy").data.names)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "env", "says"),
    [
        ([], {}, "say what to do: superlink, supernode, register, health, or a command"),
        (["superlink"], {}, "set TLS_DIR to the folder with the certificates, or INSECURE=1"),
        (["superlink"], {"TLS_DIR": "/nowhere"}, "/nowhere/ca.crt cannot be read; run certificates.sh first"),
        (["supernode"], {"INSECURE": "1"}, 'set NODE_CONFIG, e.g. client-id="hospital-a"'),
        (["register"], {"INSECURE": "1"}, "nothing to register without TLS"),
    ],
)
def test_the_entry_point_starts_nothing_by_halves(words: list[str], env: dict[str, str], says: str) -> None:
    done = subprocess.run(
        ["sh", str(ENTRYPOINT), *words], env={"PATH": os.environ["PATH"], "HOME": "/nowhere", **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr


def test_a_client_is_added_to_the_keys(tmp_path: Path) -> None:
    for clients in (["a"], ["a", "b"]):
        subprocess.run(
            ["sh", str(CERTIFICATES), str(tmp_path), "localhost", *clients], check=True, capture_output=True
        )
        first = (tmp_path / "nodes" / "a.key").read_bytes()
    assert sorted(path.name for path in (tmp_path / "nodes").iterdir()) == [
        "a.key",
        "a.pub",
        "b.key",
        "b.pub",
    ]
    assert (tmp_path / "nodes" / "a.key").read_bytes() == first
    assert (tmp_path / "nodes" / "a.key").stat().st_mode & 0o077 == 0
