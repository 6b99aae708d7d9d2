# SPDX-License-Identifier: Apache-2.0
"""Code of the controller: Python 3.11 or newer, libraries of requirements.txt."""
