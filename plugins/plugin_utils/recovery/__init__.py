# SPDX-License-Identifier: Apache-2.0
"""What goes on after a failure, decided on the controller."""
