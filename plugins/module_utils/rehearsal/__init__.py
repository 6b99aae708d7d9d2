# SPDX-License-Identifier: Apache-2.0
"""The rehearsal: a short all-reduce before the training."""
