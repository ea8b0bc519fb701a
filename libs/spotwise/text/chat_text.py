"""Text of one model: prompts to token ids, token ids to text.

No other file knows the tokenizer or the chat template. Torch is not needed: of `transformers` it uses the fast tokenizer class,
which reads `tokenizer.json` alone.

Special tokens are added as vLLM does: to a completion's prompt as the tokenizer says, never to a rendered chat
template, which has written its own. In a completion's prompt control tokens are read as such, in a chat's texts they are text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from spotwise.engine.sampling.grammar_tokens import grammar_tokenizer
from spotwise.mesh.process.long_work import begin_long_work
from spotwise.text.chat_template import ChatMessage, ChatTemplate
from spotwise.text.control_tokens import ControlTokens, ControlTokensInText
from spotwise.text.detokenize import Detokenizer, TokenBytes
from spotwise.text.grammar_check import GrammarCheck
from spotwise.text.message_forms import AUTO, TEXT_PARSER, MessageForm, message_form
from spotwise.text.prompt_encoder import PromptEncoder, Truncation

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")
# Published configs that name none, by type of their text model: what transformers assumes there, and what BLOOM was trained on.
_UNNAMED_CONTEXT = {"gemma3_text": 131_072, "bloom": 2048}


class ModelTextError(Exception):
    """The model's folder has no usable tokenizer."""


@dataclass(frozen=True, slots=True)
class _ModelFacts:
    context_length: int
    vocab_size: int
    eos_token_ids: frozenset[int]


