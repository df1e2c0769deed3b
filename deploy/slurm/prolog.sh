#!/bin/bash
# Slurm's Prolog: starts a supervisor for the job on this node, as the job's user, if the job asks for one. The epilog
# ends it.
#
# In slurm.conf: Prolog=/etc/slurm/holdfast/prolog.sh and PrologFlags=Alloc, so that each node has one before the job's
# first step. Slurm drains a node whose prolog fails, so this one ends with 0 unless the settings say otherwise.
#
# Root opens nothing in the job's folder: it belongs to the user, who may put links there.

export PATH=/usr/sbin:/usr/bin:/sbin:/bin # Slurm sets none for a prolog
umask 022
here=${0%/*}
. "$here/settings" || exit 0
folder=$PLACE/$SLURM_JOB_ID

fail() {
    logger -t holdfast-prolog -- "job $SLURM_JOB_ID: $1" 2> /dev/null
    [ -z "$LOG" ] || echo "$(date +%FT%T%z) prolog: job $SLURM_JOB_ID on $SLURMD_NODENAME: $1" >> "$LOG"
    [ "$REQUIRED" = yes ] && exit 1
    exit 0
}

# Runs as the job's user. If the supervisor is killed, its successor continues with the job's ranks.
serve() {
    exec > "$folder/log" 2>&1
    cd /
    until "$HOLDFAST" daemon --socket-dir "$folder"; do
        case $? in 2 | 78) break ;; esac # wrong usage, wrong configuration
        sleep 0.1 # short: a job on several nodes continues only if its supervisor is back within 4 s
    done
}

if [ "$1" = serve ]; then
    serve
    exit
fi

[[ $JOBS = all || " ${SLURM_JOB_COMMENT-} " = *" holdfast "* ]] || exit 0
[ -x "$HOLDFAST" ] || fail "cannot start a supervisor: no $HOLDFAST; install Holdfast there, or set HOLDFAST in $here/settings"
entry=$(getent passwd "$SLURM_JOB_UID") || fail "cannot start a supervisor: this node knows no user $SLURM_JOB_UID"
IFS=: read -r user _ uid gid _ home _ <<< "$entry"
umount -l "$folder" 2> /dev/null # left by an earlier prolog of the job
mkdir -p -m 711 "$PLACE" && rm -rf "$folder" && mkdir -m 700 "$folder" ||
    fail "cannot start a supervisor: cannot make $folder"
# A file system of its own, so that the user fills PLACE for nobody else. Below it, the folder stays root's. A container
# may not mount one.
room=size=64m,nr_inodes=16k,mode=0700,nosuid,nodev
mount -t tmpfs -o "$room,uid=$uid,gid=$gid" holdfast "$folder" 2> /dev/null || chown "$uid:$gid" "$folder" ||
    fail "cannot start a supervisor: cannot give $folder to user $uid"
as_user=(setpriv --reuid "$uid" --regid "$gid" --init-groups env -i PATH="$PATH" HOME="$home" USER="$user"
    LOGNAME="$user" LANG=C.UTF-8 SLURM_JOB_ID="$SLURM_JOB_ID" HOLDFAST_SUPERVISOR_OF="$SLURM_JOB_ID")

# In a separate session: Slurm kills what is left in the prolog's. The epilog finds it by the job's number. slurmd is
# protected from the kernel's OOM killer; a job must not be, nor be able to become so: only root lowers the least value.
(
    echo 0 > /proc/self/oom_score_adj
    exec setsid --fork "${as_user[@]}" "$0" serve
) < /dev/null > /dev/null 2>&1

for ((tries = READY_S * 20; tries > 0; tries--)); do
    [ -S "$folder/control.sock" ] && exit 0
    sleep 0.05
done
# The user may have put anything in the log's place, and may stop or trace the process that reads it.
last=$(timeout -k 1 2 "${as_user[@]}" tail -c 500 "$folder/log" < /dev/null 2> /dev/null | timeout 4 tail -n 1 |
    tr -cd '[:print:]')
fail "no supervisor within $READY_S s: $last"
