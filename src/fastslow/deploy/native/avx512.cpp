// x86-64 with AVX-512 and VPOPCNTDQ (Ice Lake and Zen 4 onwards).
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <limits>

#include "program.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,prefer-vector-width=512")
#endif

#define WIDTH 16
#define ISA_AVX512
#define NAME "avx512"
#define TABLE avx512_kernels
#include "kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
