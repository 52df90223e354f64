
# Below is the same for every study: Ray on each node of the job, then the command on the first.
umask 077
job=$folder/$SLURM_JOB_ID
trap : TERM                                    # of scancel: the command has it too, and ends
trap '[ "$study" ] && kill "$study"' USR1      # Slurm sends it when the time limit comes near
trap 'rm -f "$job.token"' EXIT

# Who can reach a port of Ray can run code there: with the token of this job alone.
"$python" -c 'import secrets; print(secrets.token_hex(32))' > "$job.token"
unset RAY_AUTH_TOKEN
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$job.token RAY_USAGE_STATS_ENABLED=0 RAY_TMPDIR=${RAY_TMPDIR:-/tmp}

name=$(scontrol --oneliner show node "$SLURMD_NODENAME" | sed 's/.* NodeAddr=\([^ ]*\).*/\1/')
host=$(getent ahostsv4 "$name" | sed 's/ .*//; q')
port=$((20000 + SLURM_JOB_ID % 10000))
export python host port RAY_ADDRESS=$host:$port BISECT_CFG_RAY_NODES=$SLURM_JOB_NUM_NODES

srun --overlap --cpu-bind=none --ntasks-per-node=1 bash -c '
    until_there() { until (: > "/dev/tcp/$host/$port") 2> /dev/null; do sleep 0.5; done; }
    role="--head --port=$port --node-ip-address=$host --include-dashboard=false"
    [ "$SLURM_NODEID" = 0 ] || { until_there; role=--address=$RAY_ADDRESS; }
    exec "$python" -P -m ray.scripts.scripts start --block $role --disable-usage-stats \
        --num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --min-worker-port=0 --max-worker-port=0
' &
ray=$!
until (: > "/dev/tcp/$host/$port") 2> /dev/null || ! kill -0 "$ray" 2> /dev/null; do sleep 0.5; done

"${command[@]}" >> "$job.out" 2>> "$job.err" &
study=$!
while kill -0 "$study" 2> /dev/null; do wait "$study"; done    # a signal ends the wait, not the command
wait "$study"
status=$?
echo "$status" > "$job.status"
kill "$ray" 2> /dev/null && wait "$ray"
exit "$status"
