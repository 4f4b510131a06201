"""From raw text to sentences of tokens, by one rule.

The rule follows what TFF says of its StackOverflow data, as far as it goes:

1. HTML entities are resolved (`&amp;` is `&`), characters composed (NFC), typographic
   apostrophes straightened, addresses (http://, https://, ftp://, www.) become `<url>`.
2. A sentence ends after `.`, `!` or `?`, and the quotes and brackets that close behind
   them, where white space follows and then no small letter; and at an empty line.
3. Text becomes small letters. A token is a run of letters and digits of any script,
   apostrophes and hyphens inside of it included; or one ASCII punctuation character.
   Everything else only separates tokens.
"""

import html
import re
import string
import unicodedata
from collections.abc import Iterator

#: Part of a store's settings: another rule is another store.
VERSION = 1
URL = "<url>"

_ADDRESS = re.compile(
    r"(?:(?:https?|ftp)://|www\.)[^\s<>\"']*[^\s<>\"'.,;:!?)\]}]", re.I
)
_EMPTY_LINE = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(r"""(?<=[.!?])["')\]]*\s+(?=(\S))""")
_TOKEN = re.compile(rf"{URL}|[^\W_]+(?:['-][^\W_]+)*|[{re.escape(string.punctuation)}]")
_STRAIGHT = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})


def tokens(text: str) -> list[str]:
    """Returns the tokens of a text, whatever its sentences.

    Example:
      >>> tokens("Don't print(x); see https://example.org/a?b=1.")
      ["don't", 'print', '(', 'x', ')', ';', 'see', '<url>', '.']
    """
    return _TOKEN.findall(_clean(text).lower())


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text, tokens separated by single spaces.

    Example:
      >>> sentences('It fails, e.g. here. Why? (No idea.) "Odd!"')
      ['it fails , e . g . here .', 'why ?', '( no idea . )', '" odd ! "']
    """
    token_lists = (_TOKEN.findall(part.lower()) for part in _parts(_clean(text)))
    return [" ".join(words) for words in token_lists if words]


def _clean(text: str) -> str:
    """Resolves entities, composes characters, replaces addresses."""
    text = unicodedata.normalize("NFC", html.unescape(text)).translate(_STRAIGHT)
    return _ADDRESS.sub(URL, text)


def _parts(text: str) -> Iterator[str]:
    """Cuts a text after its sentences."""
    for paragraph in _EMPTY_LINE.split(text):
        start = 0
        for match in _SENTENCE_END.finditer(paragraph):
            if not match[1].islower():
                yield paragraph[start : match.end()]
                start = match.end()
        yield paragraph[start:]
