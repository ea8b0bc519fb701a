"""What the pages name exists."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer.main
from prometheus_client import CollectorRegistry
from typer.core import TyperGroup

from spotwise.cli.__main__ import app
from spotwise.cluster_scheduler.metrics import SchedulerMetrics
from spotwise.core.gateway import commands as g
from spotwise.core.messages.members import MemberKind
from spotwise.core.messages.mesh import RejectCode
from spotwise.gateway.apis.embedding_answer import AT_ONCE
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.schema.chat import ChatRequest
from spotwise.gateway.schema.completions import CompletionRequest
from spotwise.gateway.schema.embeddings import MAX_INPUTS, REFUSED_FOR_EMBEDDINGS, EmbeddingRequest
from spotwise.gateway.schema.messages import MessagesRequest
from spotwise.gateway.schema.parameters import IGNORED, REFUSED, WARNING_HEADER, Endpoint
from spotwise.gateway.schema.responses import ResponsesRequest
from spotwise.gateway.schema.shared import SharedRequest
from spotwise.mesh.service.metrics_server import HostMetrics
from spotwise.migration_planner.metrics import PlannerMetrics
from spotwise.spot_watcher.metrics import WatcherMetrics
from tests.unit.docs.docs_pages import (
    API,
    OBSERVE,
    PAGES,
    README,
    ROOT,
    fenced,
    page_name,
    quoted,
    require_rows,
    section,
    table,
)

every_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target


@every_page
def test_paths_exist(page: Path) -> None:
    """Every file or folder of the project that a page names exists; `*` stands for any name."""
    named = re.findall(
        r"(?<![\w./~-])(?:libs|services|benchmarks|studies|tests|docs|proto|scripts|deploy)/[\w./*-]*", page.read_text()
    )
    for path in named:
        # A folder's README may name a file by its path in the package, `spotwise/worker/settings.py`.
        assert list(ROOT.glob(path.rstrip("./"))), path


@every_page
def test_commands_and_their_options_exist(page: Path) -> None:
    """Whatever `spotwise` is shown to do, it can: in examples and in running text."""
    text = page.read_text()
    shown = [line for block in fenced(text, "sh", "console") for line in block.splitlines()]
    shown += re.findall(r"`([^`\n]*)`", text)
    commands = typer.main.get_command(app)
    assert isinstance(commands, TyperGroup)
    for line in shown:
        for call in re.findall(r"(?:^|[\s/])spotwise ((?:[a-z]+)(?: [^|;&#]*)?)", line):
            # Text in quotes belongs to another command, or is a prompt.
            name, *words = re.sub(r"\"[^\"]*\"|'[^']*'", "QUOTED", call).split()
            assert name in commands.commands, line
            command = commands.commands[name]
            while isinstance(command, TyperGroup) and words:
                assert words[0] in command.commands, line
                command = command.commands[words.pop(0)]
            options = {
                option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
            }
            for word in words:
                option = word.strip("\"'.,").split("=")[0]
                if option.startswith("--") and len(option) > 2:
                    assert option in options, line


@every_page
def test_make_targets_exist(page: Path) -> None:
    """Every `make` target that a page names."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    text = page.read_text()
    named = [target for block in fenced(text, "sh") for target in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)]
    named += re.findall(r"`make ([a-z-]+)", text)
    assert set(named) <= targets


@every_page
def test_modules_exist(page: Path) -> None:
    """`python -m spotwise.X` and every other module of ours that a page names."""
    for name in re.findall(r"`?\bspotwise\.([a-z0-9_]+(?:\.[a-z0-9_]+)*)", page.read_text()):
        path = name.replace(".", "/")
        roots = [ROOT / folder for folder in ("libs", "services", "benchmarks", "studies")]
        found = [root / "spotwise" / path for root in roots]
        assert any(module.is_dir() or module.with_suffix(".py").is_file() for module in found), name


