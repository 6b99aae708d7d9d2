# SPDX-License-Identifier: Apache-2.0
"""Files, locks, units, processes and text that every other package uses."""
