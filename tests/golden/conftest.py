"""What the studies' tests have, too."""

from tests.studies.conftest import tiny_scale, token_store

__all__ = ["tiny_scale", "token_store"]
