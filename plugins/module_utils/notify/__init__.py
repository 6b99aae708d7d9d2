# SPDX-License-Identifier: Apache-2.0
"""Messages about a run's events to the receivers of a site, from its controller or its nodes."""
