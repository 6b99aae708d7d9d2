# SPDX-License-Identifier: Apache-2.0
"""The two directories of the controller: the product's, and the one of the user's runs."""

from __future__ import annotations

import os

# Through the collection's links: the checkout, or the collection that was installed.
PRODUCT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
)


def project_dir() -> str:
    """Return the directory where runs/ and the site's relative paths begin.

    It is the product's. The command `trainyard` sets TRAINYARD_PROJECT if a site lies elsewhere.
    """
    return os.environ.get("TRAINYARD_PROJECT") or PRODUCT
