#!/bin/sh
# The same command on each of NODES machines, which all see the folders SHARDS and RUN.
#   NODES=2 HEAD=first-machine sh machines.sh SHARDS RUN
# HEAD is the name of any one of them, by which the others reach it on port 29500.
# --resume: goes on if RUN holds a checkpoint, begins if not. So it is right on every start.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1   # after a restart nobody reads the addresses of the dead
exec torchrun --nnodes "$NODES" --nproc-per-node gpu --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" --rdzv-id glassgpt \
    -m glassgpt train --data "$1" --out "$2" --recipe gpt2 --shape gpt2-xl --steps 19000 \
    --micro-batch-size 4 --precision bfloat16 --parallel fsdp --resume
