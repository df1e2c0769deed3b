#!/bin/bash
# Slurm's TaskProlog: tells the job's tasks where the supervisor is that the prolog has started. It runs as the job's user,
# and Slurm reads what it prints. Where no supervisor serves, it says nothing: `holdfast run` is then its own.
#
# In slurm.conf: TaskProlog=/etc/slurm/holdfast/task_prolog.sh

. "${0%/*}/settings" || exit 0
folder=$PLACE/$SLURM_JOB_ID
# A supervisor that serves holds its lock.
if [ -S "$folder/control.sock" ] && ! flock --nonblock "$folder/supervisor.lock" true; then
    echo "export HOLDFAST_SOCKET_DIR=$folder"
fi
exit 0
