"""Which services get the secrets of an environment."""

from __future__ import annotations

import pytest

from spotwise.core.access.secret_variables import environment_for

PLAIN = {
    **dict.fromkeys(("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "UCX_TLS"), "x"),
    **dict.fromkeys(("HF_HOME", "HF_HUB_OFFLINE", "SPOTWISE_MAX_QUEUED", "SPOTWISE_TLS_DIR", "https_proxy"), "x"),
}
API = dict.fromkeys(("SPOTWISE_API_KEYS", "SPOTWISE_API_KEYS_FILE", "SPOTWISE_TLS_KEY"), "secret")
CLOUD = dict.fromkeys(
    ("AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "KUBECONFIG"),
    "secret",
)
OF_COMMANDS = dict.fromkeys(("SPOTWISE_API_KEY", "HF_TOKEN", "OPENAI_API_KEY"), "secret")


@pytest.mark.parametrize(
    ("service", "secrets"),
    [
        ("gateway", API),
        ("spot_watcher", CLOUD),
        ("prompt_worker", {}),
        ("worker.simulated", {}),
        ("cluster_scheduler", {}),
        ("migration_planner", {}),
    ],
)
def test_a_service_gets_the_secrets_that_it_reads(service: str, secrets: dict[str, str]) -> None:
    assert environment_for(service, {**PLAIN, **API, **CLOUD, **OF_COMMANDS}) == {**PLAIN, **secrets}
