"""The files for Kubernetes, Docker and Apptainer: fields, options and paths that exist. None of them is run."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from orchestrator.cli.app import app
from tests.docs.test_commands import parse

PROJECT = Path(__file__).resolve().parents[2]
CLUSTER = PROJECT / "docs" / "cluster"
JOB, STAYING = (yaml.safe_load((CLUSTER / f"kuberay-{name}.yaml").read_text()) for name in ("job", "cluster"))
SPECS = {"job": JOB["spec"]["rayClusterSpec"], "cluster": STAYING["spec"]}
DOCKERFILE, APPTAINER = (PROJECT / "Dockerfile").read_text(), (CLUSTER / "apptainer.def").read_text()
# Names of fields in KubeRay's API v1 (https://ray-project.github.io/kuberay/reference/api/), and in Kubernetes' pods.
FIELDS = {
    "RayJob": "activeDeadlineSeconds backoffLimit rayClusterSpec submitterPodTemplate metadata clusterSelector "
    "submitterConfig managedBy deletionStrategy entrypoint runtimeEnvYAML jobId submissionMode entrypointResources "
    "entrypointNumCpus entrypointNumGpus ttlSecondsAfterFinished shutdownAfterJobFinishes suspend",
    "RayCluster": "suspend managedBy authOptions autoscalerOptions headServiceAnnotations enableInTreeAutoscaling "
    "gcsFaultToleranceOptions headGroupSpec rayVersion workerGroupSpecs upgradeStrategy networkPolicy",
    "autoscaler": "resources image imagePullPolicy securityContext idleTimeoutSeconds upscalingMode version env "
    "envFrom volumeMounts",
    "head": "template headService enableIngress resources labels rayStartParams serviceType",
    "worker": "suspend groupName replicas minReplicas maxReplicas idleTimeoutSeconds resources labels rayStartParams "
    "template scaleStrategy numOfHosts",
    "pod": "containers volumes securityContext serviceAccountName nodeSelector tolerations",
    "container": "name image command args env envFrom resources volumeMounts ports",
}


def check(found: dict[str, Any], kind: str, *required: str) -> None:
    assert {*required} <= found.keys() <= {*FIELDS[kind].split()}, kind


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_cluster_has_fields_of_kuberays_schema(spec: dict[str, Any]) -> None:
    import ray.scripts.scripts as ray_commands

    start = {option.removeprefix("--") for each in ray_commands.start.params for option in each.opts}
    check(spec, "RayCluster", "headGroupSpec", "workerGroupSpecs", "rayVersion")
    check(spec["autoscalerOptions"], "autoscaler")
    assert spec["authOptions"] == {"mode": "token"}
    check(spec["headGroupSpec"], "head", "template", "rayStartParams")
    for group in spec["workerGroupSpecs"]:
        check(group, "worker", "groupName", "minReplicas", "maxReplicas", "rayStartParams", "template")
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert group["rayStartParams"].keys() <= start
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        check(pod, "pod", "containers", "volumes", "securityContext")
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            check(container, "container", "name", "image", "resources")
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["volumes"]}
            assert all(isinstance(each["value"], str) for each in container["env"])


def test_the_job_runs_a_grid_of_the_project_on_the_cluster_that_the_other_file_makes() -> None:
    assert (JOB["apiVersion"], JOB["kind"], STAYING["kind"]) == ("ray.io/v1", "RayJob", "RayCluster")
    check(JOB["spec"], "RayJob", "entrypoint", "rayClusterSpec")
    python, m, module, *words = shlex.split(JOB["spec"]["entrypoint"])
    assert (python, m, module) == ("python", "-m", "orchestrator")
    parse(get_command(app), "orchestrator", words)
    assert SPECS["job"] == SPECS["cluster"]
    locked = re.search(r"^ray==(\S+)", (PROJECT / "requirements" / "test.txt").read_text(), re.M)
    assert locked is not None
    assert SPECS["job"]["rayVersion"] == locked[1]


def test_the_images_have_the_project_every_locked_version_a_user_and_no_secret() -> None:
    docker = re.search(r"^COPY (requirements.*) /src/$", DOCKERFILE, re.M)
    assert docker is not None
    copied = {*docker[1].split(), *re.findall(r"^COPY (\w+) /src/", DOCKERFILE, re.M)}
    section = APPTAINER.partition("%files\n")[2].partition("\n\n")[0]
    assert copied == {line.split()[0] for line in section.splitlines()}
    assert all((PROJECT / path).exists() for path in copied)
    ignored = (PROJECT / ".dockerignore").read_text().split()
    assert {line[1:] for line in ignored if line[0] == "!"} == copied
    (pattern,) = {re.search(r"sed -n 's/(.*)/\\1/p'", text)[1] for text in (DOCKERFILE, APPTAINER)}  # type: ignore[index]
    pattern = pattern.replace(r"\(", "(").replace(r"\)", ")")
    lines = (PROJECT / "requirements" / "test.txt").read_text().splitlines()
    pinned = [re.sub(pattern, r"\1", line) for line in lines if re.match(pattern, line)]
    assert len(pinned) == sum(line[:1].isalnum() for line in lines)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[\w.+]+", line) for line in pinned)
    instructions = [line.split(maxsplit=1) for line in DOCKERFILE.splitlines() if re.match(r"[A-Z]+ ", line)]
    names = [name for name, _ in instructions]
    assert names.index("USER") > max(number for number, name in enumerate(names) if name == "RUN")
    assert dict(instructions)["USER"] == "bolt"
    assert not re.search(r"(?i)password|token|secret", DOCKERFILE)
