"""docker-compose.yml, built and run by a Docker engine. The tests share one mesh and run in the order of this file."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from tests.compose.project import SERVICES, Project

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1500)]

MODEL = "smollm2-135m-instruct"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


def ask(client: OpenAI) -> str:
    """Chat once; return the id of the answer, which is right."""
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    return answer.id


def test_the_prompt_runs_in_one_container_and_its_tokens_in_another(project: Project, client: OpenAI) -> None:
    """A chat is answered; its ledger names the container of a prompt worker and that of a token worker."""
    request_id = ask(client)
    project.wait_for(lambda: len(_members(project, request_id)) == 2, "both workers wrote the ledger", "token-worker")
    (prompt_worker,) = project.running("prompt-worker")
    (token_worker,) = project.running("token-worker")
    assert _members(project, request_id) == {prompt_worker.id[:12], token_worker.id[:12]}


def test_services_run_as_an_ordinary_user_and_only_workers_carry_torch(project: Project) -> None:
    """No service is root, and none can install packages."""
    find_torch = "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
    for service in SERVICES:
        (container,) = project.running(service)
        assert project.docker("exec", container.id, "id", "-u").strip() == "10001"
        has_torch = project.docker("exec", container.id, "python", "-c", find_torch).strip()
        assert has_torch == str(service.endswith("-worker")), service


def test_a_stream_outlives_its_token_worker(project: Project, client: OpenAI) -> None:
    """The token worker's container is killed in the middle of a stream, and the stream ends as if nothing had been."""
    (token_worker,) = project.running("token-worker")
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=160,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    request_id = ""
    counted: int | None = None
    for index, chunk in enumerate(stream):
        if index == 10:
            project.docker("kill", token_worker.id)
        request_id = chunk.id
        counted = chunk.usage.completion_tokens if chunk.usage else counted
    assert counted == 160
    project.wait_for(lambda: len(_attempts(project, request_id)) > 1, "the ledger tells of two attempts", "gateway")


def test_a_worker_that_comes_back_serves_again(project: Project, client: OpenAI) -> None:
    """After a restart of its container the token worker takes tokens again."""
    project.compose("restart", "token-worker")
    (token_worker,) = project.wait_healthy("token-worker")

    def serves() -> bool:
        return token_worker.id[:12] in _members(project, ask(client))

    project.wait_for(serves, "the token worker serves a chat", "token-worker")


def test_more_workers_join_while_it_runs(project: Project, client: OpenAI) -> None:
    """`--scale` adds a token worker with an id of its own, without a restart of anything else."""
    before = {container.id: container.state["StartedAt"] for container in project.containers()}
    project.compose("up", "--detach", "--no-recreate", "--scale", "token-worker=2")
    token_workers = {container.id[:12] for container in project.wait_healthy("token-worker", 2)}
    for container in project.containers():
        if container.service in SERVICES and container.id in before:
            assert before[container.id] == container.state["StartedAt"], container.service
    registered = project.docker("exec", project.running("redis")[0].id, "redis-cli", "--raw", "keys", "*:member:*")
    assert token_workers <= {_host(member.rpartition(":")[2]) for member in registered.split()}
    ask(client)


def test_services_leave_in_order_when_they_are_stopped(project: Project) -> None:
    """SIGTERM reaches every service, and each exits with status 0."""
    project.compose("stop", *SERVICES)
    stopped = [container for container in project.containers() if container.service in SERVICES]
    assert len(stopped) == len(SERVICES) + 1
    assert {container.service: container.state["ExitCode"] for container in stopped} == dict.fromkeys(SERVICES, 0)


def _attempts(project: Project, request_id: str) -> set[int]:
    return {entry["epoch"] for entry in project.explain(request_id)}


def _members(project: Project, request_id: str) -> set[str]:
    """The hosts of the workers in a request's ledger; a container's host name is the start of its id."""
    return {_host(entry["member_id"]) for entry in project.explain(request_id)} - {
        container.id[:12] for service in ("gateway", "cluster-scheduler") for container in project.running(service)
    }


def _host(member_id: str) -> str:
    return member_id.rpartition("-")[0]
