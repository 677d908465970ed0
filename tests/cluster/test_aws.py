"""``ray up`` and ``ray down`` of cluster.yaml against moto's EC2 and IAM: which machines start and end, and how.

moto records machines and runs none. ssh and rsync are replaced by scripts that record their arguments and succeed. So
the commands in the file are not run here; ``test_on_premises.py`` runs the similar ones of the on-premises file.
"""

import contextlib
import io
import runpy
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.events import Resources
from orchestrator.execution.join import limits_from_config
from tests.helpers.waiting import TIMEOUT

pytestmark = pytest.mark.server
PROJECT = Path(__file__).resolve().parents[2]
REGION = "us-west-2"
ME = "203.0.113.7/32"


RAY = (
    "from ray.autoscaler._private import commands; commands.POLL_INTERVAL = 0.1; "  # it is 5 seconds
    "from ray.scripts.scripts import main; main()"
)


def ray(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RAY, *words], text=True, timeout=TIMEOUT,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def prepare(*words: str) -> tuple[object, str]:
    """Run the preparation of the account in this process; return its exit code and what it printed."""
    code: object = 0
    main = runpy.run_path("docs/cluster/prepare_aws.py")["main"]
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(output),
    ):
        patched.setattr(sys, "argv", ["prepare_aws.py", "--region", REGION, "--bucket", "bolt-test", *words])
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return code, output.getvalue()


@dataclass(frozen=True)
class Account:
    """An AWS account in moto; this process has its user's environment, home folder and PATH."""

    folder: Path

    def client(self, service: str) -> Any:
        import boto3

        return boto3.client(service, region_name=REGION)

    def machines(self) -> list[dict[str, Any]]:
        pages = self.client("ec2").describe_instances()["Reservations"]
        return [machine for page in pages for machine in page["Instances"] if machine["State"]["Name"] == "running"]


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    from moto.server import ThreadedMotoServer
    from ray.autoscaler._private.aws.utils import client_cache, resource_cache

    folder = tmp_path_factory.mktemp("account")
    (folder / "home" / ".ray").mkdir(parents=True)
    (folder / "home" / ".ray" / "auth_token").write_text("0" * 64)
    (folder / "bin").mkdir()
    for name in ("ssh", "rsync"):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\necho "$0 $*" >> {folder / "calls"}\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true", "RAY_USAGE_STATS_ENABLED": "0",
        "HOME": str(folder / "home"), "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        patched.setattr("boto3.DEFAULT_SESSION", None)
        patched.chdir(PROJECT)
        client_cache.cache_clear()
        resource_cache.cache_clear()
        try:
            yield Account(folder)
        finally:
            server.stop()


@pytest.fixture(scope="module")
def filled_in(account: Account) -> Path:
    """cluster.yaml with the values that the preparation prints; moto accepts any image."""
    code, output = prepare("--ssh-from", ME)
    assert code == 0, output
    wanted = [line.strip() for line in output.splitlines()[1:]]
    text = (PROJECT / "cluster.yaml").read_text()
    placeholders = ("region: us-west-2", "SecurityGroupIds: [sg-0123456789abcdef0]", "BOLT_STORE=s3://FILL-IN/bolt")
    for old, new in zip(placeholders, wanted, strict=True):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = account.folder / "cluster.yaml"
    path.write_text(text)
    return path


def rules(account: Account) -> list[tuple[str, str, list[str]]]:
    """Return (group, protocol and ports, sources) of every rule that allows traffic to a running machine."""
    client = account.client("ec2")
    groups = {group["GroupId"] for machine in account.machines() for group in machine["SecurityGroups"]}
    found = []
    for group in client.describe_security_groups(GroupIds=sorted(groups))["SecurityGroups"]:
        for rule in group["IpPermissions"]:
            sources = [entry["CidrIp"] for entry in rule.get("IpRanges", [])]
            sources += [entry["CidrIpv6"] for entry in rule.get("Ipv6Ranges", [])]
            sources += [entry["GroupId"] for entry in rule.get("UserIdGroupPairs", [])]
            ports = f"{rule['IpProtocol']} {rule.get('FromPort')}-{rule.get('ToPort')}"
            found.append((group["GroupId"], ports, sources))
    return found


