# SPDX-License-Identifier: Apache-2.0
"""Programs that live on a node during a run."""
