# SPDX-License-Identifier: Apache-2.0
"""Recovery after a failure, decided on the controller."""