class ChatText:
    """Tokenizer, chat template and text-related facts of one model.

    Attributes:
        context_length: tokens that prompt and output may have together.
        vocab_size: rows of the model's output; token ids are below it.
        eos_token_ids: ids that end a sequence.
        token_bytes: bytes and text of single tokens.
        grammar_check: tries grammars with these tokens.
        template: renders chats.
        form: how the model writes its messages, without tools; `None`: as text.
        tool_form: how it writes them with tools; `None`: that is not known.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        context_length: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        tool_parser: str = AUTO,
        reasoning_parser: str = AUTO,
        control_tokens_in_text: ControlTokensInText = "text",
    ) -> None:
        self.context_length = context_length
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self._tokenizer = tokenizer
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        # A tokenizer.json may carry the truncation of its training run, which would cut prompts silently.
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.token_bytes = TokenBytes(self._backend)
        self.grammar_check = GrammarCheck(lambda: grammar_tokenizer(self._backend.to_str(), vocab_size))
        self._prompts = PromptEncoder(self._backend)
        self._twin_prompts: PromptEncoder | None = None
        self._control_tokens = ControlTokens(self._backend, eos_token_ids, are_read=control_tokens_in_text == "allow")
        self.template = template = ChatTemplate(tokenizer)
        declared = getattr(tokenizer, "response_template", None)
        self.form = self.tool_form = message_form(
            declared, template.source, template.header, tool_parser, reasoning_parser
        )
        if not template.renders_tools and (self.form is None or not self.form.reads_calls):
            self.tool_form = message_form(None, template.source, template.header, TEXT_PARSER, reasoning_parser)
        self._hidden = {form: self._hidden_from(form) for form in (None, self.form, self.tool_form)}

    @classmethod
    def load(
        cls,
        model_dir: Path,
        max_context_length: int | None = None,
        tool_parser: str = AUTO,
        reasoning_parser: str = AUTO,
        control_tokens_in_text: ControlTokensInText = "text",
    ) -> ChatText:
        """Read `tokenizer.json`, `tokenizer_config.json`, the chat template, `config.json` and `generation_config.json`.

        Args:
            model_dir: folder of the model.
            max_context_length: serve no longer context than this, though the model could.
            tool_parser, reasoning_parser: see `message_form`.
            control_tokens_in_text: what a control token is in the text of a chat.

        Raises:
            ModelTextError: a file is missing or incomplete, or there is no such parser.
        """
        if not (model_dir / "tokenizer.json").is_file():
            raise ModelTextError(
                f"{model_dir} has no tokenizer.json. Load the tokenizer with transformers' AutoTokenizer and save it there "
                "with save_pretrained()."
            )
        tokenizer = PreTrainedTokenizerFast.from_pretrained(model_dir)
        facts = _read_facts(model_dir, tokenizer)
        context_length = min(facts.context_length, max_context_length or facts.context_length)
        try:
            text = cls(
                tokenizer,
                context_length,
                facts.vocab_size,
                facts.eos_token_ids,
                tool_parser,
                reasoning_parser,
                control_tokens_in_text,
            )
        except ValueError as error:
            raise ModelTextError(
                f"SPOTWISE_TOOL_PARSER, SPOTWISE_REASONING_PARSER or the tokenizer: {error}"
            ) from error
        return text

    def encode(
        self, prompt: str, add_special_tokens: bool = True, truncation: Truncation | None = None
    ) -> tuple[int, ...]:
        """Tokenize; work for a thread where the text is long.

        Raises:
            PromptTooLongError: it cannot fit into the context, and is not cut; found before all of it is tokenized.
        """
        return self._prompts.encode(prompt, self.context_length, truncation, add_special_tokens=add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, Any] | None = None,
        add_special_tokens: bool = False,
        truncation: Truncation | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """Render the chat template and tokenize; work for a thread where there is much text.

        Args:
            messages: `role` and `content` (a string) and whatever else the template knows.
            add_generation_prompt: open the assistant's turn at the end.
            continue_final_message: leave the last message open instead.
            template_kwargs: variables of the template, none of `RESERVED_TEMPLATE_VARIABLES`.
            add_special_tokens: add the tokenizer's to those of the template.
            truncation: cuts the rendered chat.
            tools: tools that the model may call, as templates take them.

        Raises:
            ChatTemplateError: the model has no chat template, or it refuses the messages.
            TooManyMarksError: the texts hold more control tokens than a request needs.
            PromptTooLongError: they cannot fit into the context.
        """
        marked = self._control_tokens.marking()
        rendered = self.template.render(
            marked.mark(list(messages)),
            add_generation_prompt,
            continue_final_message,
            marked.mark(template_kwargs or {}),
            marked.mark(list(tools)),
        )
        if not marked.has_any:
            return self._prompts.encode(
                rendered, self.context_length, truncation, add_special_tokens=add_special_tokens
            )
        if self._twin_prompts is None:
            begin_long_work()  # a large vocabulary takes seconds to read
            self._twin_prompts = PromptEncoder(self._control_tokens.twin)
        rendered = self._control_tokens.for_twin(rendered, marked)
        return self._twin_prompts.encode(
            rendered, self.context_length, truncation, add_special_tokens=add_special_tokens
        )

    def detokenizer(self, skip_special_tokens: bool = True, form: MessageForm | None = None) -> Detokenizer:
        """Start the text of one sequence.

        Args:
            skip_special_tokens: they give no text.
            form: whose own special tokens give theirs all the same.
        """
        return Detokenizer(self._backend, self._hidden[form] if skip_special_tokens else frozenset())

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def spelled(self, token_ids: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary spells them; empty for ids that only the model has."""
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]

    def _hidden_from(self, form: MessageForm | None) -> frozenset[int]:
        added = self._backend.get_added_tokens_decoder()
        return frozenset(
            token_id for token_id in self._special_ids if form is None or not form.looks_for(added[token_id].content)
        )


def _read_facts(model_dir: Path, tokenizer: PreTrainedTokenizerFast) -> _ModelFacts:
    config = _read_json(model_dir / "config.json")
    if not config:
        raise ModelTextError(f"{model_dir} has no config.json; it is not a folder of a model.")
    text_config: Mapping[str, Any] = config.get("text_config") or config
    context_length = next((text_config[key] for key in _CONTEXT_KEYS if isinstance(text_config.get(key), int)), None)
    context_length = context_length or _UNNAMED_CONTEXT.get(text_config.get("model_type", ""))
    if context_length is None:
        raise ModelTextError(
            f"{model_dir / 'config.json'} names no context length (one of {', '.join(_CONTEXT_KEYS)})."
        )
    generation_config = _read_json(model_dir / "generation_config.json")
    eos_token_ids: set[int] = set()
    for source in (generation_config.get("eos_token_id"), text_config.get("eos_token_id"), tokenizer.eos_token_id):
        if source is not None:
            eos_token_ids.update(source if isinstance(source, list) else [source])
    vocab_size = text_config.get("vocab_size") or len(tokenizer)
    return _ModelFacts(context_length, vocab_size, frozenset(eos_token_ids))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelTextError(f"{path} is not valid JSON: {error}") from error