#: Devices are processes of workers, and have no page of their own.
SERVICES = [kind for kind in MemberKind if kind is not MemberKind.DEVICE]


def test_every_service_has_its_page() -> None:
    """Owns, receives, sends, fails how; and the README links it."""
    readme = README.read_text()
    for kind in SERVICES:
        page = ROOT / "services" / "spotwise" / kind.value / "README.md"
        text = page.read_text()
        assert all(f"**{word}" in text for word in ("Owns", "Receives", "Sends", "Fails how")), page
        assert f"({page_name(page)})" in readme


def test_python_examples_are_python() -> None:
    examples = fenced(README.read_text(), "python")
    assert examples
    for example in examples:
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.ImportFrom):
                assert node.module in sys.stdlib_module_names | {"openai"}


def test_every_api_parameter_is_listed() -> None:
    """The API page's table has the fields of both request bodies, and no others."""
    listed = {name for row in table(section(API.read_text(), "Parameters")) for name in quoted(row[0])}
    in_code = set(ChatRequest.model_fields) | set(CompletionRequest.model_fields)
    require_rows(listed, in_code, "docs/api.md, Parameters")


def test_every_parameter_of_responses_is_listed() -> None:
    """The section's table has what chats and completions have not; its text names what both have and responses have not."""
    text = section(API.read_text(), "Responses")
    shared = set(SharedRequest.model_fields)
    own = set(ResponsesRequest.model_fields) - shared - {"chat_template_kwargs", "stream"}
    require_rows({name for row in table(text) for name in quoted(row[0])}, own, "docs/api.md, Responses")
    without = re.search(r"but\s+(.*?), and of chats\s+`chat_template_kwargs`", text, re.DOTALL)
    assert without is not None
    both = set(ChatRequest.model_fields) & set(CompletionRequest.model_fields)
    assert set(quoted(without[1])) == both - shared


def test_every_parameter_of_embeddings_is_listed() -> None:
    """Honoured ones in the section's table, refused ones below it, with the values that switch them off."""
    text = section(API.read_text(), "Embeddings")
    listed = {name for row in table(text) for name in quoted(row[0])}
    require_rows(listed, set(EmbeddingRequest.model_fields), "docs/api.md, Embeddings")
    (refused,) = re.findall(r"Refused by name are (.*?)\.\s", text, re.DOTALL)
    off = {value for rule in REFUSED_FOR_EMBEDDINGS for value in rule.off}
    assert set(quoted(refused)) == {rule.name for rule in REFUSED_FOR_EMBEDDINGS} | off
    assert f"1 to {MAX_INPUTS:,} inputs" in text and f"Of one request {AT_ONCE} inputs" in text


def test_every_parameter_of_messages_is_listed() -> None:
    """Honoured ones in the section's table; the others are in the table of all endpoints."""
    text = section(API.read_text(), "Anthropic's messages")
    listed = {name for row in table(text) for name in quoted(row[0])}
    require_rows(listed, set(MessagesRequest.model_fields), "docs/api.md, Anthropic's messages")


def test_the_tables_of_refused_and_ignored_parameters_are_the_codes() -> None:
    """The first table has each refused parameter with its endpoints and off values; the second the ignored ones."""

    def where(at: tuple[Endpoint, ...]) -> str:
        return "all" if len(at) == len(Endpoint) else ", ".join(endpoint.value for endpoint in at)

    text = section(API.read_text(), "Parameters that are not honoured")
    parts = text.split("These are ignored", 1)
    for rules, part in zip((REFUSED, IGNORED), parts, strict=True):
        in_code = {(rule.name, where(rule.at), *map(json.dumps, rule.off)) for rule in rules}
        assert in_code == {(name, at, *quoted(off)) for names, at, off in table(part) for name in quoted(names)}
    assert f"`{WARNING_HEADER}`" in text


