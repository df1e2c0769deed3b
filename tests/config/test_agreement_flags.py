"""The flags that a node's refusal names are those that set the values."""

from __future__ import annotations

from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.core.cluster.settings_agreement import FLAGS


def test_the_flags_of_a_refusal_are_there():
    by_path = {setting.path: setting.flag for setting in RUN_SETTINGS if setting.path}
    assert {path: flag for path, flag in FLAGS.items() if path in by_path} == {
        path: by_path[path] for path in FLAGS if path in by_path
    }
    own = {flag for path, flag in FLAGS.items() if path not in by_path}
    assert own == {
        "--job-id", "--nproc-per-node", "--nnodes MIN", "--nnodes MAX", "--rdzv-conf join_timeout",
        "--rdzv-conf last_call_timeout", "--rdzv-conf replacement_group_size",
    }  # fmt: skip
