# SPDX-License-Identifier: Apache-2.0
"""What runs on the controller only: Python 3.11 or newer, libraries of requirements.txt."""
