# SPDX-License-Identifier: Apache-2.0
"""Reports and figures of a run, made on the controller."""
