"""The order of the suite: what is quick first, then the longest files of the rest."""

import collections


def pytest_collection_modifyitems(items):
    """Puts files with slow tests last, those with the most of them before the others.

    Failures of the quick tests show in the first minutes, and the processes that share
    the suite (by file, in this order) end at about the same time.
    """
    slow = collections.Counter(
        item.path for item in items if item.get_closest_marker("slow")
    )
    items.sort(key=lambda item: (slow[item.path] > 0, -slow[item.path]))
