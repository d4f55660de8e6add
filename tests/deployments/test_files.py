"""What the deployment files say: entrypoints that exist, parameters the flows take, no limits, no active schedule."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.params import RunParams

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENTS = ROOT / "deployments"
FILES = [DEPLOYMENTS / "prefect.yaml", DEPLOYMENTS / "slurm/prefect.yaml", DEPLOYMENTS / "kubernetes/prefect.yaml"]


def deployments(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(file.read_text())["deployments"]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_every_deployment_has_its_flow_and_valid_parameters(file: Path) -> None:
    source = (ROOT / "flows/deployed.py").read_text()
    for deployment in deployments(file):
        path, _, function = deployment["entrypoint"].partition(":")
        assert path == "flows/deployed.py"
        assert f"\nasync def {function}(params: RunParams)" in source
        params = RunParams.model_validate(deployment["parameters"]["params"])
        assert (ROOT / params.config).is_file()
        for schedule in deployment.get("schedules", []):
            assert schedule["active"] is False
            assert (ROOT / RunParams.model_validate(schedule["parameters"]["params"]).config).is_file()
    assert sorted(one["entrypoint"].partition(":")[2] for one in deployments(file)) == ["evaluate", "prepare", "train"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_no_deployment_of_train_has_a_concurrency_limit(file: Path) -> None:
    for deployment in deployments(file):
        assert "concurrency_limit" not in deployment


def test_the_job_template_uses_only_variables_it_declares() -> None:
    template = yaml.safe_load((DEPLOYMENTS / "kubernetes/job-template.yaml").read_text())
    text = yaml.safe_dump(template["job_configuration"])
    used = {part.partition("}}")[0].strip() for part in text.split("{{")[1:]}
    assert used == set(template["variables"]["properties"])
    pod = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 30
    assert pod["restartPolicy"] == "Never"
    assert pod["completions"] == pod["parallelism"] == 1, "prefect-kubernetes asks for them in the pod's template"


def test_the_compose_file_waits_for_postgres_and_has_no_password_of_its_own() -> None:
    services = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())["services"]
    assert services["server"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    assert "asyncpg" in services["server"]["environment"]["PREFECT_API_DATABASE_CONNECTION_URL"]


def test_the_batch_script_is_bash() -> None:
    subprocess.run(["bash", "-n", str(DEPLOYMENTS / "slurm/train.sbatch")], check=True)
