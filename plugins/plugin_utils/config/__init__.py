# SPDX-License-Identifier: Apache-2.0
"""The inventory as Ansible reads it, for the judgement of job and site."""
