"""The files of docker/: compose files against their schema, the scripts' syntax, the presets they name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
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
    program = str(Path(sys.executable).parent / "shellcheck")
    for command in (["sh", "-n", str(path)], [program, "--shell", "sh", str(path)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_has_no_findings() -> None:
    program = str(Path(sys.executable).parent / "hadolint")
    done = subprocess.run([program, str(DOCKER / "Dockerfile")], capture_output=True, text=True, check=False)
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


FLWR = """#!/bin/sh
[ -e asked ] || { touch asked; echo "Connection to the SuperLink is unavailable." >&2; exit 1; }
case "$3" in
*known.pub) echo "Public key already in use" >&2; exit 1 ;;
*new.pub) echo "SuperNode 1234567890123456789 registered successfully." ;;
*) echo "Unable to load the public key" >&2; exit 1 ;;
esac
"""


def register(folder: Path, *clients: str, wait: int = 5) -> subprocess.CompletedProcess[str]:
    """Run ``register`` for clients' keys with a ``flwr`` of our own, which is out of reach the first time."""
    (folder / "flwr").write_text(FLWR)
    (folder / "flwr").chmod(0o755)
    (folder / "nodes").mkdir(exist_ok=True)
    for path in [folder / "ca.crt", *(folder / "nodes" / f"{client}.pub" for client in clients)]:
        path.touch()
    env = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder), "TLS_DIR": str(folder),
        "FEDFORGET_HOME": str(folder / "home"), "SUPERLINK": "127.0.0.1:1", "WAIT": str(wait),
    }  # fmt: skip
    return subprocess.run(
        ["sh", str(ENTRYPOINT), "register"], env=env, cwd=folder, capture_output=True, text=True, check=False
    )


def test_register_waits_for_the_superlink_and_lists_the_nodes(tmp_path: Path) -> None:
    done = register(tmp_path, "known", "new", wait=0)
    assert done.returncode == 2
    assert "no SuperLink answers at the connection production" in done.stderr
    (tmp_path / "asked").unlink()
    listed = tmp_path / "home" / "nodes.yaml"
    listed.write_text('"known": 7\n"new": 8\n')
    done = register(tmp_path, "known", "new")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "registered: known\nregistered: new, node 1234567890123456789\n"
    # A key that is registered again, at a SuperLink that was started anew, has another node.
    assert yaml.safe_load(listed.read_text()) == {"known": 7, "new": 1234567890123456789}
    done = register(tmp_path, "broken", "known", "new")
    assert done.returncode == 2
    assert "broken.pub was not registered: Unable to load the public key" in done.stderr


def test_register_adds_its_connection_to_a_configuration_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / ".flwr" / "config.toml"
    path.parent.mkdir()
    path.write_text('[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local:"\n')
    for _ in range(2):
        assert register(tmp_path, "new").returncode == 0
    found = tomllib.loads(path.read_text())["superlink"]
    assert found["default"] == "local"
    assert found["production"] == {
        "address": "127.0.0.1:1",
        "root-certificates": str(tmp_path / "ca.crt"),
    }


def supernode(folder: Path, program: str) -> subprocess.Popen[str]:
    """Start ``supernode`` with a ``flower-supernode`` of our own."""
    (folder / "flower-supernode").write_text(f"#!/bin/sh\n{program}\n")
    (folder / "flower-supernode").chmod(0o755)
    env = {"INSECURE": "1", "NODE_CONFIG": 'client-id="a"', "RESTART_DELAY": "0"}
    return subprocess.Popen(
        ["sh", str(ENTRYPOINT), "supernode"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder), **env},
    )  # fmt: skip


@pytest.mark.parametrize(("ends", "status"), [(0, 1), (3, 3)])
def test_a_supernode_that_ends_unasked_has_failed(tmp_path: Path, ends: int, status: int) -> None:
    """With status 0 it ends where a SuperLink that was started anew does not know it."""
    process = supernode(tmp_path, f"exit {ends}")
    assert "its key is not registered" in process.communicate(timeout=60)[1]
    assert process.returncode == status


def test_a_supernode_is_stopped(tmp_path: Path) -> None:
    process = supernode(tmp_path, "echo up; exec sleep 600")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert "the SuperNode ended" not in process.communicate(timeout=60)[1]
    assert process.returncode == 143


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
