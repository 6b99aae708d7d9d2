# SPDX-License-Identifier: Apache-2.0
"""Metrics and notifications while runs go on."""
