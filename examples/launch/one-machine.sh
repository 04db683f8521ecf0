#!/bin/sh
# All GPUs of this machine train one model.   sh one-machine.sh SHARDS RUN
# If a process dies, all are started again, up to 3 times, and go on from the last checkpoint.
exec torchrun --standalone --nproc-per-node gpu --max-restarts 3 \
    -m glassgpt train --data "$1" --out "$2" --recipe gpt2 --shape gpt2 --steps 19000 \
    --micro-batch-size 16 --precision bfloat16
