"""Environment variables that hold secrets, and which services get them.

Law: a service gets the secrets that it reads, and no other one. A variable that is not named here is taken for no secret.
"""

from __future__ import annotations

from collections.abc import Mapping

#: By service, the names or beginnings of names of what it alone reads.
_OF_SERVICE: Mapping[str, tuple[str, ...]] = {
    "gateway": ("SPOTWISE_API_KEYS", "SPOTWISE_TLS_KEY"),
    "spot_watcher": (
        *(
            "AWS_",
            "BOTO_",
            "GOOGLE_",
            "GCP_",
            "GCLOUD_",
            "CLOUDSDK_",
            "AZURE_",
            "ARM_CLIENT_",
            "MSI_SECRET",
            "IDENTITY_HEADER",
        ),
        *("KUBECONFIG", "ALIBABA_CLOUD_", "DIGITALOCEAN_", "OCI_CLI_"),
    ),
}
#: Read by commands, or by other programs of the user.
_OF_NO_SERVICE = frozenset(
    {
        *("SPOTWISE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "WANDB_API_KEY"),
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACEHUB_API_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"),
    }
)


def environment_for(service: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a service may have of an environment; `service`: its module, `gateway` for instance."""
    others = tuple(name for other, names in _OF_SERVICE.items() if other != service for name in names)
    return {
        name: value for name, value in environ.items() if name not in _OF_NO_SERVICE and not name.startswith(others)
    }
