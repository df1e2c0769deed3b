#!/usr/bin/env bash
# Runs the check that Slurm's prolog runs (BCM_HEALTHCHECK), and says in JSON whether the node is healthy.
# The check may expect variables that only a prolog has: they are set here if they are unset. Its own output goes to
# stderr, so that only the JSON is on stdout.
set -u
check=${BCM_HEALTHCHECK:-/cm/local/apps/cmd/scripts/healthchecks/bcm-healthcheck}
export SLURM_JOB_ID=${SLURM_JOB_ID:-0}
export SLURM_JOB_USER=${SLURM_JOB_USER:-root}
export SLURM_JOB_UID=${SLURM_JOB_UID:-0}
export SLURMD_NODENAME=${SLURMD_NODENAME:-$(hostname -s)}
export SLURM_SCRIPT_CONTEXT=${SLURM_SCRIPT_CONTEXT:-prolog_slurmd}
if "$check" "$@" >&2; then
    printf '{"fail_count": 0, "failed_checks": []}\n'
else
    printf '{"fail_count": 1, "failed_checks": ["bcm_healthcheck"]}\n'
    exit 1
fi