def test_every_error_code_is_listed() -> None:
    """The API page's table has every code that a client may receive, and no others."""
    listed = {code for row in table(section(API.read_text(), "Errors")) for code in quoted(row[1])}
    rooms = (ROOT / "services/spotwise/gateway", ROOT / "libs/spotwise/http", ROOT / "libs/spotwise/text")
    source = "\n".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    in_code = set(re.findall(r'code="(\w+)"', source))
    # A bound that is too large is sized anew: no client learns of it.
    in_code |= {RejectCode(code).value for code in RejectCode} - {RejectCode.BOUND_TOO_LARGE.value}
    in_code |= {
        g.FAIL_NO_SCHEDULER,
        g.FAIL_NOT_RECOVERED,
        g.FAIL_ENGINE,
        g.FAIL_GRAMMAR,
        g.FAIL_TOO_LARGE,
        g.FAIL_STORE,
        g.FAIL_FELLS_WORKERS,
        g.FAIL_TAKEN,
    }
    assert in_code <= listed
    assert all(f'"{code}"' in source or code in in_code for code in listed)


def names_of(registry: CollectorRegistry) -> set[str]:
    """The series of a registry, as a collector sees them."""
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()}


def test_every_metric_of_the_gateway_is_listed() -> None:
    """The first table has the gateway's own series."""
    registry = CollectorRegistry()
    GatewayMetrics(registry, "m")
    listed = {name for row in table(section(OBSERVE.read_text(), "Metrics")) for name in quoted(row[0])}
    require_rows(listed, names_of(registry), "docs/observe.md, Metrics, first table")


@pytest.mark.parametrize("member", ["all", "scheduler", "planner", "watcher"])
def test_every_metric_of_the_other_members_is_listed(member: str) -> None:
    """The second table has theirs, each with its member."""
    scheduler = CollectorRegistry()
    SchedulerMetrics(scheduler)
    registries = {
        "all": HostMetrics().registry,
        "scheduler": scheduler,
        "planner": PlannerMetrics().registry,
        "watcher": WatcherMetrics().registry,
    }
    rows = table(section(OBSERVE.read_text(), "Metrics").split("The other members serve", 1)[1])
    assert {of for _, of, _ in rows} == set(registries)
    listed = {name for names, of, _ in rows if of == member for name in quoted(names)}
    require_rows(listed, names_of(registries[member]), f"docs/observe.md, Metrics, second table, member {member}")


def test_log_events_exist() -> None:
    source = "\n".join(path.read_text() for root in ("libs", "services") for path in (ROOT / root).rglob("*.py"))
    for events, levels, _ in table(section(OBSERVE.read_text(), "Logs")):
        for event in quoted(events):
            assert f'"{event}"' in source, event
        assert set(levels.split(", ")) <= {"info", "warning", "error"}


def test_the_picture_is_well_formed() -> None:
    """The picture parses, contains the six services, and has a title and a description for screen readers."""
    picture = ElementTree.parse(ROOT / "docs" / "mesh.svg").getroot()
    texts = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {kind.value.replace("_", " ") for kind in SERVICES} <= texts
    assert picture.find("{http://www.w3.org/2000/svg}title") is not None
    assert picture.find("{http://www.w3.org/2000/svg}desc") is not None


def test_the_diagram_of_states_is_that_of_the_table() -> None:
    """docs/request-life.md was made anew after the last change of the transition table."""
    command = [sys.executable, str(ROOT / "scripts" / "request_life.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_tours_stops_exist() -> None:
    stops = table(section((ROOT / "docs" / "tour.md").read_text(), "One request, eight stops"))
    assert [row[0] for row in stops] == [str(number) for number in range(1, 9)]
    for *_, file, function in stops:
        (path,), (name,) = quoted(file), quoted(function)
        scope: ast.AST = ast.parse((ROOT / path).read_text())
        for part in name.split("."):
            scope = next(
                node
                for node in ast.iter_child_nodes(scope)
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
            )
