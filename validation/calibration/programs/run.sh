# 4 GPUs of one machine, about 230 seconds (the first attempt pinned to no core, and the profiler slowed what came after it). Twelve host-bound programs: one traced configuration and three others of each.
here=$(cd "$(dirname "$0")" && pwd); cd "$here/../../.."  # the root of the repository
programs=validation.calibration.programs
PY=${PY:-python3}
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false NCCL_NVLS_ENABLE=0
work=$(mktemp -d); mkdir -p "$work/single" "$work/many"
cores=$(nproc --all); part=$((cores / 4))
begin=$(date +%s)
single() {  # GPU PROGRAMS...
  gpu=$1; shift
  for p in "$@"; do
    CUDA_VISIBLE_DEVICES=$gpu timeout 80 taskset -c $((gpu * part))-$((gpu * part + part - 1)) \
      $PY -m $programs.$p base $($PY - "$here/$p" <<'P'
import re, sys
text = open(sys.argv[1] + ".py").read().rsplit("main(", 1)[1]
print(" ".join(name for name in re.findall(r'"(\w+)": dict', text) if name not in ("base", "two")))
P
) --trace "$work/single" >> "$work/times.$gpu.jsonl" 2> "$work/$p.err" || echo "$p failed $?" >> "$work/failed"
  done
}
single 0 gpt messages & single 1 bert decode & single 2 rnn cifar & single 3 policy accumulate & wait
echo "single $(($(date +%s) - begin)) s" >> "$work/wall"
many() {  # GPUS PORT NAME ARGUMENTS...
  gpus=$1 port=$2 p=$3; shift 3
  n=$(echo "$gpus" | tr ',' ' ' | wc -w)
  CUDA_VISIBLE_DEVICES=$gpus timeout 60 $PY -m torch.distributed.run --nproc-per-node $n --master-port $port -m $programs.$p "$@" \
    >> "$work/times.$p.$n.jsonl" 2> "$work/$p.$n.err" || echo "$p $n failed $?" >> "$work/failed"
}
many 0,1,2,3 29600 ddp base deep many --trace "$work/many" --all-ranks
many 0,1,2,3 29601 fsdp base deep long --trace "$work/many"
many 0,1,2,3 29602 tensor base deep sequence --trace "$work/many"
many 0,1,2,3 29603 pipeline base deep gpipe --trace "$work/many" --all-ranks
echo "four $(($(date +%s) - begin)) s" >> "$work/wall"
many 0,1 29604 ddp two & many 2,3 29605 fsdp two & wait
many 0,1 29606 tensor two & many 2,3 29607 pipeline two & wait
echo "all $(($(date +%s) - begin)) s" >> "$work/wall"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader > "$work/machine"; lscpu >> "$work/machine"
cd "$work"
cat times.*.jsonl > "$OUT/times.jsonl"
tar cf "$OUT/logs.tar" *.err failed wall machine 2>/dev/null
tar cf "$OUT/single_plain.tar" single/*.plain.*; tar cf "$OUT/single_stack.tar" single/*.stack.*
tar cf "$OUT/many_plain.tar" many/*.plain.*; tar cf "$OUT/many_stack.tar" many/*.stack.*
cat wall failed 2>/dev/null; ls -la "$OUT"
