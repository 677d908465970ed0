"""Turns names of class folders into words for prompts: ``001.Black_footed_Albatross`` -> ``black footed albatross``.

``bolt.read_folder`` and the commands ``adapt`` and ``data add`` use this module.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import unquote_plus

_WORDNET = re.compile(r"(n\d{8})(?:[\s._-]+(.*[^\W\d_].*))?")
"""A WordNet id, alone or in front of words, as in ``n02085620-Chihuahua``."""

_NUMBERED = re.compile(
    r"(?:c|(?:class|cls|[ck]lasse|clase|label|category|id)[\s._-]*|[(#])?(\d{1,9})([\s._)-]+)(\D.*)", re.I
)
_MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_CODE = re.compile(
    r"[a-z]{0,2}\d+(\.\d+)?[a-z]?|[a-z]|[b-df-hj-np-tv-xz]{2,4}|(?=.*\d)[0-9a-f]{6,}|[\W_]+|true|false|yes|no|.*[][{}|;].*"
    rf"|[<(#]*(n|nan|n/?a|none|null)[)>]?|#(ref|name|value|div/0)[!?]|\d+-{_MONTH}|{_MONTH}-\d+"
    r"|(class|cls|klasse|classe|clase|label|category|type|group|cluster|folder|species|item|object|id|img|image"
    r"|part|set|subset|data|round|volume|disk|upload)[\W_]*(\d+|[a-z])|\d+x\d+|[1-9]\d\d[^\W\d]\w{4}"
    r"|.*\\.*|([^/]*/){2}.*|(\.|train|test|val|data|images?)/.*|(new|untitled) folder[\W\d_]*"
    r"|b?['\"].*['\"]|[\w ]*\w\(.*\)|.*,|(an? |the )?(photo|picture|image) of .*"
)
"""Matches names that captions hardly ever contain: codes such as ``7``, ``c0``, ``n12345678``, ``bkl`` and ``3fa9c1``,
words for a missing value or an answer (``nan``, ``yes``), errors of spreadsheets and the dates that they make of ranges
(``#REF!``, and ``9-Mar`` for 3-9), lists and code such as ``['cat']``, ``cat;dog`` and ``b'cat'``, numbered names such
as ``class 01``, sizes (``128x128``), folders of cameras (``100canon``), paths (``train/cat``), and whole captions such
as ``a photo of a cat``."""

_NO_LABEL = re.compile(
    r"(un|not )(labell?ed|annotated|known|sure|sorted|assigned|classified|categori[sz]ed|defined|determined|used)"
    r"|-1|no label|missing|invalid|ignored?|skip(ped)?|to ?do|tbd|(to )?deleted?|reject(ed|s)?|discard(ed|s)?|backups?"
    r"|duplicates?|thumb(s|nails?)|augment(ed|ations?)|te?mp"
)
"""Matches what people call the images that have no label yet, and images that were set aside or made from others."""

_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Matches characters that spreadsheets and web pages leave in texts, and that nobody sees."""

_COPY = re.compile(r"(.+?)[ _-]+(\(\d+\)|aug(ment\w*)?[\W\d_]*|\(?(copy|kopie|copie|copia)\)?( ?\(?\d+\)?)?)", re.I)
"""Matches the name that is given to the copy of a folder, such as ``cat (1)``, ``cat - Copy`` and ``cat_aug``."""

_JOINS = (r"\s*[|;,/+&]\s*", r"\s+(?:and\s+)?", "_(?:and_)?")
"""Patterns of what stands between the labels of an image that has several, as in ``scab rust`` and ``cat|dog``."""

_SHOWN = 4


class ClassWords(NamedTuple):
    """The words for the classes of a dataset, and notes on how they were found.

    Attributes:
        words: name of each class folder -> its words, in the order of the given names.
        notes: remarks on names that were translated or shortened, and on names that are probably not words.
    """

    words: dict[str, str]
    notes: tuple[str, ...]


def class_words(names: Sequence[str]) -> ClassWords:
    """Return words for prompts, made from the names of class folders.

    - A WordNet id becomes the name of its class. An id in front of words is dropped.
    - A number in front, also behind ``c`` or a word such as ``class``, is dropped if it only counts the classes: if it
      begins with 0 (``01_cat``), if a point follows it, or if the numbers of all classes run from 0 or 1 without a gap.
      A number that stands first is also dropped if every class has a different number.
    - A number stays if another class has the same words after its number (``2_door``, ``4_door``), or if no words
      follow it (``747-400``). A number before a hyphen stays too (``18-wheeler``), unless it begins with 0 or the
      numbers of all classes run from 0 or 1 without a gap.
    - Underscores, points, hyphens and CamelCase boundaries become spaces. A hyphen beside a single letter or a number
      stays (``t-shirt``, ``C-130``).
    - URL codes such as ``%20`` are decoded, and UTF-8 that was read in another encoding is repaired. A letter and its
      accent become one character. The words are in lower case, as CLIP's tokenizer reads them.
    """
    decoded = [_decoded(name) for name in names]
    ids = [_WORDNET.fullmatch(text) for text in decoded]
    alone = {found[1]: wordnet_word(found[1]) for found in ids if found and not found[2]}
    texts = [(found[2] or found[1]) if found else text for found, text in zip(ids, decoded, strict=True)]
    counted, guessed = _without_numbers(texts)
    words = [alone.get(text) or _plain_words(text) or name for name, text in zip(names, counted, strict=True)]
    notes = []
    if translated := [f"{wnid} -> {word}" for wnid, word in alone.items() if word]:
        notes.append(f"class names that are WordNet ids: {len(translated)}, translated as {_shown(translated)}")
    if guessed:
        notes.append(f"numbers in front of class names are left out: {_shown(guessed)}")
    if codes := [repr(word) for word in words if _CODE.fullmatch(word)]:
        notes.append(f"class names that may not describe an image: {_shown(codes)}; CLIP needs words that do")
    if unlabelled := [repr(word) for word in words if _NO_LABEL.fullmatch(word)]:
        notes.append(
            f"classes that may be images without a label, or leftovers: {_shown(unlabelled)}; if so, leave them out"
        )
    known = {*names}
    if joined := [repr(name) for name in names if _joins_others(name, known)]:
        what = f"classes whose names join those of other classes: {_shown(joined)}"
        notes.append(f"{what}; if their images have several labels, leave them out or give each image one label")
    spelled = defaultdict[str, list[str]](list)
    for word in words:
        spelled[re.sub(r"[\W_]|s$", "", word)].append(repr(word))
    if merged := [each for key, each in spelled.items() if len(each) > 1 and re.search(r"[^\W\d]{3}", key)]:
        alike = _shown([" and ".join(several) for several in merged])
        notes.append(f"classes that may be one, spelled in several ways: {alike}; if so, merge them")
    if copies := [repr(name) for name in names if (copy := _COPY.fullmatch(name)) and copy[1] in known]:
        notes.append(f"classes that may be copies of another class's folder: {_shown(copies)}")
    if foreign := [repr(word) for word in words if not _is_latin(word)]:
        notes.append(f"class words in another script: {_shown(foreign)}; most CLIPs have learned English words only")
    return ClassWords(dict(zip(names, words, strict=True)), tuple(notes))


def names_of_folders(names: Sequence[str]) -> str:
    """Return the names that are written as no caption writes them, such as ``apple_pie``, with the words for them.

    CamelCase counts as a word: ``AnnualCrop`` cannot be told from ``ThinkPad``.
    """

    def letters(name: str) -> str:
        return re.sub(r"\W", "", unicodedata.normalize("NFC", name).lower())

    words = class_words(names).words.items()
    found = [(name, word) for name, word in words if " " not in name and letters(name) != letters(word)]
    return _shown([f"{name!r} (rather {word!r})" for name, word in found])


def check_distinct(words: Sequence[str], names: Sequence[str]) -> None:
    """Raise ``ValueError`` if two classes have the same words, apart from upper and lower case and from spaces.

    ``names``: the class names in the data, for the message.
    """
    first: dict[str, int] = {}
    for label, (word, name) in enumerate(zip(words, names, strict=True)):
        if (twin := first.setdefault(" ".join(word.casefold().split()), label)) != label:
            other = names[twin]
            alike = unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", name)
            shown = ascii if alike else repr  # two encodings of the same letters
            what = f"the classes {shown(other)} and {shown(name)} would both be called {word!r}"
            raise ValueError(f"{what}; give them different words, or merge them")


def check_placeholders(prompts: list[str]) -> list[str]:
    """Return the prompts. Raise ``ValueError`` for one with ``{name}`` or ``{{}}``, which no class name replaces."""
    for prompt in prompts:
        if found := re.search(r"{ *\w* *}(?<!{})|{{+[^{}]*}+", prompt):
            raise ValueError(f"the prompt {prompt!r} has {found[0]}, but only {{}} is replaced by the class name")
    return prompts


@cache
def wordnet_word(wnid: str) -> str | None:
    """Return the word of a WordNet id, or ``None`` for an unknown id.

    For the 1,000 classes of ImageNet the word is open_clip's name of the class. For the 21,841 synsets of the whole
    ImageNet it is the synset's first lemma.
    """
    import open_clip
    from timm.data import ImageNetInfo  # open_clip has the names, and timm the ids

    ids = sorted(ImageNetInfo("imagenet-1k").label_names())
    if wnid in ids:
        return str(open_clip.IMAGENET_CLASSNAMES[ids.index(wnid)])
    every = ImageNetInfo("imagenet-22k")
    return every.label_name_to_description(wnid).split(",")[0] if wnid in every.label_names() else None


def _decoded(name: str) -> str:
    """Decode the URL codes in a name, remove invisible characters, and make a letter and its accent one character.

    UTF-8 that a program read in another encoding, such as ``KÃ¤se`` or ``K├ñse`` for ``Käse``, is repaired.
    """
    for encoding in ("cp1252", "cp437"):
        with suppress(UnicodeError):
            name = name.encode(encoding).decode()
    text = name = _INVISIBLE.sub("", name)
    if re.search("%[0-9A-Fa-f]{2}", name):
        with suppress(UnicodeDecodeError):
            text = unquote_plus(name, errors="strict")
    return unicodedata.normalize("NFC", text if text.isprintable() else name)


def _without_numbers(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the texts without numbers that only count the classes, and a note on each guess: ``12_cat -> cat``.

    A number is dropped without a note if it begins with 0 (``01_cat``), if a point follows it (``7.cat``), or if the
    numbers of all classes run from 0 or 1 without a gap. Any other number that stands first is dropped, with a note, if
    every class has a different number and no hyphen follows. :func:`class_words` says which numbers always stay.
    """
    found = [_NUMBERED.fullmatch(text) for text in texts]
    rests = Counter(match[3].casefold() for match in found if match)
    numbers = sorted(int(match[1]) for match in found if match)
    all_numbered = len(set(numbers)) == len(texts)
    counting = bool(numbers) and numbers[0] < 2 and numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    kept, guessed = [], []
    for text, match in zip(texts, found, strict=True):
        kept.append(text)
        if match is None or rests[match[3].casefold()] > 1 or not re.search(r"[^\W\d_]", match[3]):
            continue
        surely = "." in match[2] or (len(match[1]) > 1 and match[1].startswith("0")) or (all_numbered and counting)
        if surely or (all_numbered and match[2] != "-" and match.start(1) == 0):
            kept[-1] = match[3]
            guessed += [] if surely else [f"{text} -> {match[3]}"]
    return kept, guessed


def _plain_words(text: str) -> str:
    cases = "".join("U" if letter.isupper() else "l" if letter.islower() else letter for letter in text)
    ends = [match.start() for match in re.finditer("(?<=l)(?=U)|(?<=U)(?=Ull)", cases)]
    ends = [end for end in ends if not re.search(r"(?<![^\W\d_])(Mc|[a-z])$", text[:end])]  # McDonald, iPhone
    text = " ".join(text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True))
    tokens = re.sub(r"(?<!\d)\.|\.(?!\d)|[\s_]+", " ", text).split()
    return " ".join(" ".join(map(_hyphened, tokens)).split()).lower()


def _hyphened(token: str) -> str:
    """Replace hyphens by spaces, except those beside a single letter or a number."""
    if re.fullmatch(r"-\d+", token):
        return token
    parts = token.split("-")
    joined = parts[0]
    for left, right in pairwise(parts):
        stays = left and right and (1 in (len(left), len(right)) or re.search(r"\d", left + right))
        joined += ("-" if stays else " ") + right
    return joined


def _joins_others(name: str, names: set[str]) -> bool:
    return any(len(parts := re.split(join, name)) > 1 and names.issuperset(parts) for join in _JOINS)


def _is_latin(word: str) -> bool:
    return all("LATIN" in unicodedata.name(letter, "") for letter in word if letter.isalpha() and not letter.isascii())


def _shown(items: Sequence[str]) -> str:
    return ", ".join(items[:_SHOWN]) + (f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")
