"""Tokenizers: Hugging Face's from a local folder, or bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opgraph.errors import OwnError

BYTES = "bytes"
_PADDING = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")
_CURE = 'name one with `tokenizer`: a folder of Hugging Face\'s, a tokenizer.json, or "bytes"'


class Bytes:
    """UTF-8 bytes as tokens: integers below `vocabulary`; 0, which no text has, is padding."""

    vocabulary, padding = 256, 0

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, with no special ones."""
        return [list(text.encode()) for text in texts]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; padding has none."""
        return bytes(token for token in tokens if token).decode(errors="replace")

    def samples(self, texts: Sequence[Any], length: int) -> list[tuple[list[int], list[int]]]:
        """At most `length` tokens of each text, or pair of texts, special ones among them; and the
        text of each. Bytes of a pair are joined by a line's end.
        """
        encoded = []
        for text in texts:
            pair = text if isinstance(text, tuple) else (text,)
            joined = [
                (byte, place) for place, text in enumerate(pair) for byte in f"{text}\n".encode()
            ][:-1][:length]
            encoded.append(([byte for byte, _ in joined], [place for _, place in joined]))
        return encoded

    def words(
        self, texts: Sequence[Sequence[str]], length: int
    ) -> list[tuple[list[int], list[int | None]]]:
        """At most `length` tokens of each list of words, and the word of each, None of special
        ones.
        """
        encoded = []
        for text in texts:
            pairs: list[tuple[int, int | None]] = []
            for place, word in enumerate(text):
                pairs += [
                    *([(32, None)] if place else []),
                    *((byte, place) for byte in word.encode()),
                ]
            encoded.append(
                ([byte for byte, _ in pairs[:length]], [place for _, place in pairs[:length]])
            )
        return encoded


class Subwords:
    """A tokenizer of the library tokenizers, with the methods of `Bytes`."""

    def __init__(self, of: Any, padding: int) -> None:
        self._of, self.padding = of, padding
        self.vocabulary = int(of.get_vocab_size())
        of.no_padding()

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        self._of.no_truncation()
        return [
            encoding.ids
            for encoding in self._of.encode_batch(list(texts), add_special_tokens=False)
        ]

    def text(self, tokens: Sequence[int]) -> str:
        return str(self._of.decode(list(tokens), skip_special_tokens=False))

    def samples(self, texts: Sequence[Any], length: int) -> list[tuple[list[int], list[int]]]:
        self._of.enable_truncation(length)
        return [
            (encoding.ids, encoding.type_ids) for encoding in self._of.encode_batch(list(texts))
        ]

    def words(
        self, texts: Sequence[Sequence[str]], length: int
    ) -> list[tuple[list[int], list[int | None]]]:
        self._of.enable_truncation(length)
        encodings = self._of.encode_batch([list(text) for text in texts], is_pretokenized=True)
        return [(encoding.ids, encoding.word_ids) for encoding in encodings]


Tokenizer = Bytes | Subwords


def tokenizer_of(name: str | None, said: str) -> Tokenizer:
    """The tokenizer of that name: "bytes", a tokenizer.json, a folder, or a name that transformers
    finds. Raises OwnError: there is none.
    """
    # 1. Bytes, or a tokenizer.json, which needs no model library.
    if not name:
        raise OwnError(f"{said}: text needs a tokenizer; {_CURE}")
    if name == BYTES:
        return Bytes()
    place = Path(name).expanduser()
    file = place / "tokenizer.json" if place.is_dir() else place
    if file.is_file():
        from tokenizers import Tokenizer as Fast

        try:
            tokenizer = Fast.from_file(str(file))
        except Exception as error:  # the library raises plain Exceptions
            reason = " ".join(str(error).split())
            raise OwnError(f"{file}: cannot be read as a tokenizer ({reason}); {_CURE}") from error
        return Subwords(tokenizer, _padding(tokenizer, file.parent))
    # 2. Whatever transformers finds in a folder or by a name; of a path that is not there it must
    # not ask the hub.
    if place.suffix == ".json" or (name.startswith((".", "/", "~")) and not place.is_dir()):
        raise OwnError(f"tokenizer {name!r}: there is no such file or folder; {_CURE}")
    try:
        from transformers import AutoTokenizer

        # Without a word on remote code the library asks at the terminal, and runs a folder's own
        # code on a "y".
        whole = AutoTokenizer.from_pretrained(
            name, trust_remote_code=False, local_files_only=place.is_dir()
        )
        tokenizer = whole.backend_tokenizer
    except ImportError as error:
        raise OwnError(
            f"tokenizer {name!r}: has no tokenizer.json; pip install transformers to read others"
        ) from error
    except Exception as error:  # the library raises many kinds
        reason = " ".join(str(error).split())[:200]
        raise OwnError(f"tokenizer {name!r}: there is none here ({reason}); {_CURE}") from error
    return Subwords(
        tokenizer,
        whole.pad_token_id if whole.pad_token_id is not None else _padding(tokenizer, place),
    )


def _padding(of: Any, folder: Path) -> int:
    """The token that pads: what the tokenizer or its configuration says, else a usual one."""
    if of.padding:
        return int(of.padding["pad_id"])
    file = folder / "tokenizer_config.json"
    settings = _settings(file) if file.is_file() else {}
    said = settings.get("pad_token")
    name = said.get("content") if isinstance(said, dict) else said
    known = (of.token_to_id(token) for token in ([name] if name else []) + list(_PADDING))
    return next((number for number in known if number is not None), 0)


def _settings(file: Path) -> dict[str, Any]:
    """The entries of a tokenizer_config.json. Raises OwnError: it is no JSON object."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OwnError(f"{file}: cannot be read as JSON ({error}); {_CURE}") from error
    if not isinstance(settings, dict):
        raise OwnError(
            f"{file}: holds {type(settings).__name__}, not an object of settings; {_CURE}"
        )
    return settings
