#!/usr/bin/env bash
# All recipes of tasks on a GPU that others use, too. From the repository's root:
#
#   SHARED=../shared/data DATA=prepared bash recipes/run_tasks.sh prepare     # on any machine, two minutes; 36 MB
#   DATA=prepared OUT=out bash recipes/run_tasks.sh ship                      # 9 minutes, three processes at once
#   DATA=prepared OUT=out bash recipes/run_tasks.sh compare                   # 7 minutes, four processes at once
#   OUT=out TO=results bash recipes/run_tasks.sh collect                      # four archives of what is worth keeping
#   SHARED=../shared/data DATA=prepared OUT=out bash recipes/run_tasks.sh score   # on any machine with sacrebleu, rouge-score
#
# Every result is on disk when it is made; what a time limit cuts off is only what was not reached, and `collect`
# puts into archives of less than 16 MB what there is: end `ship` with `timeout` and collect afterwards. MINUTES sets how long a translation model is trained. `ship` is the more important half: the
# English-French model, SST-2, email subjects and the adapter; `compare` has the translation benchmark beside an
# encoder-decoder, zero-shot summaries and sample efficiency.
set -u
P=${PYTHON:-python3}
R=recipes
export PYTHONPATH=${PYTHONPATH:-src} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

prepare() {
  mkdir -p "$DATA"
  $P $R/translation/prepare.py tatoeba "$SHARED/translation" -o "$DATA"
  $P $R/translation/prepare.py benchmark "$SHARED/translation" -o "$DATA"
  $P $R/summarisation/prepare.py "$SHARED/summarisation" -o "$DATA"
  $P $R/classification/prepare.py "$SHARED/classification" -o "$DATA"
}

translator() {
  $P $R/translation/train.py "$DATA" tatoeba --shape 7x320x5 --dropout 0.2 --minutes "${MINUTES:-6.5}" --out "$OUT/en-fr" &&
  $P $R/translation/translate.py "$OUT/en-fr/model" "$DATA/tatoeba.test.tsv" --out "$OUT/en-fr" &&
  $P $R/translation/translate.py "$OUT/en-fr/model" "$DATA/tatoeba.test.tsv" --beams 4 --limit 1000 --out "$OUT/en-fr"
}

classifier() {
  $P $R/classification/train.py "$DATA" --lr 1e-4 2e-4 5e-5 --epochs 3 --minutes 1.8 --out "$OUT/sst2" &&
  $P $R/classification/train.py "$DATA" --muon --lr 1e-4 --epochs 3 --minutes 1.8 --out "$OUT/sst2" &&
  $P $R/sample_efficiency/run.py "$DATA" classification --out "$OUT/efficiency"
}

summariser() {
  $P $R/summarisation/train.py "$DATA" aeslc --epochs 4 --matrix-lr 2e-3 1e-3 4e-3 --minutes 1 --out "$OUT/subject" &&
  $P $R/summarisation/train.py "$DATA" wiki --lora --epochs 2 --minutes 3 --beam-limit 50 --out "$OUT/summarize"
}

benchmark() {
  $P $R/translation/train.py "$DATA" benchmark --to fr --shape 6x384x6 --dropout 0.3 --minutes "${MINUTES:-5}" --out "$OUT/benchmark" &&
  $P $R/translation/translate.py "$OUT/benchmark/model" "$DATA/benchmark.test.tsv" --to fr --out "$OUT/benchmark" &&
  $P $R/translation/translate.py "$OUT/benchmark/model" "$DATA/benchmark.test.tsv" --to fr --beams 4 --out "$OUT/benchmark"
}

encoder_decoder() {
  $P $R/translation/encoder_decoder.py "$DATA" benchmark --shape 3x360x9 --dropout 0.3 --minutes "${MINUTES:-5}" --out "$OUT/encoder-decoder"
}

zero_shot() {
  $P $R/summarisation/train.py "$DATA" wiki --zero-shot --out "$OUT/summarize"
  $P $R/summarisation/train.py "$DATA" aeslc --zero-shot --limit 500 --out "$OUT/subject"
}

efficiency() {
  $P $R/sample_efficiency/run.py "$DATA" classification --out "$OUT/efficiency" &
  $P $R/sample_efficiency/run.py "$DATA" summarisation --out "$OUT/efficiency"
  wait
}

lane() {
  mkdir -p "$OUT"
  "$1" > "$OUT/$1.log" 2>&1 &
}

collect() {
  mkdir -p "$TO"
  for part in en-fr/model summarize/adapter benchmark/model; do
    [ -d "$OUT/$part" ] && tar -C "$OUT" -cf "$TO/${part%%/*}.tar" "$part"
  done
  tar -C "$OUT" -czf "$TO/texts.tar.gz" --exclude=model --exclude=adapter .
  ls -l "$TO"
}

score() {
  $P $R/translation/score.py "$OUT/en-fr" "$DATA/tatoeba.test.tsv"
  $P $R/translation/score.py "$OUT/benchmark" "$DATA/benchmark.test.tsv"
  $P $R/translation/score.py "$OUT/encoder-decoder" "$DATA/benchmark.test.tsv"
  $P $R/translation/everyday.py "$OUT/en-fr/model" > "$OUT/en-fr/everyday.md"
  $P $R/summarisation/score.py "$OUT/subject" aeslc "$DATA/aeslc.test.jsonl"
  $P $R/summarisation/score.py "$OUT/summarize" wiki "$DATA/wiki.test.jsonl"
  $P $R/classification/bag_of_words.py "$SHARED/classification"
  $P $R/sample_efficiency/picture.py "$OUT/efficiency" "$DATA/aeslc.test.jsonl"
}

case ${1:-} in
  prepare | score | collect) "$1" ;;
  ship) lane translator; lane classifier; lane summariser; wait ;;
  compare) lane benchmark; lane encoder_decoder; lane zero_shot; lane efficiency; wait ;;
  *) echo "run_tasks.sh: say prepare, ship, compare, collect or score, not '${1:-}'. The first lines of the file explain them." >&2; exit 2 ;;
esac
