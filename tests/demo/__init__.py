# SPDX-License-Identifier: Apache-2.0
"""The main job, from a recorded machine to a running server: ``tox -e demo``.
"""
