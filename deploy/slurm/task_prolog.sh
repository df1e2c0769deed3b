#!/bin/bash
# Slurm's TaskProlog: tells the job's tasks where the supervisor is that the prolog started. It runs as the job's user,
# and Slurm reads its output. If no supervisor serves, `holdfast run` is its own supervisor.
#
# In slurm.conf: TaskProlog=/etc/slurm/holdfast/task_prolog.sh

. "${0%/*}/settings" || exit 0
folder=$PLACE/$SLURM_JOB_ID
# A supervisor that serves holds its lock.
if [ -S "$folder/control.sock" ] && ! flock --nonblock "$folder/supervisor.lock" true; then
    echo "export HOLDFAST_SOCKET_DIR=$folder"
elif [[ ${HOLDFAST_SOCKET_DIR-} = "$PLACE"/* ]]; then
    # srun took it from the batch script on the first node, or sbatch from the job that submitted this one.
    echo "unset HOLDFAST_SOCKET_DIR"
fi
exit 0
