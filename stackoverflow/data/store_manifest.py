"""The manifest of a token store: which files it has, and their checksums."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

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
            "python -m stackoverflow.prepare"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TokenStoreError(f"{file}: damaged, not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise TokenStoreError(f"{file}: not the manifest of a token store")
    if manifest.get("version") != VERSION:
        raise TokenStoreError(
            f"{file}: version {manifest.get('version')}, this code reads {VERSION}"
        )
    if manifest.get("sha256") != manifest_sha256(manifest):
        raise TokenStoreError(f"{file}: damaged or edited, its checksum is wrong")
    return manifest


def check_sha256(path: str, name: str, expected: str) -> None:
    """Raises a TokenStoreError if a file is not the one in the manifest."""
    if file_sha256(os.path.join(path, name)) != expected:
        raise TokenStoreError(
            f"{path}: {name} is damaged, its checksum is wrong; prepare the store again"
        )
