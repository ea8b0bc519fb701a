"""`spotwise up --model-alias`: what is wrong with it is said before anything starts, and what is right reaches the gateway."""

from __future__ import annotations

import pytest

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.model_options import aliases_option, require_aliases
from spotwise.cli.launch.service_process import common_env, gateway_env
from tests.unit.cli.builders import mesh_options

OPTIONS = mesh_options()


def test_aliases_are_those_of_the_options_or_else_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTWISE_MODEL_ALIASES", "a=m")
    assert aliases_option(()) == "a=m"
    assert aliases_option(("gpt-4o=m", "*=m")) == "gpt-4o=m,*=m"
    monkeypatch.setenv("SPOTWISE_MODEL_ALIASES", "a")
    with pytest.raises(OptionError, match=r"SPOTWISE_MODEL_ALIASES: 'a' is no alias; write NAME=MODEL"):
        aliases_option(())


@pytest.mark.parametrize(("given", "words"), [("a", "no alias"), ("a=m,b=m", "a comma in it"), ("=m", "no alias")])
def test_a_wrong_alias_is_refused_by_its_option(given: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"--model-alias.*{words}"):
        aliases_option((given,))


def test_an_alias_stands_for_what_is_served() -> None:
    require_aliases(OPTIONS.model_copy(update={"model_aliases": "a=m,*=law", "adapters": "law=/l"}))
    for aliases, words in (("a=other", "not served; served are 'm'"), ("m=m", "served under this name itself")):
        with pytest.raises(OptionError, match=words):
            require_aliases(OPTIONS.model_copy(update={"model_aliases": aliases}))


def test_the_gateway_alone_gets_them() -> None:
    options = OPTIONS.model_copy(update={"model_aliases": "a=m"})
    assert gateway_env(options)["SPOTWISE_MODEL_ALIASES"] == "a=m"
    assert "SPOTWISE_MODEL_ALIASES" not in gateway_env(OPTIONS) | common_env(options, "", "")
