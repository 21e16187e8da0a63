// The slow-net on the CPU, for d_model 1 and float32, behind a plain C interface (no Python, no torch).
//
// Every kernel is compiled for several instruction sets and the best one that the machine has is chosen at run time, so
// one build serves every machine.

#include "common.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace fastslow {

namespace portable {
#define LANES 4
#define TARGET
#include "kernels.inc"
#undef LANES
#undef TARGET
}  // namespace portable

#if defined(__x86_64__)
#define FASTSLOW_X86
namespace avx2 {
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#include "kernels.inc"
#undef LANES
#undef TARGET
}  // namespace avx2

namespace avx512 {
#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")))
#include "kernels.inc"
#undef LANES
#undef TARGET
}  // namespace avx512
#endif

enum Level { PORTABLE = 0, AVX2 = 1, AVX512 = 2 };

int best_level() {
#ifdef FASTSLOW_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return PORTABLE;
}

template <typename Call>
bool dispatch(int level, int states, int taps, const Call& call) {
#ifdef FASTSLOW_X86
    if (level == AVX512) return avx512::run(states, taps, call);
    if (level == AVX2) return avx2::run(states, taps, call);
#endif
    return portable::run(states, taps, call);
}

}  // namespace fastslow

using namespace fastslow;

#define EXPORT extern "C" __attribute__((visibility("default")))

// 0: portable, 1: AVX2, 2: AVX-512. Kernels take any level up to this one.
EXPORT int fastslow_best_level() { return best_level(); }

// The states and taps that kernels are compiled for are 4 or 16, and 4 or 8. Returns 0 if it ran.
EXPORT int fastslow_per_weight(int level, int threads, int channels, int states, int taps, int zoh,
                               const float* records, float token_weight, const float* history, int64_t weights,
                               int tokens, const Task* tasks, int task_count, float* out, const float* cotangent,
                               double* partial) {
    PerWeightCall call{{records, token_weight, channels, zoh != 0},
                       history,
                       static_cast<size_t>(weights),
                       tokens,
                       tasks,
                       task_count,
                       threads,
                       out,
                       cotangent,
                       partial};
    return dispatch(level, states, taps, call) ? 0 : 1;
}

// The same for one sequence a layer; 16 states. Layers are taken in the order given: the largest first is quickest.
EXPORT int fastslow_concat(int level, int threads, int channels, int taps, int zoh, const float* records,
                           float token_weight, const float* history, int64_t weights, int rows, const Layer* layers,
                           int layer_count, float* out, const float* cotangent, double* partial) {
    ConcatCall call{{records, token_weight, channels, zoh != 0},
                    history,
                    static_cast<size_t>(weights),
                    rows,
                    layers,
                    layer_count,
                    threads,
                    out,
                    cotangent,
                    partial};
    return dispatch(level, 16, taps, call) ? 0 : 1;
}
