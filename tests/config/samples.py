"""Three different values, as text, for every setting in the specification; none of them is the default."""

from __future__ import annotations

from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.setting import Setting

SAMPLES: dict[str, tuple[str, str, str]] = {
    "--python": ("/opt/a/python", "/opt/b/python", "/opt/c/python"),
    "--role": ("trainer", "reader", "writer"),
    "--on-sigterm": ("leave", "stop", "leave"),
    "--spawn-method": ("exec", "fork", "exec"),
    "--preload": ("none", "torch", "torch,numpy"),
    "--max-restarts": ("1", "2", "3"),
    "--workers-stop-timeout": ("1", "2.5", "0"),
    "--term-timeout": ("1", "2.5", "0"),
    "--signals-to-handle": ("SIGTERM", "SIGTERM,SIGUSR1", "SIGINT"),
    "--completion-grace-s": ("1", "2.5", "0"),
    "--evidence-budget-s": ("1", "2.5", "0"),
    "--log-dir": ("/logs/a", "/logs/b", "/logs/c"),
    "--redirects": ("1", "0:1,1:3", "3"),
    "--tee": ("2", "0:2", "3"),
    "--local-ranks-filter": ("0", "0,1", "1"),
    "--rdzv-id": ("a", "b", "c"),
    "--master-addr": ("10.0.0.1", "localhost", "::1"),
    "--master-port": ("29500", "29501", "29502"),
    "--store-ports": ("20000-20999", "1024-1153", "60000-65535"),
    "--keep-ranks": ("true", "true", "true"),
    "--elastic": ("true", "true", "true"),
    "--ft-segment": ("2", "4", "8"),
    "--ft-enable-log-server": ("true", "true", "true"),
    "--ft-log-server-port": ("1", "40000", "65000"),
    "--ft-log-aggregator-count": ("1", "2", "7"),
    "--ft-log-leaf-max-queue-chunks": ("0", "64", "1000"),
    "--ft-log-server-log-prefix": ("/g/a", "/g/b.log", "/g/c"),
    "--ft-log-server-graceful-shutdown-timeout": ("0", "1.5", "600"),
    "--ft-nvrx-logfile": ("/n/a.log", "/n/b", "/n/c.txt"),
    "--ft-cycle-info-dir": ("/c/a", "/c/b", "/c/c"),
    "--ft-per-cycle-applog-prefix": ("/l/a.log", "/l/b", "/l/c.txt"),
    "--ft-attribution-endpoint": ("http://h:8000", "https://h/base", "grpc://h:1"),
    "--ft-attribution-stop-action": ("no-restart", "no-restart", "no-restart"),
    "--ft-attribution-startup-timeout": ("1", "2.5", "60"),
    "--ft-attribution-llm-api-key-file": ("/k/a", "/k/b", "/k/c"),
    "--ft-attribution-llm-base-url": ("http://m/v1", "https://m", "http://m:1"),
    "--ft-attribution-llm-model": ("none", "a/b", "c"),
    "--ft-attribution-log-level": ("debug", "warning", "debug"),
    "--ft-attribution-export-url": ("http://e/x", "https://e", "http://e:1"),
    "--ft-restart-policy": ("min-healthy", "min-healthy", "min-healthy"),
    "--ft-no-restart-exit-code": ("94", "95", "96"),
    "--ft-max-no-progress-cycles": ("0", "5", "7"),
    "--ft-min-progress-iterations": ("10", "20", "30"),
    "--ft-checkpoint-iteration-file": ("/a", "/b", "/c"),
    "--ft-initial-rank-heartbeat-timeout": ("60", "90.5", "600"),
    "--ft-rank-heartbeat-timeout": ("none", "90.5", "600"),
    "--ft-rank-section-timeouts": ("setup:60", "setup:60,step:none", "step:0.5"),
    "--ft-rank-out-of-section-timeout": ("60", "90.5", "600"),
    "--ft-auto-heartbeat-timeout": ("60", "90.5", "600"),
    "--ft-num-warmup-iterations": ("0", "1", "2"),
    "--ft-safety-factor": ("1", "2.5", "3"),
    "--ft-workload-check-interval": ("0.5", "5", "30"),
    "--ft-rank-termination-signal": ("SIGTERM", "SIGABRT", "SIGINT"),
    "--ft-install-exception-hook": ("true", "true", "true"),
    "--ft-node-health-check-endpoint": ("/run/a.sock", "/run/b.sock", "/run/c.sock"),
    "--ft-node-health-check-policy": ("strict", "tolerant", "strict"),
    "--ft-node-health-check-interval": ("1", "10", "60"),
    "--ft-enable-nic-healthcheck": ("false", "false", "false"),
    "--ft-enable-nic-monitor": ("true", "true", "true"),
    "--ft-link-state-path-template": ("/a/{nic}/state", "/b/{nic}", "/c/{nic}"),
    "--ft-link-down-path-template": ("/a/{nic}/downs", "/b/{nic}", "/c/{nic}"),
    "--numa-binding": ("node", "node", "node"),
    "--ft-gpu-memory-reclaim-timeout": ("0", "20", "60"),
    "--ft-gpu-memory-tolerance-mb": ("0", "1024", "256.5"),
    "--ft-gpu-memory-poll-interval": ("1", "0.5", "5"),
    "--ft-enable-dist-storage-healthcheck": ("true", "true", "true"),
    "--ft-storage-health-check-path": ("/a,/b", "/c", "/d"),
    "--ft-numa-bind-strict": ("false", "false", "false"),
}

# Variables that must also be set.
NEEDED: dict[str, dict[str, str]] = {
    "--ft-attribution-endpoint": {"PET_FT_PER_CYCLE_APPLOG_PREFIX": "/l/t.log"},
    "--ft-segment": {
        "PET_NNODES": "8", "PET_RDZV_ENDPOINT": "127.0.0.1:1", "PET_RDZV_ID": "j", "PET_RDZV_CONF": "nvlink_domain=d",
    },
}  # fmt: skip

SETTINGS: tuple[Setting, ...] = tuple(setting for setting in RUN_SETTINGS if setting.path)
SECTION_SETTINGS: tuple[Setting, ...] = tuple(setting for setting in SETTINGS if setting.keys)
