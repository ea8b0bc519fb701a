"""What a model thinks, says and calls, found in its text: as each kind of model writes it, and however the text is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.text.message_forms import MessageForm, message_form
from spotwise.text.message_reader import MessagePart, MessageReader, MessageReading, calls_of
from tests.unit.gateway.apps import Json

HEADER = "<|im_start|>assistant\n"
SCHEMAS = {
    "search": {"properties": {"query": {"type": "string"}, "limit": {"type": "integer"}, "tags": {"type": "array"}}}
}
HERMES = '<tool_call>\n{"name": "search", "arguments": {"query": "a } \\" b", "limit": [1, {"x": null}]}}\n</tool_call>'
HERMES_ARGUMENTS = '{"query": "a } \\" b", "limit": [1, {"x": null}]}'


def form_of(tool_parser: str, reasoning_parser: str = "none") -> MessageForm:
    form = message_form(None, "", HEADER, tool_parser, reasoning_parser)
    assert form is not None
    return form


def read(reading: MessageReading, *pieces: str) -> list[MessagePart]:
    """Return the parts of a message, joined where they go on."""
    reader = MessageReader(reading, "chat-1")
    return joined([part for piece in pieces for part in reader.push(piece)] + reader.finish())


def joined(parts: list[MessagePart]) -> list[MessagePart]:
    found: list[MessagePart] = []
    for part in parts:
        if found and part.kind != "call" and (part.kind, part.call) == (found[-1].kind, found[-1].call):
            found[-1] = MessagePart(part.kind, found[-1].text + part.text, part.call)
        else:
            found.append(part)
    return found


def message(parts: list[MessagePart]) -> Json:
    said = {kind: "".join(part.text for part in parts if part.kind == kind) for kind in ("reasoning", "content")}
    return {k: v for k, v in said.items() if v} | {"calls": [(call.name, call.arguments) for call in calls_of(parts)]}


FOUND = ("search", HERMES_ARGUMENTS)
NAMED = ("search", '{"query": "a"}')
#: A text of a model that writes calls as Hermes does, and the message that it is.
OF_HERMES: dict[str, tuple[str, Json]] = {
    "one call": (HERMES, {"calls": [FOUND]}),
    "text before, blanks between and after": (
        f"Let me see.\n\n{HERMES}\n{HERMES}\n",
        {"content": "Let me see.", "calls": [FOUND] * 2},
    ),
    "text after": (f"{HERMES}\nDone.", {"content": "\nDone.", "calls": [FOUND]}),
    "blanks that belong to the text": ("  a\n\nb \n", {"content": "  a\n\nb \n"}),
    "nothing but blanks": (" \n", {"content": " \n"}),
    "no call": ("a <tool_call>not JSON</tool_call> b", {"content": "a <tool_call>not JSON</tool_call> b"}),
    "an open call": (
        '<tool_call>{"name": "search", "arguments": {"query": "a',
        {"calls": [("search", '{"query": "a')]},
    ),
    "a beginning that becomes nothing": ("a <tool_ca", {"content": "a <tool_ca"}),
    "arguments before their name": (
        '<tool_call>{"arguments": {"query": "a"}, "name": "search"}</tool_call>',
        {"calls": [NAMED]},
    ),
    "arguments as a text": (
        r'<tool_call>{"name": "search", "arguments": "{\"query\": \"a\"}"}</tool_call>',
        {"calls": [NAMED]},
    ),
    "no arguments": ('<tool_call>{"name": "now"}</tool_call>', {"calls": [("now", "{}")]}),
}
#: Parsers of calls and reasoning besides.
MESSAGES: dict[str, tuple[str, str, str, Json]] = {
    **{name: ("hermes", "none", *case) for name, case in OF_HERMES.items()},
    "reasoning": (
        "hermes",
        "think",
        f"<think>\nHm.\n</think>\n\nYes.\n{HERMES}",
        {"reasoning": "Hm.", "content": "Yes.", "calls": [FOUND]},
    ),
    "a call within reasoning is thought only": (
        "hermes",
        "think",
        f"<think>{HERMES}</think>No.",
        {"reasoning": HERMES, "content": "No."},
    ),
    "llama": (
        "llama3_json",
        "none",
        '<|python_tag|>{"name": "search", "parameters": {"query": "a"}}',
        {"calls": [NAMED]},
    ),
    "llama's JSON that is no call": ("llama3_json", "none", '{"answer": 1}', {"content": '{"answer": 1}'}),
    "llama's text": ("llama3_json", "none", 'It is {"a": 1}.', {"content": 'It is {"a": 1}.'}),
    "mistral": (
        "mistral",
        "none",
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "a"}}, {"name": "now", "arguments": {}}]',
        {"calls": [NAMED, ("now", "{}")]},
    ),
    "qwen's coder": (
        "qwen3_coder",
        "none",
        "Yes.\n<tool_call>\n<function=search>\n<parameter=query>\n1\n</parameter>\n<parameter=limit>\n2\n</parameter>\n"
        '<parameter=tags>\n["a"]\n</parameter>\n</function>\n</tool_call>',
        {"content": "Yes.", "calls": [("search", '{"query":"1","limit":2,"tags":["a"]}')]},
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_read(name: str) -> None:
    tool_parser, reasoning_parser, text, expected = MESSAGES[name]
    reading = MessageReading(form_of(tool_parser, reasoning_parser), finds_calls=True, schemas=SCHEMAS)
    assert message(read(reading, text)) == {"calls": [], **expected}


@given(name=st.sampled_from(list(MESSAGES)), data=st.data())
def test_cuts_change_nothing(name: str, data: st.DataObject) -> None:
    """A text in pieces gives at each place what the text up to there gives at once: the same parts, with the same ids."""
    tool_parser, reasoning_parser, text, _ = MESSAGES[name]
    reading = MessageReading(form_of(tool_parser, reasoning_parser), finds_calls=True, schemas=SCHEMAS)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    reader = MessageReader(reading, "chat-1")
    had: list[MessagePart] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        had += reader.push(text[begin:end])
        at_once = MessageReader(reading, "chat-1").push(text[:end])
        assert joined(had) == joined(at_once)
    assert joined(had + reader.finish()) == read(reading, text)


def test_arguments_come_while_they_are_written() -> None:
    reader = MessageReader(MessageReading(form_of("hermes"), finds_calls=True), "chat-1")
    assert reader.push('<tool_call>{"name": "f", "arg') == [MessagePart("call", "f", 0, reader._id(0))]
    assert reader.push('uments": {"code": "print(') == [MessagePart("arguments", '{"code": "print(')]
    assert reader.push('1)"') == [MessagePart("arguments", '1)"')]
    assert reader.push("}}</tool_call>") == [MessagePart("arguments", "}")]


def test_ids_are_the_calls() -> None:
    form = form_of("hermes")
    twice = [
        [call.call_id for call in calls_of(read(MessageReading(form, finds_calls=True), HERMES * 2))] for _ in range(2)
    ]
    assert twice[0] == twice[1] and len(set(twice[0])) == 2
    assert all(each.startswith("call_") and len(each) == 29 for each in twice[0])
    other = MessageReader(MessageReading(form, finds_calls=True), "chat-2").push(HERMES)
    assert calls_of(other)[0].call_id not in twice[0]
    short = read(MessageReading(form_of("mistral"), finds_calls=True), '[TOOL_CALLS][{"name": "f", "arguments": {}}]')
    assert len(calls_of(short)[0].call_id) == 9 and calls_of(short)[0].call_id.isalnum()


def test_one_call_is_the_end() -> None:
    """What a model writes after it is not read."""
    reader = MessageReader(MessageReading(form_of("hermes"), finds_calls=True, is_single=True), "chat-1")
    parts = reader.push(HERMES + HERMES)
    assert reader.is_over and len(calls_of(parts)) == 1
    assert reader.push(HERMES) == [] and reader.finish() == []


def test_required_calls_need_no_form() -> None:
    """They are the whole of the answer, after the reasoning."""
    listed = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
    assert message(read(MessageReading(is_called=True), listed)) == {"calls": [("f", '{"a": 1}'), ("g", "{}")]}
    thinking = MessageReading(form_of("hermes", "think"), is_called=True)
    assert message(read(thinking, f"<think>Hm.</think>\n{HERMES}")) == {
        "reasoning": "Hm.",
        "calls": [("search", HERMES_ARGUMENTS)],
    }


def test_reasoning_goes_on_from_the_prompt() -> None:
    form = form_of("none", "think")
    assert message(read(MessageReading(form, "<think>\n"), "Hm.</think>\n\nYes.")) == {
        "reasoning": "Hm.",
        "content": "Yes.",
        "calls": [],
    }
    assert message(read(MessageReading(form, "<think>\n\n</think>\n\n"), "Yes.")) == {"content": "Yes.", "calls": []}


#: As transformers' own parsers of Gemma write it down.
DECLARED: Json = {
    "start_anchor": "<|turn>model\n",
    "fields": {
        "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": "<turn|>"},
    },
}


def test_the_tokenizers_own_form_is_taken(tmp_path: Path) -> None:
    """What transformers would read; a file has the same form; a part that is no call is text."""
    text = '<|channel>thought\nHm.<channel|>Yes. <|tool_call>call:search{query:<|"|>a<|"|>}<tool_call|>'
    expected = {"reasoning": "Hm.", "content": "Yes. ", "calls": [("search", '{"query":"a"}')]}
    file = tmp_path / "form.json"
    file.write_text(json.dumps(DECLARED))
    for form in (message_form(DECLARED, "<tool_call>", ""), message_form(None, "", "", str(file))):
        assert form is not None and form.thinking is not None
        assert message(read(MessageReading(form, finds_calls=True), text)) == expected
    broken = "<|tool_call>call:search{query:<tool_call|>Sorry."
    assert message(read(MessageReading(form, finds_calls=True), broken)) == {
        "content": "{query:<tool_call|>Sorry.",
        "calls": [],
    }


@pytest.mark.parametrize(
    ("template", "reads", "thinks"),
    [
        ("<tool_call> {{ x }}", "hermes", False),
        ("<tool_call><function= {{ x }}", "qwen3_coder", False),
        ("[TOOL_CALLS]", "mistral", False),
        ('ipython "parameters"', "llama3_json", False),
        ("<think> </think>", None, True),
        ("<tool_call> <think> </think>", "hermes", True),
        ("{{ x }}", None, False),
    ],
)
def test_the_form_is_found_in_the_chat_template(template: str, reads: str | None, thinks: bool) -> None:
    """By the marks that calls and reasoning have there; of a template without any nothing is known."""
    form = message_form(None, template, HEADER)
    assert (form is None) == (reads is None and not thinks)
    if form is not None:
        assert (form.reads_calls, form.reads_reasoning) == (reads is not None, thinks)
        if reads is not None:
            assert form.template.fields["tool_calls"] == form_of(reads).template.fields["tool_calls"]
    assert message_form(None, template, HEADER, "none", "none") is None


@pytest.mark.parametrize(
    ("parsers", "words"),
    [(("hermez", "auto"), "none of auto, none, "), (("auto", "deep"), "'deep' is none of auto, none, think")],
)
def test_an_unknown_parser_is_refused(parsers: tuple[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        message_form(None, "", HEADER, *parsers)


def test_a_file_that_is_no_form_is_refused(tmp_path: Path) -> None:
    for content, words in (("{", "not valid JSON"), ("{}", "fields"), ('{"fields": {"a": {"open": ""}}}', "open")):
        (tmp_path / "form.json").write_text(content)
        with pytest.raises(ValueError, match=words):
            message_form(None, "", HEADER, str(tmp_path / "form.json"))
