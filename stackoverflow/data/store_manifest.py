"""The manifest of a token store: which files it has, and their checksums."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from stackoverflow.data.sources import SPLITS
from tff_agg.privacy.releases import Release

FORMAT = "token-store"
VERSION = 1
MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.json"
USERS = "users.arrow"


class TokenStoreError(ValueError):
    """A folder is not a token store, or is one that has been damaged."""


def part_name(part: int) -> str:
    """Returns the file name of a part."""
    return f"part-{part:05d}.arrow"


def file_sha256(path: str) -> str:
    """Returns the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_sha256(manifest: Mapping[str, object]) -> str:
    """Returns the checksum of a manifest, its own `sha256` entry left out."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: str) -> dict[str, Any]:
    """Reads and checks the manifest of the store in the folder `path`."""
    file = os.path.join(path, MANIFEST)
    try:
        with open(file, encoding="utf-8") as text:
            manifest = json.load(text)
    except FileNotFoundError as error:
        raise TokenStoreError(
            f"{path}: no token store here ({MANIFEST} is missing); make one with "
            "python -m stackoverflow prepare"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TokenStoreError(f"{file}: damaged, not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise TokenStoreError(f"{file}: not the manifest of a token store")
    if manifest.get("version") != VERSION:
        raise TokenStoreError(
            f"{file}: version {manifest.get('version')}, this code reads {VERSION}"
        )
    if manifest.get("sha256") != manifest_sha256(manifest):
        raise TokenStoreError(f"{file}: damaged or edited, its checksum is wrong")
    # Anybody can make a checksum: what the store relies on is checked as well.
    try:
        _check_entries(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TokenStoreError(f"{file}: damaged or edited ({error!r})") from error
    return manifest


def _check_entries(manifest: Mapping[str, Any]) -> None:
    """Raises unless the entries of a manifest have the form that `prepare` writes."""
    written = manifest["files"]
    parts = len(written) - 2
    names = {USERS, VOCABULARY, *map(part_name, range(parts))}
    if other := set(written) - names:
        raise ValueError(f"files {sorted(other)}, which no store has")
    for entry in written.values():
        if type(entry["bytes"]) is not int or type(entry["sha256"]) is not str:
            raise TypeError(f"{entry} is no size and checksum")
    if type(manifest["max_tokens"]) is not int or manifest["max_tokens"] < 1:
        raise ValueError(f"max_tokens={manifest['max_tokens']!r}")
    for split in SPLITS:
        for name, value in manifest["summary"][split].items():
            if type(value) not in (int, float):
                raise TypeError(f"{name}={value!r} in the summary")
    if type(manifest["config"]) is not dict:
        raise TypeError("config is no object")
    if "vocabulary_release" in manifest:
        Release.from_json(manifest["vocabulary_release"])


def check_sha256(path: str, name: str, expected: str) -> None:
    """Raises a TokenStoreError if a file is not the one in the manifest."""
    if file_sha256(os.path.join(path, name)) != expected:
        raise TokenStoreError(
            f"{path}: {name} is damaged, its checksum is wrong; prepare the store again"
        )
