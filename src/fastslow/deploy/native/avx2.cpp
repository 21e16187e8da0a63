// x86-64 with AVX2 and FMA (since 2013). The target is set after the standard headers, whose inline functions must
// stay at the baseline.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <limits>

#include "program.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

#define WIDTH 8
#define ISA_AVX2
#define NAME "avx2"
#define TABLE avx2_kernels
#include "kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
