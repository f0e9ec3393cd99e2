"""Every benchmark in turn; the exit status says whether all reached their numbers."""

import sys

from benchmarks import (
    baselines_speed,
    bench_lotte,
    claim_lotte,
    compress_speed,
    cuda_speed,
    filings,
    growth,
    maxsim_speed,
    mpdocvqa,
    search_speed,
    serve_load,
    words_speed,
)

SCRIPTS = (
    maxsim_speed,
    search_speed,
    compress_speed,
    cuda_speed,
    baselines_speed,
    growth,
    words_speed,
    claim_lotte,
    bench_lotte,
    mpdocvqa,
    filings,
    serve_load,
)

sys.exit(max(script.main() for script in SCRIPTS))
