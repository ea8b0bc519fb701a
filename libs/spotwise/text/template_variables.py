"""The variables that a chat template reads from outside."""

from __future__ import annotations

from jinja2 import TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """The tag `generation` of transformers, which marks what the model writes in a template for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def variables_of(source: str) -> frozenset[str]:
    """Return the names that a template reads and does not set; none of a template that is wrong, which rendering says."""
    environment = ImmutableSandboxedEnvironment(extensions=[_Generation, loopcontrols])
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(source)))
    except TemplateSyntaxError:
        return frozenset()
