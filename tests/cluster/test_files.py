"""The cluster files are valid for Ray, agree where they should, and contain no secret."""

import copy
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
AWS, ON_PREMISES = PROJECT / "cluster.yaml", PROJECT / "docs" / "cluster" / "on-premises.yaml"
BOTH = pytest.mark.parametrize("path", [AWS, ON_PREMISES], ids=["aws", "on-premises"])


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def check(config: dict[str, Any]) -> dict[str, Any]:
    from ray.autoscaler._private.util import prepare_config, validate_config

    completed: dict[str, Any] = prepare_config(copy.deepcopy(config))
    validate_config(completed)
    return completed


@BOTH
def test_the_file_is_valid_for_ray_and_the_shell_and_contains_no_secret(path: Path) -> None:
    config = read(path)
    assert check(config)["cluster_name"] == "bolt"
    with pytest.raises(Exception, match="idle_timeout_minuts"):
        check({**config, "idle_timeout_minuts": 5})
    for command in (one for key, commands in config.items() if key.endswith("commands") for one in commands):
        checked = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert checked.returncode == 0, f"{command}: {checked.stderr}"
    secret = r"AKIA|aws_secret|aws_access|PRIVATE KEY|password\s*[:=](?!\$)|\b[0-9a-f]{32,}\b"
    assert not re.search(secret, path.read_text(), re.IGNORECASE)


@BOTH
def test_every_node_has_the_project_the_token_and_the_same_setup(path: Path) -> None:
    config = read(path)
    mounts = dict(config["file_mounts"])
    assert mounts.pop("~/.ray/auth_token") == "~/.ray/auth_token"
    assert mounts == {f"~/bolt/{part}": part for part in mounts.values()}
    described = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    needed = [*described["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], described["project"]["readme"]]
    needed += [*described["project"]["license-files"], "grids", "pyproject.toml"]
    assert sorted(mounts.values()) == sorted(needed)
    assert all((PROJECT / part).exists() for part in needed)
    setup = "\n".join(config["setup_commands"])
    assert 'pip install --quiet --disable-pip-version-check -e "$HOME/bolt[cluster]"' in setup
    assert "RAY_AUTH_MODE=token" in setup
    for kind in ("head", "worker"):
        commands = config[f"{kind}_start_ray_commands"]
        starting = [command for command in commands if re.search(r"ray (start|stop)\b", command)]
        assert len(starting) == 2
        assert all(command.startswith(". ~/.bolt/env.sh;") for command in starting)
    assert "worker_setup_commands" not in config


@BOTH
def test_dashboard_and_mlflow_listen_on_the_loopback_interface(path: Path) -> None:
    commands = "\n".join(read(path)["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in commands
    assert "0.0.0.0" not in path.read_text()
    served = next(command for command in commands.split("\n") if "mlflow server" in command)
    assert "--host" not in served  # MLflow listens on loopback by default
    assert "--app-name basic-auth" in served


def test_ray_makes_no_security_group_and_no_gpu_machine_runs_at_first() -> None:
    """A security group of Ray's would open port 22 to the world."""
    config = read(AWS)
    kinds = config["available_node_types"]
    assert "security_group" not in config["provider"]
    for kind in kinds.values():
        assert kind["node_config"]["SecurityGroupIds"] == ["sg-0123456789abcdef0"]
        assert kind["node_config"]["ImageId"]
        assert kind["node_config"]["IamInstanceProfile"]
    assert {kinds[name]["min_workers"] for name in ("gpu", "gpu_spot")} == {0}
    assert kinds["gpu"]["max_workers"] > 0
    assert kinds["gpu_spot"]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert config["idle_timeout_minutes"] > 0