def test_up_starts_a_head_closed_to_the_world_and_down_ends_it(account: Account, filled_in: Path) -> None:
    up = ray("up", "--yes", "--no-config-cache", str(filled_in))
    assert up.returncode == 0, up.stdout
    (head,) = account.machines()
    assert head["InstanceType"] == "m7i.xlarge"
    assert head["IamInstanceProfile"]["Arn"].endswith(":instance-profile/bolt-head")
    assert "InstanceLifecycle" not in head
    tags = {tag["Key"]: tag["Value"] for tag in head["Tags"]}
    assert (tags["project"], tags["ray-node-type"], tags["ray-cluster-name"]) == ("bolt", "head", "bolt")
    (group,) = {group["GroupId"] for group in head["SecurityGroups"]}
    assert sorted(rules(account)) == sorted([(group, "-1 None-None", [group]), (group, "tcp 22-22", [ME])])
    calls = (account.folder / "calls").read_text()
    assert "/.ray/auth_token" in calls
    assert "mlflow server" in calls
    down = ray("down", "--yes", str(filled_in))
    assert down.returncode == 0, down.stdout
    assert account.machines() == []


@pytest.fixture(scope="module")
def bootstrapped(filled_in: Path) -> dict[str, Any]:
    """The configuration that the head's autoscaler reads, completed with data of AWS."""
    from ray.autoscaler._private.commands import _bootstrap_config

    config: dict[str, Any] = _bootstrap_config(yaml.safe_load(filled_in.read_text()), no_config_cache=True)
    return config


def create(config: dict[str, Any], kind: str, **changes: object) -> Any:
    """Start a machine as the head's autoscaler does; return Ray's provider."""
    from ray.autoscaler._private.providers import _get_node_provider

    provider = _get_node_provider(config["provider"], config["cluster_name"])
    node = {**config["available_node_types"][kind]["node_config"], **changes}
    provider.create_node(node, {"ray-node-type": "worker", "ray-user-node-type": kind}, 1)
    return provider


def test_workers_are_started_as_the_file_says(account: Account, bootstrapped: dict[str, Any]) -> None:
    kinds = bootstrapped["available_node_types"]
    assert limits_from_config(bootstrapped) == Resources(cpus=32, gpus=8)
    assert kinds["head"]["resources"]["CPU"] == 0
    assert kinds["gpu"]["min_workers"] == 0
    for kind in ("gpu", "gpu_spot"):
        provider = create(bootstrapped, kind)
    ordinary, spot = sorted(account.machines(), key=lambda machine: machine.get("InstanceLifecycle", ""))
    assert spot["InstanceLifecycle"] == "spot"
    assert "InstanceLifecycle" not in ordinary
    for machine in (ordinary, spot):
        assert machine["InstanceType"] == "g6.xlarge"
        assert machine["IamInstanceProfile"]["Arn"].endswith(":instance-profile/bolt-worker")
        assert {"Key": "project", "Value": "bolt"} in machine["Tags"]
    assert not any("0.0.0.0/0" in sources or "::/0" in sources for _, _, sources in rules(account))
    provider.terminate_nodes([machine["InstanceId"] for machine in (ordinary, spot)])
    assert account.machines() == []


def test_a_misspelt_field_is_found_before_a_machine_starts(account: Account, bootstrapped: dict[str, Any]) -> None:
    """Ray's schema accepts any field for AWS; AWS's own client does not."""
    from botocore.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError, match="InstanceTyp"):
        create(bootstrapped, "gpu", InstanceTyp="g6.xlarge")
    assert account.machines() == []


def test_the_preparation_can_be_repeated_and_removed(account: Account, filled_in: Path) -> None:
    assert prepare("--ssh-from", ME)[0] == 0
    world = "whole world"
    for wrong, words in (("0.0.0.0/0", world), ("::/0", world), ("home", "for example 203.0.113.7/32")):
        code, said = prepare("--ssh-from", wrong)
        assert code == 2
        assert words in said
    assert prepare("--ssh-from", "2001:db8::7/128")[0] == 0
    named = [{"Name": "group-name", "Values": ["bolt"]}]
    (group,) = account.client("ec2").describe_security_groups(Filters=named)["SecurityGroups"]
    let_in = [one["CidrIpv6"] for rule in group["IpPermissions"] for one in rule.get("Ipv6Ranges", [])]
    assert let_in == ["2001:db8::7/128"]
    public = account.client("s3").get_public_access_block(Bucket="bolt-test")["PublicAccessBlockConfiguration"]
    assert all(public.values())
    for _ in range(2):
        assert prepare("--remove")[0] == 0
    assert account.client("iam").list_instance_profiles()["InstanceProfiles"] == []
    assert account.client("s3").list_buckets()["Buckets"][0]["Name"] == "bolt-test"
